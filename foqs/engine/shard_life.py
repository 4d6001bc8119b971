"""The life of a shard on its host: it is opened and filled, held while the time is in doubt, silent, and closed.

No request waits for a database that does not answer. After `hang_ms`, unsent work goes to another shard or is refused:
UNAVAILABLE, and nothing of it happens later. In a second `hang_ms` the host may find out the outcome of sent work over
another connection. Then that outcome is unknown to the callers. The host finds it out when the database answers, for
its own state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from foqs.buffers.checkpoint import NEVER_MS, Checkpoint
from foqs.buffers.pending_dedup import Copy, DedupKeys, Give, KeyedRequest
from foqs.buffers.shard_batch import ANSWERED, ShardBatch
from foqs.engine import consumers, enqueue
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.engine.state import State, in_slices
from foqs.errors import FoqsError, OutcomeUnknown, Unavailable
from foqs.fairness.keys import LaneKey, lane_key, unpack_throttles
from foqs.item import Cause, Item, Phase, Place
from foqs.prefetch.lane import Lane
from foqs.rows import BACKLOG_SHIFT, Opened
from foqs.shardmgr.lifecycle import BreakerState, ShardState

_LANES = 2_000
"""Lanes that are made, woken or detached in one slice of the event loop."""
_COUNTS = 10_000
"""Lanes that are counted in one slice."""
_LOST_COMMITTING = "the shard was lost while it committed"


def fill(shard: Shard, opened: Opened) -> Iterator[None]:
    """Prepare the memory of a shard that the store has opened, a bounded number of lanes at a time: `shard.filled` has
    it at the end. Its lanes are attached to their topics, and count from `open_shard` on."""
    memory = ShardMemory(shard.config, shard.topics, shard.residents, shard.budget, shard.counters)
    memory.tenure.shard = None
    sets: dict[bytes, tuple[str, ...]] = {}  # one tuple a throttle set, for all lanes
    for at, row in enumerate(opened.lanes, 1):
        throttles = sets.get(row.throttles)
        if throttles is None:
            throttles = sets[row.throttles] = unpack_throttles(row.throttles)
        key = lane_key((row.ns.decode(), row.topic.decode()), row.fairness.decode(), throttles)
        lane = memory.add_lane(key, row.lane)
        memory.number_lane(lane, row.lane)
        if row.weight:
            lane.weigh(row.weight)
        lane.total, lane.leased = opened.timers.get(row.lane, (0, 0))
        if not at % _LANES:
            yield
    times: dict[int, int] = {}  # one number a bucket, for all lanes
    for at, backlog in enumerate(opened.backlog, 1):
        lane = memory.lane_numbers[backlog.lane]
        lane.add_ready(times.setdefault(backlog.bucket, backlog.bucket << BACKLOG_SHIFT), backlog.items)
        lane.total += backlog.items
        if not at % _COUNTS:
            yield
    for at, lane in enumerate(memory.lanes.values(), 1):
        memory.count_items(lane, lane.total)
        if not lane.total:
            memory.idle_lanes[lane.key] = lane  # `Shard.opened_ms` says since when
        if not at % _COUNTS:
            yield
    for number in opened.dead:
        memory.note_dead(memory.lane_numbers[number])
    shard.filled = memory


@in_slices
def fill_in_slices(state: State, shard: Shard, opened: Opened, then: Callable[[], None]) -> Iterator[None]:
    """Prepare the memory of a shard, and call `then`."""
    yield from fill(shard, opened)
    then()


def unfill(state: State, shard: Shard) -> None:
    """Drop the memory of a shard that is not served after all."""
    memory, shard.filled = shard.filled, None
    if memory is not None:
        _detach(state, memory.lanes)


def open_shard(shard: Shard, opened: Opened, max_batch_bytes: int, begun_ms: int, now_ms: int) -> None:
    """Begin to serve a shard that the store owns since `begun_ms` or later."""
    memory, shard.filled = shard.filled, None
    if memory is None:
        for _ in fill(shard, opened):
            pass
        memory, shard.filled = shard.filled, None
    assert memory is not None, "the shard was filled"
    shard.forget_all()
    shard.adopt(memory)
    shard.next_lane = next(reversed(shard.lane_numbers), 0) + 1  # they are in order
    shard.epoch = opened.epoch
    shard.max_batch_bytes = max_batch_bytes
    shard.next_number = opened.next_number
    shard.timers = Checkpoint(min(opened.due_from_ms, now_ms))
    shard.ttls = Checkpoint(min(opened.expiry_from_ms, now_ms))
    shard.keys = DedupKeys(min(opened.dedup_from_ms, now_ms), opened.slots)
    shard.opened_ms = now_ms
    shard.confirmed_ms = begun_ms  # counting a long backlog takes time, in which another host may have taken the shard
    shard.grace_from_ms = now_ms if opened.replaced else None
    shard.server = opened.server
    shard.counters.shards_opened += 1
    shard.to(ShardState.SERVING)


@in_slices
def wake_lanes(state: State, shard: Shard) -> Iterator[None]:
    """Have the consumers of all topics with ready items on `shard`, which was just opened, tried."""
    tenure = shard.tenure
    lanes = iter(list(shard.lanes.values()))
    while tenure.shard is not None and (part := list(islice(lanes, _LANES))):
        for lane in part:
            if lane.ready:
                shard.wake_lane(lane, opened=True)
        state.touch(shard)
        if len(part) == _LANES:
            yield


def check_takeover_grace(state: State, shard: Shard, now_ms: int) -> None:
    """Begin to lease items when the replaced owner can no longer do so, and the shard is not `held`."""
    if shard.grace_from_ms is not None and not (shard.held or shard.in_takeover_grace(now_ms)):
        shard.grace_from_ms = None
        consumers.wake_all(state, shard)
        consumers.wake(state, shard, now_ms)  # tenants were skipped for it, also where no consumer waits


def hold(shard: Shard) -> None:
    """Deliver and scan nothing until `unhold`. Requests for known items continue: no other owner is in doubt."""
    shard.held = True
    if shard.grace_from_ms is None:
        shard.grace_from_ms = NEVER_MS


def unhold(state: State, shard: Shard) -> None:
    """End what `hold` began. The next tick wakes the consumers."""
    shard.held = False
    state.touch(shard)
    state.alarm(state.now_ms)


def clock_set(state: State, by_ms: int) -> None:
    """Shift all deadlines with the host's clock, so that remaining waits and ages do not change.

    Times that are stored stay as they are. So does the end of a lease that is written: its row says the same.
    """
    state.deadlines.moved(by_ms)
    state.patience.moved(by_ms)
    state.held_up = {key: at_ms + by_ms for key, at_ms in state.held_up.items()}
    state.staying = {call: at_ms + by_ms for call, at_ms in state.staying.items()}
    state.housekeeping_ms = 0
    for shard in state.serving:
        shard.confirmed_ms += by_ms
        shard.opened_ms += by_ms
        shard.clock_ahead_ms -= by_ms
        shard.clock_read_ms += by_ms
        if shard.grace_from_ms is not None:
            shard.grace_from_ms += by_ms
        if shard.down_from_ms is not None:
            shard.down_from_ms += by_ms
        if shard.unsettled is not None:
            shard.unsettled.begun_ms += by_ms
        if shard.in_flight is not None:
            shard.in_flight.begun_ms += by_ms
        for item in shard.known.values():
            if item.given is not None:
                item.given = item.given._replace(at_ms=item.given.at_ms + by_ms)
        for _, item, lease in shard.unwritten:
            if item.lease == lease and item.phase is Phase.LEASED and item.place is Place.READY and not item.busy:
                item.lease_expires_at_ms += by_ms
        shard.unwritten = deque((given_ms + by_ms, item, lease) for given_ms, item, lease in shard.unwritten)


def place_again(state: State, shard: Shard, now_ms: int) -> None:
    """Place chunks that the last batch did not store.

    When the database cannot be used now, the chunks that wait behind them are placed, too: chunks with deduplication
    keys (they are refused), and the rest if another shard can store them. Else they wait for this shard.
    """
    chunks, shard.returned = shard.returned, []
    if shard.chunks and (shard.lost or not shard.breaker.closed):
        elsewhere = enqueue.stores(state, now_ms)
        chunks += [chunk for chunk in shard.chunks if elsewhere or chunk.dedup is not None]
        shard.chunks = deque(chunk for chunk in shard.chunks if not elsewhere and chunk.dedup is None)
        shard.chunk_rows = sum(len(chunk.items) for chunk in shard.chunks)
    for chunk in chunks:
        enqueue.place_elsewhere(state, shard, chunk, now_ms)


def close_shard(shard: Shard) -> None:
    """Drop everything in memory."""
    shard.to(ShardState.CLOSED)
    for item in shard.known.values():
        item.abandon()
        shard.give(item)
    shard.tenure.shard = None  # its lanes count no more
    confirming = shard.confirming
    shard.forget_all()
    for confirmed in confirming:
        confirmed()


@in_slices
def _detach(state: State, lanes: dict[LaneKey, Lane[Item]]) -> Iterator[None]:
    """Take the lanes of a closed shard out of their topics, and their windows out of the residents."""
    while lanes:
        for _ in range(min(_LANES, len(lanes))):
            _, lane = lanes.popitem()
            state.residents.discard(lane)
            state.topics.detach(lane.topic, lane)
        if lanes:
            yield


def close(state: State, shard: Shard, now_ms: int, error: FoqsError) -> None:
    """Stop serving `shard`: place its unsent items elsewhere, and settle all else that waited for it with `error`."""
    state.serving = [other for other in state.serving if other is not shard]
    state.dirty.pop(shard, None)
    state.throttling.concurrency.closed(shard)
    batches = [batch for batch in (shard.in_flight, shard.unsettled) if batch is not None]
    lanes, unknown, keys = shard.lanes, shard.unsettled, shard.keys
    chunks = [*shard.chunks, *shard.returned, *(chunk for batch in batches for chunk in batch.chunks)]
    changes = [change for change in shard.changes if change.item.change is change]
    changes += [change for batch in batches for change in batch.changes]
    moves: list[Give | Copy] = [*keys.gives, *keys.copies, *(copy for batch in batches for copy in batch.copies)]
    looks = [look for waiting in shard.looks.values() for look in waiting]
    reads = [*shard.lists, *shard.dead_reads, *(read for batch in batches for read in batch.reads)]
    close_shard(shard)
    _detach(state, lanes)
    for chunk in chunks:
        if unknown is not None and chunk in unknown.chunks:
            chunk.request.refused(chunk.indices, OutcomeUnknown(_LOST_COMMITTING))
        elif chunk.dedup is not None:  # only the next owner of the shard may store it
            chunk.request.refused(chunk.indices, error)
        else:
            chunk.in_flight = False
            enqueue.place(state, chunk, now_ms)
    for change in changes:
        unsure = unknown is not None and change in unknown.changes
        for request, at in change.waits:
            request.settled(at, OutcomeUnknown(_LOST_COMMITTING) if unsure else error)
    for moved in moves:
        moved.done(error)
    for look in looks:
        look(None, None, error)
    for read in reads:
        read.refuse(error)
    state.served()


_AGAIN_MS = 100
"""Requests that arrive later wait this long at least, so that a round serves many of them."""
_NOT_SENT = "the shard's database does not answer; nothing was changed"
_UNKNOWN = "the shard's database does not answer; the change may have been made"


def check_silence(state: State, shard: Shard, now_ms: int) -> None:
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
    """Refuse look-ups and lists, also in flight: their results come too late."""
    for item_id in list(shard.looks):
        for look in shard.looks.take(item_id):
            look(None, None, refused)
    reads = [*shard.lists, *shard.dead_reads, *(shard.in_flight.reads if shard.in_flight is not None else ())]
    shard.lists = []
    shard.dead_reads.clear()
    for read in reads:
        read.refuse(refused)
