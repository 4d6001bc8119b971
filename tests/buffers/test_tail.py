"""The items of the tail in their order, and those of them that a transaction does not end."""

from __future__ import annotations

import random

from foqs.buffers.tail import Tail
from foqs.item import Cause, Change, Item, Phase, To
from tests.support.lanes import lone_lane


def tail_of(*ids: int) -> tuple[Tail, dict[int, Item]]:
    known = {}
    tail = Tail(known)
    for item_id in ids:
        item = known[item_id] = Item(item_id, lone_lane(), 0, 0, 0, 0, 10, None, phase=Phase.IDLE)
        item.unindexed = True
        tail.add([item_id], item.bytes)
    return tail, known


def end(tail: Tail, item: Item) -> None:
    item.unindexed = False
    tail.left(item.bytes)


def send(item: Item, to: To) -> None:
    change = Change(item, to, Cause.ACK)
    item.queue(change)
    item.send(change)


def test_an_empty_tail() -> None:
    tail, _ = tail_of()
    assert (tail.first(), list(tail.items()), tail.count, tail.bytes) == (None, [], 0, 0)


def test_items_are_counted_until_they_have_a_row() -> None:
    tail, known = tail_of(1, 2, 3)
    assert (tail.first(), tail.count, tail.bytes) == (1, 3, 30)
    end(tail, known[2])
    assert (tail.first(), tail.count, tail.bytes) == (1, 2, 20)
    end(tail, known.pop(1))
    assert (tail.first(), [item.id for item in tail.items()]) == (3, [3])


def test_a_run_of_items_is_added_at_once() -> None:
    tail, known = tail_of(1, 4)
    known |= {item_id: Item(item_id, lone_lane(), 0, 0, 0, 0, 10, None) for item_id in (2, 3)}
    for item in known.values():
        item.unindexed = True
    tail.add([2, 3], 20)
    assert ([item.id for item in tail.items()], tail.count, tail.bytes) == ([1, 2, 3, 4], 4, 40)


def test_an_empty_tail_forgets_the_ids_of_earlier_items() -> None:
    tail, known = tail_of(1, 2)
    for item_id in (1, 2):
        end(tail, known.pop(item_id))
    tail.add([3], 10)
    assert list(tail._ids) == [3]


def test_an_empty_tail_keeps_no_ids() -> None:
    tail, known = tail_of(1, 2, 3)
    for item_id in (2, 3):
        end(tail, known.pop(item_id))
    assert (tail.first(), list(tail._ids)) == (1, [1, 2, 3])
    end(tail, known.pop(1))
    assert (tail.first(), list(tail._ids)) == (None, [])


def test_an_item_that_is_read_again_is_none_of_the_tail() -> None:
    tail, known = tail_of(1, 2)
    tail.left(known[1].bytes)
    known[1] = Item(1, lone_lane(), 0, 0, 0, 0, 10, None)
    assert tail.first() == 2


def test_a_transaction_ends_items_until_it_fails() -> None:
    tail, known = tail_of(1, 2, 3)
    send(known[1], To.GONE)
    send(known[2], To.READY)
    assert ([item.id for item in tail.items()], tail.first()) == ([3], 1)
    known[1].retry()
    assert [item.id for item in tail.items()] == [1, 3]


def test_a_change_that_writes_no_row_ends_nothing() -> None:
    tail, known = tail_of(1)
    known[1].phase = Phase.LEASED
    send(known[1], To.KEPT)
    assert [item.id for item in tail.items()] == [1]


def test_any_order_of_arrival_and_departure() -> None:
    rng = random.Random(5)
    for _ in range(50):
        ids = rng.sample(range(1, 100), 20)
        tail, known = tail_of(*ids)
        for item_id in rng.sample(ids, 20):
            assert tail.first() == min(known)
            assert [item.id for item in tail.items()] == sorted(known)
            end(tail, known.pop(item_id))
        assert tail.first() is None
