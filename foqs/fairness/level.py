"""The queue of the tenants that compete without priority: a heap by start, and the newcomers. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

_STALE = 64
"""Entries of tenants that left which are kept in any case."""


class Numbered(Protocol):
    """A tenant. `seq`: the number of its entry; an entry with another number is stale."""

    seq: int


N = TypeVar("N", bound=Numbered)


class Level(Generic[N]):
    """The tenants whose most urgent items have one priority, `rank`; the only level where tenants do not compete by
    priority. `now` is its virtual time."""

    __slots__ = ("__weakref__", "heap", "listed", "newcomers", "now", "rank", "stale", "took_newcomer")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.now = 0.0
        self.heap: list[tuple[float, int, N]] = []
        self.newcomers: deque[tuple[int, N]] = deque()
        self.took_newcomer = False
        self.stale = 0  # entries of tenants that left from the middle, which are dropped later
        self.listed = False  # in `Turns._ranks`

    def first(self) -> N | None:
        heap, newcomers = self.heap, self.newcomers
        if newcomers and not self.took_newcomer and (newcomer := self.newcomer()) is not None:
            return newcomer
        while heap:
            _, seq, tenant = heap[0]
            if tenant.seq == seq:
                return tenant
            heappop(heap)
            self.stale -= 1
        return self.newcomer()

    def newcomer(self) -> N | None:
        """Return the newcomer that came first, None if there is none."""
        newcomers = self.newcomers
        while newcomers:
            seq, tenant = newcomers[0]
            if tenant.seq == seq:
                return tenant
            newcomers.popleft()
            self.stale -= 1
        return None

    def in_heap(self) -> Iterator[N]:
        """Yield those that are no newcomers, in the order of their turns. The heap must not change until the end.

        (The first entries of the heap's list are another choice: with 100,000 that entered in order, the next hundred
        stand in a few of its branches.)"""
        heap = self.heap
        branches = [(heap[0], 0)] if heap else []
        while branches:
            (_, seq, tenant), at = heappop(branches)
            if tenant.seq == seq:
                yield tenant
            for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heappush(branches, (heap[below], below))

    def dropped(self) -> None:
        """An entry became stale. Without turns nothing else drops them."""
        self.stale += 1
        if self.stale > _STALE + (len(self.heap) + len(self.newcomers)) // 2:
            self.drop_stale()

    def drop_stale(self) -> None:
        self.heap = [entry for entry in self.heap if entry[2].seq == entry[1]]
        heapify(self.heap)
        self.newcomers = deque(entry for entry in self.newcomers if entry[1].seq == entry[0])
        self.stale = 0
