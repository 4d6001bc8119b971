"""When a batch is due: full, or its oldest entry has waited long enough. Pure; the caller gives the time."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Batcher(Generic[T]):
    """Entries in the order in which they came, numbered from 0 for ever.

    Invariants: `bytes` is the sum of the sizes held; `first` is the number of the oldest entry held (or of
    the next one). A batch is never empty, and never above `max_items`; above `max_bytes` only when it is a
    single entry.
    """

    def __init__(self, max_items: int, max_bytes: int, linger_ms: float) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.linger_ms = linger_ms
        self.bytes = 0
        self.first = 0
        self._entries: deque[tuple[T, int, float]] = deque()
        self._hurried = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: T, size_bytes: int, now_ms: float) -> None:
        self._entries.append((entry, size_bytes, now_ms))
        self.bytes += size_bytes

    def deliver_now(self) -> int:
        """Stop the linger of the items held now. Returns the number of the first entry that this is not about."""
        self._hurried = self.first + len(self._entries)
        return self._hurried

    def due_at_ms(self) -> float | None:
        """From when on `take` has a reason; None while nothing is held."""
        if not self._entries:
            return None
        full = len(self._entries) >= self.max_items or self.bytes >= self.max_bytes
        if full or self.first < self._hurried:
            return 0.0
        return self._entries[0][2] + self.linger_ms

    def take(self) -> list[T]:
        """The next batch, due or not."""
        batch: list[T] = []
        size = 0
        while self._entries and len(batch) < self.max_items:
            entry, entry_bytes, _ = self._entries[0]
            if batch and size + entry_bytes > self.max_bytes:
                break
            self._entries.popleft()
            batch.append(entry)
            size += entry_bytes
        self.bytes -= size
        self.first += len(batch)
        return batch

    def waiting(self) -> list[T]:
        """Return the entries that no batch has yet."""
        return [entry for entry, _, _ in self._entries]

    def __repr__(self) -> str:
        return f"Batcher({len(self)} entries, {self.bytes} bytes, first is number {self.first})"
