"""How many lines of a log one kind of event may take: what happens to every request must not fill a disk."""

from __future__ import annotations


class Lines:
    """At most `a_second` of them in a second of the clock that the caller reads."""

    __slots__ = ("_a_second", "_left", "_left_out", "_until_s")

    def __init__(self, a_second: int = 5) -> None:
        self._a_second = a_second
        self._left = 0
        self._left_out = 0
        self._until_s = float("-inf")

    def take(self, now_s: float) -> int | None:
        """How many were left out since the last one that was written; None: this one is left out, too."""
        if now_s >= self._until_s:
            self._until_s = now_s + 1
            self._left = self._a_second
        if not self._left:
            self._left_out += 1
            return None
        self._left -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out
