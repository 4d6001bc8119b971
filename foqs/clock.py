"""The host's clock: monotonic time with an anchor, so that a change of the machine's clock moves no deadline.

The machine's clock is read once, as a first guess. From the first shard on, the host's clock follows the databases'
clocks (`foqs.server.database_clock`): they decide about stored times, and every owner of a shard sees the same one.
"""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Return monotonic time, which is unrelated to the time of day."""
    return time.monotonic_ns() // 1_000_000


class Clock:
    """`now_ms()` is epoch milliseconds. It never goes back by itself: only `set` moves it."""

    __slots__ = ("_anchor_ns",)

    def __init__(self) -> None:
        self._anchor_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() + self._anchor_ns) // 1_000_000

    def at_ms(self, monotonic_ns: int) -> int:
        """Return this clock's time at an instant of `time.monotonic_ns()`."""
        return (monotonic_ns + self._anchor_ns) // 1_000_000

    def machine_ahead_ms(self) -> int:
        """Return the lead of the machine's clock over this one."""
        return (time.time_ns() - time.monotonic_ns() - self._anchor_ns) // 1_000_000

    def set(self, by_ms: int) -> None:
        self._anchor_ns += by_ms * 1_000_000
