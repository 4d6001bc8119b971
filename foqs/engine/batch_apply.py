"""Applies the result of a shard batch to memory, in the order in which the database executed its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from foqs.buffers.shard_batch import BatchResult, Chunk, Outcome, ShardBatch
from foqs.counters import Namespace, TopicCounters
from foqs.engine import batch_homes, batch_members, dedup, kept_items
from foqs.engine.batch_build import needs_room
from foqs.engine.enqueue import again_ms, is_full
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.engine.shard_owner import ShardOwner
from foqs.engine.shard_queue import ShardQueue, leave_scan, scan_done
from foqs.errors import FoqsError, Invalid, OutcomeUnknown, Unavailable
from foqs.item import Cause, Change, Item, Phase, Place, To
from foqs.order import Order, Standing
from foqs.prefetch.lane import Lane
from foqs.rows import FailureCause

# Members of enums, bound once for the hot path.
_COMMITTED = Outcome.COMMITTED
_ACK, _LEASE, _WRITTEN = Cause.ACK, Cause.LEASE, To.LEASED
_IN_READY, _IDLE, _LEASED = Place.READY, Phase.IDLE, Phase.LEASED


def apply(shard: Shard, batch: ShardBatch, result: BatchResult, now_ms: int) -> None:
    """Apply `result`, of a shard that is not fenced. The caller then handles `shard.woken` and `shard.returned`."""
    owner, transaction, outcome = shard.owner, batch.transaction, result.outcome
    if result.known:
        dedup.settle_known(batch, result.known)
    whole = outcome is _COMMITTED and not result.rejected and not result.failed
    saved = whole or result.saved
    shard.queue.ended(batch, batch.rows if whole else 0)
    ok = not result.down and (whole or (outcome is not Outcome.FAILED and outcome is not Outcome.UNKNOWN))
    if result.ended:
        _connection_ended(shard, batch, result, now_ms)
        return
    # A database that says that it is full has answered.
    owner.breaker.done(now_ms, ok=ok or (result.disk_full and not result.down), latency_ms=result.latency_ms)
    transaction_ms = None if transaction is None else result.transaction_ms
    shard.batch_metrics.fresh.append((result.latency_ms, transaction_ms, batch.rows))
    if result.disk_full or (owner.disk_full and transaction is not None and ok and saved):
        owner.tried_room(now_ms, fits=not result.disk_full, inserts=batch.grows, removals=batch.removals_only)
    if not ok or result.error:
        _troubled(owner, batch, result, now_ms)
    if batch.reconnect:
        _reconnected(shard, result, now_ms)
        return
    if transaction is not None:
        if outcome is Outcome.UNKNOWN:
            shard.queue.outcome_unknown(batch)
            shard.counters.unsettled_transactions += 1
            _known_before_the_break(shard, batch, result, now_ms)
        else:
            _apply_transaction(shard, batch, result, now_ms)
    # A transaction of which everything was refused may not have reached the database.
    if ok and (saved or result.confirmed):
        owner.confirm(batch.begun_ms)
    if batch.reads or batch.copies:
        _apply_reads(shard, batch, result, now_ms)
    if owner.confirming:
        for confirmed in owner.take_confirming():
            confirmed()


def _troubled(owner: ShardOwner, batch: ShardBatch, result: BatchResult, now_ms: int) -> None:
    if result.down:
        owner.lose(batch.begun_ms, read_only=result.read_only, denied=result.denied)
    if result.down and owner.breaker.closed:
        owner.breaker.trip(now_ms)
    owner.pause(now_ms)


def _connection_ended(shard: Shard, batch: ShardBatch, result: BatchResult, now_ms: int) -> None:
    """Let all work of a batch that was not sent wait for the next connection, which is made at once."""
    shard.owner.lose(batch.begun_ms, read_only=result.read_only, denied=result.denied)
    if batch.transaction is not None:
        _apply_transaction(shard, batch, result, now_ms)
    _apply_reads(shard, batch, result, now_ms)
    shard.queue.requeue_returned()


def _reconnected(shard: Shard, result: BatchResult, now_ms: int) -> None:
    if result.settled is None:
        return
    shard.owner.reconnected()
    batch = shard.queue.take_unsettled()
    if batch is not None:
        outcome = Outcome.COMMITTED if result.settled else Outcome.FAILED
        _apply_transaction(shard, batch, BatchResult(outcome=outcome), now_ms)


def _known_before_the_break(shard: Shard, batch: ShardBatch, result: BatchResult, now_ms: int) -> None:
    """Apply the known part of a transaction that was bisected before the connection broke; the rest stays unknown."""
    if not (result.rejected or result.committed or result.failed):
        return
    known = {*result.rejected, *result.committed, *result.failed}
    part = ShardBatch(transaction=batch.transaction, keeps=batch.keeps)
    part.changes = [change for change in batch.changes if change.item.id in known]
    part.indexed = [item for item in batch.indexed if item.id in known]
    part.creations = [made for made in batch.creations if made.id in known]
    batch.creations = [made for made in batch.creations if made.id not in known]
    part.removals = [row for row in batch.removals if row.id in known]
    batch.removals = [row for row in batch.removals if row.id not in known]
    batch.indexed = [item for item in batch.indexed if item.id not in known]
    batch.changes = [change for change in batch.changes if change.item.id not in known]
    for chunk in batch.chunks:
        inside = [i for i, item in enumerate(chunk.items) if item.id in known]
        part.chunks.append(chunk.part(inside))
    batch.chunks = [
        chunk.part([i for i, item in enumerate(chunk.items) if item.id not in known]) for chunk in batch.chunks
    ]
    if result.committed:
        part.lanes_new, part.weights, part.lanes_gone = batch.lanes_new, batch.weights, batch.lanes_gone
        batch.lanes_new, batch.weights, batch.lanes_gone = {}, {}, {}
    _apply_transaction(shard, part, result, now_ms)


# ------------------------------------------------------------------------------------------ the transaction


def _apply_transaction(shard: Shard, batch: ShardBatch, result: BatchResult, now_ms: int) -> None:  # noqa: PLR0912 - without calls
    memory = shard.memory
    shard.counters.transactions += 1
    if result.outcome is Outcome.COMMITTED and not result.rejected and not result.failed:
        shard.counters.transaction_rows += batch.rows
        if batch.lanes_new or batch.weights or batch.lanes_gone:
            _lanes_committed(memory, batch)
        if batch.chunks:
            memory.stored(batch.chunks)
        if batch.changes:
            if memory.awaited.calls or batch.keeps:
                _changed_and_kept(shard, batch.changes, now_ms)
            else:
                _changed(memory, batch.changes, now_ms)
        if memory.orders.dead.items:
            _undead(memory, batch.changes)
        for item in batch.indexed:
            memory.indexed(item)
        for row in batch.removals:
            kept_items.removed(shard, row, now_ms)
        left = [*batch.lanes_new, *batch.lanes_filled] if batch.lanes_new or batch.lanes_filled else ()
    else:
        shard.counters.failed_transactions += result.outcome is Outcome.FAILED
        _apply_mixed(shard, batch, result, now_ms)
        left = [*batch.lanes_new, *batch.lanes_filled, *(() if result.committed else batch.lanes_gone)]
    transaction = batch.transaction
    if transaction is not None and (transaction.slots or transaction.dedup_gone or transaction.keys):
        dedup.transaction_applied(shard, transaction, now_ms, committed=result.saved)
    if transaction is not None and transaction.members is not None:
        batch_homes.created(shard, batch, result, now_ms)
        if result.outcome is not Outcome.UNKNOWN:  # as it is of a part that is known
            batch_members.applied(shard, transaction, now_ms, committed=result.saved)
            batch_homes.applied(shard, batch, now_ms, saved=result.saved)
    for lane in left:  # a new lane may have no item, and a lane that was not removed is still empty
        if not lane.total:
            memory.idle_lane(lane, now_ms)


def _undead(memory: ShardMemory, changes: Iterable[Change]) -> None:
    """Note which dead letters with order keys are none after these changes."""
    memory.orders.dead.left(
        change.item.id
        for change in changes
        if change.to is To.GONE or (change.move is not None and change.move.failure is None)
    )


def _lanes_committed(memory: ShardMemory, batch: ShardBatch) -> None:
    for lane in batch.lanes_new:
        lane.stored = True
    for lane in batch.weights:
        lane.weigh(batch.weights[lane])
    for lane in batch.lanes_gone:
        memory.forget_lane(lane)


def _apply_mixed(shard: Shard, batch: ShardBatch, result: BatchResult, now_ms: int) -> None:
    """Apply a transaction of which a part was refused or all failed, item by item."""
    memory = shard.memory
    all_committed = result.outcome is Outcome.COMMITTED
    # Without inserts a transaction may fit a full disk, and removals may fit where other changes do not.
    full = result.disk_full and not batch.grows
    if result.committed:
        _lanes_committed(memory, batch)

    def is_committed(item_id: int) -> bool:
        return item_id in result.committed or (all_committed and item_id not in result.failed)

    for chunk in batch.chunks:
        _chunk_mixed(shard, chunk, result, is_committed)
    for item in batch.indexed:
        if is_committed(item.id) and item.id not in result.rejected:
            memory.indexed(item)
    for row in batch.removals:
        if is_committed(row.id):
            kept_items.removed(shard, row, now_ms)
        else:
            shard.queue.kept.again(row.id)
    for change in batch.changes:
        if change.item.id in result.rejected:
            shard.counters.refused_rows += 1
            if change.metadata is not None or change.stored is not None:  # else the progress itself may be refused
                _keep_progress(shard, change, now_ms)
            _refused(shard, change, now_ms, "the database refuses this change")
        elif is_committed(change.item.id):
            _undead(memory, [change])
            committed(memory, change, now_ms)
        else:
            _not_committed(shard, change, now_ms, full=full and (batch.removals_only or needs_room(shard, change)))


def _not_committed(shard: Shard, change: Change, now_ms: int, *, full: bool) -> None:
    """Let a change wait for the next transaction, or refuse it because it does not fit a `full` database."""
    _keep_progress(shard, change, now_ms)
    if full and change.waits and change.cause is not Cause.LEASE:
        _refused(shard, change, now_ms, is_full(shard.number))
    else:
        _again(shard.queue, change, now_ms)


def _keep_progress(shard: Shard, change: Change, now_ms: int) -> None:
    """Have a later change write the progress."""
    if change.progress is not None:
        shard.queue.progress.put_back(change.item, change.progress, now_ms, shard.memory.budget)
        change.progress, change.more_bytes = None, 0


def _chunk_mixed(shard: Shard, chunk: Chunk, result: BatchResult, is_committed: Callable[[int], bool]) -> None:
    rejected = [i for i, item in enumerate(chunk.items) if item.id in result.rejected]
    good = [i for i, item in enumerate(chunk.items) if item.id not in result.rejected and is_committed(item.id)]
    left = [i for i, item in enumerate(chunk.items) if item.id not in result.rejected and not is_committed(item.id)]
    if rejected:
        shard.counters.refused_rows += len(rejected)
        chunk.request.refused([chunk.indices[i] for i in rejected], Invalid("the database refuses this item"))
    if good:
        shard.memory.stored([chunk.part(good)])
    if left:
        chunk.keep(left)
        chunk.in_flight = False
        shard.queue.returned.append(chunk)


def _changed_and_kept(shard: Shard, changes: list[Change], now_ms: int) -> None:
    """Apply `changes`, all committed. Some items are kept, or callers wait for their ends."""
    for change in changes:
        committed(shard.memory, change, now_ms)
    kept_items.check_most(shard)


def _changed(memory: ShardMemory, changes: list[Change], now_ms: int) -> None:
    """Apply `changes`, all committed. An ack without a later change is the common case, done here without calls; the
    first write of a lease has a short path, too.

    Its assignments are `Item.commit` of a change to GONE, and `Shard.indexed`."""
    known, written, tail, noted = memory.known, memory.written, memory.tail, memory.noted
    held = saved = 0
    attempts: list[int] = []  # of the removed items that `_acked` has not counted
    lane = flow = slots = None
    for change in changes:
        item = change.item
        if change.cause is not _ACK or item.change is not None or change.scan is not None or item.id in noted:
            _not_acked(memory, change, now_ms)
            continue
        if item.lane is not lane:  # most come topic by topic
            if lane is not None and (lane.tenants is None or lane.tenants is not item.lane.tenants):
                _acked(memory, lane, attempts, now_ms)
                attempts = []
            lane = item.lane
            flow = lane.flow if lane.flow is not None and lane.flow.tenant.turns.charges else None
            slots = lane.slots
        attempts.append(item.attempt)
        leased = item.phase is _LEASED
        saved += leased and item.place is _IN_READY
        if flow is not None and item.given is not None:
            flow.lease_over(item.id, now_ms - item.given.at_ms)
        if slots is not None and leased:
            slots.ended(item.id)
        item.in_flight = None
        item.phase = _IDLE
        item.lease = 0
        if item.unindexed:
            item.unindexed = False
            tail.count -= 1
            tail.bytes -= item.bytes
        lane.leased -= leased
        lane.total -= 1
        if not lane.total:
            memory.idle_lane(lane, now_ms)
        if known.pop(item.id, None) is not None:
            held += item.held
            item.held = 0
        written.pop(item.id, None)
        if item.order is not None:
            _leave_order(memory, item)
        for request, at in change.waits:
            request.settled(at, None)
    memory.budget.give(held)
    if lane is not None:
        _acked(memory, lane, attempts, now_ms)
    memory.counters.lease_writes_saved += saved


def _not_acked(memory: ShardMemory, change: Change, now_ms: int) -> None:
    """Do the work of `committed`, on a short path for the first write of a lease. Its assignments are `Item.commit` of
    a change to LEASED."""
    item = change.item
    if change.cause is not _LEASE or change.to is not _WRITTEN or item.change is not None or item.id in memory.noted:
        committed(memory, change, now_ms)
        return
    item.in_flight = None
    item.place = Place.TIMER
    item.lease_expires_at_ms = change.due_ms
    if item.unindexed:
        memory.indexed(item)
    memory.counters.lease_writes += 1
    memory.remember_written(item)
    for request, at in change.waits:
        request.settled(at, None)


def _acked(memory: ShardMemory, lane: Lane[Item], attempts: list[int], now_ms: int) -> None:
    """Count items of the lane that were removed, by their attempts. (`Shard.count_items`, written out.)"""
    items, namespace = len(attempts), lane.namespace
    namespace.removed["ack"] += items
    once = attempts.count(1)
    namespace.acked_once += once
    if once < items:
        for attempt in attempts:
            if attempt != 1:
                namespace.ended.observe(attempt)
    topic = lane.topic
    (topic.counters or topic.counted()).acked += items
    topic.traffic.acked += items
    if topic.failing is not None:
        topic.failing.acked.add(items, now_ms)
    memory.totals[lane.topic.key[0]] -= items
    if lane.tenants is not None:
        lane.tenants.total -= items


def committed(memory: ShardMemory, change: Change, now_ms: int) -> None:
    """Apply a committed change to the item, and settle its requests."""
    item, to = change.item, change.to
    leased, later = item.phase is Phase.LEASED, item.change
    item.commit(change)
    if item.unindexed and to is not To.KEPT:
        memory.indexed(item)
    _count(memory, change, now_ms)
    if leased and item.phase is not Phase.LEASED:
        _lease_over(item, now_ms, by_time=change.scan is not None)
    if to is To.GONE:
        _gone(memory, change, later, now_ms)
    elif change.move is not None:
        _moved(memory, change, now_ms)
    elif change.metadata is not None or change.body is not None or change.priority is not None:
        memory.body_changed(item, change.body)
    if change.order is not None:
        _stand(memory, item, change.order)
    scan_done(change, now_ms)
    if to is not To.GONE and item.change is None:
        if to is To.KEPT:
            memory.settle_phase(item)
        elif to is To.READY or to is To.MOVED:
            memory.enter_ready(item)
        elif to is To.DELAYED:
            memory.forget(item)
        else:
            memory.remember_written(item)
    for request, at in change.waits:
        request.settled(at, None)


def _leave_order(memory: ShardMemory, item: Item) -> None:
    """Take the item out of its order, and pass its turn on."""
    if item.order is not None and item.order.standing == Standing.IN_ORDER:
        memory.orders.left(item)
    item.order = None


def _stand(memory: ShardMemory, item: Item, order: Order) -> None:
    """Give the item another order. If it is in the order, `enter_ready` finds its turn."""
    _leave_order(memory, item)
    item.order = order
    if order.standing == Standing.IN_ORDER:
        item.lane.behind += 1
        if item.change is not None:  # which enters it: until then, no item behind it may have the turn
            memory.orders.enters(item)


def _lease_over(item: Item, now_ms: int, *, by_time: bool) -> None:
    lane = item.lane
    lane.leased -= 1
    if lane.slots is not None:
        lane.slots.ended(item.id, by_time=by_time)
    if lane.flow is not None and item.given is not None:
        lane.flow.lease_over(item.id, now_ms - item.given.at_ms)


def _gone(memory: ShardMemory, change: Change, later: Change | None, now_ms: int) -> None:
    _leave_order(memory, change.item)
    memory.count_gone(change.item.lane, now_ms)
    memory.forget(change.item)
    if change.ended is None and memory.noted.pop(change.item.id, None) is not None:
        memory.queue.progress.discard(change.item.id, memory.budget)
    if later is not None:  # a second ack, say: it finds the item gone
        if change.ended is None or later.cause is not Cause.DELETE:
            change.waits += later.waits
        else:
            memory.queue.kept.remove(change.ended, change.item.lane.topic.key, waits=later.waits)
        leave_scan(later, now_ms)


def _moved(memory: ShardMemory, change: Change, now_ms: int) -> None:
    """The item belongs to another lane from now on. The body in memory has its old lane and times."""
    item, target, move = change.item, change.target, change.move
    assert target is not None, "the transaction had the lane"
    assert move is not None, "a move says where to"
    if move.failure is not None and item.order is not None:
        memory.orders.dead.died(item.id, item.order.digest)
    _leave_order(memory, item)
    memory.count_gone(item.lane, now_ms)
    item.lane = target
    target.total += 1
    memory.count_items(target, 1)
    if move.failure is not None:
        memory.note_dead(target)
    memory.drop_body(item)


_COUNTED = {
    Cause.REDRIVE: "redriven",
    Cause.RELEASE: "released",
    Cause.EXTEND: "extended",
    Cause.CHANGE: "changed",
}
"""The counters of a namespace, by the cause of a change."""


def _count(memory: ShardMemory, change: Change, now_ms: int) -> None:
    """Count the change and its checkpoint, and tell the callers that wait for the item's end."""
    if change.progress is not None:
        memory.has_progress(change)
    if change.ended is not None:
        memory.queue.kept.add(change.ended, change.item.lane.topic.key)
    if memory.awaited.calls:
        memory.awaited.committed(change, now_ms, noted=change.item.id in memory.noted)
    counters, namespace, cause = memory.counters, change.item.lane.namespace, change.cause
    move, topic = change.move, change.item.lane.topic.counted()
    _count_attempt(memory, change, topic, now_ms)
    if move is not None and move.failure is not None:
        namespace.dead[FailureCause(move.failure.cause).name.lower()] += 1
        namespace.ended.observe(move.failure.attempts)
        topic.dead += 1
    if change.to is To.GONE:
        _count_gone(change, namespace, topic)
    elif cause is Cause.LEASE:
        counters.lease_writes += 1
    elif cause is Cause.EXPIRED:
        namespace.expired += not change.by_operator
        namespace.released += change.by_operator
    elif cause is Cause.NACK or cause is Cause.REJECTED:
        namespace.nacked += move is None  # a dead letter counts above
    elif cause is Cause.DUE:
        counters.due += 1
    elif (name := _COUNTED.get(cause)) is not None:
        setattr(namespace, name, getattr(namespace, name) + 1)


