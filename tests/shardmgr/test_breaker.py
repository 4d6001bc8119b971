"""The breaker opens on errors, slowness and hangs, tries again after a pause that doubles, and closes on success."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from foqs.shardmgr.lifecycle import Breaker, BreakerSettings, BreakerState

SETTINGS = BreakerSettings(trips=10, min_trips=4, error_rate=0.5, mean_latency_ms=100.0, pause_ms=10, max_pause_ms=40)


def test_a_few_errors_among_many_do_not_open_it() -> None:
    breaker = Breaker(SETTINGS)
    for trip in range(100):
        breaker.done(trip, ok=trip % 3 != 2, latency_ms=1.0)
        assert breaker.closed


def test_errors_open_it() -> None:
    breaker = Breaker(SETTINGS)
    for trip in range(SETTINGS.min_trips):
        assert breaker.closed
        breaker.done(trip, ok=False, latency_ms=1.0)
    assert not breaker.closed
    assert breaker.opened == 1


def test_slowness_opens_it() -> None:
    breaker = Breaker(SETTINGS)
    for trip in range(SETTINGS.min_trips):
        breaker.done(trip, ok=True, latency_ms=150.0)
    assert not breaker.closed


def test_the_pause_doubles_up_to_its_bound_and_success_closes() -> None:
    breaker, now, pauses = Breaker(SETTINGS), 0, []
    breaker.trip(now)
    for _ in range(5):
        pauses.append(breaker.retry_at_ms(now) - now)
        now = breaker.retry_at_ms(now)
        assert not breaker.allows(now - 1)
        assert breaker.allows(now)
        assert breaker.state is BreakerState.HALF_OPEN
        breaker.done(now, ok=False, latency_ms=1.0)
    assert pauses == [10, 20, 40, 40, 40]
    now = breaker.retry_at_ms(now)
    assert breaker.allows(now)
    breaker.done(now, ok=True, latency_ms=1.0)
    assert breaker.closed


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1000)), max_size=60))
def test_it_always_lets_a_trial_through_in_the_end(trips: list[tuple[bool, float]]) -> None:
    breaker = Breaker(SETTINGS)
    for now, (ok, latency_ms) in enumerate(trips):
        if breaker.allows(now):
            breaker.done(now, ok=ok, latency_ms=latency_ms)
    assert breaker.allows(len(trips) + SETTINGS.max_pause_ms)


def test_a_pause_does_not_grow_when_the_clock_is_set_back() -> None:
    breaker = Breaker(SETTINGS)
    breaker.trip(1_000_000)
    assert not breaker.allows(1_000_000)
    assert breaker.retry_at_ms(10_000) == 0
    assert breaker.allows(10_000)


def test_a_shortened_window_forgets_its_oldest_trips() -> None:
    breaker = Breaker(SETTINGS)
    for trip in range(10):
        breaker.done(trip, ok=trip >= 4, latency_ms=1.0)
    breaker.settings = replace(SETTINGS, trips=5)
    breaker.done(10, ok=True, latency_ms=1.0)
    for trip in (11, 12):
        breaker.done(trip, ok=False, latency_ms=1.0)
        assert breaker.closed
    breaker.done(13, ok=False, latency_ms=1.0)
    assert not breaker.closed  # 3 of 5
