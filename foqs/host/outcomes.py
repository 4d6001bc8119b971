"""What came back from a trip to a shard's database, applied in the order in which it was done there."""

from __future__ import annotations

from collections.abc import Callable

from foqs.buffers.changes import Cause, Change, To
from foqs.buffers.inserts import Chunk
from foqs.buffers.round import Outcome, Round, RoundResult
from foqs.errors import Invalid, NotServed, Unavailable
from foqs.host import keyed, pages
from foqs.host.placing import DISK_FULL, again_ms
from foqs.host.scans import apply_due, apply_expiring
from foqs.host.shard import Shard
from foqs.item import Phase, Place, from_found

# Members of enums, bound once for the hot path.
_ACK, _IN_READY, _IDLE, _LEASED = Cause.ACK, Place.READY, Phase.IDLE, Phase.LEASED


def apply(shard: Shard, round_: Round, result: RoundResult, now_ms: int) -> None:
    """Applies `result`. A fenced shard is left to the caller, who closes it. The caller then drains `woken` and
    `returned`."""
    assert shard.flight is round_, "one trip at a time"
    shard.flight = None
    ok = not result.down and result.outcome not in (Outcome.FAILED, Outcome.UNKNOWN)
    shard.breaker.done(now_ms, ok=ok, latency_ms=result.latency_ms)
    shard.trips.ended(round_, result)
    shard.lost = shard.lost or result.down
    shard.disk_full = result.disk_full or (shard.disk_full and not (ok and result.saved))
    if (result.down or result.disk_full) and shard.breaker.closed:
        shard.breaker.trip(now_ms)
    if not ok or result.error:
        shard.pause_from_ms = now_ms
    if round_.reconnect:
        _reconnected(shard, result, now_ms)
        return
    if round_.batch is not None:
        if result.known:
            keyed.settle_known(round_, result.known)
        if result.outcome is Outcome.UNKNOWN:
            shard.unsettled = round_
            shard.counters.unsettled_transactions += 1
            _known_before_the_break(shard, round_, result, now_ms)
        else:
            _apply_batch(shard, round_, result, now_ms)
    # A batch of which all was refused may have been refused before the database was asked.
    if ok and (result.saved or result.confirmed):
        shard.confirmed_ms = round_.begun_ms
    _apply_reads(shard, round_, result, now_ms)
    if shard.confirming:
        confirming, shard.confirming = shard.confirming, []
        for told in confirming:
            told()


def _reconnected(shard: Shard, result: RoundResult, now_ms: int) -> None:
    if result.settled is None:
        return
    shard.lost = False
    shard.pause_from_ms = None
    round_, shard.unsettled = shard.unsettled, None
    if round_ is not None:
        outcome = Outcome.COMMITTED if result.settled else Outcome.FAILED
        _apply_batch(shard, round_, RoundResult(outcome=outcome), now_ms)


def _known_before_the_break(shard: Shard, round_: Round, result: RoundResult, now_ms: int) -> None:
    """A transaction that was bisected and then broke: only a part is unknown, the rest is applied now."""
    if not (result.rejected or result.committed or result.failed):
        return
    known = result.rejected.keys() | result.committed | result.failed
    part = Round(batch=round_.batch)
    part.changes = [change for change in round_.changes if change.item.id in known]
    round_.changes = [change for change in round_.changes if change.item.id not in known]
    for chunk in round_.chunks:
        inside = [i for i, item in enumerate(chunk.items) if item.id in known]
        part.chunks.append(chunk.part(inside))
    round_.chunks = [
        chunk.part([i for i, item in enumerate(chunk.items) if item.id not in known]) for chunk in round_.chunks
    ]
    if result.committed:
        part.lanes_new, part.lanes_gone = round_.lanes_new, round_.lanes_gone
        round_.lanes_new, round_.lanes_gone = [], []
    _apply_batch(shard, part, result, now_ms)


# ------------------------------------------------------------------------------------------ the transaction


