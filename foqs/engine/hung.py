"""Handlers that hang, as their workers report them.

The leases of their items end, so without a report an operator would not see such a worker at all.
"""

from __future__ import annotations

from foqs.fairness.keys import TopicKey

FORGET_MS = 15_000
MOST_REPORTS = 10_000
"""Of one host; workers choose their names. Beyond it the host forgets the oldest report."""


class Hung:
    """Of one host. Times are Unix epoch milliseconds."""

    def __init__(self) -> None:
        self._reports: dict[tuple[TopicKey, str], tuple[int, int]] = {}  # the oldest first: (handlers, time)

    def report(self, key: TopicKey, worker: str, handlers: int, now_ms: int) -> None:
        """Note how many handlers of the worker hang with items of the topic."""
        self._reports.pop((key, worker), None)
        self._forget(now_ms, MOST_REPORTS - 1)
        if handlers > 0:
            self._reports[key, worker] = handlers, now_ms

    def of(self, key: TopicKey, now_ms: int) -> dict[str, int]:
        """Return the handlers that hang, by worker."""
        self._forget(now_ms, MOST_REPORTS)
        return {worker: handlers for (topic, worker), (handlers, _) in self._reports.items() if topic == key}

    def _forget(self, now_ms: int, most: int) -> None:
        while self._reports:
            oldest = next(iter(self._reports))
            _, at_ms = self._reports[oldest]
            if now_ms - at_ms < FORGET_MS and len(self._reports) <= most:
                return
            del self._reports[oldest]
