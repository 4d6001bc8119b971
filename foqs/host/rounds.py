"""From what waits on a shard to one trip to its database."""

from __future__ import annotations

from collections import deque
from itertools import islice, takewhile

from foqs.buffers.changes import Cause, Change, To
from foqs.buffers.round import Round
from foqs.host import keyed, pages, slot_rows
from foqs.host.shard import Shard
from foqs.ids import first_id
from foqs.item import Item, Phase, Place
from foqs.leases.deadlines import NEVER_MS
from foqs.prefetch.lane import Lane
from foqs.rows import Batch, LaneRow
from foqs.shardmgr.breaker import BreakerState
from foqs.shardmgr.lifecycle import ShardState

_LOOK_ROWS = 32
_IDLE_LANES = 100
"""Rows of empty lanes that one transaction removes."""
_LANES_SHARE = 0.9
"""Of the most lanes. With more, empty lanes are removed at once, so that new topics find room."""


def build(shard: Shard, now_ms: int) -> Round | None:
    """The next trip, or None when there is nothing to do, one is under way, or the database is left alone for now."""
    if shard.flight is not None or shard.state not in (ShardState.SERVING, ShardState.DRAINING):
        return None
    if shard.retry_at_ms(now_ms) or not shard.breaker.allows(now_ms):
        return None
    if shard.lost or shard.unsettled is not None:
        return _begin(shard, Round(reconnect=True), now_ms)
    if shard.breaker.state is BreakerState.HALF_OPEN:
        return _begin(shard, Round(confirm=True), now_ms)
    round_ = Round()
    batch = _build_batch(shard, round_, now_ms)
    if batch is not None:
        round_.batch = batch
    _add_reads(shard, round_, now_ms)
    if batch is None and not _reads_anything(round_):
        return None
    return _begin(shard, round_, now_ms)


def _begin(shard: Shard, round_: Round, now_ms: int) -> Round:
    round_.begun_ms = now_ms
    round_.keys_ms = now_ms - shard.late_ms
    shard.flight = round_
    return round_


def _reads_anything(r: Round) -> bool:
    ready = r.pages or r.lanes_pages or r.bodies
    return bool(ready or r.look or r.due or r.expiring or r.lists or r.dedup_expired or r.confirm)


def next_ms(shard: Shard, now_ms: int) -> int:
    """When the shard has something to do though nothing happens: a time in the past means now."""
    if shard.flight is not None:
        hangs_ms = shard.flight.begun_ms + shard.hang_ms + 1
        return hangs_ms if hangs_ms > now_ms else now_ms + shard.hang_ms
    if shard.lost or shard.unsettled is not None or not shard.breaker.closed:
        return max(shard.retry_at_ms(now_ms), shard.breaker.retry_at_ms(now_ms))
    if shard.chunks or shard.changes or shard.looks or shard.lists:
        return shard.retry_at_ms(now_ms)
    if shard.keys.gone is not None or shard.keys.wanted is not None or slot_rows.due(shard):
        return shard.retry_at_ms(now_ms)
    asked = shard.pages_wanted or shard.bodies_wanted or shard.confirm_wanted or shard.clock_wanted
    if asked and shard.state is ShardState.SERVING:
        return shard.retry_at_ms(now_ms)
    at_ms = NEVER_MS
    if shard.state is ShardState.SERVING:
        at_ms = min(shard.timers.due_ms(now_ms), shard.ttls.due_ms(now_ms), shard.keys.scan.due_ms(now_ms))
    oldest = shard.oldest_unwritten_ms()
    if oldest is not None:
        at_ms = min(at_ms, oldest + _write_after_ms(shard))
    return max(at_ms, shard.retry_at_ms(now_ms))


def _write_after_ms(shard: Shard) -> int:
    # Half the bound: the other half is for the commit itself, before the shard has to stop handing out.
    return shard.config.lease_write_delay_ms // 2


# ------------------------------------------------------------------------------------------ the transaction


def _build_batch(shard: Shard, round_: Round, now_ms: int) -> Batch | None:
    batch = Batch()
    _take_inserts(shard, round_, batch, now_ms)
    _take_changes(shard, round_, batch)
    _take_leases(shard, round_, batch, now_ms)
    _take_idle_lanes(shard, round_, batch, now_ms)
    beside = keyed.fill_batch(shard, round_, batch)
    if not (round_.chunks or round_.changes or round_.lanes_gone or beside):
        return None
    for row in batch.timer_new:
        shard.timers.inserted(row.due_ms)
    for at_ms, _ in batch.expiry_new:
        shard.ttls.inserted(at_ms)
    batch.next_number = shard.next_number
    batch.due_from_ms = shard.timers.from_ms
    batch.expiry_from_ms = shard.ttls.from_ms
    batch.dedup_from_ms = shard.keys.scan.from_ms
    return batch