def _apply_batch(shard: Shard, round_: Round, result: RoundResult, now_ms: int) -> None:
    shard.counters.transactions += 1
    if result.outcome is Outcome.COMMITTED and not result.rejected and not result.failed:
        shard.counters.transaction_rows += round_.rows
        shard.rows_changed += round_.rows
        _lanes_committed(shard, round_)
        for chunk in round_.chunks:
            _stored(shard, chunk)
        _changed(shard, round_.changes, now_ms)
        left = round_.lanes_new
    else:
        shard.counters.failed_transactions += result.outcome is Outcome.FAILED
        _apply_mixed(shard, round_, result, now_ms)
        left = round_.lanes_new + ([] if result.committed else round_.lanes_gone)
    keyed.batch_applied(shard, round_.batch, now_ms, committed=result.saved)
    for lane in left:  # a new one may have got none of its items, and one that was to go is still there
        if not lane.total:
            shard.idle_lane(lane, now_ms)


def _lanes_committed(shard: Shard, round_: Round) -> None:
    for lane in round_.lanes_new:
        lane.stored = True
    for lane in round_.lanes_gone:
        shard.forget_lane(lane)


def _stored(shard: Shard, chunk: Chunk) -> None:
    items, keys = chunk.items, chunk.keys
    start = 0
    for end in range(1, len(items) + 1):
        if end == len(items) or keys[end] is not keys[start]:
            lane = shard.lane(keys[start])
            shard.stored(items[start:end], lane)
            lane.namespace.enqueued += end - start
            start = end
    chunk.request.stored(chunk.indices, chunk.items)


def _apply_mixed(shard: Shard, round_: Round, result: RoundResult, now_ms: int) -> None:
    """Some of it was refused, or all of it failed: item by item."""
    all_committed = result.outcome is Outcome.COMMITTED
    # Without inserts a transaction may fit a full disk: only changes that failed alone are refused for it.
    full = result.disk_full and not round_.chunks
    if result.committed:
        _lanes_committed(shard, round_)

    def is_committed(item_id: int) -> bool:
        return item_id in result.committed or (all_committed and item_id not in result.failed)

    for chunk in round_.chunks:
        _chunk_mixed(shard, chunk, result, is_committed)
    for change in round_.changes:
        if change.item.id in result.rejected:
            shard.counters.refused_rows += 1
            _refused(shard, change, now_ms, "the database refuses this change")
        elif is_committed(change.item.id):
            committed(shard, change, now_ms)
        elif full and change.waits and change.cause is not Cause.LEASE:
            _refused(shard, change, now_ms, DISK_FULL)
        else:
            _again(shard, change, now_ms)


def _chunk_mixed(shard: Shard, chunk: Chunk, result: RoundResult, is_committed: Callable[[int], bool]) -> None:
    rejected = [i for i, item in enumerate(chunk.items) if item.id in result.rejected]
    good = [i for i, item in enumerate(chunk.items) if item.id not in result.rejected and is_committed(item.id)]
    left = [i for i, item in enumerate(chunk.items) if item.id not in result.rejected and not is_committed(item.id)]
    if rejected:
        shard.counters.refused_rows += len(rejected)
        chunk.request.refused([chunk.indices[i] for i in rejected], Invalid("the database refuses this item"))
    if good:
        _stored(shard, chunk.part(good))
    if left:
        part = chunk.part(left)
        chunk.indices, chunk.items, chunk.keys, chunk.dedup = part.indices, part.items, part.keys, part.dedup
        chunk.flying = False
        shard.returned.append(chunk)


def _changed(shard: Shard, changes: list[Change], now_ms: int) -> None:
    """All of `changes` are committed. An ack that nothing else waits behind is the common case, done right here."""
    known, written = shard.known, shard.written
    held = saved = removed = counted = 0
    lane = None
    for change in changes:
        item = change.item
        if change.cause is not _ACK or item.change is not None or change.scan is not None:
            committed(shard, change, now_ms)
            continue
        if item.lane is not lane:  # most come lane by lane
            if lane is not None:
                lane.namespace.removed["ack"] += removed - counted
            lane, counted = item.lane, removed
        removed += 1
        leased = item.phase is _LEASED
        saved += leased and item.place is _IN_READY
        item.flying = None
        item.phase = _IDLE
        item.lease = 0
        lane.leased -= leased
        lane.total -= 1
        if not lane.total:
            shard.idle_lane(lane, now_ms)
        if known.pop(item.id, None) is not None:
            held += item.held
            item.held = 0
        if written:
            written.pop(item.id, None)
        for request, at in change.waits:
            request.settled(at, None)
    shard.budget.give(held)
    if lane is not None:
        lane.namespace.removed["ack"] += removed - counted
    shard.counters.lease_writes_saved += saved