def _count_attempt(memory: ShardMemory, change: Change, topic: TopicCounters, now_ms: int) -> None:
    """Count an attempt that failed, or that succeeded in a topic that has failures. An attempt whose lease an operator
    ended is neither."""
    lane, failed = change.item.lane, change.failed
    if failed is None or change.by_operator:
        if change.cause is _ACK and lane.topic.failing is not None:
            lane.topic.failing.acked.add(1, now_ms)
        return
    topic.failed += 1
    lane.topic.traffic.failed += 1
    lane.namespace.failed[FailureCause(failed.cause).name.lower()] += 1
    ended = change.to is To.GONE or change.to is To.MOVED
    memory.topics.failing.add(lane.topic, change.item.id, failed, now_ms, ended=ended)


def _count_gone(change: Change, namespace: Namespace, topic: TopicCounters) -> None:
    cause = change.cause
    namespace.removed[cause.name.lower()] += 1
    if cause is _ACK:
        topic.acked += 1
        change.item.lane.topic.traffic.acked += 1
    elif cause is Cause.TTL or cause is Cause.DELETE or cause is Cause.CANCEL:
        return  # no attempt has ended
    namespace.ended.observe(change.item.attempt)


def _again(queue: ShardQueue, change: Change, now_ms: int) -> None:
    """Let a change that was not committed wait for the next transaction, unless a newer one waits."""
    item, newer = change.item, change.item.change
    if newer is None:
        item.retry()
        (queue.index_rows if change.cause is Cause.INDEX else queue.changes).append(change)
    else:
        item.drop()
        newer.waits += change.waits
        leave_scan(change, now_ms)


def _refused(shard: Shard, change: Change, now_ms: int, why: str) -> None:
    """Settle a change that the database refuses: the item stays where it is."""
    item = change.item
    item.drop()
    leave_scan(change, now_ms)
    if item.change is None:
        shard.memory.settle_phase(item)
    retry_ms = again_ms(shard.owner, now_ms) if shard.owner.disk_full else None
    error: FoqsError = Unavailable(why, retry_ms)
    if item.id in shard.queue.progress:
        error = OutcomeUnknown(f"{why}; what the item's consumer gave may be written later", retry_ms)
    for request, at in change.waits:
        request.settled(at, error)


# ------------------------------------------------------------------------------------------------- the reads


def _apply_reads(shard: Shard, batch: ShardBatch, result: BatchResult, now_ms: int) -> None:
    saved = result.saved
    if batch.copies:
        dedup.settle_copies(batch, saved)
    for at, read in enumerate(batch.reads):
        if at < result.reads:
            read.apply(shard, saved, now_ms)
        else:
            read.missed(shard, now_ms)
