"""How often somebody may do something: so many times a second, evenly, or up to as many at once after a rest.

The generic cell rate algorithm (ITU-T I.371): of each source all that is kept is the time until which what it did so
far would last at an even pace.
"""

from __future__ import annotations

_SECOND_NS = 10**9
_MOST_SOURCES = 100_000
"""Remembered at a time. Beyond it those that were first seen longest ago begin anew."""


class Pace:
    """`now_s` is monotonic."""

    __slots__ = ("_step_ns", "_until_ns")

    def __init__(self, a_second: int) -> None:
        self._step_ns = _SECOND_NS // a_second
        self._until_ns: dict[str, int] = {}

    def wait_ms(self, source: str, now_s: float) -> int:
        """0 when it may be done now, which is counted; else after how long."""
        now_ns = int(now_s * _SECOND_NS)
        until_ns = max(self._until_ns.get(source, 0), now_ns)
        late_ns = until_ns + self._step_ns - now_ns - _SECOND_NS
        if late_ns > 0:
            return -(-late_ns // 1_000_000)
        if len(self._until_ns) >= _MOST_SOURCES and source not in self._until_ns:
            del self._until_ns[next(iter(self._until_ns))]
        self._until_ns[source] = until_ns + self._step_ns
        return 0
