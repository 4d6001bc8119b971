"""The breaker of a hook opens after three failures in a row, and tries one call after ten seconds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.figures import MOST_ERRORS
from foqs.hooks.call_queues import FAILURES_IN_A_ROW, OPEN_MS, Breaker
from foqs.hooks.protocol import Failed, Kind

FAILURE = Failed(Kind.ERROR, "no customer")


def fail(breaker: Breaker, now_ms: int, times: int = 1, text: str = "x") -> list[bool]:
    opened = []
    for number in range(times):
        breaker.begin()
        opened.append(breaker.failed("route", Failed(Kind.ERROR, f"{text}{number}"), now_ms, 7_000 + now_ms))
    return opened


def test_three_failures_in_a_row_open_it() -> None:
    breaker = Breaker()
    assert fail(breaker, 0, 2) == [False, False]
    breaker.succeeded("route")
    assert fail(breaker, 0, 2) == [False, False]
    assert breaker.room(0) > 1_000
    assert fail(breaker, 5, 1) == [True]
    assert (breaker.is_open, breaker.room(5), breaker.retry_after_ms(5)) == (True, 0, OPEN_MS)
    assert (breaker.calls, breaker.failures, breaker.script) == (6, 5, "route")


def test_one_call_is_tried_and_closes_it() -> None:
    breaker = Breaker()
    fail(breaker, 0, 3)
    assert (breaker.room(OPEN_MS - 1), breaker.retry_after_ms(OPEN_MS - 1)) == (0, 1)
    assert (breaker.room(OPEN_MS), breaker.retry_after_ms(OPEN_MS)) == (1, 0)
    breaker.begin()
    assert (breaker.room(OPEN_MS), breaker.is_open) == (0, True)
    breaker.succeeded("route")
    assert not breaker.is_open
    assert fail(breaker, OPEN_MS, 2) == [False, False]


def test_a_failed_try_opens_it_again() -> None:
    breaker = Breaker()
    fail(breaker, 0, 3)
    assert fail(breaker, OPEN_MS + 3) == [True]
    assert breaker.retry_after_ms(OPEN_MS + 3) == OPEN_MS


def test_a_try_without_an_outcome_is_repeated() -> None:
    breaker = Breaker()
    fail(breaker, 0, 3)
    breaker.begin()
    breaker.abandon()
    assert breaker.room(OPEN_MS) == 1


def test_calls_that_began_before_do_not_close_it() -> None:
    breaker = Breaker()
    fail(breaker, 0, 3)
    breaker.succeeded("route")
    assert breaker.is_open
    assert breaker.failed("route", FAILURE, 100, 0) is False
    assert breaker.retry_after_ms(100) == OPEN_MS - 100


def test_the_last_errors_are_kept_with_their_times() -> None:
    breaker = Breaker()
    fail(breaker, 3, 8)
    assert [error.text for error in breaker.last_errors] == ["x3", "x4", "x5", "x6", "x7"]
    assert len(breaker.last_errors) == MOST_ERRORS
    assert {error.at_ms for error in breaker.last_errors} == {7_003}
    fail(breaker, 3, text="y" * 5_000)
    assert len(breaker.last_errors[-1].text) == 300


@given(st.lists(st.tuples(st.sampled_from(["fail", "succeed", "abandon"]), st.integers(0, 6_000))))
def test_an_open_breaker_begins_one_call_in_ten_seconds(steps: list[tuple[str, int]]) -> None:
    """Every call asks for room before it begins, as the dispatcher does."""
    breaker, now_ms, in_a_row, opened_ms = Breaker(), 0, 0, None
    for step, after_ms in steps:
        now_ms += after_ms
        if not breaker.room(now_ms):
            assert opened_ms is not None
            assert now_ms < opened_ms + OPEN_MS
            assert breaker.retry_after_ms(now_ms) == opened_ms + OPEN_MS - now_ms
            continue
        breaker.begin()
        if step == "abandon":
            breaker.abandon()
        elif step == "succeed":
            breaker.succeeded("route")
            in_a_row, opened_ms = 0, None
        else:
            in_a_row += 1
            opens = opened_ms is not None or in_a_row >= FAILURES_IN_A_ROW
            assert breaker.failed("route", FAILURE, now_ms, 0) is opens
            if opens:
                opened_ms = now_ms
        assert breaker.is_open is (opened_ms is not None)
