"""The life of a shard on a host, as a table, and the circuit breaker of its database.

    assigned -> opening -> serving -> draining -> closed
                   |           |          |
                   +-----------+----------+--> closed (fenced, refused, or given up)

`closed -> assigned` begins again: a standby waits for the shard's lock to become free.

The breaker stops sending work to a database that fails, is slow, or hangs. It is closed, then open (error rate or mean
latency over a rolling window of trips, one trip that hangs, or a lost connection), then half-open after a pause that
doubles from failure to failure, then closed by the first trip that succeeds. After Nygard, Release It! (2007), ch. 5.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum


class ShardState(Enum):
    ASSIGNED = "assigned"
    OPENING = "opening"
    SERVING = "serving"
    DRAINING = "draining"
    CLOSED = "closed"


_NEXT: dict[ShardState, frozenset[ShardState]] = {
    ShardState.ASSIGNED: frozenset({ShardState.OPENING, ShardState.CLOSED}),
    ShardState.OPENING: frozenset({ShardState.SERVING, ShardState.ASSIGNED, ShardState.CLOSED}),
    ShardState.SERVING: frozenset({ShardState.DRAINING, ShardState.CLOSED}),
    ShardState.DRAINING: frozenset({ShardState.CLOSED}),
    ShardState.CLOSED: frozenset({ShardState.ASSIGNED}),
}


def moved(state: ShardState, to: ShardState) -> ShardState:
    """Return `to` if the table allows the step from `state`; ValueError otherwise."""
    if to not in _NEXT[state]:
        raise ValueError(f"a shard that is {state.value} cannot become {to.value}")
    return to


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """Settings. `trips` is the length of the rolling window; the breaker judges no fewer than `min_trips`."""

    trips: int = 50
    min_trips: int = 5
    error_rate: float = 0.5
    mean_latency_ms: float = 2_000.0
    hang_ms: int = 1_000
    pause_ms: int = 200
    max_pause_ms: int = 2_000


class Breaker:
    __slots__ = ("_errors", "_latency_ms", "_pause_ms", "_retry_at_ms", "_trips", "opened", "settings", "state")

    def __init__(self, settings: BreakerSettings) -> None:
        self.settings = settings
        self._trips: deque[tuple[bool, float]] = deque()
        self._errors = 0  # among the trips
        self._latency_ms = 0.0  # sum over the trips
        self._pause_ms = settings.pause_ms
        self._retry_at_ms = 0
        self.state = BreakerState.CLOSED
        self.opened = 0

    @property
    def closed(self) -> bool:
        return self.state is BreakerState.CLOSED

    def retry_at_ms(self, now_ms: int) -> int:
        """Return the time at which an open breaker allows a trial; 0 if a trip may begin now.

        A remaining wait longer than the pause means that the clock was set back: the wait has ended.
        """
        waits = self.state is BreakerState.OPEN and 0 < self._retry_at_ms - now_ms <= self._pause_ms
        return self._retry_at_ms if waits else 0

    def allows(self, now_ms: int) -> bool:
        """Return True if a trip may begin. An open breaker becomes half-open after the pause: that trip is the
        trial."""
        if self.state is BreakerState.OPEN and not self.retry_at_ms(now_ms):
            self.state = BreakerState.HALF_OPEN
        return self.state is not BreakerState.OPEN

    def done(self, now_ms: int, *, ok: bool, latency_ms: float) -> None:
        """Record the end of a trip."""
        self._trips.append((ok, latency_ms))
        self._errors += not ok
        self._latency_ms += latency_ms
        while len(self._trips) > self.settings.trips:  # more than one after the settings changed
            oldest_ok, oldest_ms = self._trips.popleft()
            self._errors -= not oldest_ok
            self._latency_ms -= oldest_ms
        if self.state is not BreakerState.CLOSED:
            self._close() if ok else self.trip(now_ms)
            return
        trips, settings = len(self._trips), self.settings
        if trips < settings.min_trips:
            return
        if self._errors >= settings.error_rate * trips or self._latency_ms >= settings.mean_latency_ms * trips:
            self.trip(now_ms)

    def trip(self, now_ms: int) -> None:
        """Open, or stay open for twice the previous pause."""
        if self.state is BreakerState.CLOSED:
            self.opened += 1
            self._pause_ms = self.settings.pause_ms
        else:
            self._pause_ms = min(2 * self._pause_ms, self.settings.max_pause_ms)
        self.state = BreakerState.OPEN
        self._retry_at_ms = now_ms + self._pause_ms

    def _close(self) -> None:
        self.state = BreakerState.CLOSED
        self._trips.clear()
        self._errors, self._latency_ms = 0, 0.0
