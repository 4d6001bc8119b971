"""Enqueued items that wait for a shard's next transaction: parts of enqueue requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from foqs.errors import FoqsError
from foqs.fairness.keys import LaneKey
from foqs.ids import Dedup
from foqs.rows import NewItem


class TakesIds(Protocol):
    """An enqueue request: gets the outcome of its items, by their index in the request."""

    @property
    def done(self) -> bool: ...

    def stored(self, indices: Sequence[int], items: Sequence[NewItem]) -> None: ...

    def refused(self, indices: Sequence[int], error: FoqsError) -> None: ...


class _Answered:
    """Stands for a request that was answered before its items had an outcome."""

    done = True

    def stored(self, indices: Sequence[int], items: Sequence[NewItem]) -> None:
        """The caller has its answer."""

    def refused(self, indices: Sequence[int], error: FoqsError) -> None:
        """The caller has its answer."""


ANSWERED = _Answered()


class Chunk:
    """Part of one request, small enough for one transaction. `keys[i]` is the lane of `items[i]`.

    A chunk with `dedup`, its items' deduplication keys, may be stored only by the shard that has their slots.
    `weights`: those of the request's items, by lane; None if no item has one."""

    __slots__ = ("dedup", "in_flight", "indices", "items", "keys", "request", "size_bytes", "weights")

    def __init__(
        self,
        request: TakesIds,
        indices: Sequence[int],
        items: list[NewItem],
        keys: Sequence[LaneKey],
        size_bytes: int,
        dedup: list[Dedup] | None = None,
        weights: Mapping[LaneKey, int] | None = None,
    ) -> None:
        self.request = request
        self.indices = indices
        self.items = items
        self.keys = keys
        self.size_bytes = size_bytes
        self.dedup = dedup
        self.weights = weights
        self.in_flight = False  # part of a transaction whose outcome is not known yet

    def by_lane(self) -> Mapping[LaneKey, list[NewItem]]:
        """Return the items of each lane, in their order."""
        items, keys = self.items, self.keys
        if keys and keys.count(keys[0]) == len(keys):
            return {keys[0]: items}
        found: dict[LaneKey, list[NewItem]] = {}
        for item, key in zip(items, keys, strict=True):
            found.setdefault(key, []).append(item)
        return found

    def part(self, at: Sequence[int]) -> Chunk:
        """The items with those indices in the chunk; `size_bytes` stays that of the whole chunk."""
        dedup = None if self.dedup is None else [self.dedup[i] for i in at]
        items, keys = [self.items[i] for i in at], [self.keys[i] for i in at]
        part = Chunk(self.request, [self.indices[i] for i in at], items, keys, self.size_bytes, dedup, self.weights)
        part.in_flight = self.in_flight
        return part

    def keep(self, at: Sequence[int]) -> None:
        """Drop all items but those with these indices in the chunk, as `part` returns them."""
        part = self.part(at)
        self.indices, self.items, self.keys, self.dedup = part.indices, part.items, part.keys, part.dedup

    def __repr__(self) -> str:
        return f"Chunk({len(self.items)} items, {self.size_bytes} bytes)"