def committed(shard: Shard, change: Change, now_ms: int) -> None:
    """The change is in the database: the item is where it says."""
    item, to = change.item, change.to
    leased = item.phase is Phase.LEASED
    item.flying = None
    _count(shard, change)
    if to is To.GONE:
        # A later change of the same item (a second ack, say) finds it gone.
        later, item.change = item.change, None
        shard.count_gone(item.lane, now_ms)
        item.phase = Phase.IDLE
        item.lease = 0
        shard.forget(item)
        if later is not None:
            change.waits += later.waits
            shard.leave_scan(later, now_ms)
    elif to is not To.KEPT:
        _moved(shard, change)
    if leased and item.phase is not Phase.LEASED:
        item.lane.leased -= 1
    if change.scan is not None:
        shard.scan_done(change, now_ms)
    if to is not To.GONE and item.change is None:
        if to is To.KEPT:
            shard.settle_phase(item)
        elif to is To.READY:
            shard.enter_ready(item)
        elif to is To.DELAYED:
            shard.forget(item)
        else:
            shard.remember_written(item)
    for request, at in change.waits:
        request.settled(at, None)


def _moved(shard: Shard, change: Change) -> None:
    item = change.item
    if change.metadata is not None:
        shard.drop_body(item)
    item.attempt = change.attempt
    if change.to is To.LEASED:
        item.place = Place.TIMER
        item.lease_expires_at_ms = change.due_ms
        return
    item.phase = Phase.IDLE
    item.lease = change.lease
    if change.to is To.READY:
        item.place = Place.READY
    else:
        item.place = Place.TIMER
        item.deliver_after_ms = change.due_ms


def _count(shard: Shard, change: Change) -> None:
    counters, namespace, cause = shard.counters, change.item.lane.namespace, change.cause
    if change.to is To.GONE:
        namespace.removed[cause.name.lower()] += 1
    elif cause is Cause.LEASE:
        counters.lease_writes += 1
    elif cause is Cause.EXPIRED:
        namespace.expired += 1
    elif cause is Cause.NACK:
        namespace.nacked += 1
    elif cause is Cause.RELEASE:
        namespace.released += 1
    elif cause is Cause.EXTEND:
        namespace.extended += 1
    elif cause is Cause.DUE:
        counters.due += 1


def _again(shard: Shard, change: Change, now_ms: int) -> None:
    """Certainly not committed: it waits for the next transaction, unless something newer does."""
    item = change.item
    item.flying = None
    newer = item.change
    if newer is None:
        item.change = change
        shard.changes.append(change)
    else:
        newer.waits += change.waits
        shard.leave_scan(change, now_ms)


def _refused(shard: Shard, change: Change, now_ms: int, why: str) -> None:
    """The database does not store the change: the item stays where it is."""
    item = change.item
    item.flying = None
    shard.leave_scan(change, now_ms)
    if item.change is None:
        shard.settle_phase(item)
    for request, at in change.waits:
        request.settled(at, Unavailable(why, again_ms(shard, now_ms) if shard.disk_full else None))


# ------------------------------------------------------------------------------------------------- the reads


def _apply_reads(shard: Shard, round_: Round, result: RoundResult, now_ms: int) -> None:
    pages.apply(shard, round_, result)
    if round_.look:
        _apply_look(shard, round_.look, result)
    if round_.due is not None:
        apply_due(shard, result.due, now_ms)
    if round_.expiring is not None:
        apply_expiring(shard, result.expiring, now_ms)
    keyed.apply_reads(shard, round_, result, now_ms)
    for at, listing in enumerate(round_.lists):
        if at < len(result.lists):
            listing.done(*result.lists[at], None)
        else:
            shard.lists.insert(0, listing)


def _apply_look(shard: Shard, ids: list[int], result: RoundResult) -> None:
    if result.look is None:
        return  # they stay in `looks` for the next trip
    found = {row.body.id: row for row in result.look}
    for item_id in ids:
        waiting = shard.looks.take(item_id)
        row = found.get(item_id)
        item = shard.known.get(item_id)
        if item is None and row is not None:
            lane = shard.lane_numbers.get(row.body.lane)
            if lane is None:  # another owner's lane: this one has to find out that it is over
                shard.confirm_wanted = True
                for look in waiting:
                    look(None, None, NotServed("the shard moved to another host"))
                continue
            item = from_found(row, lane)
        for look in waiting:
            look(item, row.body if row is not None else None, None)
