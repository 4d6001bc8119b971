"""The host's clock: the machine's clock is a first guess, and moves nothing afterwards."""

from __future__ import annotations

import time

import pytest

from foqs.server.clock import Clock

CLOSE_MS = 60_000
HOUR_NS = 3_600 * 10**9
HOUR_MS = 3_600_000


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Nanoseconds by which the machine's clock is moved."""
    moved, real = {"ns": 0}, time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + moved["ns"])
    return moved


def test_it_begins_with_the_machines_clock() -> None:
    assert abs(Clock().now_ms() - time.time_ns() // 1_000_000) < CLOSE_MS


@pytest.mark.parametrize("jump_ns", [HOUR_NS, -HOUR_NS])
def test_a_jump_of_the_machines_clock_does_not_move_it(machine: dict[str, int], jump_ns: int) -> None:
    clock = Clock()
    before = clock.now_ms()
    machine["ns"] = jump_ns
    assert 0 <= clock.now_ms() - before < CLOSE_MS
    assert abs(clock.machine_ahead_ms() - jump_ns // 1_000_000) < CLOSE_MS


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_it_is_set_by_a_difference(by_ms: int) -> None:
    clock = Clock()
    before = clock.now_ms()
    clock.set(by_ms)
    assert 0 <= clock.now_ms() - before - by_ms < CLOSE_MS
    assert abs(clock.machine_ahead_ms() + by_ms) < CLOSE_MS
    assert abs(clock.at_ms(time.monotonic_ns()) - clock.now_ms()) < CLOSE_MS
