"""Walks over the lanes of a topic, and which leases ReleaseLeases ends."""

from __future__ import annotations

from typing import Any

import pytest

import foqs
from foqs.engine import item_ops, listing, stats
from foqs.engine.listing import Releasing, Spot, lanes_at
from foqs.engine.shard import Shard
from foqs.engine.stats import lanes_of
from foqs.errors import FoqsError, StaleLease, Unavailable
from foqs.fairness.keys import lane_key
from foqs.figures import TopicStats, WorkerStats
from foqs.item import Phase
from foqs.rows import AT_MOST_ONCE
from tests.engine.laboratory import KEY, Laboratory

TENANTS = [lane_key(KEY, f"tenant-{number}") for number in range(20)]


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    if foqs.build() == "compiled":
        pytest.skip("a compiled module calls its own functions past a patch")
    monkeypatch.setattr(listing, "GROUP", 6)
    monkeypatch.setattr(listing, "_TURN", 4)
    monkeypatch.setattr(stats, "_LANES", 4)


def found(shard: Shard, state: str, spot: Spot) -> tuple[list[int], Spot, int]:
    """Return what `lanes_at` does, and the number of its turns."""
    walk, turns = lanes_at(shard.memory, KEY, state, spot), 1
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


@pytest.mark.usefixtures("few_at_a_time")
def test_groups_have_each_lane_once(lab: Laboratory) -> None:
    (shard,) = lab.engine.state.shards.values()
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


@pytest.mark.usefixtures("few_at_a_time")
def test_lanes_without_items_in_the_state_are_left_out(lab: Laboratory) -> None:
    (shard,) = lab.engine.state.shards.values()
    assert found(shard, "leased", Spot())[0] == found(shard, "delayed", Spot())[0] == []
    lab.stored(lab.item(delay_ms=9_000), key=TENANTS[17])
    assert found(shard, "delayed", Spot()) == ([19], Spot(None, (0, 19)), 6)
    assert found(shard, "leased", Spot())[0] == []


@pytest.mark.usefixtures("few_at_a_time")
def test_a_position_in_a_group_stays_when_its_lanes_go(lab: Laboratory) -> None:
    (shard,) = lab.engine.state.shards.values()
    at = Spot((4, 0, 0, 9), (0, 7))
    assert found(shard, "ready", at)[:2] == ([4, 5, 6, 7], at)
    assert at.after_in([4, 5, 6, 7], "ready") == (0, 0, 9)
    shard.memory.lane_numbers[4].total = 0
    assert found(shard, "ready", at)[:2] == ([5, 6, 7], at)
    assert at.after_in([5, 6, 7], "ready") is None
    for number in (5, 6, 7):
        shard.memory.lane_numbers[number].total = 0
    assert found(shard, "ready", at)[:2] == ([*range(8, 14)], Spot(None, (7, 13)))


@pytest.mark.usefixtures("few_at_a_time")
def test_a_group_that_grew_is_cut(lab: Laboratory) -> None:
    (shard,) = lab.engine.state.shards.values()
    assert found(shard, "ready", Spot(None, (2, 15)))[:2] == ([*range(3, 9)], Spot(None, (2, 8)))


@pytest.mark.usefixtures("few_at_a_time")
@pytest.mark.parametrize("after", [None, (5, 7)])
def test_timers_are_read_behind_a_time_in_all_lanes(after: Any) -> None:
    assert Spot(after, (3, 9)).after_in([4, 6], "leased") == after
    assert Spot(after).after_in([4], "delayed") == after


@pytest.mark.usefixtures("few_at_a_time")
def test_the_lanes_of_all_shards_come_in_parts(lab: Laboratory) -> None:
    parts = list(lanes_of(lab.engine.state, KEY))
    assert [len(part) for part in parts] == [1, 4, 4, 4, 4, 4]
    assert [lane.number for part in parts for lane in part] == [*range(1, 22)]
    assert [len(part) for part in lanes_of(lab.engine.state, ("ns", "none"))] == [0]
    lab.stored(key=("ns", "plain"))  # type: ignore[arg-type]
    assert [len(part) for part in lanes_of(lab.engine.state, ("ns", "plain"))] == [1]


@pytest.mark.usefixtures("few_at_a_time")
def test_a_walk_survives_the_end_of_its_shard(lab: Laboratory) -> None:
    walk = lanes_of(lab.engine.state, KEY)
    next(walk)
    next(walk)
    lab.engine.lose(lab.engine.state.shards[1], lab.now_ms)
    assert list(walk) == []


OTHER = ("ns", "other")


def begin(lab: Laboratory, worker: str | None = None, held_ms: int = 0, timeout_ms: int = 5_000) -> list[Any]:
    """Return a list that gets the reply."""
    replies: list[tuple[int, FoqsError | None]] = []
    releasing = Releasing(lab.engine.state, KEY, worker, lab.now_ms - held_ms, lambda *reply: replies.append(reply))
    lab.engine.release(releasing, lab.now_ms, timeout_ms)
    return replies


def until_told(lab: Laboratory, replies: list[Any]) -> list[Any]:
    """Go on in turns of the event loop, of which each has some of the work."""
    for _ in range(100):
        if replies:
            break
        lab.settle()
    return replies


def released(lab: Laboratory, worker: str | None = None, held_ms: int = 0) -> int:
    ((count, error),) = until_told(lab, begin(lab, worker, held_ms))
    assert error is None
    return count


def leased(lab: Laboratory, count: int, worker: str = "", **item: int) -> list[int]:
    ids = lab.stored(*[lab.item(**item) for _ in range(count)])
    assert lab.taken(worker=worker, count=count) == ids
    return ids


