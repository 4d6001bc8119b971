"""The tail of an open shard: the items that have no row in `ready` or `timer` yet, in the order of their ids.

An item that is acked before its row was written never costs one. `shard.indexed_to` separates the tail from older
items: every item up to it has its row. The next owner finds unindexed items by reading all behind it, so it must never
pass one, and must not stay far behind either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from foqs.item import Item, To

MAX_BYTES = 8 << 20
"""Bodies of the tail: the next owner reads them to write their rows."""


class Tail:
    """`known` has every unindexed item of the shard. `count` and `bytes` are sums over the tail."""

    __slots__ = ("_ids", "_known", "bytes", "count")

    def __init__(self, known: Mapping[int, Item]) -> None:
        self._known = known
        self.count = 0
        self.bytes = 0
        self._ids: deque[int] = deque()  # in order; the id of an item that left the tail is dropped when it comes first

    def add(self, ids: list[int], size_bytes: int) -> None:
        """Note that items of `ids`, in order, were stored without their rows. `size_bytes`: the sum of their bodies."""
        if not self.count:
            self._ids.clear()
        in_order = not self._ids or self._ids[-1] < ids[0]
        self._ids += ids
        if not in_order:  # a part of a transaction was settled late
            self._ids = deque(sorted(self._ids))
        self.count += len(ids)
        self.bytes += size_bytes

    def left(self, size_bytes: int) -> None:
        """Note that an item of that size has its row, or is gone."""
        self.count -= 1
        self.bytes -= size_bytes

    def first(self) -> int | None:
        """Return the smallest id of the tail, None if it is empty."""
        ids, known = self._ids, self._known
        if not self.count:
            ids.clear()  # left over, they would hold blocks of memory that nothing else uses
        while ids:
            item = known.get(ids[0])
            if item is not None and item.unindexed:
                return ids[0]
            ids.popleft()
        return None

    def items(self) -> Iterator[Item]:
        """Yield the items whose rows no transaction in flight writes or removes, in the order of their ids."""
        known = self._known
        for item_id in self._ids:
            item = known.get(item_id)
            if item is not None and item.unindexed and (item.in_flight is None or item.in_flight.to is To.KEPT):
                yield item
