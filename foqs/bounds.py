"""Bounds: on the input of callers, on memory, on rates of items, requests and log lines.

Each bound has its number here. Checks of clients, hosts, commands and settings name it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

DAY_MS = 86_400_000
YEAR_MS = 366 * DAY_MS
TURN_MS = 250
"""The time for which clients send small requests to one host of a quiet cluster."""
NAME_BYTES = 255
"""The width of the columns of names."""
SCHEDULE_BYTES = 200
"""Longest name of a schedule: the keys of its items hold it."""
REASON_BYTES = 1_024
"""Longest reason of a failure."""
THROTTLE_KEYS = 8
THROTTLE_KEYS_BYTES = 512
"""Bytes of an item's throttle keys together, with one byte between two: the width of the column."""
PROGRESS_TEXT_BYTES = 256
MOST_STEPS = (1 << 63) - 1
MOST_WEIGHT = 1_000
"""Largest weight of a tenant; the smallest is 1."""
MOST_RATE = 1_000_000_000
"""Largest rate of a quota or a throttle, a second, and its largest burst."""
MOST_STORED = 1 << 53
"""Largest bound on stored items."""
MOST_PACE = 1_000_000
"""Largest number of dead letters that a redrive returns a second."""
MOST_LISTED = 1_000
RATE_STEPS = 360
"""Steps of an hour, in rates."""
"""Items, tenants, throttle keys, or groups of dead letters of one reply."""
LEAST_FRAME_BYTES, MOST_FRAME_BYTES = 4_096, 64 << 20
"""Values that a host may have as its `limits.frame_bytes`."""
MOST_PORT = 65_535
DEFAULT_PORT = 7707
CONSOLE_PORT = 7780
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
NANO = 1_000_000_000
"""Parts of a token: fractions are integers of this unit."""

Bounded = tuple[str, str]
"""(namespace, topic), with "" for the topic the whole namespace, or (namespace, THROTTLE + throttle key)."""

THROTTLE = "\1"
"""Prefix of a throttle key in a `Bounded`; no topic begins with it."""

_SECOND_NS = 10**9
_MOST_SOURCES = 100_000
"""Most sources in memory. Above it, the limit forgets the source that it has known the longest."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on the input of callers, and their values without a configuration. `LimitsSection` has the bounds that
    foqs.toml sets.

    Units are in the names; `request_items`, and counts without a unit, are numbers of things."""

    payload_bytes: int = 1 << 20
    metadata_bytes: int = 4096
    headers_bytes: int = 4096
    name_bytes: int = NAME_BYTES
    request_items: int = 10_000
    request_topics: int = 1_000
    frame_bytes: int = 16_384_000
    lease_min_ms: int = 100
    lease_max_ms: int = 12 * 3_600_000
    lease_default_ms: int = 30_000
    delay_max_ms: int = YEAR_MS
    ttl_max_ms: int = YEAR_MS
    wait_max_ms: int = 600_000
    timeout_default_ms: int = 30_000
    timeout_max_ms: int = 600_000
    dedup_window_ms: int = DAY_MS  # how long a key is remembered
    reason_bytes: int = REASON_BYTES
    result_bytes: int = 64 << 10
    checkpoint_bytes: int = 64 << 10
    result_wait_max_ms: int = 60_000
    result_waiters: int = 10_000  # callers that wait for results on a host
    batch_keep_ms: int = DAY_MS  # how long a batch that has ended is known
    token_bytes: int = 4096
    context_bytes: int = 128
    worker_bytes: int = 128
    throttle_keys: int = THROTTLE_KEYS
    throttle_keys_bytes: int = THROTTLE_KEYS_BYTES
    list_items: int = MOST_LISTED
    active_topics: int = 10_000

    def as_map(self) -> dict[str, int]:
        """Return the limits by name, as GetServerInfo gives them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


LIMITS = Limits()
"""The limits without a configuration. Clients check their arguments by them."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Bounds on the enqueues of a namespace or a topic, and on the deliveries of items with a throttle key: at most
    `burst` + `per_second` * t items in any t seconds, and none while `stored_items` are stored. None: no bound.

    A token is the right to store one item, or to deliver one with a throttle key."""

    per_second: float | None
    burst: int
    stored_items: int | None

    @property
    def nano_per_ms(self) -> int | None:
        """Billionths of a token that accrue in a millisecond: an integer, so that tokens add up exactly."""
        return None if self.per_second is None else int(self.per_second * 1_000_000)

    def ms_for(self, tokens: int) -> int:
        """Return the time until `tokens` more have accrued; there are never more than `burst` at a time."""
        nano = self.nano_per_ms
        return 0 if nano is None else -(-min(tokens, self.burst) * NANO // max(1, nano))


class Budget:
    """One byte budget for everything a host holds in memory on behalf of its callers.

    Frames being read, items waiting for their commit, ready windows with their bodies and answers being written all
    take from the same budget, so memory has one bound however the load is shaped (promise 8). `take` always succeeds:
    ask `fits` first where refusing is possible.

    Invariant: `used_bytes` is the sum of all takes minus all gives, and never negative. A connection writes its part
    out, as each request takes and gives: after a give, it calls `wake` if there are `waiters`.
    """

    __slots__ = ("limit_bytes", "used_bytes", "waiters")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waiters: list[Callable[[], None]] = []

    def fits(self, size_bytes: int, share: float = 1.0) -> bool:
        """Return True if `size_bytes` more fit into `share` (0 to 1) of the limit."""
        return self.used_bytes + size_bytes <= self.limit_bytes * share

    def take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "more bytes given back than taken"
        if self.waiters:
            self.wake()

    def wake(self) -> None:
        """Call the waiters: bytes were given back."""
        waiters, self.waiters = self.waiters, []
        for wake in waiters:
            wake()

    def when_given(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, at the next `give`; `wake` must call `fits` again."""
        self.waiters.append(wake)

    def __repr__(self) -> str:
        return f"Budget({self.used_bytes}/{self.limit_bytes} bytes)"


class RateLimit:
    """Limits each source to a number of events a second: evenly, or one second's events at once after a pause. `now_s`
    is monotonic.

    The generic cell rate algorithm (ITU-T I.371). It stores one time for each source: the end of its events so far if
    they had come evenly."""

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


WORKER_GRACE_MS = 25_000
"""The default time that a worker gives its handlers at a stop: Kubernetes kills a container 30 s after it asked it to
end."""


class LogThrottle:
    """Limits the log lines of one kind of event, so that an event of every request cannot fill a disk: at most
    `a_second` lines in a second of the caller's clock."""

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
