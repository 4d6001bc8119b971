"""Walks over the lanes of a topic: each lane once, in the order of numbers, in turns of bounded work."""

from __future__ import annotations

from typing import Any

import pytest

import foqs
from foqs.engine import listing, stats
from foqs.engine.listing import Spot, lanes_at
from foqs.engine.shard import Shard
from foqs.engine.stats import lanes_of
from foqs.fairness.keys import lane_key
from tests.engine.laboratory import KEY, Laboratory

TENANTS = [lane_key(KEY, f"tenant-{number}") for number in range(20)]


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    if foqs.build() == "compiled":
        pytest.skip("a compiled module calls its own functions past a patch")
    monkeypatch.setattr(listing, "GROUP", 6)
    monkeypatch.setattr(listing, "_TURN", 4)
    monkeypatch.setattr(stats, "_LANES", 4)


def found(shard: Shard, state: str, spot: Spot) -> tuple[list[int], Spot, int]:
    """Return what `lanes_at` does, and the number of its turns."""
    walk, turns = lanes_at(shard, KEY, state, spot), 1
    while True:
        try:
            next(walk)
        except StopIteration as end:
            return (*end.value, turns)
        turns += 1


@pytest.fixture
def lab() -> Laboratory:
    """One shard with an item in the plain lane, whose number is 1, and in each lane of TENANTS."""
    lab = Laboratory(1)
    for key in [KEY, *TENANTS]:
        lab.stored(key=key)
    return lab


def test_groups_have_each_lane_once(lab: Laboratory) -> None:
    (shard,) = lab.engine.shards.values()
    seen: list[list[int]] = []
    spot, most = Spot(), 0
    while True:
        numbers, at, turns = found(shard, "ready", spot)
        if not numbers:
            break
        seen.append(numbers)
        spot, most = at.behind(), max(most, turns)
    assert seen == [[1], [*range(2, 8)], [*range(8, 14)], [*range(14, 20)], [20, 21]]
    assert most == 2


def test_lanes_without_items_in_the_state_are_left_out(lab: Laboratory) -> None:
    (shard,) = lab.engine.shards.values()
    assert found(shard, "leased", Spot())[0] == found(shard, "delayed", Spot())[0] == []
    lab.stored(lab.item(delay_ms=9_000), key=TENANTS[17])
    assert found(shard, "delayed", Spot()) == ([19], Spot(None, (0, 19)), 6)
    assert found(shard, "leased", Spot())[0] == []


def test_a_position_in_a_group_stays_when_its_lanes_go(lab: Laboratory) -> None:
    (shard,) = lab.engine.shards.values()
    at = Spot((4, 0, 0, 9), (0, 7))
    assert found(shard, "ready", at)[:2] == ([4, 5, 6, 7], at)
    assert at.after_in([4, 5, 6, 7], "ready") == (0, 0, 9)
    shard.lane_numbers[4].total = 0
    assert found(shard, "ready", at)[:2] == ([5, 6, 7], at)
    assert at.after_in([5, 6, 7], "ready") is None
    for number in (5, 6, 7):
        shard.lane_numbers[number].total = 0
    assert found(shard, "ready", at)[:2] == ([*range(8, 14)], Spot(None, (7, 13)))


def test_a_group_that_grew_is_cut(lab: Laboratory) -> None:
    (shard,) = lab.engine.shards.values()
    assert found(shard, "ready", Spot(None, (2, 15)))[:2] == ([*range(3, 9)], Spot(None, (2, 8)))


@pytest.mark.parametrize("after", [None, (5, 7)])
def test_timers_are_read_behind_a_time_in_all_lanes(after: Any) -> None:
    assert Spot(after, (3, 9)).after_in([4, 6], "leased") == after
    assert Spot(after).after_in([4], "delayed") == after


def test_the_lanes_of_all_shards_come_in_parts(lab: Laboratory) -> None:
    parts = list(lanes_of(lab.engine, KEY))
    assert [len(part) for part in parts] == [1, 4, 4, 4, 4, 4]
    assert [lane.number for part in parts for lane in part] == [*range(1, 22)]
    assert [len(part) for part in lanes_of(lab.engine, ("ns", "none"))] == [0]
    lab.stored(key=("ns", "plain"))  # type: ignore[arg-type]
    assert [len(part) for part in lanes_of(lab.engine, ("ns", "plain"))] == [1]


def test_a_walk_survives_the_end_of_its_shard(lab: Laboratory) -> None:
    walk = lanes_of(lab.engine, KEY)
    next(walk)
    next(walk)
    lab.engine.lose(lab.engine.shards[1], lab.now_ms)
    assert list(walk) == []
