"""Items with order keys: whose turn it is, where requests, transactions and changes cross each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.buffers.pending_dedup import Keyed
from foqs.engine import dedup, item_ops
from foqs.engine import orders as orders_module
from foqs.engine.calls import EnqueueCall
from foqs.engine.changing import Changing
from foqs.engine.orders import NextRead
from foqs.errors import Overloaded, Unavailable
from foqs.fairness.keys import ORDERED, LaneKey, lane_key
from foqs.ids import Dedup, order_digest
from foqs.order import Order, Standing
from foqs.rows import NewItem, NewOrdered
from tests.engine.laboratory import KEY, Laboratory
from tests.sim.memory_database import POISON

LANE = lane_key(KEY, until=ORDERED)
OF_TENANT = lane_key(KEY, "tenant", until=ORDERED)


def put(lab: Laboratory, *items: NewItem, keys: str = "", lanes: Sequence[LaneKey] = ()) -> list[Any]:
    """Enqueue items with order keys, of one letter each, in one request. Return a list that gets the reply."""
    answers: list[Any] = []
    call = EnqueueCall(len(items), answers.extend)
    keyed: list[Keyed] = []
    every = zip(items, keys or "a" * len(items), lanes or [LANE] * len(items), strict=True)
    for at, (item, key, lane) in enumerate(every):
        made = NewOrdered.of(item, key.encode(), order_digest(*KEY, key))
        keyed.append(Keyed(at, Dedup(made.digest, 0), made, lane, len(item.payload)))
    dedup.place(lab.engine.state, call, 1, keyed, lab.now_ms)
    return answers


def stored(lab: Laboratory, *items: NewItem) -> list[int]:
    answers = put(lab, *items)
    lab.settle()
    return answers


def acked(lab: Laboratory) -> list[int]:
    """Deliver and ack items until there are none, and return their ids."""
    done: list[int] = []
    while ids := lab.taken():
        done += ids
        lab.ack(*((item_id, lab.lease_of(item_id)) for item_id in ids))
        lab.settle()
    return done


def order_of(lab: Laboratory, item_id: int) -> Order:
    row = lab.dbs[1].ordered[item_id]
    return Order(row.digest, row.place, row.standing)


# --------------------------------------------------------------------------------------------- stored items


def test_items_of_a_request_keep_their_order_over_lanes() -> None:
    lab = Laboratory(1)
    answers = put(lab, *[lab.item() for _ in range(3)], keys="abb", lanes=[LANE, OF_TENANT, LANE])
    lab.settle()
    first, second, third = answers
    assert acked(lab) == [first, second, third]


def test_an_item_whose_outcome_is_known_late_is_not_lost() -> None:
    lab = Laboratory(1)
    lab.faults[1].commits.extend(["", "", "", "", "applied"])
    # The transaction is refused and stored by halves: the second half, then the first quarter, and then, with a lost
    # outcome, the second quarter.
    answers = put(lab, *[lab.item(POISON if at == 0 else b"x") for at in range(16)])
    lab.settle()
    lab.go_on(5_000)
    there = sorted(lab.dbs[1].items)
    assert (len(answers), len(there)) == (16, 12)
    assert acked(lab) == there


# --------------------------------------------------------------------------------------------- items that come back


def test_an_item_with_another_change_lines_up() -> None:
    lab = Laboratory(1)
    first, late = stored(lab, lab.item(), lab.item(delay_ms=50))
    assert lab.taken() == [first]
    lab.ring(60)
    ((shard, due),) = lab.send()
    lab.arrive(shard, due)  # the scan finds the delayed item
    ((shard, enters),) = lab.send()
    assert [change.item.id for change in enters.changes] == [late]
    changed = lab.operate(late, item_ops.delete)  # waits behind the change that enters it
    later = put(lab, lab.item())
    lab.arrive(shard, enters)
    key = shard.memory.orders.keys[order_digest(*KEY, "a")]
    assert [item.id for item in key.behind] == [late]
    lab.settle()
    assert changed == [None]
    lab.ack((first, lab.lease_of(first)))
    lab.settle()
    assert acked(lab) == later


def test_a_read_of_the_next_items_passes_over_none(monkeypatch: Any) -> None:
    monkeypatch.setattr(orders_module, "_MOST_KEPT", 5)
    lab = Laboratory(1)
    ids = stored(lab, *[lab.item() for _ in range(3)])
    ids += stored(lab, *[lab.item() for _ in range(3)])  # the last ones are left to a read
    ids += stored(lab, *[lab.item() for _ in range(6)])
    shard = lab.engine.state.shards[1]
    orders, digest = shard.memory.orders, order_digest(*KEY, "a")
    read = NextRead({digest: orders.keys[digest].known_to})
    read.run(lab.stores[1])
    read.apply(shard, saved=True, now_ms=lab.now_ms)  # while the most that may be known are known
    assert acked(lab) == ids


# --------------------------------------------------------------------------------------------- changes


def nacked(lab: Laboratory, delay_ms: int) -> int:
    (item_id,) = lab.taken()
    lab.operate(item_id, item_ops.nack(lab.lease_of(item_id), delay_ms, None))
    lab.settle()
    return item_id


def test_a_retry_with_another_priority_keeps_its_place() -> None:
    lab = Laboratory(1)
    first, second = stored(lab, lab.item(), lab.item())
    assert nacked(lab, 1_000) == first
    assert lab.operate(first, Changing(5, None)) == []
    lab.settle()
    assert (order_of(lab, first).standing, lab.taken()) == (Standing.IN_ORDER, [])
    lab.operate(first, Changing(None, lab.now_ms + 500))
    lab.settle()
    assert (order_of(lab, first).standing, lab.taken()) == (Standing.IN_ORDER, [])
    lab.go_on(600)
    assert acked(lab) == [first, second]


def test_a_retry_that_is_put_off_leaves_its_order() -> None:
    lab = Laboratory(1)
    first, second = stored(lab, lab.item(), lab.item())
    assert nacked(lab, 1_000) == first
    lab.operate(first, Changing(None, lab.now_ms + 2_000))
    lab.settle()
    assert order_of(lab, first).standing == Standing.NEW
    assert acked(lab) == [second]
    lab.go_on(2_100)
    assert acked(lab) == [first]


def test_an_item_that_is_put_off_leaves_its_order() -> None:
    lab = Laboratory(1)
    first, second = stored(lab, lab.item(), lab.item())
    lab.operate(first, Changing(None, lab.now_ms + 100))
    lab.settle()
    (third,) = stored(lab, lab.item())
    assert acked(lab) == [second, third]
    lab.go_on(200)
    assert acked(lab) == [first]


def test_a_refused_item_takes_its_key_along() -> None:
    """Tried again, it would come after the later items of its key."""
    lab = Laboratory(1, lanes=1)
    lab.settle()
    (first,) = stored(lab, lab.item())
    answers = put(lab, lab.item(), lab.item(), lab.item(), keys="aab", lanes=(OF_TENANT, LANE, LANE))
    lab.settle()
    assert [type(answer) for answer in answers] == [Overloaded, Unavailable, int]
    assert lab.taken() == [first, answers[2]]
