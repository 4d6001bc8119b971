"""What throttles in shadow counted in the last hour: deliveries, and how many of them a limit would have held. Pure.

Times are of any clock that never goes back. A key that no throttle in shadow limits has nothing here.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import islice

from foqs.bounds import THROTTLE, Bounded
from foqs.figures import ShadowHour

_MINUTE_MS = 60_000
_SLOTS = 60
_MOST_KEYS = 10_000
"""Keys of one host that are counted, about 1.5 KB each: a throttle of a prefix may have very many."""
_SLICE = 500
_SWEPT = 100
"""Keys whose counts are looked at twice a second, to drop old ones."""


class HourCounts:
    """The counts of one key in 60 slots of a minute. `basis`: the limit by which they were made."""

    __slots__ = ("_held", "_minute", "_passed", "_since_ms", "basis")

    def __init__(self, basis: object, now_ms: int) -> None:
        self.basis = basis
        self._begin(now_ms)

    def _begin(self, now_ms: int) -> None:
        self._since_ms: int | None = None  # of the first count
        self._minute = now_ms // _MINUTE_MS  # of the newest slot
        self._passed, self._held = (array("q", bytes(8 * _SLOTS)) for _ in range(2))

    def follow(self, basis: object, now_ms: int) -> None:
        """Begin again if the limit has changed."""
        if basis != self.basis:
            self.basis = basis
            self._begin(now_ms)

    def add(self, now_ms: int, passed: int, held: int) -> None:
        """Count deliveries that the limit lets pass, and deliveries that it would have held."""
        if self._since_ms is None:
            self._since_ms = now_ms
        self._advance(now_ms)
        slot = self._minute % _SLOTS
        self._passed[slot] += passed
        self._held[slot] += held

    def sums(self, now_ms: int) -> ShadowHour | None:
        """Return the sums since the first count, of the last hour at most; None if nothing was counted. (The oldest
        slot ends with its minute.)"""
        if self._since_ms is None:
            return None
        self._advance(now_ms)
        held = sum(self._held)
        oldest_ms = (self._minute - _SLOTS + 1) * _MINUTE_MS
        return ShadowHour(held, held + sum(self._passed), now_ms - max(self._since_ms, oldest_ms))

    def _advance(self, now_ms: int) -> None:
        minute = now_ms // _MINUTE_MS
        for at in range(max(self._minute + 1, minute - _SLOTS + 1), minute + 1):
            self._passed[at % _SLOTS] = self._held[at % _SLOTS] = 0
        self._minute = max(self._minute, minute)

    def __repr__(self) -> str:
        return f"HourCounts({sum(self._held)} held, {sum(self._passed)} passed)"


class ShadowHours(dict[Bounded, HourCounts]):
    """The counts by throttle key. They outlive the gates and ledgers of the keys, which idle ones lose. Beyond
    `_MOST_KEYS` keys, the key that was counted first is dropped."""

    def of(self, key: Bounded, basis: object, now_ms: int) -> HourCounts:
        """Return the counts of a key that a throttle in shadow limits, by this basis."""
        counts = self.get(key)
        if counts is None:
            counts = self[key] = HourCounts(basis, now_ms)
            if len(self) > _MOST_KEYS:
                del self[next(iter(self))]
        counts.follow(basis, now_ms)
        return counts

    def follow(self, ns: str, basis_of: Callable[[str], object | None], now_ms: int) -> Iterator[None]:
        """Begin again the counts of keys of the namespace whose limit has changed, some at a time. `basis_of` takes the
        name of a throttle key, and returns None where no limit is in shadow: then the counts are dropped."""
        for done, (key, counts) in enumerate(list(self.items()), 1):
            if key[0] == ns and self.get(key) is counts:
                basis = basis_of(key[1][len(THROTTLE) :])
                if basis is None:
                    del self[key]
                else:
                    counts.follow(basis, now_ms)
            if done % _SLICE == 0:
                yield

    def forget(self, now_ms: int) -> None:
        """Drop counts that are an hour old, some at a time."""
        for key, counts in list(islice(self.items(), _SWEPT)):
            del self[key]
            sums = counts.sums(now_ms)
            if sums is not None and sums.seen:
                self[key] = counts  # at the end
