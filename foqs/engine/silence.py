"""A database that does not answer: no request waits for it any longer.

After `hang_ms`, unsent work goes to another shard, or is refused: UNAVAILABLE, and nothing of it happens later.
In a second `hang_ms` the host may find out the outcome of sent work over another connection. Then that outcome is
unknown to the callers. The host finds it out when the database answers, for its own state.
"""

from __future__ import annotations

from collections import deque

from foqs.buffers.pending_dedup import KeyedRequest
from foqs.buffers.shard_batch import ANSWERED, ShardBatch
from foqs.engine import enqueue
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.errors import FoqsError, OutcomeUnknown, Unavailable
from foqs.item import Cause
from foqs.shardmgr.lifecycle import BreakerState

_AGAIN_MS = 100
"""Requests that arrive later wait this long at least, so that a round serves many of them."""
_NOT_SENT = "the shard's database does not answer; nothing was changed"
_UNKNOWN = "the shard's database does not answer; the change may have been made"


def check(state: State, shard: Shard, now_ms: int) -> None:
    """Open the breaker if the batch in flight hangs. Answer the requests that wait for a database that is silent."""
    flight = shard.in_flight
    hangs = flight is not None and now_ms - flight.begun_ms > shard.hang_ms
    if hangs:
        if shard.breaker.state is not BreakerState.OPEN:
            shard.breaker.trip(now_ms)
        state.hangs(shard)
    from_ms = shard.silent_from_ms()
    if from_ms is None or now_ms - from_ms <= shard.hang_ms:
        return
    if hangs or shard.lost:
        chunks, shard.chunks, shard.chunk_rows = shard.chunks, deque(), 0
        for chunk in chunks:
            enqueue.place_elsewhere(state, shard, chunk, now_ms)
    for batch in (flight, shard.unsettled):
        if batch is not None and now_ms - batch.begun_ms > 2 * shard.hang_ms:
            _doubt(batch, enqueue.again_ms(shard, now_ms))
    if 0 <= now_ms - shard.answered_ms < _AGAIN_MS:
        return
    shard.answered_ms = now_ms
    refused = Unavailable(_NOT_SENT, enqueue.again_ms(shard, now_ms))
    _refuse_changes(shard, refused)
    _refuse_reads(shard, refused)


def _doubt(batch: ShardBatch, again_ms: int) -> None:
    """Answer the requests of a transaction that was sent. Its own outcome is applied as ever."""
    if batch.doubted and not batch.changes:
        return
    batch.doubted = True
    unknown = OutcomeUnknown(_UNKNOWN, again_ms)  # so forwarding hosts pass it on: the owner has the shard
    for chunk in batch.chunks:
        request = chunk.request
        if isinstance(request, KeyedRequest):
            request.doubt(chunk.indices, unknown)
        elif not request.done:
            chunk.request = ANSWERED
            request.refused(chunk.indices, unknown)
    for change in batch.changes:
        if change.waits and change.cause is not Cause.LEASE:
            waits, change.waits = change.waits, []
            for settles, at in waits:
                settles.settled(at, unknown)


def _refuse_changes(shard: Shard, refused: FoqsError) -> None:
    """Withdraw the changes that no transaction has. One that a scan found stays, and may take place without them."""
    for change in list(shard.changes):
        if not change.waits or change.cause is Cause.LEASE or change.item.change is not change:
            continue
        waits, undone = list(change.waits), False
        for one in waits:
            undone = shard.withdraw(change, one)
        error = refused if undone else OutcomeUnknown(_UNKNOWN)
        for settles, at in waits:
            settles.settled(at, error)
    # No batch drops those withdrawn, and with enough of them the shard would count as full.
    shard.changes = deque(change for change in shard.changes if change.item.change is change)


def _refuse_reads(shard: Shard, refused: FoqsError) -> None:
    """Refuse look-ups and lists, also those in flight: their results come too late."""
    for item_id in list(shard.looks):
        for look in shard.looks.take(item_id):
            look(None, None, refused)
    lists, shard.lists = shard.lists, []
    dead_reads = list(shard.dead_reads)
    shard.dead_reads.clear()
    flight = shard.in_flight
    if flight is not None:  # the shard's thread reads these objects
        lists += flight.lists
        dead_reads += [flight.dead] if flight.dead is not None else []
    for listing in lists:
        done, listing.done = listing.done, _answered
        done([], {}, {}, refused)
    for read in dead_reads:
        done, read.done = read.done, _answered
        done(None, refused)


def _answered(*_: object) -> None:
    """The caller has its answer."""
