"""The flows of one topic that wait for tokens of one throttle key. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Generic, TypeVar

F = TypeVar("F")

_STALE = 64


class Parking(Generic[F]):
    """The flows in the order of their tenants' virtual starts, and then of their waiting time, here and at other gates.
    `items`: how many items consumers wanted of them. `scout`: the flow that woke without a token while no consumer
    wants the topic."""

    __slots__ = ("_heap", "_parked", "_seq", "items", "scout")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, F]] = []  # with flows that left
        self._parked: dict[F, tuple[int, int, int]] = {}  # its entry's number, its items, since when
        self._seq = 0
        self.items = 0
        self.scout: F | None = None

    def add(self, flow: F, start: float, since_ms: int, items: int, now_ms: int) -> None:
        """Park a flow that is not here. `start`: of its tenant. `since_ms`: when it was first parked at some gate."""
        self._seq += 1
        self._parked[flow] = (self._seq, items, now_ms)
        self.items += items
        heappush(self._heap, (start, since_ms, self._seq, flow))

    def moved(self, flow: F, start: float, since_ms: int) -> None:
        """The tenant of the flow has another virtual start. `since_ms`: as for `add`."""
        entry = self._parked.get(flow)
        if entry is None:
            return
        self._seq += 1
        self._parked[flow] = (self._seq, *entry[1:])
        heappush(self._heap, (start, since_ms, self._seq, flow))
        self._drop_stale()

    def remove(self, flow: F) -> bool:
        """Remove the flow; return whether it was here."""
        entry = self._parked.pop(flow, None)
        if entry is None:
            return False
        self.items -= entry[1]
        self._drop_stale()
        return True

    def _drop_stale(self) -> None:
        if len(self._heap) > 2 * len(self._parked) + _STALE:
            self._heap = [one for one in self._heap if self._parked.get(one[3], (0,))[0] == one[2]]
            heapify(self._heap)

    def pop(self) -> F | None:
        """Remove the fairest flow and return it; None if there is none."""
        while self._heap:
            _, _, seq, flow = heappop(self._heap)
            entry = self._parked.get(flow)
            if entry is not None and entry[0] == seq:
                del self._parked[flow]
                self.items -= entry[1]
                return flow
        return None

    def __len__(self) -> int:
        return len(self._parked)

    def __iter__(self) -> Iterator[F]:
        return iter(list(self._parked))

    def longest(self, count: int) -> list[F]:
        """Return the `count` flows that have been parked for the longest time."""
        return list(islice(self._parked, count))

    def since_ms(self) -> int | None:
        """Return since when the flow has been parked that was parked first."""
        return next((entry[2] for entry in self._parked.values()), None)

    def __repr__(self) -> str:
        return f"Parking({len(self._parked)} flows, {self.items} items)"
