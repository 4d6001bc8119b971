"""The part of the contract that is about items with order keys."""

from __future__ import annotations

from typing import Any

from foqs.ids import hash_slot_bounds
from foqs.opened import Backlog
from foqs.order import InOrder, KeyHome, Order, OrderHome, OrderRow, Standing
from foqs.policies.failures import FailureFilter
from foqs.rows import (
    BACKLOG_SHIFT,
    Batch,
    EndedRow,
    EndedState,
    FailureCause,
    FailureRow,
    HomeGone,
    KeyRows,
    LaneRow,
    NewItem,
    NewOrdered,
)
from foqs.store.protocol import ShardStore
from tests.store.row_contract import body, ready_key, ready_row, size, timer_row
from tests.store.shards import NOW_MS, Shard, new_item

_FIRST = ((0x27, 0), (0x5C, 0), (0xFF, 0), (0xFF, 1))
A, B, C, D = (bytes([first, *bytes(14), last]) for first, last in _FIRST)
"""Digests. The bytes of the first two are a quote and a backslash."""
ORDERED_LANE = LaneRow(2, b"ns", b"topic", b"", rules=b'{"dedup_until":8}')
_NUMBER = 10_000


def ordered(number: int, digest: bytes = A, key: bytes = b"key", **fields: Any) -> NewOrdered:
    """An item of lane 2 with an order key."""
    plain = new_item(number, **{"lane": 2, **fields})
    made = NewOrdered.of(plain, key, digest)
    made.id, made.lane = plain.id, plain.lane
    return made


def low(slot: int, more: int = 0) -> bytes:
    """A digest in a hash slot."""
    return hash_slot_bounds(slot)[0][:15] + bytes([more])


def put(store: ShardStore, *items: NewItem) -> None:
    store.commit(Batch(lanes_new=[ORDERED_LANE], inserts=list(items), ordered=True, next_number=_NUMBER))


def change(store: ShardStore, **lists: Any) -> None:
    store.commit(Batch(next_number=_NUMBER, **{"ordered": True, **lists}))


def in_order(item: NewOrdered, place: int = 0, **fields: Any) -> InOrder:
    """The item as a read has it, without a row in `ready` and `timer` unless `fields` say so."""
    about = (item.lane, item.priority, item.deliver_after_ms, 0, 0, size(item))
    made = InOrder(item.digest, place or item.id, item.id, *about, ready=False, timer=False)
    return made._replace(**fields)


def _death(item: NewOrdered, lane: int) -> FailureRow:
    return FailureRow(lane, 0, item.id, FailureCause.FAILED, 1, NOW_MS, b"topic", b"", b"")


