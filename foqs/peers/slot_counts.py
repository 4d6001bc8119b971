"""Counts of the leases on this host's shards, for a coordinator of throttle keys that took over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from foqs.engine.concurrency import Concurrency, Counted
from foqs.engine.shard import Shard
from foqs.shardmgr.lifecycle import ShardState

CENSUS_MS = 1_000
"""How long shards have to report."""


class ShardCount(NamedTuple):
    """`leased`: by key, in the order of the question; -1 where that is not known yet."""

    shard: int
    epoch: int
    number: int
    leased: Sequence[int]


Counts = Callable[[list[ShardCount]], None]


class SlotCensus:
    """One count of some shards; `left` of them have yet to be added."""

    __slots__ = ("_answer", "_concurrency", "_found", "_keys", "left")

    def __init__(self, concurrency: Concurrency, keys: Sequence[Counted], shards: int, answer: Counts) -> None:
        self.left = shards
        self._concurrency = concurrency
        self._keys = keys
        self._answer: Counts | None = answer
        self._found: list[ShardCount] = []
        if not shards:
            self.end()

    def add(self, shard: Shard, confirmed: bool) -> None:
        """Count a shard. `confirmed`: its database says that this host owns it."""
        if self._answer is not None and confirmed and shard.state in (ShardState.SERVING, ShardState.DRAINING):
            number, leased = self._concurrency.count(shard, self._keys)
            self._found.append(ShardCount(shard.number, shard.epoch, number, leased))
        self.left -= 1
        if not self.left:
            self.end()

    def end(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(self._found)
