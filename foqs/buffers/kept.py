"""The kept items of a shard: how many each lane and topic has, and which of them are removed next.

A kept item has ended, and has its row in `done` until its time ends. Nothing but these numbers is in memory for it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foqs.buffers.checkpoint import Checkpoint
from foqs.buffers.reads import Read
from foqs.fairness.keys import TopicKey
from foqs.item import Waits
from foqs.prefetch.lane import Lane
from foqs.rows import EndedRow, EndedState

_NONE = (0, 0)


@dataclass(slots=True)
class Removal:
    """A kept item that is removed. `scanned`: the scan that found it waits for that; `waits`: so do these requests."""

    row: EndedRow
    topic: TopicKey
    scanned: bool
    waits: list[Waits]


class KeptItems:
    """`lanes` has the COMPLETED and FAILED items by the number of their lane, `topics` the sum of both by topic, and
    `count` that of all.

    `scan` finds the items whose time has ended. `grown` are topics that may have too many items since `take_grown`, and
    `oldest_wanted` the reads of topics that keep too many. `_removing` has the items to remove until this is
    committed, and of these `unsent` the items that no transaction has.
    """

    __slots__ = ("_leaving", "_removing", "count", "grown", "lanes", "oldest_wanted", "scan", "topics", "unsent")

    def __init__(self, from_ms: int = 0, lanes: Mapping[int, tuple[int, int]] | None = None) -> None:
        self.lanes = dict(lanes or {})
        self.topics: Counter[TopicKey] = Counter()
        self.count = 0
        self.scan = Checkpoint(from_ms)
        if not self.lanes:
            self.scan.nothing()
        self.grown: dict[TopicKey, None] = {}
        self.oldest_wanted: dict[TopicKey, Read] = {}
        self._removing: dict[int, Removal] = {}
        self._leaving: Counter[TopicKey] = Counter()  # items of `_removing`
        self.unsent: deque[int] = deque()

    def count_topics(self, lanes: Mapping[int, Lane[Any]]) -> None:
        """Count the topics' items, of a shard that was opened with these lanes."""
        for number, counts in self.lanes.items():
            self.topics[lanes[number].topic.key] += sum(counts)
        self.count = self.topics.total()
        self.grown = dict.fromkeys(self.topics)

    def of_lane(self, number: int | None) -> tuple[int, int]:
        """Return the COMPLETED and the FAILED items of a lane."""
        return _NONE if number is None else self.lanes.get(number, _NONE)

    def staying(self, topic: TopicKey) -> int:
        """Return the number of a topic's kept items that are not about to be removed."""
        return self.topics[topic] - self._leaving[topic]

    def add(self, row: EndedRow, topic: TopicKey) -> None:
        """Count an item that has ended."""
        self._count(row, topic, 1)
        self.grown[topic] = None

    def look_again(self, ns: str) -> None:
        """Look at all topics of a namespace: they may have too many items by now."""
        self.grown.update(dict.fromkeys([topic for topic in self.topics if topic[0] == ns]))

    def take_grown(self) -> list[TopicKey]:
        grown, self.grown = list(self.grown), {}
        return grown

    def _count(self, row: EndedRow, topic: TopicKey, more: int) -> None:
        completed, failed = self.lanes.get(row.lane, _NONE)
        if row.state == EndedState.COMPLETED:
            completed += more
        else:
            failed += more
        if completed or failed:
            self.lanes[row.lane] = completed, failed
        else:
            del self.lanes[row.lane]
        self.count += more
        self.topics[topic] += more
        if not self.topics[topic]:
            del self.topics[topic]

    # ------------------------------------------------------------------------------------- removals

    def remove(self, row: EndedRow, topic: TopicKey, *, scanned: bool = False, waits: Sequence[Waits] = ()) -> bool:
        """Remove an item with a later transaction. Return False if one removes it already."""
        known = self._removing.get(row.id)
        is_new = known is None
        if known is None:
            known = self._removing[row.id] = Removal(row, topic, False, [])
            self._leaving[topic] += 1
            self.unsent.append(row.id)
        if scanned and not known.scanned:
            known.scanned = True
            self.scan.outstanding += 1
        known.waits += waits
        return is_new

    def take(self, most: int) -> list[EndedRow]:
        """Take out the next items that a transaction removes."""
        unsent = self.unsent
        return [self._removing[unsent.popleft()].row for _ in range(min(most, len(unsent)))]

    def removed(self, item_id: int, now_ms: int) -> list[Waits]:
        """Note that the removal is committed. Return the requests that wait for it."""
        gone = self._removing.pop(item_id)
        self._leaving[gone.topic] -= 1
        if not self._leaving[gone.topic]:
            del self._leaving[gone.topic]
        self._count(gone.row, gone.topic, -1)
        if gone.scanned:
            self.scan.outstanding -= 1
            if not self.scan.outstanding:
                self.scan.finish(now_ms)
        return gone.waits

    def take_waits(self) -> list[Waits]:
        """Take out all requests that wait for a removal."""
        taken = [one for gone in self._removing.values() for one in gone.waits]
        for gone in self._removing.values():
            gone.waits = []
        return taken

    def again(self, item_id: int) -> None:
        """Remove the item with a later transaction: this one failed."""
        self.unsent.append(item_id)
