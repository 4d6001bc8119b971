"""The lanes with a fairness key or throttle keys that one topic has on one shard, in the order of their numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence

_MOST_GONE = 64


class TenantLanes:
    """`total` counts their items in any state. The numbers of lanes that are gone stay in `numbers` until they are more
    than half of them: to take each out of 100,000 at once would cost 40 us."""

    __slots__ = ("_gone", "numbers", "total")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.total = 0
        self._gone = 0

    def __len__(self) -> int:
        return len(self.numbers) - self._gone

    def add(self, number: int) -> None:
        """Add a lane, whose number is higher than all before."""
        self.numbers.append(number)

    def remove(self, left: Container[int]) -> None:
        """One lane of them is not in `left` any more."""
        self._gone += 1
        if self._gone > max(_MOST_GONE, len(self.numbers) // 2):
            self.numbers = [number for number in self.numbers if number in left]
            self._gone = 0

    def behind(self, number: int, most: int) -> Sequence[int]:
        """Return the first numbers behind `number`, also those of lanes that are gone; at most `most`."""
        first = bisect_right(self.numbers, number)
        return self.numbers[first : first + most]
