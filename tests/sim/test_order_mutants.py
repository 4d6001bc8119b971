"""Rules of order keys that are taken out, as in `test_mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from foqs.engine import batch_apply, ordered
from foqs.engine import orders as orders_module
from foqs.engine.orders import _ALL_READ, ITEM_BYTES, NextRead, OrderKey, Orders
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.item import Cause, Change, Item, Phase, Place, To
from foqs.order import InOrder, Order, Standing
from foqs.prefetch.lane import Lane
from foqs.rows import Batch, NewOrdered
from tests.kernel.mutants import Mutants, constant
from tests.sim.simulation import simulate

MANY = 300
MUTANTS = Mutants()
put, around = MUTANTS.put, MUTANTS.around


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str) -> None:
    MUTANTS.check(name, simulate, MANY)


# --------------------------------------------------------------------------------------------- turns

# An item that comes back does not go before those that were not delivered.
put("an_earlier_item_waits_for_undelivered_ones", Orders, "_yields", lambda orders, key, place: not key.turn, "orders")
# Items behind the kept ones are never read.
put("the_items_behind_are_forgotten", Orders, "_forget_behind", constant(None), "orders")
# A page finds it, and takes it for one that has no turn.
put("a_window_forgets_the_first_item", Orders, "leaves_memory", constant(None), "orders")
put("an_item_keeps_its_turn_when_it_leaves", batch_apply, "_leave_order", constant(None), "orders")


@around(Orders, "stored", "orders")
def a_new_item_does_not_wait(original: Any, orders: Orders, new: NewOrdered, lane: Lane[Item]) -> None:
    orders.keys.pop(new.digest, None)
    original(orders, new, lane)


@around(Orders, "_give_turn", "orders")
def two_items_have_their_turn(original: Any, orders: Orders, key: OrderKey, item: Item) -> None:
    original(orders, key, item)
    if isinstance(key.behind, list) and key.behind:
        original(orders, key, key.behind.pop(0))


@around(Shard, "put", "orders")
def the_turn_passes_before_the_end_is_committed(original: Any, shard: Shard, change: Change, now_ms: int) -> None:
    order = change.item.order
    original(shard, change, now_ms)
    if change.to is To.GONE and order is not None:
        key = shard.memory.orders.keys.get(order.digest)
        if key is not None and key.turn == change.item.id:
            shard.memory.orders.left(change.item)


@around(Orders, "left", "orders")
def a_removed_first_item_blocks_its_key(original: Any, orders: Orders, item: Item) -> None:
    assert item.order is not None
    key = orders.keys.get(item.order.digest)
    if key is None or key.turn != item.id or item.attempt:
        original(orders, item)


@around(ShardMemory, "settle_phase", "orders")
def an_item_is_lost_when_its_change_fails(original: Any, memory: ShardMemory, item: Item) -> None:
    if item.order is not None and item.place is Place.READY and item.phase is not Phase.LEASED:
        memory.forget(item)
    else:
        original(memory, item)


@around(Orders, "stored", "orders")
def an_item_counts_twice(original: Any, orders: Orders, new: NewOrdered, lane: Lane[Item]) -> None:
    lane.behind += new.digest in orders.keys
    original(orders, new, lane)


@around(NextRead, "apply", "orders")
def a_read_of_the_next_items_loses_one(original: Any, read: NextRead, *rest: Any) -> None:
    read.found = read.found[1:]
    original(read, *rest)


@around(Orders, "next_read", "orders", seed=505)
def a_read_passes_over_items_that_it_leaves_out(original: Any, orders: Orders, known_to: Any, rows: Any) -> None:
    most, orders_module._MOST_KEPT = orders_module._MOST_KEPT, 1 << 30
    original(orders, known_to, rows)
    orders_module._MOST_KEPT = most
    for key in [key for digest in known_to if (key := orders.keys.get(digest)) is not None]:
        if isinstance(key.behind, list) and len(key.behind) > most:
            orders._hold(-ITEM_BYTES * (len(key.behind) - orders_module._KEPT))
            del key.behind[orders_module._KEPT :]


# --------------------------------------------------------------------------------------------- stored items


@around(ordered, "store", "orders")
def the_items_of_a_request_are_reordered(original: Any, shard: Shard, call: Any, new: Sequence[Any]) -> None:
    original(shard, call, new[::-1])


@around(ShardMemory, "stored", "orders")
def the_items_of_a_request_line_up_by_lane(original: Any, memory: ShardMemory, chunks: Sequence[Any]) -> None:
    for chunk in chunks:
        if chunk.ordered:
            both = sorted(zip(chunk.keys, chunk.items, strict=True), key=lambda one: str(one[0]))
            chunk.keys, chunk.items = [key for key, _ in both], [item for _, item in both]
    original(memory, chunks)


# Of a transaction in parts, whose outcomes are known one after the other.
put(
    "an_item_of_late_outcome_is_left_to_a_read", Orders, "_kept_to",
    lambda orders, key: 0 if key.more or len(key.behind) >= orders_module._KEPT else 1 << 62, "orders", seed=101,
)  # fmt: skip

# --------------------------------------------------------------------------------------------- places


def _replace(change: Change, transaction: Batch, order: Order) -> None:
    """Have the transaction write another order of the changed item."""
    item_id = change.item.id
    change.order = order
    transaction.order_new = [
        row._replace(standing=order.standing, place=order.place) if row.id == item_id else row
        for row in transaction.order_new
    ]
    transaction.order_at_new = [(one, order.pack() if one == item_id else at) for one, at in transaction.order_at_new]


@around(ordered, "emit", "orders")
def a_delayed_item_enters_at_its_old_place(original: Any, shard: Shard, change: Change, transaction: Batch) -> None:
    before = change.item.order
    original(shard, change, transaction)
    if before is not None and before.standing == Standing.NEW and change.order is not None and change.to is To.READY:
        _replace(change, transaction, change.order._replace(place=before.place))


@around(ordered, "emit", "orders")
def a_redriven_item_stands_behind_the_others(original: Any, shard: Shard, change: Change, transaction: Batch) -> None:
    original(shard, change, transaction)
    if change.to is To.MOVED and change.order is not None:
        _replace(change, transaction, change.order._replace(place=shard.first_id + transaction.next_number))
        transaction.next_number += 1


@around(ordered, "emit", "orders")
def a_retry_loses_its_place(original: Any, shard: Shard, change: Change, transaction: Batch) -> None:
    before = change.item.order
    original(shard, change, transaction)
    if before is not None and before.standing == Standing.RETRY and change.order is not None:
        _replace(change, transaction, change.order._replace(place=shard.first_id + transaction.next_number))
        transaction.next_number += 1


@around(ordered, "_standing", "orders", seed=68)
def a_change_of_a_retry_takes_its_place(original: Any, shard: Shard, change: Change, order: Order) -> int:
    found: int = original(shard, change, order)
    return Standing.NEW if change.cause is Cause.CHANGE and change.to is To.DELAYED else found


@around(ordered, "_standing", "orders")
def a_retry_never_blocks(original: Any, shard: Shard, change: Change, order: Order) -> int:
    found: int = original(shard, change, order)
    return Standing.RETRY if change.to is To.DELAYED and found == Standing.IN_ORDER else found


@around(ordered, "_standing", "orders")
def a_retry_never_skips(original: Any, shard: Shard, change: Change, order: Order) -> int:
    found: int = original(shard, change, order)
    return Standing.IN_ORDER if found == Standing.RETRY else found


# --------------------------------------------------------------------------------------------- take-overs


@around(Orders, "begin", "orders")
def a_new_owner_forgets_who_has_the_turn(original: Any, orders: Orders, leases: Any) -> None:
    original(orders, ())
    for _, _, lane in leases:
        orders._memory.lane_numbers[lane].behind -= 1


@around(Orders, "_key_read", "orders")
def a_new_owner_reads_the_items_by_priority(
    original: Any, orders: Orders, digest: bytes, rows: Sequence[InOrder], *, more: bool
) -> None:
    places = sorted(row.place for row in rows)
    by_priority = sorted(rows, key=lambda row: (row.priority, row.place))
    original(
        orders, digest, [row._replace(place=place) for row, place in zip(by_priority, places, strict=True)], more=more
    )


@around(Orders, "enters", "orders")
def an_item_enters_before_its_key_is_read(original: Any, orders: Orders, item: Item) -> bool:
    read_to, orders.read_to = orders.read_to, _ALL_READ
    found: bool = original(orders, item)
    orders.read_to = read_to
    return found


@around(Orders, "_key_read", "orders")
def a_new_owner_loses_the_items_behind(
    original: Any, orders: Orders, digest: bytes, rows: Sequence[InOrder], *, more: bool
) -> None:
    original(orders, digest, rows[:2], more=more)
