"""Long work is done in parts, one in each slice of the event loop, and an engine reports through its callbacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from foqs.engine.state import Callbacks
from foqs.shardmgr.lifecycle import ShardState
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.tenants import of, set_policy


def work(name: str, parts: int, done: list[str]) -> Iterator[None]:
    for part in range(parts):
        done.append(f"{name}{part}")
        if part < parts - 1:
            yield


def test_work_of_one_part_needs_no_further_turn() -> None:
    woken: list[None] = []
    lab = Laboratory(1, callbacks=Callbacks(wake=lambda: woken.append(None)))
    woken.clear()
    done: list[str] = []
    lab.engine.state.slices.begin(work("a", 1, done))
    assert (done, woken) == (["a0"], [])


def test_each_turn_does_one_part_of_the_oldest_work() -> None:
    woken: list[None] = []
    lab = Laboratory(1, callbacks=Callbacks(wake=lambda: woken.append(None)))
    woken.clear()
    done: list[str] = []
    lab.engine.state.slices.begin(work("a", 3, done))
    lab.engine.state.slices.begin(work("b", 2, done))
    assert (done, len(woken)) == (["a0", "b0"], 2)
    for expected in ("a1", "b1", "a2"):
        lab.engine.pump(lab.now_ms)
        assert done[-1] == expected
    assert not lab.engine.state.slices.long_work


class Reports:
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.callbacks = Callbacks(
            wake=lambda: self.seen.append("wake"),
            alarm=lambda at_ms: self.seen.append(("alarm", at_ms)),
            served=lambda: self.seen.append("served"),
            became_ready=lambda key: self.seen.append(("ready", key)),
            left_waiting=lambda key: self.seen.append(("left", key)),
        )

    def take(self) -> list[Any]:
        seen, self.seen = self.seen, []
        return seen


def test_served_reports_a_shards_begin_and_end() -> None:
    reports = Reports()
    lab = Laboratory(1, callbacks=reports.callbacks)
    assert "served" in reports.take()
    shard = lab.engine.state.shards[1]
    lab.engine.lose(shard, lab.now_ms)
    assert shard.owner.state is ShardState.CLOSED
    assert reports.take() == ["served"]


def test_an_enqueue_wakes_and_sets_its_alarm() -> None:
    reports = Reports()
    lab = Laboratory(1, callbacks=reports.callbacks)
    reports.take()
    lab.enqueue(timeout_ms=700)
    assert reports.take() == [("alarm", lab.now_ms + 700), "wake"]


def test_an_alarm_after_the_next_tick_is_not_set() -> None:
    reports = Reports()
    lab = Laboratory(1, callbacks=reports.callbacks)
    reports.take()
    lab.engine.state.timer_ms = lab.now_ms + 700
    lab.enqueue(timeout_ms=700)
    assert reports.take() == ["wake"]
    lab.enqueue(timeout_ms=699)
    assert reports.take() == [("alarm", lab.now_ms + 699)]


def test_ready_topics_are_reported_when_committed() -> None:
    reports = Reports()
    lab = Laboratory(1, callbacks=reports.callbacks)
    lab.enqueue()
    reports.take()
    lab.settle()
    assert ("ready", KEY) in reports.take()


def test_a_consumer_that_finds_nothing_is_reported() -> None:
    """Two consumers wait and one item arrives: the second one stays, and may find items on another host."""
    reports = Reports()
    lab = Laboratory(1, callbacks=reports.callbacks)
    first, second = lab.dequeue(wait_ms=60_000), lab.dequeue(wait_ms=60_000)
    lab.enqueue()
    lab.settle()
    assert (len(first), second) == (1, [])
    assert ("left", KEY) in reports.take()


def test_items_without_a_throttle_are_reported() -> None:
    reports = Reports()
    lab = Laboratory(1, callbacks=reports.callbacks)
    set_policy(lab, {}, throttle_api='{"per_second": 0.01}')
    ids = lab.stored(*[lab.item() for _ in range(3)], key=of("", "api"))
    answers = lab.dequeue(count=1, wait_ms=5_000)
    reports.take()
    set_policy(lab, {})
    lab.send()
    assert answers == [ids[:1]]
    assert ("ready", KEY) in reports.take()


def test_a_finished_batch_pumps_for_work_that_waits() -> None:
    reports = Reports()
    lab = Laboratory(1, callbacks=reports.callbacks)
    answers = lab.put(lab.item())
    ((shard, batch),) = lab.send()
    reports.take()
    lab.arrive(shard, batch)
    assert isinstance(answers[0], int)
    assert "wake" not in reports.take()
    lab.put(lab.item())
    ((shard, batch),) = lab.send()
    lab.put(lab.item())
    assert lab.send() == [], "one batch at a time"
    reports.take()
    lab.arrive(shard, batch)
    assert "wake" in reports.take()


def test_the_end_of_a_batch_sets_the_timer() -> None:
    reports = Reports()
    lab = Laboratory(1, callbacks=reports.callbacks)
    lab.put(lab.item(delay_ms=700))
    ((shard, batch),) = lab.send()
    reports.take()
    lab.arrive(shard, batch)
    assert ("alarm", lab.now_ms + 700) in reports.take()


def test_a_pumped_shard_with_nothing_to_send_sets_the_timer() -> None:
    reports = Reports()
    lab = Laboratory(1, callbacks=reports.callbacks)
    lab.stored(lab.item(delay_ms=700))
    reports.take()
    lab.engine.state.touch(lab.engine.state.shards[1])
    assert lab.send() == []
    assert ("alarm", lab.now_ms + 700) in reports.take()
