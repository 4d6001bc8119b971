"""Wait for a state with a deadline. A test never sleeps for a fixed time: a slow machine would make it fail."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

TIMEOUT_S = 60.0
"""Far longer than any awaited state takes, also while other tests use every processor."""
PAUSE_S = 0.005
"""Seconds between two calls of a condition."""
T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    what: str | Callable[[], object] = "",
    timeout_s: float = TIMEOUT_S,
    *,
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """Call `condition` until it returns a true value, and return that value.

    Raise AssertionError after `timeout_s` seconds with `what` (by default the place of `condition`) and the last value.
    A callable `what` is called at the deadline only, so it can show the state at that time. `pause` lets the awaited
    work go on for a number of seconds: a test that drives an event loop itself runs the loop there.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(_message(condition, what, timeout_s, value))
        pause(PAUSE_S)
    return value


async def wait_until_on_loop(
    condition: Callable[[], T],
    what: str | Callable[[], object] = "",
    timeout_s: float = TIMEOUT_S,
    *,
    pause_s: float = PAUSE_S,
) -> T:
    """Do as `wait_until` on a running event loop. With `pause_s` 0 each turn of the loop calls `condition`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(_message(condition, what, timeout_s, value))
        await asyncio.sleep(pause_s)
    return value


def _message(condition: Callable[[], object], what: str | Callable[[], object], timeout_s: float, value: object) -> str:
    awaited = (what() if callable(what) else what) or _place(condition)
    return f"not reached in {timeout_s:g} s: {awaited}; last value: {value!r}"


def _place(condition: Callable[[], object]) -> str:
    code = getattr(condition, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(condition)
