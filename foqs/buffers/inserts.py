"""Items on their way into a shard: parts of enqueue requests, waiting for the next transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from foqs.dedup import Dedup
from foqs.errors import FoqsError
from foqs.prefetch.lane import LaneKey
from foqs.rows import NewItem


class TakesIds(Protocol):
    """An enqueue request: is told what became of its items, by their index in the request."""

    @property
    def done(self) -> bool: ...

    def stored(self, indices: Sequence[int], items: Sequence[NewItem]) -> None: ...

    def refused(self, indices: Sequence[int], error: FoqsError) -> None: ...


class Chunk:
    """Part of one request, small enough for one transaction. `keys[i]` is the lane of `items[i]`. With `dedup`, the
    items' deduplication keys, it belongs to the shard that remembers those, and goes to no other."""

    __slots__ = ("dedup", "flying", "indices", "items", "keys", "request", "size_bytes")

    def __init__(
        self,
        request: TakesIds,
        indices: Sequence[int],
        items: list[NewItem],
        keys: Sequence[LaneKey],
        size_bytes: int,
        dedup: list[Dedup] | None = None,
    ) -> None:
        self.request = request
        self.indices = indices
        self.items = items
        self.keys = keys
        self.size_bytes = size_bytes
        self.dedup = dedup
        self.flying = False  # part of a transaction whose outcome is not known yet

    def part(self, at: Sequence[int]) -> Chunk:
        """The items with those indices in the chunk; its size is not reckoned anew."""
        dedup = None if self.dedup is None else [self.dedup[i] for i in at]
        items, keys = [self.items[i] for i in at], [self.keys[i] for i in at]
        part = Chunk(self.request, [self.indices[i] for i in at], items, keys, self.size_bytes, dedup)
        part.flying = self.flying
        return part

    def __repr__(self) -> str:
        return f"Chunk({len(self.items)} items, {self.size_bytes} bytes)"
