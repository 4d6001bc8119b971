"""A count on the shards of this host, for a coordinator that took over."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from foqs.engine.shard import Shard
from foqs.shardmgr.lifecycle import ShardState

T = TypeVar("T")


class Census(Generic[T]):
    """`count` counts one shard. `answer` gets the counts by shard, once; `left` shards have yet to be added."""

    __slots__ = ("_answer", "_count", "_found", "left")

    def __init__(
        self, shards: Collection[Shard], count: Callable[[Shard], T], answer: Callable[[dict[int, T]], None]
    ) -> None:
        self.left = len(shards)
        self._count = count
        self._answer: Callable[[dict[int, T]], None] | None = answer
        self._found: dict[int, T] = {}
        if not shards:
            self.end()

    def add(self, shard: Shard, confirmed: bool) -> None:
        """Count a shard. `confirmed`: its database says that this host owns it."""
        if self._answer is not None and confirmed and shard.state in (ShardState.SERVING, ShardState.DRAINING):
            self._found[shard.number] = self._count(shard)
        self.left -= 1
        if not self.left:
            self.end()

    def end(self) -> None:
        """Answer without the shards that were not added in time."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(self._found)
