"""The host's clock: a wall clock that jumps is followed only when a database says the same."""

from __future__ import annotations

import time

import pytest

from foqs.clock import Clock

JUMP_MS = 60_000
HOUR_NS = 3_600 * 10**9


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Nanoseconds by which the wall clock is moved."""
    moved, real = {"ns": 0}, time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + moved["ns"])
    return moved


def db_now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_it_begins_with_the_wall_clock() -> None:
    assert abs(Clock(JUMP_MS).now_ms() - db_now_ms()) < JUMP_MS


@pytest.mark.parametrize("jump_ns", [HOUR_NS, -HOUR_NS])
def test_a_jump_of_the_wall_clock_changes_nothing_by_itself(wall: dict[str, int], jump_ns: int) -> None:
    clock = Clock(JUMP_MS)
    before = clock.now_ms()
    wall["ns"] = jump_ns
    assert clock.jumped()
    assert 0 <= clock.now_ms() - before < JUMP_MS


def test_a_jump_that_the_database_does_not_know_of_is_not_followed(wall: dict[str, int]) -> None:
    clock, truth = Clock(JUMP_MS), db_now_ms()
    wall["ns"] = HOUR_NS
    assert not clock.confirm(truth)
    assert clock.now_ms() - truth < JUMP_MS


@pytest.mark.parametrize("jump_ns", [HOUR_NS, -HOUR_NS])
def test_a_jump_that_the_database_confirms_is_followed(wall: dict[str, int], jump_ns: int) -> None:
    clock = Clock(JUMP_MS)
    wall["ns"] = jump_ns
    assert clock.confirm(db_now_ms())
    assert not clock.jumped()
    assert abs(clock.now_ms() - db_now_ms()) < JUMP_MS
