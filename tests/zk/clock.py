"""Virtual time for callbacks."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._pushed = 0

    def soon(self, delay_ms: float, what: Callable[[], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._pushed, what))

    def until(self, time_ms: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Run the callbacks that are due up to `time_ms`, or until `done` holds."""
        while not done():
            if not self._heap or self._heap[0][0] > time_ms:
                self.now_ms = max(self.now_ms, time_ms)
                return done()
            self.now_ms, _, what = heapq.heappop(self._heap)
            what()
        return True
