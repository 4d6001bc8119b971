"""Limits the log lines of one kind of event, so that an event of every request cannot fill a disk."""

from __future__ import annotations


class LogThrottle:
    """At most `a_second` lines in a second of the caller's clock."""

    __slots__ = ("_a_second", "_left", "_left_out", "_until_s")

    def __init__(self, a_second: int = 5) -> None:
        self._a_second = a_second
        self._left = 0
        self._left_out = 0
        self._until_s = float("-inf")

    def take(self, now_s: float) -> int | None:
        """Return the number of lines left out since the last written one; None if this line is left out, too."""
        if now_s >= self._until_s:
            self._until_s = now_s + 1
            self._left = self._a_second
        if not self._left:
            self._left_out += 1
            return None
        self._left -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out
