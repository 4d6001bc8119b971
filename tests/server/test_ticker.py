"""One pump a turn and one timer, set to the earliest time that the engine needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from foqs.buffers.checkpoint import NEVER_MS
from foqs.server.shard_runner import Ticker
from tests.server.loop import HandLoop
from tests.support.timers import TestTimers

pytestmark = pytest.mark.memory


class Rig:
    """`done` has the engine's pumps and ticks, by the time of the host's clock."""

    def __init__(self) -> None:
        self.loop = HandLoop()
        self.done: list[tuple[str, int]] = []
        self.next_ms = 1 << 60
        self.engine = SimpleNamespace(
            state=SimpleNamespace(dirty={}, timer_ms=NEVER_MS),
            pump=lambda now_ms: self.done.append(("pump", now_ms)),
            tick=lambda now_ms: self.done.append(("tick", now_ms)),
            next_ms=lambda now_ms: self.next_ms,
        )
        self.timekeeper = SimpleNamespace(look=lambda: self.done.append(("look", self.now_ms)))
        loop, now_ms = self.loop, lambda: self.now_ms
        later: Any = lambda after_ms, do: loop.call_later(after_ms / 1_000, do)  # noqa: E731
        self.ticker = Ticker(TestTimers(now_ms, soon=loop.call_soon, later=later))  # type: ignore[arg-type]
        self.ticker.connect(self.engine, self.timekeeper)  # type: ignore[arg-type]

    @property
    def now_ms(self) -> int:
        return round(self.loop.now_s * 1_000)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_turn_pumps_once_however_often_it_is_woken(rig: Rig) -> None:
    for _ in range(3):
        rig.ticker.wake()
    assert rig.loop.turns == 1
    rig.loop.run()
    assert rig.done == [("pump", rig.now_ms)]
    rig.ticker.wake()
    assert rig.loop.turns == 1


def test_an_earlier_alarm_replaces_a_later_one(rig: Rig) -> None:
    rig.ticker.alarm(rig.now_ms + 50)
    rig.ticker.alarm(rig.now_ms + 90)
    assert rig.loop.set == [50]
    rig.ticker.alarm(rig.now_ms + 20)
    assert rig.loop.set == [20]


def test_an_alarm_in_the_past_rings_at_once(rig: Rig) -> None:
    rig.ticker.alarm(rig.now_ms - 500)
    assert rig.loop.set == [0]


def test_a_tick_looks_at_the_clock_first_and_sets_the_next(rig: Rig) -> None:
    rig.ticker.alarm(rig.now_ms + 50)
    rig.next_ms = rig.now_ms + 80
    rig.loop.wait(50)
    assert rig.done == [("look", rig.now_ms), ("tick", rig.now_ms)]
    assert rig.loop.set == [30]


def test_a_late_tick_lets_answers_come_first(rig: Rig) -> None:
    rig.ticker.alarm(rig.now_ms + 50)
    rig.loop.wait(5_000)
    assert rig.done == []
    assert rig.loop.set == [50]
    rig.loop.wait(50)
    assert rig.done == [("look", rig.now_ms), ("tick", rig.now_ms)]


def test_a_loop_that_is_always_late_ticks_every_other_time(rig: Rig) -> None:
    rig.next_ms = 0
    rig.ticker.alarm(rig.now_ms)
    for _ in range(4):
        rig.loop.wait(5_000)
    assert [what for what, _ in rig.done] == ["look", "tick"] * 2


def test_a_stopped_ticker_rings_no_more(rig: Rig) -> None:
    rig.ticker.stop()
    rig.ticker.arm()
    rig.ticker.stop()
    assert rig.loop.set == []


def test_the_engine_knows_when_the_timer_rings(rig: Rig) -> None:
    """It asks for an earlier time only, and for each time while the tick is carried out."""
    seen: list[int] = []
    rig.engine.tick = lambda now_ms: seen.append(rig.engine.state.timer_ms)
    rig.ticker.alarm(rig.now_ms + 50)
    assert rig.engine.state.timer_ms == rig.now_ms + 50
    rig.next_ms = rig.now_ms + 80
    rig.loop.wait(50)
    assert seen == [NEVER_MS]
    assert rig.engine.state.timer_ms == rig.next_ms
