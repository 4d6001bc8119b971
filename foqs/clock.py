"""The host's clock: monotonic time anchored to the wall clock.

A wall clock that jumps must not end a lease or remove an item by TTL, so the wall clock is read once and from then on
only compared. A difference is followed when a database's clock says the same as the wall clock does.
"""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Never goes back, and says nothing about the time of day."""
    return time.monotonic_ns() // 1_000_000


class Clock:
    """`now_ms()` is epoch milliseconds and never goes back by itself (only `confirm` may set it back)."""

    __slots__ = ("_anchor_ns", "_jump_ms")

    def __init__(self, jump_ms: int) -> None:
        self._jump_ms = jump_ms
        self._anchor_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() + self._anchor_ns) // 1_000_000

    def off_by_ms(self) -> int:
        """How far the wall clock is ahead of this one."""
        return (time.time_ns() - time.monotonic_ns() - self._anchor_ns) // 1_000_000

    def jumped(self) -> bool:
        return abs(self.off_by_ms()) > self._jump_ms

    def confirm(self, db_now_ms: int) -> bool:
        """Follows the wall clock if a database agrees with it within the allowed jump; says whether it did."""
        if not self.jumped() or abs(time.time_ns() // 1_000_000 - db_now_ms) > self._jump_ms:
            return False
        self._anchor_ns = time.time_ns() - time.monotonic_ns()
        return True
