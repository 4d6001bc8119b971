"""New topics on a shard that may have no more: they take the place of empty ones."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.buffers.shard_batch import BatchResult, Outcome
from foqs.engine.calls import EnqueueCall
from foqs.engine.shard import Shard
from foqs.errors import Unavailable
from foqs.fairness.keys import lane_key
from foqs.prefetch.lane import LaneKey
from foqs.rows import NewItem
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.test_many_topics import FULL, TOPICS, ack, crowded, dequeue, fill


def full_shard(*empty: int) -> tuple[Laboratory, Shard]:
    """A shard with 100 topics, of which those became empty one after the other a moment ago."""
    lab = crowded(1)
    fill(lab, TOPICS[:100])
    lab.engine.state.shards[1].configure(lab.engine.state.shards[1].config.model_copy(update={"lanes": 1_000}))
    for topic in empty:
        (items,) = dequeue(lab, [TOPICS[topic]], 0)
        ack(lab, items)
    lab.engine.state.shards[1].configure(lab.engine.state.shards[1].config.model_copy(update={"lanes": 100}))
    assert len(lab.dbs[1].lanes) == 100
    return lab, lab.engine.state.shards[1]


def put(lab: Laboratory, *keys: LaneKey) -> list[Any]:
    """One request; its outcomes are put into the list."""
    outcomes: list[Any] = []
    items = [NewItem(b"x", None, None, 0, lab.now_ms, 0, lab.now_ms, 0, 0, 1) for _ in keys]
    call = EnqueueCall(len(keys), outcomes.extend)
    lab.engine.enqueue(call, range(len(keys)), items, keys, [1] * len(keys), lab.now_ms, 5_000)
    return outcomes


def topics_of(lab: Laboratory) -> set[str]:
    return {row.topic.decode() for row in lab.dbs[1].lanes.values()}


@pytest.fixture
def only_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty lanes are not removed ahead of need."""
    monkeypatch.setattr("foqs.engine.idle_lanes._LANES_SHARE", 2)


@pytest.mark.usefixtures("only_when_needed")
def test_the_longest_empty_topic_gives_way() -> None:
    lab, shard = full_shard(7, 3, 5)
    outcomes = put(lab, TOPICS[200])
    ((_, batch),) = lab.send()
    assert batch.transaction is not None
    assert [row.topic for row in batch.transaction.lanes_new] == [b"topic-200"]
    assert [lane.key for lane in batch.lanes_gone] == [TOPICS[7]]
    lab.arrive(shard, batch)
    assert isinstance(outcomes[0], int)
    assert len(lab.dbs[1].lanes) == len(shard.memory.lanes) == 100
    assert topics_of(lab).isdisjoint({"topic-007"})


@pytest.mark.usefixtures("only_when_needed")
def test_each_new_topic_takes_the_place_of_an_empty_one() -> None:
    """The requests wait for one transaction. Those for which no empty topic is left are refused."""
    lab, shard = full_shard(0, 1, 2)
    outcomes = [put(lab, TOPICS[topic]) for topic in range(200, 205)]
    lab.settle()
    assert [isinstance(found, int) for (found,) in outcomes] == [True, True, True, False, False]
    assert [str(found) for (found,) in outcomes[3:]] == [f"each shard of the host {FULL}"] * 2
    assert len(lab.dbs[1].lanes) == len(shard.memory.lanes) == 100


@pytest.mark.usefixtures("only_when_needed")
@pytest.mark.parametrize("order", [(0, 200), (200, 0)])
def test_a_topic_that_gets_an_item_does_not_give_way(order: tuple[int, int]) -> None:
    lab, _ = full_shard(0, 1)
    outcomes = [put(lab, TOPICS[topic]) for topic in order]
    lab.settle()
    assert all(isinstance(found, int) for (found,) in outcomes)
    assert {"topic-000", "topic-200"} <= topics_of(lab)
    assert [len(found) for found in dequeue(lab, [TOPICS[0], TOPICS[200]], 0)] == [2]


