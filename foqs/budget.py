"""One byte budget for everything a host holds in memory on behalf of its callers.

Frames being read, items waiting for their commit, ready windows with their bodies and answers being written all
take from the same budget, so memory has one bound however the load is shaped (promise 8).
"""

from __future__ import annotations

from collections.abc import Callable


class Budget:
    """Counts bytes in use against `limit_bytes`. `take` always succeeds: ask `fits` first where refusing is possible.

    Invariant: `used_bytes` is the sum of all takes minus all gives, and never negative.
    """

    __slots__ = ("_waiters", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiters: list[Callable[[], None]] = []

    def fits(self, size_bytes: int, share: float = 1.0) -> bool:
        """Return whether `size_bytes` more fit into `share` (0 to 1) of the limit."""
        return self.used_bytes + size_bytes <= self.limit_bytes * share

    def take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "more bytes given back than taken"
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for wake in waiters:
                wake()

    def when_given(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, at the next `give`; `wake` must call `fits` again."""
        self._waiters.append(wake)

    def __repr__(self) -> str:
        return f"Budget({self.used_bytes}/{self.limit_bytes} bytes)"
