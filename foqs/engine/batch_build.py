"""Builds the next batch of a shard from the requests, changes and reads that wait."""

from __future__ import annotations

from collections import deque

from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.pending_progress import WRITE_DELAY_MS
from foqs.buffers.shard_batch import ANSWERED, Chunk, ShardBatch, emit
from foqs.buffers.tail import MAX_BYTES
from foqs.engine import (
    batch_homes,
    batch_members,
    batch_reads,
    dedup,
    end_events,
    home_reads,
    idle_lanes,
    item_ops,
    kept_items,
    ordered,
    unique,
)
from foqs.engine.shard import Shard
from foqs.engine.shard_queue import ShardQueue
from foqs.fairness.keys import pack_throttles, rules_of, tenancy_of
from foqs.item import Cause, Change, Item, Phase, Place, To, WrongStep, body_bytes
from foqs.prefetch.lane import Lane
from foqs.rows import Batch, HomeGone, LaneRow, NewItem, NewOrdered, ReadyRow
from foqs.rules import pack_lane
from foqs.shardmgr.lifecycle import BreakerState, ShardState

_CLOSED, _SERVING, _DRAINING = BreakerState.CLOSED, ShardState.SERVING, ShardState.DRAINING
_GONE = To.GONE
_TAIL_SPAN = 2
"""The tail reaches back over this many times `tail_items` ids at most."""
_TAIL_SHARE = 0.5
"""With more of the byte budget in use, new items get their rows at once: windows may soon have to give back memory."""
_ROW_BYTES = 4_096  # the most metadata that a changed row brings


def build(shard: Shard, now_ms: int) -> ShardBatch | None:
    """Return the next batch; None if there is no work, one is in flight, or the database is not asked for now."""
    owner, queue, memory = shard.owner, shard.queue, shard.memory
    if queue.in_flight is not None or (owner.state is not _SERVING and owner.state is not _DRAINING):
        return None
    if owner.pause_from_ms is not None and owner.retry_at_ms(now_ms):
        return None
    if owner.lost or queue.unsettled is not None or owner.breaker.state is not _CLOSED:
        return _trial(shard, now_ms)
    asked = queue.chunks or queue.changes or owner.state is _DRAINING
    if not asked and next_ms(shard, now_ms) > now_ms and not idle_lanes.is_due(shard, now_ms):
        return None
    batch, tail, keys, held, kept = ShardBatch(), memory.tail, queue.keys, queue.held, queue.kept
    transaction = Batch(next_number=queue.next_number)
    # The mark passes items that this transaction removes with the next one, so plain acks do not walk the tail.
    first = (tail.first() if tail.count else None) or shard.first_id + queue.next_number
    transaction.indexed_from = transaction.indexed_to = first - 1
    if queue.chunks:
        _take_inserts(shard, batch, transaction, now_ms)
    if queue.changes or queue.progress or owner.removals_only:
        _take_changes(shard, batch, transaction, now_ms)
    if kept.unsent:
        kept_items.take_removals(shard, batch, transaction)
    unwritten = queue.unwritten
    due = bool(unwritten) and unwritten[0][0] <= now_ms - shard.config.lease_write_delay_ms // 2
    behind = first < shard.first_id + transaction.next_number - _TAIL_SPAN * shard.config.tail_items
    more = due or behind or queue.lists or batch.lanes_gone or memory.idle_lanes or owner.state is _DRAINING
    moved = False
    waits = keys.gone is not None or keys.wanted is not None or keys.copies or keys.gives or keys.marks  # `keys_wait`
    batches = queue.batching and queue.batches_ms <= now_ms
    if more or queue.index_rows or waits or keys.redrives or held.claims or held.freed or batches:
        moved = _take_rest(shard, batch, transaction, behind=behind, now_ms=now_ms)
    if batch.chunks or batch.changes or batch.indexed or batch.lanes_gone or batch.removals or moved:
        if transaction.filled:
            _note_rows(shard, batch, transaction, now_ms)
        transaction.due_from_ms = queue.timers.from_ms
        transaction.expiry_from_ms = queue.ttls.from_ms
        transaction.dedup_from_ms = keys.scan.from_ms
        batch.transaction = transaction
    if (
        (queue.pages_wanted or queue.bodies_wanted or queue.looks or queue.lists or queue.dead_reads)
        or (owner.confirm_wanted or owner.clock_wanted)
        or (queue.timers.due_ms <= now_ms or queue.ttls.due_ms <= now_ms or queue.keys.scan.due_ms <= now_ms)
        or (kept.scan.due_ms <= now_ms or kept.oldest_wanted or held.due_ms <= now_ms or memory.orders.due)
        or batches
    ):
        _add_reads(shard, batch, now_ms)
    if batch.transaction is None and not (batch.reads or batch.confirm):
        queue.took(batch)
        return None
    return queue.send(batch, now_ms - owner.late_ms, now_ms)


