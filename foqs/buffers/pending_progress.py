"""Checkpoints, progress and lines of logs that consumers gave, until a transaction takes them.

Rows are written behind, as leases are. All that comes for one item in the meantime is one row.
"""

from __future__ import annotations

from typing import NamedTuple

from foqs.bounds import Budget
from foqs.item import Item
from foqs.rows import ProgressRow

WRITE_DELAY_MS = 500
"""The other half of the promised second is for the commit."""


class Pending(NamedTuple):
    since_ms: int
    item: Item
    row: ProgressRow


class PendingProgress(dict[int, Pending]):
    """By id, the longest waiting first. A dict, because each batch checks whether it is empty.

    The rows take part of the host's budget, which refuses no change: `add` does."""

    def add(self, item: Item, row: ProgressRow, now_ms: int, budget: Budget) -> bool:
        """Keep a row that a consumer gave. Return False if memory is short."""
        if not budget.fits(row.size_bytes):
            return False
        before = self.get(item.id)
        if before is not None:
            budget.give(before.row.size_bytes)
            row = before.row.then(row)
        budget.take(row.size_bytes)
        self[item.id] = Pending(now_ms if before is None else before.since_ms, item, row)
        return True

    def take(self, item_id: int, budget: Budget) -> ProgressRow:
        row = self.pop(item_id).row
        budget.give(row.size_bytes)
        return row

    def discard(self, item_id: int, budget: Budget) -> None:
        """Drop the row of an item that is gone."""
        if item_id in self:
            self.take(item_id, budget)

    def put_back(self, item: Item, row: ProgressRow, now_ms: int, budget: Budget) -> None:
        """Keep a row that a transaction has not written. Newer rows may wait."""
        if item.id in self:
            row = row.then(self.take(item.id, budget))
        budget.take(row.size_bytes)
        self[item.id] = Pending(now_ms, item, row)

    def drop(self, budget: Budget) -> None:
        budget.give(sum(pending.row.size_bytes for pending in self.values()))
        self.clear()

    def shift(self, by_ms: int) -> None:
        """Follow the host's clock, which was set by `by_ms`."""
        for item_id, pending in self.items():
            self[item_id] = pending._replace(since_ms=pending.since_ms + by_ms)

    @property
    def due_ms(self) -> int:
        """When the first row is written at the latest. There is one."""
        return next(iter(self.values())).since_ms + WRITE_DELAY_MS
