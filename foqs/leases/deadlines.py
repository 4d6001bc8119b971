"""Deadlines of requests in memory: a heap that drops requests that ended early.

Nearly every request ends long before its deadline, so entries are dropped lazily and the heap is rebuilt when most
of its entries have ended. Its size stays within a constant factor of the open requests, at O(1) amortised. Ended ones
may hold much, so it keeps few of them.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

NEVER_MS = 1 << 62
_LEAST = 16


class Ends(Protocol):
    """Something that may end before its deadline."""

    @property
    def done(self) -> bool: ...


T = TypeVar("T", bound=Ends)


class Deadlines(Generic[T]):
    """Times in milliseconds of the clock that the caller uses."""

    __slots__ = ("_heap", "_limit", "_pushed")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._pushed = 0
        self._limit = _LEAST

    def push(self, at_ms: int, what: T) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_ms, self._pushed, what))
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if not entry[2].done]
            heapq.heapify(self._heap)
            self._limit = 2 * len(self._heap) + _LEAST

    def next_ms(self) -> int:
        heap = self._heap
        while heap and heap[0][2].done:
            heapq.heappop(heap)
        return heap[0][0] if heap else NEVER_MS

    def pop_due(self, now_ms: int) -> list[T]:
        """Remove and return the open requests with a deadline at or before `now_ms`, earliest first."""
        due: list[T] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            what = heapq.heappop(heap)[2]
            if not what.done:
                due.append(what)
        return due

    def moved(self, by_ms: int) -> None:
        """Shift all deadlines by `by_ms`, so the remaining waits do not change when the clock is set."""
        self._heap = [(at_ms + by_ms, pushed, what) for at_ms, pushed, what in self._heap]

    def __len__(self) -> int:
        return len(self._heap)
