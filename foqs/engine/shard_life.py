"""The life of a shard on its host: it is opened and filled, held while the time is in doubt, silent, and closed.

No request waits for a database that does not answer. After `hang_ms`, unsent work goes to another shard or is refused:
UNAVAILABLE, and nothing of it happens later. In a second `hang_ms` the host may find out the outcome of sent work over
another connection. Then that outcome is unknown to the callers. The host finds it out when the database answers, for
its own state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from foqs.buffers.held_keys import Claim
from foqs.buffers.pending_dedup import Copy, Freed, Give, KeyedRequest, ShardGone
from foqs.buffers.shard_batch import ANSWERED, ShardBatch
from foqs.engine import batch_homes, consumers, enqueue
from foqs.engine.shard import Shard
from foqs.engine.shard_queue import ShardQueue
from foqs.engine.state import State, in_slices
from foqs.errors import FoqsError, OutcomeUnknown, Unavailable
from foqs.fairness.keys import ORDERED, LaneKey, lane_key, unpack_throttles
from foqs.item import Cause, Item
from foqs.opened import Opened
from foqs.prefetch.lane import Lane
from foqs.rows import BACKLOG_SHIFT
from foqs.rules import unpack_members, unpack_rules, unpack_until
from foqs.shardmgr.lifecycle import BreakerState

_LANES = 2_000
"""Lanes that are made, woken or detached in one slice of the event loop."""
_COUNTS = 10_000
"""Lanes that are counted in one slice."""
_LOST_COMMITTING = "the shard was lost while it committed"


def fill(shard: Shard, opened: Opened) -> Iterator[None]:
    """Prepare the memory of a shard that the store has opened, a bounded number of lanes at a time: `shard.filled` has
    it at the end. Its lanes are attached to their topics, and count from `open_shard` on."""
    memory = shard.new_memory()
    sets: dict[bytes, tuple[str, ...]] = {}  # one tuple a throttle set, for all lanes
    for at, row in enumerate(opened.lanes, 1):
        throttles = sets.get(row.throttles)
        if throttles is None:
            throttles = sets[row.throttles] = unpack_throttles(row.throttles)
        rules = unpack_rules(row.rules) if row.rules else None
        until, members = (unpack_until(row.rules), unpack_members(row.rules)) if row.rules else (0, False)
        key = lane_key((row.ns.decode(), row.topic.decode()), row.fairness.decode(), throttles, rules, until, members)
        lane = memory.add_lane(key, row.lane)
        memory.number_lane(lane, row.lane)
        if row.weight:
            lane.weigh(row.weight)
        lane.total, lane.leased = opened.timers.get(row.lane, (0, 0))
        if lane.until == ORDERED:
            lane.total, lane.behind = opened.ordered.get(row.lane, (0, 0))
        if not at % _LANES:
            yield
    times: dict[int, int] = {}  # one number a bucket, for all lanes
    for at, backlog in enumerate(opened.backlog, 1):
        lane = memory.lane_numbers[backlog.lane]
        if lane.until == ORDERED:
            continue  # ready items are counted when their turns come
        lane.add_ready(times.setdefault(backlog.bucket, backlog.bucket << BACKLOG_SHIFT), backlog.items)
        lane.total += backlog.items
        if not at % _COUNTS:
            yield
    for at, lane in enumerate(memory.lanes.values(), 1):
        memory.count_items(lane, lane.total)
        if not lane.total and lane.number not in opened.ended:
            memory.idle_lanes[lane.key] = lane  # `ShardOwner.opened_ms` says since when
        if not at % _COUNTS:
            yield
    for number in opened.dead:
        memory.note_dead(memory.lane_numbers[number])
    shard.keep_filled(memory)


@in_slices
def fill_in_slices(state: State, shard: Shard, opened: Opened, then: Callable[[], None]) -> Iterator[None]:
    """Prepare the memory of a shard, and call `then`."""
    yield from fill(shard, opened)
    then()


def unfill(state: State, shard: Shard) -> None:
    """Drop the memory of a shard that is not served after all."""
    memory = shard.take_filled()
    if memory is not None:
        _detach(state, memory.lanes)


def open_shard(shard: Shard, opened: Opened, max_batch_bytes: int, begun_ms: int, now_ms: int) -> None:
    """Begin to serve a shard that the store owns since `begun_ms` or later."""
    memory = shard.take_filled()
    if memory is None:
        for _ in fill(shard, opened):
            pass
        memory = shard.take_filled()
    assert memory is not None, "the shard was filled"
    shard.open(memory, opened, max_batch_bytes, begun_ms, now_ms)


@in_slices
def wake_lanes(state: State, shard: Shard) -> Iterator[None]:
    """Have the consumers of all topics with ready items on `shard`, which was just opened, tried."""
    memory = shard.memory
    term = memory.term
    lanes = iter(list(memory.lanes.values()))
    while term.shard is not None and (part := list(islice(lanes, _LANES))):
        for lane in part:
            if lane.ready:
                memory.wake_lane(lane, opened=True)
        state.touch(shard)
        if len(part) == _LANES:
            yield


def check_takeover_grace(state: State, shard: Shard, now_ms: int) -> None:
    """Begin to lease items when the replaced owner can no longer do so, and the shard is not `held`."""
    owner = shard.owner
    if owner.grace_from_ms is not None and not (owner.held or owner.in_takeover_grace(now_ms)):
        owner.end_grace()
        consumers.wake_all(state, shard)
        consumers.wake(state, shard, now_ms)  # tenants were skipped for it, also where no consumer waits


def unhold(state: State, shard: Shard) -> None:
    """End what `ShardOwner.hold` began. The next tick wakes the consumers."""
    shard.owner.unhold()
    state.touch(shard)
    state.alarm(state.now_ms)


def clock_set(state: State, by_ms: int) -> None:
    """Shift all deadlines with the host's clock, so that remaining waits and ages do not change.

    Times that are stored stay as they are. So does the end of a lease that is written: its row says the same.
    """
    state.topics.rates.clock_set(by_ms)
    state.deadlines.moved(by_ms)
    state.patience.moved(by_ms)
    state.held_up = {key: at_ms + by_ms for key, at_ms in state.held_up.items()}
    state.staying = {call: at_ms + by_ms for call, at_ms in state.staying.items()}
    for shard in state.serving:
        shard.owner.shift(by_ms)
        shard.queue.shift(by_ms)
        shard.memory.shift(by_ms)


def place_again(state: State, shard: Shard, now_ms: int) -> None:
    """Place chunks that the last batch did not store.

    When the database cannot be used now, the chunks that wait behind them are placed, too: chunks with deduplication
    keys (they are refused), and the rest if another shard can store them. Else they wait for this shard, unless it is
    full.
    """
    queue = shard.queue
    chunks = queue.take_returned()
    if queue.chunks and shard.owner.disk_full and shard.owner.full(now_ms):
        chunks += queue.take_chunks()
    elif queue.chunks and (shard.owner.lost or not shard.owner.breaker.closed):
        chunks += queue.take_chunks(keyed=not enqueue.stores(state, now_ms))
    for chunk in chunks:
        enqueue.place_elsewhere(state, shard, chunk, now_ms)


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
    queue = shard.queue
    state.serving = [other for other in state.serving if other is not shard]
    state.dirty.pop(shard, None)
    state.throttling.concurrency.closed(shard)
    batches = [batch for batch in (queue.in_flight, queue.unsettled) if batch is not None]
    lanes, unknown, keys = shard.memory.lanes, queue.unsettled, queue.keys
    chunks = [
        *queue.chunks,
        *queue.returned,
        *queue.members.take_chunks(),
        *(chunk for batch in batches for chunk in batch.chunks),
    ]
    changes = [change for change in queue.changes if change.item.change is change]
    changes += [change for batch in batches for change in batch.changes]
    moves: list[Give | Copy | Freed | ShardGone | Claim] = [*keys.gives, *keys.copies, *queue.held.claims]
    moves += [copy for batch in batches for copy in batch.copies]
    removals = queue.kept.take_waits()
    looks = [look for waiting in queue.looks.values() for look in waiting]
    reads = [*queue.lists, *queue.dead_reads, *(read for batch in batches for read in batch.reads)]
    orders = shard.memory.orders
    asked = batch_homes.take_waiting(queue, batches)
    shard.close()
    _detach(state, lanes)
    for chunk in chunks:
        if unknown is not None and chunk in unknown.chunks:
            chunk.request.refused(chunk.indices, OutcomeUnknown(_LOST_COMMITTING))
        elif chunk.bound:  # only the next owner of the shard may store it
            chunk.request.refused(chunk.indices, error)
        else:
            chunk.in_flight = False
            enqueue.place(state, chunk, now_ms)
    for change in changes:
        unsure = unknown is not None and change in unknown.changes
        for request, at in change.waits:
            request.settled(at, OutcomeUnknown(_LOST_COMMITTING) if unsure else error)
    for answer in [*(moved.done for moved in moves), *asked]:
        answer(error)
    for take in keys.redrives:
        take.request.refused((0,), error)
    for request, at in removals:  # some of a transaction may be committed
        request.settled(at, OutcomeUnknown(_LOST_COMMITTING))
    for look in looks:
        look(None, None, error)
    for read in reads:
        read.refuse(error)
    orders.dead.end(error)
    for ask in orders.asks:
        ask.refuse(error)
    state.awaited.closed(shard.number, error)
    state.callbacks.served()


_AGAIN_MS = 100
"""Requests that arrive later wait this long at least, so that a round serves many of them."""
_NOT_SENT = "the shard's database does not answer; nothing was changed"
_UNKNOWN = "the shard's database does not answer; the change may have been made"


def check_silence(state: State, shard: Shard, now_ms: int) -> None:
    """Open the breaker if the batch in flight hangs. Answer the requests that wait for a database that is silent."""
    owner, queue = shard.owner, shard.queue
    flight = queue.in_flight
    hangs = flight is not None and now_ms - flight.begun_ms > owner.hang_ms
    if hangs:
        if owner.breaker.state is not BreakerState.OPEN:
            owner.breaker.trip(now_ms)
        state.callbacks.hangs(shard)
    from_ms = shard.silent_from_ms()
    if from_ms is None or now_ms - from_ms <= owner.hang_ms:
        return
    if hangs or owner.lost:
        for chunk in queue.take_chunks():
            enqueue.place_elsewhere(state, shard, chunk, now_ms)
    for batch in (flight, queue.unsettled):
        if batch is not None and now_ms - batch.begun_ms > 2 * owner.hang_ms:
            _doubt(batch, enqueue.again_ms(owner, now_ms))
    if 0 <= now_ms - owner.answered_ms < _AGAIN_MS:
        return
    owner.answered(now_ms)
    refused = Unavailable(_NOT_SENT, enqueue.again_ms(owner, now_ms))
    _refuse_changes(shard, refused)
    _refuse_reads(queue, refused)


def _doubt(batch: ShardBatch, again_ms: int) -> None:
    """Answer the requests of a transaction that was sent. Its own outcome is applied as ever."""
    if batch.doubted and not batch.changes:
        return
    batch.doubted = True
    unknown = OutcomeUnknown(_UNKNOWN, again_ms)  # so forwarding hosts pass it on: the owner has the shard
    for chunk in batch.chunks:
        request = chunk.request
        if chunk.end is not None:
            continue  # no caller waits
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
    for change in list(shard.queue.changes):
        if not change.waits or change.cause is Cause.LEASE or change.item.change is not change:
            continue
        waits, undone = list(change.waits), False
        for one in waits:
            undone = shard.withdraw(change, one)
        error = refused if undone else OutcomeUnknown(_UNKNOWN)
        for settles, at in waits:
            settles.settled(at, error)
    shard.queue.drop_superseded()


def _refuse_reads(queue: ShardQueue, refused: FoqsError) -> None:
    """Refuse look-ups and lists, also in flight: their results come too late."""
    for item_id in list(queue.looks):
        for look in queue.looks.take(item_id):
            look(None, None, refused)
    in_flight = queue.in_flight
    reads = [*queue.take_lists(), *(in_flight.reads if in_flight is not None else ())]
    for read in reads:
        read.refuse(refused)
