"""Items with order keys on one shard: their enqueue, and their rows.

`foqs.engine.orders` knows whose turn it is, and `foqs.engine.order_homes` which shard takes a new item.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foqs.buffers.pending_dedup import Keyed
from foqs.buffers.shard_batch import ShardBatch
from foqs.engine import enqueue, order_homes
from foqs.engine.calls import EnqueueCall
from foqs.engine.shard import Shard
from foqs.errors import Overloaded, Unavailable
from foqs.fairness.keys import ORDERED
from foqs.item import Cause, Change, Item, Place, To
from foqs.order import Order, OrderRow, Standing
from foqs.rows import Batch, NewOrdered, ReadyRow


def without_gaps(call: EnqueueCall, asked: Iterable[Keyed], left: Iterable[Keyed]) -> list[Keyed]:
    """Return the items that are `left` of a request, without the items of an order key of which one was refused: tried
    again, it would come after later ones."""
    kept = list(left)
    places = {one.at for one in kept}
    gaps = {one.dedup.digest for one in asked if one.at not in places and isinstance(one.item, NewOrdered)}
    refused = [one.at for one in kept if one.dedup.digest in gaps]
    if refused:
        call.refused(refused, Unavailable("an item of the same order_key in the request is refused", enqueue.RETRY_MS))
    return [one for one in kept if one.dedup.digest not in gaps]


def store(shard: Shard, call: EnqueueCall, new: Sequence[Keyed]) -> None:
    """Store items with order keys, in their order."""
    orders, limit = shard.memory.orders, shard.config.order_keys
    if len(orders.keys) >= limit:
        refused = [one.at for one in new if one.dedup.digest not in orders.keys]
        why = f"the shard of the order_key has items of {limit:,} order keys, the most that host.order_keys allows"
        call.refused(refused, Overloaded(why, enqueue.RETRY_MS))
        new = [one for one in new if one.dedup.digest in orders.keys]
        if not new:
            return
    for start, end, size in enqueue.cut([one.size_bytes for one in new], shard.queue.max_batch_bytes // 2):
        part = new[start:end]
        chunk = enqueue.chunk_of(call, [one.at for one in part], part, size)
        chunk.ordered, chunk.homes = True, order_homes.freed(shard, part)
        call.chunks.append(chunk)
        shard.queue.add(chunk)


def is_behind(item: Item) -> bool:
    """Return True if an item that may be leased otherwise waits for an earlier one of its order key."""
    shard: Shard | None = item.lane.term.shard
    return item.order is not None and shard is not None and shard.memory.orders.before(item.order)[0] != item.id


def emit(shard: Shard, change: Change, transaction: Batch) -> None:
    """Add the rows of a change of an item in its order, or of one that is redriven there, and its new `order`, to
    `transaction`. An item that comes into the order gets the next number of the shard for its place."""
    item, to = change.item, change.to
    if to is To.MOVED and change.order is not None:
        assert change.target is not None, "the transaction has the lane"
        _stand(change, change.order, change.target.number or 0, transaction)
        return
    order = item.order
    if order is None:
        return
    change.order = None  # of a transaction that failed
    if to is To.GONE or to is To.MOVED:
        _leave(change, order, transaction)
    elif to is To.READY or to is To.DELAYED:
        standing = _standing(shard, change, order)
        if standing == order.standing:
            return
        place = order.place
        if order.standing == Standing.NEW:
            place = shard.first_id + transaction.next_number
            transaction.next_number += 1
        _leave(change, order, transaction)
        _stand(change, Order(order.digest, place, standing), item.lane.number or 0, transaction)


def _standing(shard: Shard, change: Change, order: Order) -> Standing:
    if change.to is To.READY:
        return Standing.IN_ORDER
    if order.standing == Standing.NEW:
        return Standing.NEW
    if change.cause is Cause.CHANGE:
        retries = change.item.place is Place.TIMER  # another priority or an earlier time leaves it at its place
        return Standing(order.standing) if retries and change.due_ms <= change.item.deliver_after_ms else Standing.NEW
    skips = shard.policy_of(change.item.lane).order.on_failure == "skip"
    return Standing.RETRY if skips else Standing.IN_ORDER


def _leave(change: Change, order: Order, transaction: Batch) -> None:
    row = OrderRow(order.digest, order.standing, order.place, change.item.id, change.item.lane.number or 0)
    transaction.ordered = True
    transaction.order_gone.append(row)


def _stand(change: Change, order: Order, lane: int, transaction: Batch) -> None:
    change.order = order
    transaction.ordered = True
    transaction.order_new.append(OrderRow(order.digest, order.standing, order.place, change.item.id, lane))
    transaction.order_at_new.append((change.item.id, order.pack()))


def index_turns(shard: Shard, batch: ShardBatch, transaction: Batch) -> None:
    """Write the rows of the items in memory that have their turns, in the lanes whose ready rows this batch lists."""
    memory, found = shard.memory, list[Item]()
    for number in shard.queue.lists[0].lanes:
        lane = memory.lane_numbers.get(number)
        if lane is not None and lane.until == ORDERED and lane.window is not None:
            found += [item for _, _, _, item in lane.window.entries if item.unindexed]
    if not found:
        return
    transaction.fill()
    transaction.ready_new += [
        ReadyRow(item.lane.number or 0, *item.key, item.attempt, item.lease, item.bytes) for item in found
    ]
    batch.indexed = [*batch.indexed, *found]
    batch.rows += len(found)