def _trial(shard: Shard, now_ms: int) -> ShardBatch | None:
    """Return the batch that makes a new connection, or that tries a database whose breaker was open."""
    owner, queue = shard.owner, shard.queue
    if not owner.breaker.allows(now_ms):
        return None
    reconnect = owner.lost or queue.unsettled is not None
    return queue.send(ShardBatch(reconnect=reconnect, confirm=not reconnect), now_ms - owner.late_ms, now_ms)


def next_ms(shard: Shard, now_ms: int, *, looks: bool = True) -> int:
    """Return when the shard has work though no event arrives; a time in the past means now. Without `looks`, homes of
    batches look for lost reports at no time of their own."""
    owner, queue = shard.owner, shard.queue
    if queue.in_flight is not None:
        hangs_ms = queue.in_flight.begun_ms + owner.hang_ms + 1
        return hangs_ms if hangs_ms > now_ms else now_ms + owner.hang_ms
    if owner.lost or queue.unsettled is not None or owner.breaker.state is not _CLOSED:
        again_ms = max(owner.retry_at_ms(now_ms), owner.breaker.retry_at_ms(now_ms))
        from_ms = shard.silent_from_ms()
        if from_ms is None or now_ms < from_ms:
            return again_ms
        return min(again_ms, now_ms + owner.hang_ms - (now_ms - from_ms) % owner.hang_ms + 1)
    if owner.removals_only and owner.takes_removals_only(now_ms):
        return _next_of_full_ms(shard, now_ms)
    if queue.chunks or queue.changes or queue.looks or queue.lists or queue.dead_reads or queue.kept.unsent:
        return owner.retry_at_ms(now_ms)
    keys, held = queue.keys, queue.held
    waits = keys.gone is not None or keys.wanted is not None or keys.copies or keys.gives or keys.marks  # `keys_wait`
    if (waits or keys.redrives or held.claims or held.freed) and dedup.due(queue):
        return owner.retry_at_ms(now_ms)
    asked = queue.pages_wanted or queue.bodies_wanted or owner.confirm_wanted or owner.clock_wanted
    asked = asked or (queue.batching and queue.batches_ms <= now_ms)
    many = shard.memory.idle_lanes and idle_lanes.are_many(shard)
    if many or ((asked or queue.kept.oldest_wanted or shard.memory.orders.due) and owner.state is _SERVING):
        return owner.retry_at_ms(now_ms)
    at_ms = NEVER_MS
    if owner.state is _SERVING and not owner.held:
        at_ms = min(queue.timers.due_ms, queue.ttls.due_ms, keys.scan.due_ms, queue.kept.scan.due_ms, held.due_ms)
        if queue.batching:
            at_ms = min(at_ms, queue.batches_ms if looks else min(queue.members.next_ms, queue.homes.ends_ms))
    oldest = queue.oldest_unwritten_ms() if queue.unwritten else None
    if oldest is not None:
        at_ms = min(at_ms, oldest + shard.config.lease_write_delay_ms // 2)
    if queue.progress:
        at_ms = min(at_ms, queue.progress.due_ms)
    if queue.index_rows:
        at_ms = min(at_ms, owner.full_until_ms if owner.disk_full else now_ms)
    return at_ms if owner.pause_from_ms is None else max(at_ms, owner.retry_at_ms(now_ms))


def _next_of_full_ms(shard: Shard, now_ms: int) -> int:
    """Return when a shard has work whose database takes removals only."""
    owner, queue = shard.owner, shard.queue
    asked = queue.pages_wanted or queue.bodies_wanted or owner.confirm_wanted or owner.clock_wanted
    if queue.looks or queue.kept.unsent or queue.keys.gone is not None or (asked and owner.state is _SERVING):
        return owner.retry_at_ms(now_ms)
    if queue.chunks or any(not needs_room(shard, change) for change in queue.changes):
        return owner.retry_at_ms(now_ms)
    at_ms = owner.full_until_ms
    if owner.state is _SERVING and not owner.held:
        at_ms = min(at_ms, queue.timers.due_ms, queue.ttls.due_ms, queue.keys.scan.due_ms, queue.kept.scan.due_ms)
        at_ms = min(at_ms, queue.held.due_ms)
    return max(at_ms, owner.retry_at_ms(now_ms))


# ------------------------------------------------------------------------------------------ the transaction


def needs_room(shard: Shard, change: Change) -> bool:
    """Return False for a change that only removes rows."""
    if change.to is not _GONE or kept_items.keep_of(shard, change) is not None:
        return True
    return bool(shard.policies.reporting) and end_events.has_event(shard, change)


def _take_rest(shard: Shard, batch: ShardBatch, transaction: Batch, *, behind: bool, now_ms: int) -> bool:
    """Take what no request asks for: leases, rows of unindexed items, empty lanes, and keys. Return True if there is
    something that is not in `batch`."""
    queue, memory = shard.queue, shard.memory
    if batch.removals_only:
        return queue.keys.gone is not None and dedup.take_expired(queue, transaction)
    if queue.unwritten:
        # The other half of the delay is for the commit, before the shard has to stop leasing items.
        drains = shard.owner.state is _DRAINING or queue.lists  # the rows have to show every lease
        before_ms = now_ms if drains else now_ms - shard.config.lease_write_delay_ms // 2
        if queue.unwritten[0][0] <= before_ms:
            _take_leases(shard, batch, transaction, before_ms, now_ms)
    if queue.index_rows and not shard.owner.full(now_ms):
        _take_index_rows(shard, batch, transaction)
    if memory.tail.count and ((batch.chunks and behind) or queue.lists):
        _index_tail(shard, batch, transaction)
    if memory.ordering and queue.lists and queue.lists[0].state == "ready":
        ordered.index_turns(shard, batch, transaction)
    if batch.lanes_gone or (memory.idle_lanes and idle_lanes.is_due(shard, now_ms)):
        idle_lanes.take(shard, batch, transaction, now_ms)
    moved = False
    if queue.keys_wait:
        moved = dedup.fill_transaction(shard, batch, transaction)
        moved = unique.fill_transaction(shard, batch, transaction, now_ms) or moved
    if queue.batching and queue.batches_ms <= now_ms:
        batch_homes.turn(shard, now_ms)
        moved = batch_homes.fill(shard, batch, transaction, now_ms) or moved
        moved = batch_members.fill(shard, transaction) or moved
    return moved


def _note_rows(shard: Shard, batch: ShardBatch, transaction: Batch, now_ms: int) -> None:
    """Have scans find the new rows of the transaction in time, and let its mark pass no unindexed item."""
    for row in transaction.timer_new:
        shard.queue.timers.inserted(row.due_ms)
    for at_ms, _ in transaction.expiry_new:
        shard.queue.ttls.inserted(at_ms)
    if transaction.ended_new or transaction.ended_gone:
        for ended in transaction.ended_new:
            shard.queue.kept.scan.inserted(ended.until_ms)
        transaction.ended_from_ms = shard.queue.kept.scan.from_ms
    if transaction.keys is not None:
        unique.schedule(shard, transaction.keys, now_ms)
    if shard.memory.tail.count:
        transaction.indexed_to = _first_unindexed(shard, batch, transaction) - 1


def _first_unindexed(shard: Shard, batch: ShardBatch, transaction: Batch) -> int:
    """Return the first id that is still unindexed when `transaction` is committed; the next id if there is none."""
    indexed = {item.id for item in batch.indexed}
    for item in shard.memory.tail.items():
        if item.id not in indexed:
            return item.id
    for new in transaction.inserts:
        if new.unindexed:
            return new.id
    return shard.first_id + transaction.next_number


def _take_inserts(shard: Shard, batch: ShardBatch, transaction: Batch, now_ms: int) -> None:
    queue, memory, chunks = shard.queue, shard.memory, shard.queue.chunks
    most_rows, most_bytes = shard.config.batch_rows, queue.max_batch_bytes
    base, number, first_unindexed = shard.first_id, queue.next_number, 0
    tail, budget, window_rows = memory.tail, memory.budget, shard.config.window_rows
    # How much may be stored without rows in `ready`. A list of this batch shows new items, too.
    allowed = not queue.lists and budget.used_bytes <= _TAIL_SHARE * budget.limit_bytes
    tail_rows, tail_bytes = shard.config.tail_items - tail.count if allowed else -1, MAX_BYTES - tail.bytes
    while chunks:
        chunk = chunks[0]
        count, rows, size_bytes = len(chunk.items), len(chunk.items) + batch.rows, batch.size_bytes + chunk.size_bytes
        if batch.chunks and (rows > most_rows or size_bytes > most_bytes):
            break
        chunks.popleft()
        batch.taken_rows += count
        if chunk.request.done:
            continue  # it timed out before it was sent
        full = len(memory.lanes) + count > shard.config.lanes and not idle_lanes.make_room(memory, chunk, batch)
        if full or (chunk.ruled and not memory.takes_rules(chunk.keys)):
            queue.returned.append(chunk)
            continue
        chunk.in_flight = True
        batch.chunks.append(chunk)
        batch.rows, batch.size_bytes = rows, size_bytes
        key, lane, window, unindexed = None, None, None, False
        for item, item_key in zip(chunk.items, chunk.keys, strict=True):
            if item_key is not key:
                key = item_key
                lane = memory.lanes.get(key)
                if lane is None or not lane.stored or batch.lanes_gone:
                    lane = _stored_lane(shard, lane or memory.add_lane(key, None), batch, transaction)
                elif not lane.total:
                    memory.idle_lanes.pop(key, None)  # keep it: this transaction inserts into it
                    batch.lanes_filled = batch.lanes_filled or []
                    batch.lanes_filled.append(lane)
                window = lane.window
                # Unindexed items stay in memory, so their window must have room for the chunk.
                found = lane.ready if window is None else len(window.entries)
                room = found + count <= window_rows and (window is not None or not found)
                unindexed = room and rows <= tail_rows and size_bytes <= tail_bytes and not chunk.ordered
            item.lane = lane.number  # type: ignore[union-attr,assignment]
            item.id = base + number
            number += 1
            item.unindexed = (
                unindexed
                and not item.due_ms
                and (
                    window is None or not window.more or window.covers((item.priority, item.deliver_after_ms, item.id))
                )
            )
            if item.unindexed:
                first_unindexed = first_unindexed or item.id
            if item.due_ms or item.expires_at_ms:
                _note_times(queue, chunk, item)
        transaction.inserts += chunk.items
        if (
            chunk.dedup is not None
            or chunk.weights is not None
            or chunk.ordered
            or chunk.members
            or chunk.end is not None
        ):
            _take_extras(shard, chunk, batch, transaction, now_ms)
    transaction.next_number = number
    if not tail.count:
        transaction.indexed_to = (first_unindexed or base + number) - 1


def _note_times(queue: ShardQueue, chunk: Chunk, item: NewItem) -> None:
    """Have scans find the item when its delay and its TTL end."""
    if item.due_ms:
        chunk.delays = True
        queue.timers.inserted(item.due_ms)
    if item.expires_at_ms:
        queue.ttls.inserted(item.expires_at_ms)


def _stored_lane(shard: Shard, lane: Lane[Item], batch: ShardBatch, transaction: Batch) -> Lane[Item]:
    """Give the lane its number, and its row in this transaction if it has none."""
    number = lane.number
    if number is None:
        number = shard.queue.new_lane_number()
        shard.memory.number_lane(lane, number)
    if not lane.total:  # as in `_take_inserts`
        shard.memory.idle_lanes.pop(lane.key, None)
        if batch.lanes_gone:
            batch.lanes_gone.pop(lane, None)
        if lane.stored:
            batch.lanes_filled = batch.lanes_filled or []
            batch.lanes_filled.append(lane)
    if not lane.stored and lane not in batch.lanes_new:
        if not batch.lanes_new:
            batch.lanes_new = {}
            transaction.fill()
        batch.lanes_new[lane] = None
        ns, topic = lane.topic.key
        fairness, throttles = tenancy_of(lane.key)
        packed = pack_throttles(throttles) if throttles else b""
        rules = pack_lane(rules_of(lane.key), lane.until, lane.members)
        row = LaneRow(number, ns.encode(), topic.encode(), fairness.encode(), packed, rules=rules)
        transaction.lanes_new.append(row)
    return lane


def _take_extras(shard: Shard, chunk: Chunk, batch: ShardBatch, transaction: Batch, now_ms: int) -> None:
    """Write the keys of the chunk, and the weights that its items bring to their lanes."""
    transaction.ordered = transaction.ordered or chunk.ordered
    if chunk.homes is not None:
        gone = [(item, chunk.homes.get(item.digest)) for item in chunk.items if isinstance(item, NewOrdered)]
        rows_gone = [HomeGone(item.id, item.digest, home) for item, home in gone if home is not None]
        shard.queue.key_rows(transaction).homes_gone += rows_gone
    if chunk.dedup is not None:
        transaction.fill()
        rows = dedup.rows_of(shard.queue, chunk, now_ms)
        transaction.dedup_new += rows
        if shard.memory.holding:
            unique.hold(shard, rows, transaction)
    if chunk.members:
        batch_members.rows(transaction).new += [(item.id, item.batch) for item in chunk.items if item.batch]
    if chunk.end is not None:
        batch_homes.end(shard.queue.homes, chunk.end, chunk.items, transaction, now_ms)
    if chunk.weights is None:
        return
    batch.weights = batch.weights or {}
    for key in dict.fromkeys(chunk.keys):
        lane, weight = shard.memory.lanes[key], chunk.weights.get(key, 0)
        if weight and weight != batch.weights.get(lane, lane.weight):
            batch.weights[lane] = weight
    transaction.weights = [(lane.number, weight) for lane, weight in batch.weights.items()]  # type: ignore[misc]


def _queue_progress(shard: Shard, now_ms: int) -> None:
    """Write pending progress in time, and at once before the shard is given away."""
    before_ms = now_ms if shard.owner.state is _DRAINING else now_ms - WRITE_DELAY_MS
    for item_id, pending in list(shard.queue.progress.items()):
        if pending.since_ms > before_ms:
            break
        item = shard.memory.known.get(item_id, pending.item)
        if not item.busy:
            shard.put(Change(item, To.LEASED, Cause.LEASE), now_ms)


def _take_progress(shard: Shard, change: Change, transaction: Batch) -> None:
    """Write the pending progress of an item that is `noted`, or remove its row with the item."""
    item, pending = change.item, shard.queue.progress
    if not transaction.filled:
        transaction.fill()
    if change.to is _GONE and change.ended is None:
        transaction.progress_gone.append(item.id)  # the pending row waits for the commit
    elif item.id in pending and change.to is not To.KEPT:  # which does not write the item's row
        change.progress = row = pending.take(item.id, shard.memory.budget)
        transaction.progress_new.append(row)
        if row.checkpoint is not None:
            change.more_bytes = len(row.checkpoint) - shard.memory.noted[item.id]


def _put_aside(shard: Shard, batch: ShardBatch, now_ms: int) -> list[Change] | None:
    """Put aside the changes that a full database does not take, None if it is time to try them again."""
    if not shard.owner.takes_removals_only(now_ms):
        return None
    batch.removals_only = True
    return shard.queue.put_aside(lambda change: needs_room(shard, change))


def _take_changes(shard: Shard, batch: ShardBatch, transaction: Batch, now_ms: int) -> None:  # noqa: PLR0912 - without calls
    queue = shard.queue
    rest = _put_aside(shard, batch, now_ms) if shard.owner.removals_only else None
    if rest is None and queue.progress:
        _queue_progress(shard, now_ms)
    waiting, room = queue.changes, 2 * shard.config.batch_rows
    keeping, reporting, noted = shard.policies.keeping, shard.policies.reporting, shard.memory.noted
    linked = shard.memory.holding or shard.memory.members
    while waiting and room > 0:
        change = waiting.popleft()
        item = change.item
        if item.change is not change:  # superseded or withdrawn
            if item.change is None or item.change.cause is Cause.INDEX:
                continue
            change = item.change  # in the place of the first, else an item that changes often may never have a turn
        if item.in_flight is not None:
            raise WrongStep(f"SEND of {change} from {item}")
        item.change, item.in_flight = None, change  # `Item.send`
        if change.to is _GONE and (keeping or len(item.lane.key) > 3):  # type: ignore[arg-type]  # `rules_of`
            batch.keeps = kept_items.mark_end(shard, change, now_ms) or batch.keeps
        if reporting:
            room -= _take_event(shard, change, batch, transaction, now_ms)
        if noted and item.id in noted:
            _take_progress(shard, change, transaction)
        if (
            change.to is _GONE
            and item.unindexed
            and change.ended is None
            and not item.expires_at_ms
            and not item.lane.dead
            and not item.lane.linked
            and change.digest is None
        ):
            transaction.item_gone.append(item.id)  # `emit`, of an item that has no other row
        else:
            if not transaction.filled:
                transaction.fill()
            if change.move is not None or item.order is not None:
                _note_move(shard, change, batch, transaction)
            emit(change, transaction)
            if linked:
                _note_links(shard, change, transaction)
        batch.changes.append(change)
        room -= 1 if change.body is None else 1 + body_bytes(change.body) // _ROW_BYTES
    if batch.events:
        _put_events(queue, batch)
    waiting.extend(rest or ())  # until the database is asked for room again
    batch.rows += len(batch.changes)


def _take_event(shard: Shard, change: Change, batch: ShardBatch, transaction: Batch, now_ms: int) -> int:
    """Store the event of an item that ends, if its topic has events. Return how many rows its size counts for."""
    made = end_events.event_of(shard, change, now_ms)
    if made is None:
        return 0
    key, event = made
    lane = _stored_lane(shard, shard.memory.lane(key), batch, transaction)
    event.lane = lane.number  # type: ignore[assignment]
    event.id = shard.first_id + transaction.next_number
    transaction.next_number += 1
    batch.events = batch.events or {}
    batch.events.setdefault(lane.key, []).append(event)
    if not transaction.filled:
        transaction.fill()
    transaction.inserts.append(event)
    transaction.together.append((change.item.id, event.id))
    batch.rows += 1
    return 1 + len(event.payload) // _ROW_BYTES


def _put_events(queue: ShardQueue, batch: ShardBatch) -> None:
    """Put the events where memory learns of new items. Their chunks answer no request: if the transaction fails, they
    are dropped, and each change makes another event."""
    for key, events in batch.events.items():
        chunk = Chunk(ANSWERED, range(len(events)), events, [key] * len(events), 0, in_flight=True)
        batch.chunks.append(chunk)
        for event in events:
            if event.due_ms or event.expires_at_ms:
                _note_times(queue, chunk, event)


def _note_links(shard: Shard, change: Change, transaction: Batch) -> None:
    """Write what the change means for a key that the item holds, and for its batch."""
    if shard.memory.holding:
        unique.note(shard, change, transaction)
    if shard.memory.members:
        batch_members.note(change, transaction)


def _note_move(shard: Shard, change: Change, batch: ShardBatch, transaction: Batch) -> None:
    """Find the lane that an item moves to, and write its place in the order of its key."""
    if change.move is not None:
        change.target = _stored_lane(shard, shard.memory.lane(change.move.lane), batch, transaction)
    ordered.emit(shard, change, transaction)


def _take_index_rows(shard: Shard, batch: ShardBatch, transaction: Batch) -> None:
    """Write rows of unindexed items that left their windows."""
    waiting, room = shard.queue.index_rows, shard.config.batch_rows
    while waiting and room > 0:
        change = waiting.popleft()
        if change.item.change is change:  # else a newer one took its place
            change.item.send(change)
            transaction.fill()
            emit(change, transaction)
            batch.changes.append(change)
            batch.index_rows = True
            batch.rows += 1
            room -= 1


def _take_leases(shard: Shard, batch: ShardBatch, transaction: Batch, before_ms: int, now_ms: int) -> None:
    """Write leases that were given up to `before_ms` and have not ended; make the items of expired leases ready."""
    unwritten = shard.queue.unwritten
    transaction.fill()
    kept: deque[tuple[int, Item, int]] = deque()
    room = shard.config.batch_rows
    while unwritten and unwritten[0][0] <= before_ms and room > 0:
        given_ms, item, lease = unwritten.popleft()
        if item.lease != lease or item.phase is not Phase.LEASED or item.place is not Place.READY:
            continue
        kept.append((given_ms, item, lease))
        if item.busy:
            continue
        if item.lease_expires_at_ms <= now_ms and not shard.owner.held and not _ends_in_scan(shard, item):
            change = item_ops.change_at_expiry(item, now_ms)
        else:
            change = Change(item, To.LEASED, Cause.LEASE)
        item.queue(change)
        item.send(change)
        if item.id in shard.memory.noted:
            _take_progress(shard, change, transaction)
        emit(change, transaction)
        if shard.memory.holding or shard.memory.members:
            _note_links(shard, change, transaction)
        batch.changes.append(change)
        room -= 1
    unwritten.extendleft(reversed(kept))


def _ends_in_scan(shard: Shard, item: Item) -> bool:
    """Return True if the end of the lease may end the item: the scan of ended leases decides that, with the item's
    body at hand."""
    return not item.at_most_once and item_ops.may_end(shard.policy_of(item.lane), item.attempt)


def _index_tail(shard: Shard, batch: ShardBatch, transaction: Batch) -> None:
    """Write the rows of unindexed items, which may be leased as before: of items far behind the next id, since the next
    owner reads all items behind the first one; and of the lanes whose ready rows this batch lists."""
    queue, below = shard.queue, shard.first_id + transaction.next_number - _TAIL_SPAN * shard.config.tail_items
    listed = set(queue.lists[0].lanes) if queue.lists and queue.lists[0].state == "ready" else ()
    room = max(shard.config.batch_rows, len(transaction.inserts))
    transaction.fill()
    batch.indexed = []
    for item in shard.memory.tail.items():
        if item.id >= below and not listed:
            break
        if (item.id < below and room > 0) or item.lane.number in listed:
            number = item.lane.number
            assert number is not None, "a stored item's lane has a number"
            transaction.ready_new.append(
                ReadyRow(number, item.priority, item.deliver_after_ms, item.id, 0, 0, item.bytes)
            )
            batch.indexed.append(item)
            room -= 1
    batch.rows += len(batch.indexed)


# ------------------------------------------------------------------------------------------------- the reads


def _add_reads(shard: Shard, batch: ShardBatch, now_ms: int) -> None:
    queue = shard.queue
    owner = shard.owner
    serving = owner.state is _SERVING
    paged = serving and bool(queue.pages_wanted or queue.bodies_wanted) and batch_reads.add_pages(shard, batch, now_ms)
    if queue.looks:
        batch_reads.add_looks(shard, batch)
    if serving and not shard.owner.held:
        for scan, read in (
            (queue.timers, batch_reads.DueRead),
            (queue.ttls, batch_reads.ExpiringRead),
            (queue.keys.scan, dedup.ExpiredKeysRead),
            (queue.kept.scan, kept_items.EndedRead),
        ):
            if scan.due_ms <= now_ms:
                batch.reads = [*batch.reads, read(scan, scan.begin(now_ms), shard.config.scan_rows)]
        if queue.held.due_ms <= now_ms:
            queue.held.due_ms = NEVER_MS
            batch.reads = [*batch.reads, unique.FreeRead(now_ms, queue.held.after)]
    if queue.batching and queue.batches_ms <= now_ms and not batch.removals_only:
        batch_members.add_reads(shard, batch, now_ms)  # in a drain, too: new members may wait for their homes
        if serving:
            home_reads.add_reads(shard, batch, now_ms)
    if serving and shard.memory.orders.due:
        batch.reads = [*batch.reads, *shard.memory.orders.next_reads()]
    if serving and queue.kept.oldest_wanted:
        batch.reads = [*batch.reads, queue.kept.oldest_wanted.popitem()[1]]
    # A list shows rows that the transaction before it writes: of leases, and of unindexed items.
    if (queue.dead_reads or queue.lists) and not batch.removals_only:
        batch_reads.add_lists(shard, batch)
    # Reads alone do not prove ownership. Confirm it while reads continue, before the shard has to stop leasing items.
    stale = paged and not 0 <= now_ms - shard.owner.confirmed_ms <= shard.config.confirm_ms // 2
    batch.confirm = owner.clock_wanted or (batch.transaction is None and bool(owner.confirm_wanted or stale))
    if owner.confirm_wanted or owner.clock_wanted:
        owner.questions_sent()
