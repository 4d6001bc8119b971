"""How many items of a topic were delivered lately: counted only for topics of which an operator asks why.

Counting for every topic would cost each delivery an entry in a map of very many topics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from foqs.fairness.keys import TopicKey

_SPAN_S = 10
_LEAST_MS = 1_000
"""A rate over a shorter time would say little."""
_ASKED_MS = 60_000
_MOST = 1_000


class Recent(dict[TopicKey, "_Seconds"]):
    """The topics that were asked about in the last minute. A dict, because each reply checks whether it is empty."""

    def a_second(self, key: TopicKey, now_ms: int) -> float | None:
        """Return the deliveries of a topic in a second, over the last 10 s; None while the topic was not counted for a
        second. It is counted from now on. Beyond 1,000 topics, the one that was asked about longest ago is not."""
        seconds = self.pop(key, None)
        if seconds is None:
            seconds = _Seconds(now_ms)
        self[key] = seconds
        seconds.asked_ms = now_ms
        if len(self) > _MOST:
            del self[next(iter(self))]
        for_ms = now_ms - seconds.since_ms
        if for_ms < _LEAST_MS:
            return None
        seconds.forget(now_ms // 1000 - _SPAN_S)
        return sum(count for _, count in seconds.counts) / min(for_ms / 1000, _SPAN_S)

    def add(self, keys: Iterable[TopicKey], now_ms: int) -> None:
        """Count an item for each of `keys`, the topics of delivered items."""
        for key in keys:
            seconds = self.get(key)
            if seconds is not None:
                seconds.add(now_ms // 1000)

    def forget(self, now_ms: int) -> None:
        """Count topics no longer that were not asked about for a minute."""
        for key in [key for key, seconds in self.items() if not 0 <= now_ms - seconds.asked_ms < _ASKED_MS]:
            del self[key]


class _Seconds:
    """The deliveries of a topic by second, since `since_ms`."""

    __slots__ = ("asked_ms", "counts", "since_ms")

    def __init__(self, now_ms: int) -> None:
        self.since_ms = self.asked_ms = now_ms
        self.counts: deque[tuple[int, int]] = deque()

    def add(self, second: int) -> None:
        counts = self.counts
        if counts and counts[-1][0] == second:
            counts[-1] = (second, counts[-1][1] + 1)
        else:
            self.forget(second - _SPAN_S)
            counts.append((second, 1))

    def forget(self, until: int) -> None:
        while self.counts and self.counts[0][0] <= until:
            self.counts.popleft()
