"""The one way in which tests wait for a state."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.waiting import wait_until, wait_until_on_loop


def test_returns_the_first_true_value() -> None:
    values = iter([0, None, "", "there", "later"])
    pauses: list[float] = []
    assert wait_until(lambda: next(values), pause=pauses.append) == "there"
    assert len(pauses) == 3


def test_a_state_that_holds_needs_no_pause() -> None:
    assert wait_until(lambda: True, timeout_s=0, pause=pytest.fail)


@pytest.mark.threads
def test_sees_what_another_thread_did() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.set)
    thread.start()
    wait_until(done.is_set, "the thread")
    thread.join()


def test_fails_with_the_awaited_state_and_the_last_value() -> None:
    values = iter([None, 0])
    with pytest.raises(AssertionError, match=r"^not reached in 0 s: two items; last value: None$"):
        wait_until(lambda: next(values), "two items", timeout_s=0)


def test_shows_the_state_at_the_deadline() -> None:
    states: list[str] = []

    def condition() -> bool:
        states.append(f"state {len(states)}")
        return False

    with pytest.raises(AssertionError, match="state 0; last value: False"):
        wait_until(condition, lambda: states[-1], timeout_s=0)


def test_names_the_place_of_a_condition_without_words() -> None:
    with pytest.raises(AssertionError, match=r"test_waiting\.py:\d+; last value: 0"):
        wait_until(lambda: 0, timeout_s=0)
    with pytest.raises(AssertionError, match="built-in method isdigit"):
        wait_until("x".isdigit, timeout_s=0)


def test_an_error_of_the_condition_ends_the_wait() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0)


def test_lets_the_loop_run_between_its_looks() -> None:
    async def work() -> list[str]:
        seen: list[str] = []
        asyncio.get_running_loop().call_soon(seen.append, "ran")
        return await wait_until_on_loop(lambda: seen, pause_s=0)

    assert asyncio.run(work()) == ["ran"]


def test_fails_on_the_loop_in_the_same_words() -> None:
    with pytest.raises(AssertionError, match=r"^not reached in 0 s: a reply; last value: None$"):
        asyncio.run(wait_until_on_loop(lambda: None, "a reply", timeout_s=0))
