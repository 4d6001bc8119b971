"""The decision that a cluster is quiet: one host at a time has time for all small requests."""

from collections.abc import Callable

import pytest

from foqs.bounds import TURN_MS
from foqs.server.load import LOUD_MS, MANY_ROWS, Load, Quiet
from tests.support.timers import TestTimers


def test_a_busy_host_is_not_quiet_until_the_load_fits_one_host() -> None:
    quiet = Quiet()
    assert quiet.after(0.8, 3, 1_000)
    assert not quiet.after(0.95, 3, 1_250)
    assert not quiet.after(0.3, 3, 1_500), "the load of three hosts does not fit one"
    assert not quiet.after(0.1, 3, 1_500 + LOUD_MS - 1)
    assert quiet.after(0.1, 3, 1_500 + LOUD_MS)
    assert quiet.after(0.8, 3, 2_000 + LOUD_MS), "a part of the load of all is not enough"


class Process:
    """The clocks of a process, and its timers."""

    def __init__(self) -> None:
        self.now_ms = 10 * TURN_MS + 90
        self.used_s = 0.0
        self.due: list[tuple[int, Callable[[], None]]] = []
        self.changes: list[bool] = []
        timers = TestTimers(lambda: self.now_ms, later=lambda ms, do: self.due.append((ms, do)))
        self.rows = 0
        self.load = Load(
            lambda: 3, lambda: self.rows, lambda: self.changes.append(self.load.quiet), timers, lambda: self.used_s
        )

    def passes(self, share: float) -> int:
        """Let the time pass until the timer rings. Return that time."""
        ((after_ms, ring),) = self.due
        self.due.clear()
        self.now_ms += after_ms
        self.used_s += share * after_ms / 1_000
        ring()
        return self.now_ms


def test_each_turn_is_measured_and_a_change_reported_once() -> None:
    process = Process()
    assert not process.load.quiet
    process.load.begin()
    assert process.load.quiet
    assert [process.passes(0.1) % TURN_MS for _ in range(3)] == [0, 0, 0]
    assert [process.passes(share) // TURN_MS for share in (0.95, 0.95)] == [14, 15]
    for _ in range(LOUD_MS // TURN_MS):
        process.passes(0.05)
    assert process.changes == [False, True]


def test_a_host_whose_databases_are_slow_is_not_quiet() -> None:
    process = Process()
    process.load.begin()
    process.rows = MANY_ROWS // 2
    process.passes(0.1)
    assert process.load.quiet
    process.rows = MANY_ROWS
    process.passes(0.1)
    assert not process.load.quiet


def test_a_timer_that_rings_early_makes_no_short_turn() -> None:
    process = Process()
    process.load.begin()
    process.now_ms -= 2
    process.passes(0.1)
    ((after_ms, _),) = process.due
    assert after_ms == TURN_MS + 2


@pytest.mark.parametrize("turns", [0, 3])
def test_the_measurements_end(turns: int) -> None:
    process = Process()
    process.load.begin()
    for _ in range(turns):
        process.passes(0.1)
    process.load.end()
    process.passes(1.0)
    assert not process.due and not process.changes