@pytest.mark.usefixtures("only_when_needed")
def test_one_request_may_exceed_the_bound() -> None:
    lab, shard = full_shard(0, 1)
    outcomes = put(lab, *TOPICS[200:205])
    lab.settle()
    assert all(isinstance(found, int) for found in outcomes)
    assert len(shard.memory.lanes) == 103
    (refused,) = put(lab, TOPICS[210])
    assert str(refused) == f"each shard of the host {FULL}"


@pytest.mark.usefixtures("only_when_needed")
def test_a_failed_transaction_removes_no_topic() -> None:
    lab, shard = full_shard(0, 1)
    new, old = put(lab, TOPICS[200]), put(lab, TOPICS[1])
    ((_, batch),) = lab.send()
    assert [lane.key for lane in batch.lanes_gone] == [TOPICS[0]]
    shard.owner.takes_new = False  # nor does it take the items again
    lab.arrive(shard, batch, BatchResult(outcome=Outcome.FAILED, error="busy"))
    assert [type(found) for found in (*new, *old)] == [Unavailable] * 2
    assert {TOPICS[0], TOPICS[1], TOPICS[200]} == set(shard.memory.idle_lanes)
    shard.owner.takes_new = True
    lab.now_ms += 50
    outcomes = put(lab, TOPICS[0])
    lab.settle()
    assert isinstance(outcomes[0], int)
    assert {lane.number for lane in shard.memory.lanes.values() if lane.stored} == set(lab.dbs[1].lanes)


def test_a_keyed_item_takes_the_place_of_an_empty_topic() -> None:
    lab, _ = full_shard(0)
    first, second = lab.enqueue_keyed("a"), lab.enqueue_keyed("b")
    lab.settle()
    assert [isinstance(found, int) for found in (*first, *second)] == [True, True]  # both are of one topic
    assert KEY[1] in topics_of(lab)


@pytest.mark.usefixtures("only_when_needed")
def test_a_keyed_item_that_comes_too_late_is_refused() -> None:
    lab, _ = full_shard(0)
    put(lab, TOPICS[200])
    outcomes = lab.enqueue_keyed("a")
    lab.settle()
    (refused,) = outcomes
    assert str(refused) == f"the shard of the key {FULL}"


# ------------------------------------------------------------------------------------------ tenants that come once


def tenants(first: int, count: int) -> list[LaneKey]:
    return [lane_key(KEY, f"tenant-{number}") for number in range(first, first + count)]


def drained(lab: Laboratory) -> None:
    """Take and ack all items of KEY."""
    while ids := lab.taken(count=100):
        lab.ack(*[(item_id, lab.lease_of(item_id)) for item_id in ids])
        lab.settle()


def test_a_transaction_removes_twice_the_lanes_that_it_adds() -> None:
    """So the lanes of tenants without items become fewer under load, too."""
    lab = Laboratory(1, lane_idle_ms=5_000)
    put(lab, *tenants(0, 400))
    lab.settle()
    drained(lab)
    lab.now_ms += 5_000
    put(lab, *tenants(1_000, 150))
    ((shard, batch),) = lab.send()
    assert (len(batch.lanes_new), len(batch.lanes_gone)) == (150, 300)
    lab.arrive(shard, batch)
    put(lab, KEY)
    ((shard, batch),) = lab.send()
    assert (len(batch.lanes_new), len(batch.lanes_gone)) == (1, 100)


def test_a_tenant_without_items_keeps_no_window() -> None:
    lab = Laboratory(1)
    (tenant,) = tenants(0, 1)
    ids = lab.stored(lab.item(), lab.item(), key=tenant)
    lane = lab.engine.state.shards[1].memory.lanes[tenant]
    assert lane.window is not None
    drained(lab)
    assert (lane.window, len(lab.engine.state.residents)) == (None, 0)
    again = lab.stored(key=tenant)
    assert lane is lab.engine.state.shards[1].memory.lanes[tenant]
    assert lab.taken() == again > ids
