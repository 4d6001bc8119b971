"""The ready window of one lane on one shard: the first rows of `ready` in order, as far as they are known in memory.

Invariant, with R the lane's rows in the database that may be leased (ready, no change under way, not leased):
while `more` is False the window holds all of R; while it is True the window holds all of R up to and including
`end` (none when `end` is None) and nothing behind it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Generic, TypeVar

from foqs.rows import Key

T = TypeVar("T")
Entry = tuple[int, int, int, T]
"""(priority, deliver_after_ms, id, item). Ids differ, so a comparison never reaches the item."""


_SORT_SHARE = 32
"""Entries are inserted one by one into a window this many times longer; else both are merged."""


class Window(Generic[T]):
    """`asked_ms` is when a page was asked for (0: none is in flight); a page of an older `generation` is ignored."""

    __slots__ = ("asked_ms", "end", "entries", "generation", "more", "page_rows", "used_ms")

    def __init__(self, *, complete: bool, page_rows: int) -> None:
        self.entries: list[Entry[T]] = []
        self.more = not complete
        self.end: Key | None = None
        self.asked_ms = 0
        self.generation = 0
        self.page_rows = page_rows
        self.used_ms = 0

    def covers(self, key: Key) -> bool:
        """Whether an item of this key belongs in the window (else it is found by a later page)."""
        return not self.more or (self.end is not None and key <= self.end)

    def add(self, entry: Entry[T]) -> None:
        """Its key must be covered."""
        insort(self.entries, entry)

    def add_all(self, entries: list[Entry[T]]) -> None:
        """All keys must be covered."""
        if len(entries) * _SORT_SHARE < len(self.entries):
            for entry in entries:
                insort(self.entries, entry)
        else:
            # Timsort takes the window and the new entries as two runs.
            entries.sort()
            self.entries += entries
            self.entries.sort()

    def remove(self, entry: Entry[T]) -> None:
        """Take out an entry that is in the window."""
        at = bisect_left(self.entries, entry[:3])
        assert self.entries[at][3] is entry[3], "the item is not in its window"
        del self.entries[at]

    def cut(self, keep: int) -> list[T]:
        """Forget all but the first `keep` entries; later pages read the rest again."""
        gone = [entry[3] for entry in self.entries[keep:]]
        if gone:
            del self.entries[keep:]
            self.more = True
            self.end = self.entries[-1][:3] if self.entries else None
            self.generation += 1
            self.asked_ms = 0
        return gone

    def extend(self, entries: list[Entry[T]], end: Key | None, *, more: bool) -> None:
        """Apply a page read behind `end`: `entries` are its unknown rows, the new `end` its last row."""
        self.entries += entries
        self.entries.sort()
        self.more = more
        if end is not None:
            self.end = end
        self.asked_ms = 0

    def wants_page(self, capacity: int) -> bool:
        low = min(self.page_rows, capacity) // 2
        return self.more and not self.asked_ms and len(self.entries) <= low

    def take(self, last: Entry[T]) -> list[Entry[T]]:
        """Remove and return the entries at or before `last`."""
        at = bisect_right(self.entries, last)
        taken = self.entries[:at]
        del self.entries[:at]
        return taken

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        tail = f" then more behind {self.end}" if self.more else ""
        return f"Window({len(self.entries)} entries{tail})"