def _take_inserts(shard: Shard, round_: Round, batch: Batch, now_ms: int) -> None:
    room_rows, room_bytes = shard.config.batch_rows, shard.max_batch_bytes
    base, number = first_id(shard.number), shard.next_number
    chunks = shard.chunks
    while chunks and (not round_.chunks or (len(chunks[0].items) <= room_rows and chunks[0].size_bytes <= room_bytes)):
        chunk = chunks.popleft()
        shard.chunk_rows -= len(chunk.items)
        if chunk.request.done:
            continue  # its time was over: it was answered, and nothing was stored
        chunk.flying = True
        round_.chunks.append(chunk)
        room_rows -= len(chunk.items)
        room_bytes -= chunk.size_bytes
        key, lane = None, None
        for item, item_key in zip(chunk.items, chunk.keys, strict=True):
            if item_key is not key:
                key = item_key
                lane = _stored_lane(shard, shard.lane(key), round_, batch)
            item.lane = lane.number  # type: ignore[union-attr,assignment]
            item.id = base + number
            number += 1
            if item.due_ms:
                shard.timers.inserted(item.due_ms)
            if item.expires_at_ms:
                shard.ttls.inserted(item.expires_at_ms)
        batch.inserts += chunk.items
        if chunk.dedup is not None:
            batch.dedup_new += keyed.rows_of(shard, chunk, now_ms)
    shard.next_number = number
    round_.rows = len(batch.inserts)


def _stored_lane(shard: Shard, lane: Lane, round_: Round, batch: Batch) -> Lane:
    """Gives the lane its number, and its row in this transaction if it has none."""
    if lane.number is None:
        lane.number = shard.next_lane
        shard.next_lane += 1
        shard.lane_numbers[lane.number] = lane
    if not lane.stored and lane not in round_.lanes_new:
        round_.lanes_new.append(lane)
        ns, topic = lane.key
        batch.lanes_new.append(LaneRow(lane.number, ns.encode(), topic.encode(), b""))
    return lane


def _take_changes(shard: Shard, round_: Round, batch: Batch) -> None:
    waiting, room = shard.changes, 2 * shard.config.batch_rows
    while waiting and room > 0:
        change = waiting.popleft()
        if change.item.change is not change:
            continue  # superseded or withdrawn
        _fly(change, round_, batch)
        room -= 1
    round_.rows += len(round_.changes)


def _fly(change: Change, round_: Round, batch: Batch) -> None:
    item = change.item
    assert item.flying is None, "an item has one change in a transaction"
    item.change, item.flying = None, change
    change.emit(batch)
    round_.changes.append(change)


def _take_leases(shard: Shard, round_: Round, batch: Batch, now_ms: int) -> None:
    """Writes leases that were not ended within half the allowed delay; returns those that ended by time."""
    before_ms = now_ms - _write_after_ms(shard)
    if shard.state is ShardState.DRAINING or shard.lists:
        before_ms = now_ms  # the database has to say it all
    unwritten, kept = shard.unwritten, deque[tuple[int, Item, int]]()
    room = shard.config.batch_rows
    while unwritten and unwritten[0][0] <= before_ms and room > 0:
        given_ms, item, lease = unwritten.popleft()
        if item.lease != lease or item.phase is not Phase.LEASED or item.place is not Place.READY:
            continue
        kept.append((given_ms, item, lease))
        if item.busy:
            continue
        if item.lease_expires_at_ms <= now_ms:
            change = Change(item, To.READY, Cause.EXPIRED, lease=item.lease)
        else:
            change = Change(item, To.LEASED, Cause.LEASE)
        item.change = change
        _fly(change, round_, batch)
        room -= 1
    unwritten.extendleft(reversed(kept))


def is_over(shard: Shard, lane: Lane, now_ms: int) -> bool:
    """Whether an empty lane has been empty for so long that its row may go; any time is enough when lanes are many."""
    config = shard.config
    return now_ms - lane.empty_since_ms >= config.lane_idle_ms or len(shard.lanes) > _LANES_SHARE * config.lanes


def _take_idle_lanes(shard: Shard, round_: Round, batch: Batch, now_ms: int) -> None:
    """Remove rows of lanes that were empty for long; oldest first, a few at a time."""
    first = islice(shard.idle_lanes.values(), _IDLE_LANES)
    lanes = list(takewhile(lambda lane: is_over(shard, lane, now_ms), first))
    if not lanes:
        return
    inserted = {key for chunk in round_.chunks for key in chunk.keys}
    for lane in lanes:
        del shard.idle_lanes[lane.key]
        if lane.total:
            continue
        # An insert into this lane is in this transaction, and may fail; one in a later transaction gives it a new row.
        if lane.key in inserted:
            shard.idle_lane(lane, now_ms)
            continue
        if not lane.stored:  # the transaction that was to bring it failed
            shard.forget_lane(lane)
            continue
        assert lane.number is not None
        round_.lanes_gone.append(lane)
        batch.lanes_gone.append(lane.number)


# ------------------------------------------------------------------------------------------------- the reads


def _add_reads(shard: Shard, round_: Round, now_ms: int) -> None:
    if shard.state is ShardState.SERVING:
        pages.add(shard, round_, now_ms)
        rows = shard.config.scan_rows
        if shard.timers.due_ms(now_ms) <= now_ms:
            round_.due = (shard.timers.begin(now_ms), rows)
        if shard.ttls.due_ms(now_ms) <= now_ms:
            round_.expiring = (shard.ttls.begin(now_ms), rows)
    keyed.add_reads(shard, round_, now_ms)
    round_.look = list(shard.looks)[:_LOOK_ROWS]
    round_.lists, shard.lists = shard.lists[:1], shard.lists[1:]
    # Reads alone prove nothing of the owner: while they go on it is confirmed before it has to stop handing out.
    reads = round_.pages or round_.lanes_pages or round_.bodies
    stale = reads and not 0 <= now_ms - shard.confirmed_ms <= shard.config.confirm_ms // 2
    round_.confirm = shard.clock_wanted or (round_.batch is None and bool(shard.confirm_wanted or stale))
    shard.confirm_wanted = shard.clock_wanted = False
