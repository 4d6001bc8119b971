"""The time and the order of events of a simulated run."""

from __future__ import annotations

import heapq
from collections.abc import Callable

START_MS = 1_700_000_000_000
_MOST_EVENTS = 200_000


class Stuck(AssertionError):
    """An event that must follow does not."""


class Clock:
    def __init__(self) -> None:
        self.time = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[[], object]]] = []
        self._pushed = 0

    @property
    def now_ms(self) -> int:
        return START_MS + self.time

    def soon(self, delay_ms: int, do: Callable[[], object]) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self.time + delay_ms, self._pushed, do))

    def until(self, time: int, done: Callable[[], bool] | None = None) -> None:
        heap = self._heap
        while heap and heap[0][0] <= time:
            if done is not None and done():
                return
            self.time, _, do = heapq.heappop(heap)
            do()
            self.events += 1
            if self.events > _MOST_EVENTS:
                raise Stuck("the run does not end")
        self.time = max(self.time, time)
