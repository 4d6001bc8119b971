"""The ready window of one lane on one shard: the first rows of `ready` in order, as far as they are known in memory.

Invariant, with R the lane's rows in the database that may be handed out (ready, no change under way, not leased):
while `more` is False the window holds all of R; while it is True the window holds all of R up to and including
`end` (none when `end` is None) and nothing behind it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from foqs.item import Item
from foqs.rows import Key

Entry = tuple[int, int, int, Item]
"""(priority, deliver_after_ms, id, item). Ids differ, so a comparison never reaches the item."""


_SORT_SHARE = 32
"""Entries are inserted one by one into a window this many times longer; else both are merged."""


class Window:
    """`asked_ms` is when a page was asked for (0: none is under way); `generation` tells a page it came too late."""

    __slots__ = ("asked_ms", "end", "entries", "generation", "more", "page_rows", "used_ms")

    def __init__(self, *, complete: bool, page_rows: int) -> None:
        self.entries: list[Entry] = []
        self.more = not complete
        self.end: Key | None = None
        self.asked_ms = 0
        self.generation = 0
        self.page_rows = page_rows
        self.used_ms = 0

    def covers(self, key: Key) -> bool:
        """Whether an item of this key belongs in the window (else it is found by a later page)."""
        return not self.more or (self.end is not None and key <= self.end)

    def add(self, item: Item) -> None:
        """`item.key` must be covered."""
        insort(self.entries, (item.priority, item.deliver_after_ms, item.id, item))

    def add_all(self, entries: list[Entry]) -> None:
        """All keys must be covered."""
        if len(entries) * _SORT_SHARE < len(self.entries):
            for entry in entries:
                insort(self.entries, entry)
        else:
            # Timsort takes the window and the new entries as two runs.
            entries.sort()
            self.entries += entries
            self.entries.sort()

    def remove(self, item: Item) -> None:
        """Takes out an item that is in the window."""
        at = bisect_left(self.entries, (item.priority, item.deliver_after_ms, item.id))
        assert self.entries[at][3] is item, "the item is not in its window"
        del self.entries[at]

    def cut(self, keep: int) -> list[Item]:
        """Forgets all but the first `keep` entries; what was behind them is left to later pages."""
        gone = [entry[3] for entry in self.entries[keep:]]
        if gone:
            del self.entries[keep:]
            self.more = True
            self.end = self.entries[-1][:3] if self.entries else None
            self.generation += 1
            self.asked_ms = 0
        return gone

    def extend(self, items: list[Item], end: Key | None, *, more: bool) -> None:
        """Applies a page read behind `end`: `items` are its unknown rows, the new `end` its last row."""
        self.entries.extend((i.priority, i.deliver_after_ms, i.id, i) for i in items)
        self.entries.sort()
        self.more = more
        if end is not None:
            self.end = end
        self.asked_ms = 0

    def wants_page(self, capacity: int) -> bool:
        low = min(self.page_rows, capacity) // 2
        return self.more and not self.asked_ms and len(self.entries) <= low

    def upto(self, last: Entry) -> int:
        """How many entries stand at or before `last`."""
        return bisect_right(self.entries, last)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        tail = f" then more behind {self.end}" if self.more else ""
        return f"Window({len(self.entries)} entries{tail})"