def test_leases_end_as_if_by_time() -> None:
    lab = Laboratory(1, 2)
    ids = [item_id for _ in range(4) for item_id in leased(lab, 2)]
    assert {item_id >> 48 for item_id in ids} == {1, 2}
    assert released(lab) == 8
    again = lab.taken()
    again += lab.taken()  # of a shard whose bodies had to be read
    assert sorted(again) == sorted(ids)
    assert {lab.engine.state.shards[item_id >> 48].memory.known[item_id].attempt for item_id in ids} == {2}
    counted = lab.engine.state.counters.namespaces.of("ns")
    assert (counted.expired, counted.released, sum(counted.failed.values())) == (0, 8, 0), "no worker has failed"


def test_a_released_lease_cannot_be_extended() -> None:
    lab = Laboratory(1)
    (item_id,) = leased(lab, 1)
    lease = lab.lease_of(item_id)
    assert released(lab) == 1
    answers = lab.operate(item_id, item_ops.extend(lease, 5_000))
    lab.settle()
    assert [type(answer) for answer in answers] == [StaleLease]


def test_more_leases_than_a_page() -> None:
    lab = Laboratory(1)
    leased(lab, 2 * listing._RELEASE_ROWS + 1)
    lab.go_on(200)
    assert released(lab) == 2 * listing._RELEASE_ROWS + 1
    assert lab.engine.ready(KEY) == 2 * listing._RELEASE_ROWS + 1


def test_only_leases_of_the_worker() -> None:
    lab = Laboratory(1)
    leased(lab, 3, "a")
    theirs = leased(lab, 2, "b")
    assert released(lab, "b") == 2
    assert lab.taken() == theirs


def test_only_leases_that_are_old_enough() -> None:
    lab = Laboratory(1)
    old = leased(lab, 2)
    lab.go_on(1_000)
    leased(lab, 3)
    assert released(lab, held_ms=1_000) == 2
    assert lab.taken() == old


def test_other_topics_and_ready_items_stay() -> None:
    lab = Laboratory(1)
    other = lab.stored(key=OTHER)
    assert lab.taken(keys=[OTHER]) == other
    leased(lab, 1)
    lab.stored(lab.item(delay_ms=60_000))
    assert released(lab) == 1
    assert lab.engine.state.shards[1].memory.known[other[0]].phase is Phase.LEASED
    assert lab.engine.ready(KEY) == 1


def test_an_at_most_once_item_is_removed() -> None:
    lab = Laboratory(1)
    leased(lab, 1, delivery=AT_MOST_ONCE)
    assert released(lab) == 1
    assert lab.engine.state.counters.removed == {"dropped": 1}


def test_leases_of_an_earlier_owner_have_no_worker() -> None:
    lab = Laboratory(1)
    ids = leased(lab, 2, "a")
    lab.go_on(200)
    lab.reopen()
    assert released(lab, "a") == 0
    assert released(lab) == 2
    assert lab.taken() == ids


def test_an_ack_under_way_comes_first() -> None:
    lab = Laboratory(1)
    (item_id,) = leased(lab, 1)
    lab.go_on(200)
    acked = lab.ack((item_id, lab.lease_of(item_id)))
    assert released(lab) == 0
    assert acked == [None]


def test_an_end_that_is_not_committed_is_not_counted() -> None:
    lab = Laboratory(1)
    leased(lab, 1)
    lab.go_on(200)
    replies = begin(lab)
    ((shard, read),) = lab.send()
    lab.arrive(shard, read)
    lab.engine.lose(shard, lab.now_ms)
    lab.settle()
    assert [count for count, _ in replies] == [0]


def test_a_shard_that_does_not_answer_ends_with_the_time() -> None:
    lab = Laboratory(1, 2)
    leased(lab, 1)
    replies = begin(lab, timeout_ms=1_000)
    lab.ring(1_000)
    ((count, error),) = replies
    assert (count, type(error)) == (0, Unavailable)
    assert not any(shard.queue.lists for shard in lab.engine.state.shards.values())
    lab.settle()
    assert len(replies) == 1


def test_a_host_without_such_leases_answers_at_once() -> None:
    lab = Laboratory(1)
    lab.stored()
    assert begin(lab) == [(0, None)]


# ------------------------------------------------------------------------------------------ by worker


def test_leases_are_counted_by_worker() -> None:
    lab = Laboratory(1, 2)
    for worker in ("a", "b", "a", ""):
        leased(lab, 2, worker)
        lab.go_on(100)
    found: list[TopicStats] = []
    stats.topic_stats(lab.engine.state, KEY, lab.now_ms, found.append)
    assert found[0].workers == (WorkerStats("a", 4, 400), WorkerStats("b", 2, 300), WorkerStats("", 2, 100))


def test_of_many_workers_the_oldest_are_reported(monkeypatch: Any) -> None:
    monkeypatch.setattr(stats, "MOST_WORKERS", 2)
    lab = Laboratory(1)
    for worker in ("b", "c", "a"):
        leased(lab, 1, worker)
        lab.go_on(100)
    found: list[TopicStats] = []
    stats.topic_stats(lab.engine.state, KEY, lab.now_ms, found.append)
    assert [one.worker for one in found[0].workers] == ["b", "c"]


def test_a_count_of_many_items_takes_several_turns(monkeypatch: Any) -> None:
    monkeypatch.setattr(stats, "_ITEMS", 10)
    lab = Laboratory(1)
    leased(lab, 35, "a")
    found: list[TopicStats] = []
    stats.topic_stats(lab.engine.state, KEY, lab.now_ms, found.append)
    turns = 1
    while not found:
        lab.engine.pump(lab.now_ms)
        turns += 1
    assert turns == 4
    assert found[0].workers[0].held == 35
