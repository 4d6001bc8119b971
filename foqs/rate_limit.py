"""Limits each source to a number of events a second: evenly, or one second's events at once after a pause.

The generic cell rate algorithm (ITU-T I.371). It stores one time for each source: the end of its events so far if they
had come evenly.
"""

from __future__ import annotations

_SECOND_NS = 10**9
_MOST_SOURCES = 100_000
"""Most sources in memory. Above it, the limit forgets the source that it has known the longest."""


class RateLimit:
    """A limit. `now_s` is monotonic."""

    __slots__ = ("_step_ns", "_until_ns")

    def __init__(self, a_second: int) -> None:
        self._step_ns = _SECOND_NS // a_second
        self._until_ns: dict[str, int] = {}

    def wait_ms(self, source: str, now_s: float) -> int:
        """Return 0 and count the event if it is allowed now, else the time until it is."""
        now_ns = int(now_s * _SECOND_NS)
        until_ns = max(self._until_ns.get(source, 0), now_ns)
        late_ns = until_ns + self._step_ns - now_ns - _SECOND_NS
        if late_ns > 0:
            return -(-late_ns // 1_000_000)
        if len(self._until_ns) >= _MOST_SOURCES and source not in self._until_ns:
            del self._until_ns[next(iter(self._until_ns))]
        self._until_ns[source] = until_ns + self._step_ns
        return 0
