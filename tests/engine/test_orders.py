"""Items with order keys: the next one of a key is delivered when the one before it has ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foqs.config.schema import HostSection
from foqs.engine import item_ops
from foqs.engine.enqueue import place_elsewhere
from foqs.engine.orders import OrdersRead
from foqs.errors import Overloaded, Unavailable
from foqs.ids import order_digest
from foqs.order import Order, Standing
from foqs.rows import AT_MOST_ONCE
from tests.engine.laboratory import KEY, ORDERED_LANE, Laboratory, reads_of


def end(lab: Laboratory, *ids: int) -> None:
    """Ack leased items."""
    assert lab.ack(*[(item_id, lab.lease_of(item_id)) for item_id in ids]) == []
    lab.settle()


def fail(lab: Laboratory, item_id: int, delay_ms: int = 0) -> None:
    lab.operate(item_id, item_ops.nack(lab.lease_of(item_id), delay_ms, None))
    lab.settle()


def skip_failures(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = lab.engine.state.shards[1]
    policy = shard.policies.of(KEY)
    skip = replace(policy, order=policy.order.model_copy(update={"on_failure": "skip"}))
    monkeypatch.setattr(type(shard), "policy_of", lambda self, lane: skip)


def orders(lab: Laboratory) -> Any:
    return lab.engine.state.shards[1].memory.orders


def lane(lab: Laboratory) -> Any:
    return lab.engine.state.shards[1].memory.lanes[ORDERED_LANE]


def standing_of(lab: Laboratory, item_id: int) -> Standing:
    stored = lab.dbs[1].items[item_id].order_at
    assert stored is not None
    return Standing(Order.unpack(stored, item_id).standing)


def test_the_next_is_delivered_when_the_one_before_has_ended() -> None:
    lab = Laboratory(1)
    a, b, c, other = lab.ordered("k", "k", "k", "other")
    assert lab.taken() == [a, other]
    assert lab.taken() == []
    assert (lane(lab).ready, lane(lab).behind, lane(lab).leased) == (0, 2, 2)
    end(lab, a)
    assert lab.taken() == [b]
    end(lab, b)
    assert lab.taken() == [c]
    end(lab, other, c)
    assert not orders(lab).keys
    assert not lab.dbs[1].ordered
    assert (lane(lab).ready, lane(lab).behind, lane(lab).total) == (0, 0, 0)


def test_no_row_is_written_for_a_turn() -> None:
    lab = Laboratory(1)
    a, b = lab.ordered("k", "k")
    lab.taken()
    lab.ack((a, lab.lease_of(a)))
    ((shard, batch),) = lab.send()
    assert batch.transaction is not None
    assert not batch.transaction.ready_new
    lab.arrive(shard, batch)
    assert b not in lab.dbs[1].ready
    assert lab.taken() == [b]


def test_a_lease_is_committed_before_its_delivery() -> None:
    lab = Laboratory(1)
    (a,) = lab.ordered("k")
    answers = lab.dequeue()
    assert answers == []
    lab.settle()
    assert answers == [[a]]
    assert lab.dbs[1].timer[a].lease == lab.lease_of(a)


def test_a_leased_item_blocks_its_key_after_a_take_over() -> None:
    lab = Laboratory(1)
    a, b = lab.ordered("k", "k")
    assert lab.taken(lease_ms=60_000) == [a]
    lab.reopen(clean=False)
    lab.go_on(2_000)
    assert lab.taken() == []
    lab.go_on(60_000)
    assert lab.taken() == [a]
    end(lab, a)
    assert lab.taken() == [b]


def test_a_new_owner_finds_the_order() -> None:
    lab = Laboratory(1)
    ids = lab.ordered("k", "k", "other", "k", "other")
    lab.reopen()
    assert lab.taken() == [ids[0], ids[2]]
    end(lab, ids[0], ids[2])
    lab.reopen()
    assert lab.taken() == [ids[1], ids[4]]
    assert (lane(lab).ready, lane(lab).behind, lane(lab).leased, lane(lab).total) == (0, 1, 2, 3)


def test_a_key_that_was_not_read_delivers_nothing() -> None:
    lab = Laboratory(1)
    ids = lab.ordered("k", "k")
    shard = lab.engine.state.shards[1]
    lab.engine.drained(shard, lab.now_ms)
    lab.stores[1].close(clean=True)
    shard.owner.to(shard.owner.state.ASSIGNED)
    lab.open(1)
    answers = lab.dequeue(wait_ms=10_000)
    (later,) = lab.put_ordered("k") or [None]
    ((shard, batch),) = lab.send()
    assert reads_of(batch, OrdersRead)
    assert answers == []
    lab.arrive(shard, batch)
    lab.settle()
    assert answers == [[ids[0]]]
    assert later is None
    assert lane(lab).behind == 2


def test_a_long_key_is_read_in_parts() -> None:
    lab = Laboratory(1)
    ids = [item_id for _ in range(10) for item_id in lab.ordered(*["k"] * 3)]
    assert len(orders(lab).keys[order_digest(*KEY, "k")].behind) <= 8
    lab.reopen()
    for item_id in ids:
        assert lab.taken() == [item_id]
        end(lab, item_id)
    assert not orders(lab).keys


@pytest.mark.parametrize("delay_ms", [0, 1_000])
def test_a_retry_keeps_its_place_and_blocks_its_key(delay_ms: int) -> None:
    lab = Laboratory(1)
    a, b, other = lab.ordered("k", "k", "other")
    assert lab.taken() == [a, other]
    fail(lab, a, delay_ms)
    if delay_ms:
        assert lab.taken() == []
        lab.go_on(delay_ms + 1)
    assert lab.taken() == [a]
    end(lab, a)
    assert lab.taken() == [b]


def test_with_skip_the_next_are_delivered_before_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Laboratory(1)
    skip_failures(lab, monkeypatch)
    a, b, c, d = lab.ordered("k", "k", "k", "k")
    assert lab.taken() == [a]
    fail(lab, a, 1_000)
    assert standing_of(lab, a) is Standing.RETRY
    assert lab.taken() == [b]
    lab.go_on(1_001)
    assert standing_of(lab, a) is Standing.IN_ORDER
    assert lab.taken() == []  # a consumer has b
    end(lab, b)
    assert lab.taken() == [a]  # it keeps its place
    end(lab, a)
    lab.reopen()
    assert lab.taken() == [c]
    end(lab, c)
    assert lab.taken() == [d]


def test_a_retry_comes_before_an_item_that_was_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Laboratory(1)
    skip_failures(lab, monkeypatch)
    a, b = lab.ordered("k", "k")
    assert lab.taken() == [a]
    fail(lab, a, 1_000)
    assert lane(lab).ready == 1
    lab.go_on(1_001)
    assert (lane(lab).ready, lane(lab).behind) == (1, 1)
    assert lab.taken() == [a]
    end(lab, a)
    assert lab.taken() == [b]


def test_a_delayed_item_comes_into_the_order_when_it_is_due() -> None:
    lab = Laboratory(1)
    (late,) = lab.ordered("k", delay_ms=1_000)
    a, b = lab.ordered("k", "k")
    assert standing_of(lab, late) is Standing.NEW
    assert lab.taken() == [a]
    lab.go_on(1_001)
    assert standing_of(lab, late) is Standing.IN_ORDER
    (last,) = lab.ordered("k")
    for item_id in (b, late, last):
        end(lab, *[known for known in (a, b, late) if known in lab.engine.state.shards[1].memory.known])
        assert lab.taken() == [item_id]


def test_a_removed_first_item_blocks_nothing() -> None:
    lab = Laboratory(1)
    a, b, c, d = lab.ordered("k", "k", "k", "k")
    lab.operate(c, item_ops.delete)
    lab.settle()
    lab.operate(a, item_ops.delete)
    lab.settle()
    assert lab.taken() == [b]
    end(lab, b)
    assert lab.taken() == [d]


def test_an_at_most_once_item_ends_with_its_lease() -> None:
    lab = Laboratory(1)
    a, b = lab.ordered("k", "k", delivery=AT_MOST_ONCE)
    assert lab.taken(lease_ms=1_000) == [a]
    lab.go_on(1_001)
    assert lab.taken() == [b]


def test_the_ttl_of_a_waiting_item_removes_it() -> None:
    lab = Laboratory(1)
    (a,) = lab.ordered("k")
    lab.ordered("k", ttl_ms=500)
    (c,) = lab.ordered("k")
    assert lab.taken() == [a]
    lab.go_on(2_000)
    assert lane(lab).behind == 1
    end(lab, a)
    assert lab.taken() == [c]


def test_items_that_left_their_window_keep_their_turns() -> None:
    lab = Laboratory(1, window_rows=16, page_rows=16)
    ids = lab.ordered(*[str(key) for key in range(40)], "0")
    lab.go_on(100)
    assert (lane(lab).ready, lane(lab).behind) == (40, 1)
    assert len(orders(lab).away) == 24
    taken: list[int] = []
    for _ in range(8):
        taken += lab.taken(count=8)
    assert sorted(taken) == ids[:40]
    end(lab, *taken)
    assert lab.taken() == [ids[40]]
    assert not orders(lab).away


def test_the_memory_of_keys_is_given_back() -> None:
    lab = Laboratory(1)
    used = lab.engine.state.budget.used_bytes
    ids = lab.ordered(*["k"] * 20, "other")
    for item_id in ids[:20]:
        assert item_id in lab.taken()
        end(lab, item_id)
    end(lab, ids[20])
    assert lab.engine.state.budget.used_bytes == used


def test_a_refused_part_takes_later_parts_along() -> None:
    """Else a client that tries the refused items again would store them behind later items of their keys."""
    lab = Laboratory(1)
    shard = lab.engine.state.shards[1]
    answers = lab.put_ordered(*["k"] * 1_500)
    first = shard.queue.chunks.popleft()
    place_elsewhere(lab.engine.state, shard, first, lab.now_ms)
    assert not shard.queue.chunks
    lab.settle()
    assert {*map(type, answers)} == {Unavailable}
    assert lab.ordered("k") == lab.taken()


def test_more_keys_than_the_host_allows_are_refused() -> None:
    lab = Laboratory(1, order_keys=2)
    a, b = lab.ordered("a", "b")
    refused, known = lab.ordered("c", "a")
    assert isinstance(refused, Overloaded)
    assert "host.order_keys" in str(refused)
    assert isinstance(known, int)
    assert lab.taken() == [a, b]
    assert HostSection().order_keys == 100_000
