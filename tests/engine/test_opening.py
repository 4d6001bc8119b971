"""The memory of a shard with very many lanes is filled in several turns, before it is served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foqs.engine import shard_life
from foqs.engine.shard import Shard
from foqs.fairness.keys import lane_key
from foqs.rows import Opened
from foqs.shardmgr.lifecycle import ShardState
from tests.engine.laboratory import KEY, Laboratory

TENANTS = [lane_key(KEY, f"tenant-{number}", ("api",) * (number % 2)) for number in range(20)]


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_life, "_LANES", 3)
    monkeypatch.setattr(shard_life, "_COUNTS", 5)


def stored(lab: Laboratory) -> dict[Any, list[int]]:
    """Store an item in each lane of TENANTS and in the plain one; one of them is leased, one tenant has none."""
    ids = {key: lab.stored(key=key) for key in [KEY, *TENANTS]}
    lab.taken(count=1)
    lab.go_on(200)
    return ids


def closed(lab: Laboratory) -> Shard:
    shard = lab.engine.shards[1]
    lab.engine.drained(shard, lab.now_ms)
    lab.stores[1].close(clean=True)
    shard.to(ShardState.ASSIGNED)
    finish(lab)
    return shard


def finish(lab: Laboratory) -> None:
    while lab.engine.long_work:
        lab.engine.pump(lab.now_ms)


def filling(lab: Laboratory, then: Callable[[], None]) -> tuple[Shard, Opened]:
    """Begin to open the shard, whose store is open."""
    shard = closed(lab)
    shard.to(ShardState.OPENING)
    opened = lab.stores[1].open("host", take_over=False)
    lab.engine.fill(shard, opened, then)
    return shard, opened


def counts(shard: Shard) -> list[Any]:
    lanes = [
        (key, lane.number, lane.ready, lane.leased, lane.total, lane.weight, lane.dead)
        for key, lane in shard.lanes.items()
    ]
    tenants = {key: (list(found.numbers), found.total, len(found)) for key, found in shard.tenants.items()}
    return [lanes, dict(shard.totals), list(shard.idle_lanes), shard.dead_lanes, shard.next_lane, tenants]


def test_nothing_counts_before_the_last_turn() -> None:
    lab = Laboratory(1)
    ids = stored(lab)
    filled_ms: list[int] = []
    shard, opened = filling(lab, lambda: filled_ms.append(lab.now_ms))
    turns = 0
    while not filled_ms:
        assert shard.state is ShardState.OPENING
        assert (lab.engine.ready(KEY), shard.lanes) == (0, {})
        assert lab.dequeue() == [[]]
        assert not lab.engine.topics[KEY].lanes()
        lab.engine.pump(lab.now_ms)
        turns += 1
    assert turns == 7 + 4 + 4
    lab.engine.opened(shard, opened, 1 << 20, lab.now_ms, lab.now_ms)
    assert lab.engine.ready(KEY) == 20
    assert sum(lane.total for lane in lab.engine.topics[KEY].lanes()) == 21
    lab.settle()
    taken: list[int] = []
    while some := lab.taken(count=100):  # a dequeue takes only items in memory
        taken += some
        lab.settle()
    assert len(taken) == 20
    assert {*taken} < {one for each in ids.values() for one in each}


def test_turns_fill_the_same_memory() -> None:
    lab = Laboratory(1)
    stored(lab)
    shard, opened = filling(lab, lambda: None)
    finish(lab)
    lab.engine.opened(shard, opened, 1 << 20, lab.now_ms, lab.now_ms)
    in_turns = counts(shard)
    assert len(in_turns[-1][KEY][0]) == 20
    lab.reopen()
    assert counts(lab.engine.shards[1]) == in_turns


def test_an_unwanted_shard_leaves_no_lanes() -> None:
    lab = Laboratory(1)
    stored(lab)
    shard, _ = filling(lab, lambda: None)
    finish(lab)
    assert KEY in lab.engine.topics
    lab.engine.unfill(shard)
    finish(lab)
    assert not lab.engine.topics
    assert shard.filled is None
    lab.engine.unfill(shard)


def test_waiting_consumers_are_served_after_the_open() -> None:
    lab = Laboratory(1)
    keys = [("ns", f"topic-{number:02}") for number in range(20)]
    for key in keys:
        lab.stored(key=key)  # type: ignore[arg-type]
    shard, opened = filling(lab, lambda: None)
    answers = [lab.dequeue(5_000, keys=[key]) for key in keys]  # type: ignore[list-item]
    finish(lab)
    assert answers == [[]] * 20
    lab.engine.opened(shard, opened, 1 << 20, lab.now_ms, lab.now_ms)
    lab.settle()
    assert [len(ids) for (ids,) in answers] == [1] * 20


def test_a_shard_lost_at_once_wakes_no_topics() -> None:
    lab = Laboratory(1)
    stored(lab)
    shard, opened = filling(lab, lambda: None)
    finish(lab)
    lab.engine.opened(shard, opened, 1 << 20, lab.now_ms, lab.now_ms)
    lab.engine.lose(shard, lab.now_ms)
    while lab.engine.long_work:
        lab.engine.pump(lab.now_ms)
        assert not shard.woken
    assert not lab.engine.topics


def test_empty_lanes_are_idle_from_the_open_on() -> None:
    lab = Laboratory(1, lane_idle_ms=5_000)
    (item_id,) = lab.stored(key=TENANTS[0])
    lab.taken()
    lab.ack((item_id, lab.lease_of(item_id)))
    lab.settle()
    lab.reopen()
    lab.go_on(4_900)
    assert lab.dbs[1].lanes
    lab.go_on(300)
    assert not lab.dbs[1].lanes
    assert not lab.engine.shards[1].tenants