class OrderContract:
    """`store` is open, with lane 1."""

    def test_items_with_order_keys_are_stored_whole(self, store: ShardStore) -> None:
        """In one transaction with plain ones."""
        first = ordered(1, B, "ключ'\\".encode(), metadata=b"m", headers=b"{}", payload=b"'\\\0")
        plain, second = new_item(2), ordered(3, A, priority=5)
        put(store, first, plain, second)
        assert sorted(store.bodies([1, first.id, plain.id, second.id])) == [body(first), body(plain), body(second)]
        assert body(first).order_key == "ключ'\\".encode() and body(plain).order_at is None
        assert store.bodies([second.id]) == [body(second)]
        assert store.page(2, None, 10) == [], "the first of a key is ready without a row"
        assert store.page(1, None, 10) == [ready_row(plain)]
        (found,) = store.look([first.id])
        assert (found.body, found.ready, found.timer) == (body(first), None, None)
        assert store.orders_behind(b"", 10) == [in_order(second), in_order(first)]

    def test_many_items_with_order_keys(self, store: ShardStore) -> None:
        items = [ordered(number, (1 + number % 7).to_bytes(16), payload=bytes(200)) for number in range(1, 2_501)]
        put(store, *items)
        assert store.orders_behind(b"", 3_000) == sorted(in_order(item) for item in items)
        change(store, order_gone=[item.order_row for item in items], item_gone=[item.id for item in items])
        assert store.orders_behind(b"", 3_000) == []

    def test_a_delayed_item_is_not_in_order(self, store: ShardStore) -> None:
        late = ordered(1, due_ms=NOW_MS, expires_at_ms=NOW_MS + 5)
        put(store, late)
        assert store.orders_behind(b"", 10) == [] and store.orders_in([A]) == {A}
        (due,) = store.due(0, NOW_MS, 5).rows
        assert due.timer == timer_row(late, NOW_MS)
        assert due.order_at is not None and Order.unpack(due.order_at, late.id) == (A, late.id, Standing.NEW)
        (expiring,) = store.expiring(0, NOW_MS + 5, 5).rows
        assert expiring.found.body == body(late)
        order = Order(A, 77)
        change(
            store, timer_gone=[late.id], order_gone=[late.order_row], order_at_new=[(late.id, order.pack())],
            order_new=[OrderRow(*order[:1], order.standing, order.place, late.id, late.lane)],
        )  # fmt: skip
        assert store.orders_behind(b"", 10) == [in_order(late, 77)]
        assert store.bodies([late.id])[0].order_at == order.pack()

    def test_a_retry_returns_to_its_place(self, store: ShardStore) -> None:
        first, second = ordered(1), ordered(2)
        put(store, first, second)
        waits, back = Order(A, first.id, Standing.RETRY), Order(A, first.id)
        row = OrderRow(A, Standing.RETRY, first.id, first.id, first.lane)
        change(
            store, order_gone=[first.order_row], order_new=[row], order_at_new=[(first.id, waits.pack())],
            timer_new=[timer_row(first, NOW_MS, attempt=1)],
        )  # fmt: skip
        assert store.orders_behind(b"", 10) == [in_order(second)]
        change(
            store, order_gone=[row], order_new=[first.order_row], order_at_new=[(first.id, back.pack())],
            timer_gone=[first.id], ready_new=[ready_row(first, attempt=1)],
        )  # fmt: skip
        assert store.orders_behind(b"", 10) == [in_order(first, attempt=1, ready=True), in_order(second)]

    def test_a_leased_item_keeps_its_place(self, store: ShardStore) -> None:
        first, second = ordered(1), ordered(2, B, priority=-3)
        put(store, first, second)
        change(store, timer_new=[timer_row(first, NOW_MS, lease=9, attempt=2, lease_ms=5)])
        change(store, ready_new=[ready_row(second, attempt=4, lease=8)])
        leased = in_order(first, attempt=2, lease=9, timer=True)
        returned = in_order(second, attempt=4, lease=8, ready=True)
        assert store.orders_behind(b"", 10) == [leased, returned]
        assert store.orders_of([(A, 0), (B, 0)], 10) == [leased, returned]

    def test_pages_of_keys(self, store: ShardStore) -> None:
        items = [ordered(number, digest) for number, digest in enumerate((A, B, A, C, B, A), 1)]
        put(store, *items, ordered(9, A, due_ms=NOW_MS))
        first, second, third, fourth, fifth, sixth = map(in_order, items)
        assert store.orders_behind(b"", 2) == [first, third]
        assert store.orders_behind(A, 10) == [second, fifth, fourth]
        assert store.orders_behind(C, 10) == []
        assert store.orders_of([], 10) == []
        assert store.orders_of([(B, 0), (A, items[0].id)], 1) == [third, second]
        assert store.orders_of([(A, items[0].id)], 10) == [third, sixth]
        assert store.orders_of([(A, items[5].id), (bytes(16), 0)], 10) == []
        many = [(bytes([number]) * 16, 0) for number in range(98)]
        assert store.orders_of([*many, (C, 0), (B, 0)], 10) == [second, fifth, fourth]

    def test_the_first_key_of_all(self, store: ShardStore) -> None:
        item = ordered(1, bytes(15) + b"\1")
        put(store, item)
        assert store.orders_behind(b"", 5) == [in_order(item)]

    def test_a_range_of_keys_that_are_in_use(self, store: ShardStore) -> None:
        item, other, late = ordered(1, B), ordered(2, B), ordered(3, C, due_ms=NOW_MS)
        put(store, item, other, late, ordered(4, D))
        assert store.orders_between(A, D, 10) == [B, C, D]
        assert store.orders_between(B, B, 10) == [B] and store.orders_between(bytes(16), D, 2) == [B, C]
        assert store.orders_between(A, A, 10) == []
        many = [bytes([number]) * 16 for number in range(100, 250)]
        assert store.orders_in([A, B, *many, D]) == {B, D} and store.orders_in([]) == set()

    def test_keys_of_dead_letters(self, store: ShardStore) -> None:
        item, other, plain = ordered(1, B), ordered(2, B), new_item(3)
        put(store, item, other, plain)
        change(store, order_gone=[item.order_row], ready_new=[ready_row(item)], failure_new=[_death(item, 2)])
        change(store, failure_new=[FailureRow(1, 1, plain.id, 1, 1, 0, b"", b"", b"")])
        assert store.orders_in([B]) == {B}
        assert store.dead_orders(0, 10) == [(item.id, Order(B, 0).pack()), (plain.id, None)]
        assert store.dead_orders(0, 1) == [(item.id, Order(B, 0).pack())]
        assert store.dead_orders(item.id, 10) == [(plain.id, None)] and store.dead_orders(plain.id, 5) == []
        change(store, order_gone=[other.order_row], item_gone=[other.id])
        assert store.orders_in([B]) == set()
        change(store, failure_gone=[item.id], ready_gone=[ready_key(item)], item_gone=[item.id])
        assert store.dead_orders(0, 10) == [(plain.id, None)]

    def test_keys_whose_items_are_elsewhere(self, shard: Shard, store: ShardStore) -> None:
        homes = [OrderHome(low(1), 3, 40), OrderHome(low(1, 7), 4, 50), OrderHome(low(2), 3, 60)]
        change(store, keys=KeyRows(homes=homes))
        assert store.order_homes(*hash_slot_bounds(1), 10) == homes[:2]
        assert (
            store.order_homes(low(1), low(2), 2) == homes[:2] and store.order_homes(low(1, 8), low(2), 2) == homes[2:]
        )
        change(store, keys=KeyRows(homes=[homes[1]._replace(shard=5)]))
        assert store.order_homes(bytes(16), low(9), 10)[1] == (low(1, 7), 5, 50)
        change(store, keys=KeyRows(homes=homes[1:2]))
        item = ordered(1, low(2))
        gone = [HomeGone(item.id, low(2), KeyHome(3, 61)), HomeGone(item.id, low(1, 7), KeyHome(5, 50))]
        put(store, item)
        change(store, keys=KeyRows(homes_gone=gone))
        assert store.order_homes(bytes(16), low(9), 10) == homes, "they name other moves or shards"
        change(store, keys=KeyRows(homes_gone=[HomeGone(item.id, low(2), KeyHome(3, 60))]))
        assert store.order_homes(bytes(16), low(9), 10) == homes[:2]
        change(store, keys=KeyRows(shards_gone=[3, 9]))
        assert store.order_homes(bytes(16), low(9), 10) == homes[1:2]
        store.close()
        again = shard.store()
        assert again.open("owner", take_over=False).homes == homes[1:2]
        change(again, keys=KeyRows(cleared=[1], homes=[OrderHome(low(1, 9), 8, 70)]))
        assert again.order_homes(bytes(16), low(9), 10) == [(low(1, 9), 8, 70)]
        again.close()

    def test_a_dead_letter_keeps_its_key(self, store: ShardStore) -> None:
        item = ordered(1, B)
        put(store, item, new_item(2))
        moved = new_item(1, item_id=item.id)
        change(
            store, order_gone=[item.order_row], moved=[(item.id, 1, NOW_MS, 0)], failure_new=[_death(item, 1)],
            ready_new=[ready_row(moved)],
        )  # fmt: skip
        plain = new_item(2)
        change(store, failure_new=[FailureRow(1, 1, plain.id, 1, 1, 0, b"", b"", b"")])
        found, without = store.dead_page(1, None, FailureFilter(), 5, 5).rows
        assert (found.order_key, found.order_at) == (b"key", Order(B, 0).pack())
        assert (without.order_key, without.order_at) == (None, None)
        assert found.ready == ready_row(moved)

    def test_an_end_that_is_kept(self, store: ShardStore) -> None:
        item = ordered(1)
        put(store, item)
        ended = EndedRow(NOW_MS, item.id, 2, EndedState.COMPLETED, 1, NOW_MS, size(item))
        change(store, order_gone=[item.order_row], ended_new=[ended])
        assert store.orders_in([A]) == set()
        assert store.look([item.id])[0].body == body(item)

    def test_the_bytes_of_expiring_items(self, store: ShardStore) -> None:
        """Those of items without a row that says it are bounded as well."""
        items = [ordered(number, payload=bytes(3 << 20), expires_at_ms=NOW_MS) for number in (1, 2)]
        for item in items:
            store.commit(Batch(inserts=[item], ordered=True, next_number=_NUMBER, lanes_new=_lanes(item is items[0])))
        scan = store.expiring(0, NOW_MS, 5)
        assert [row.found.body.id for row in scan.rows] in ([items[0].id], [item.id for item in items])
        assert scan.complete is (len(scan.rows) == 2)

    def test_the_next_owner_learns_of_the_orders(self, shard: Shard, store: ShardStore) -> None:
        first, second, other, late = ordered(1), ordered(2), ordered(3, B), ordered(4, C, due_ms=NOW_MS)
        dead, plain = ordered(5, C), new_item(6)
        put(store, first, second, other, late, dead, plain)
        change(
            store, order_gone=[dead.order_row], failure_new=[_death(dead, 2)],
            timer_new=[timer_row(one, NOW_MS, lease=7) for one in (first, dead, plain)], ready_gone=[ready_key(plain)],
        )  # fmt: skip
        store.close()
        again = shard.store()
        opened = again.open("owner", take_over=False)
        assert opened.ordered == {2: (4, 3)}
        assert opened.order_leases == [(Order(A, first.id), first.id, 2)]
        assert opened.timers == {1: (1, 1), 2: (3, 2)}
        assert list(opened.backlog) == []
        change(again, timer_gone=[first.id], ready_new=[ready_row(first, attempt=1)])
        again.close()
        last = shard.store()
        opened = last.open("owner", take_over=False)
        assert (opened.ordered, opened.order_leases) == ({2: (4, 3)}, [])
        assert list(opened.backlog) == [Backlog(2, NOW_MS >> BACKLOG_SHIFT, 1)]
        last.close()

    def test_a_shard_without_order_keys(self, shard: Shard, store: ShardStore) -> None:
        assert store.orders_behind(b"", 5) == [] and store.orders_between(bytes(16), b"\xff" * 16, 5) == []
        store.close()
        again = shard.store()
        opened = again.open("owner", take_over=False)
        assert (opened.ordered, list(opened.order_leases), list(opened.homes)) == ({}, [], [])
        again.close()

    def test_the_next_owner_writes_no_rows_of_them(self, shard: Shard, store: ShardStore) -> None:
        """Only a plain item lacks its row in `ready`."""
        item, plain = ordered(1), new_item(2)
        item.unindexed = plain.unindexed = True
        inserts: list[NewItem] = [item, plain]
        change(store, lanes_new=[ORDERED_LANE], inserts=inserts, ordered=True, indexed_to=item.id - 1)
        store.close()
        again = shard.store()
        opened = again.open("owner", take_over=False)
        assert list(opened.backlog) == [Backlog(1, NOW_MS >> BACKLOG_SHIFT, 1)]
        assert again.page(2, None, 5) == [] and again.page(1, None, 5) == [ready_row(plain)]
        assert again.orders_behind(b"", 5) == [in_order(item)]
        again.close()


def _lanes(first: bool) -> list[LaneRow]:
    return [ORDERED_LANE] if first else []
