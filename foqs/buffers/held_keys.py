"""Keys that the items of a shard hold until they start or are done, and what the shards of these keys hear of them.

Slots of keys move, so a key may be in another shard than its item. The end of the item is committed with a row that
says so, and the owner of the item asks the owner of the key until the key is free. A redrive takes the key again before
the item moves. First it has a row written by which the key is freed later, in case that the item never moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.reads import Read, StoreReads
from foqs.errors import FoqsError
from foqs.ids import FOREVER_MS
from foqs.rows import DedupRow, HeldKey

FREE_MS = 250
"""The longest wait before the owner of a key is asked. The rest of the promised second is for its transaction."""
AGAIN_MS = 400
"""After a shard that did not free a key."""
CLAIM_MS = 60_000
"""A redrive takes seconds. If it has not moved its item by then, the key is freed, and the item stays where it is."""
_MOST_FREED = 10_000
Told = Callable[[list[int | FoqsError]], None]
"""Gets for each key the id of the item that has it then, or the given id for a key that is free now; or an error."""
TellKeys = Callable[[Sequence[DedupRow | HeldKey], Told], None]
"""Asks the shards of keys to take the keys of DedupRows for their items, and to free the keys of HeldKeys."""


class Claim(NamedTuple):
    """Dead letters that want their keys back. `done` gets the rows, once it is committed that the keys are freed at
    `free_at_ms`."""

    ids: list[int]
    free_at_ms: int
    done: Callable[[list[HeldKey] | FoqsError], None]


class HeldKeys:
    """`due_ms`: when to look for keys that are to free. `freeing`: by id of the item, keys that their owners are asked
    to free. `freed`: keys that are free now, for the next transaction. `after`: the position (free_at_ms, id) behind
    which the next look begins."""

    __slots__ = ("after", "claims", "due_ms", "freed", "freeing")

    def __init__(self, due_ms: int = NEVER_MS) -> None:
        self.due_ms = due_ms
        self.after = (0, 0)
        self.freeing: dict[int, HeldKey] = {}
        self.freed: list[HeldKey] = []
        self.claims: list[Claim] = []

    def note(self, at_ms: int) -> None:
        """Look for keys to free at that time."""
        self.due_ms = min(self.due_ms, at_ms)

    def written(self, freed: Sequence[HeldKey], now_ms: int, *, committed: bool) -> None:
        """Note that these keys are free, or ask for them again."""
        for key in freed:
            self.freeing.pop(key.id, None)
        if not committed:
            self.note(now_ms + AGAIN_MS)

    def shift(self, by_ms: int) -> None:
        """Follow the host's clock, which was set by `by_ms`: no wait becomes longer."""
        if self.due_ms != NEVER_MS:
            self.due_ms = max(0, self.due_ms + by_ms)


class FreedKeys:
    """The last keys that this host has freed, with the numbers of redrives that had taken them. A message that asks for
    a key may arrive behind a message that frees it: the redrive has ended then."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[bytes, int], int] = {}

    def add(self, key: HeldKey) -> None:
        known = key.digest, key.id
        self._numbers[known] = max(key.number, self._numbers.pop(known, 0))
        while len(self._numbers) > _MOST_FREED:
            del self._numbers[next(iter(self._numbers))]

    def takes(self, row: DedupRow) -> bool:
        """Return True if the redrive that asks for the key is not over."""
        return self._numbers.get((row.digest, row.id), -1) < row.expires_at_ms - FOREVER_MS


@dataclass(slots=True, eq=False)
class ClaimRead(Read):
    """The keys of dead letters, after the transaction that claims them."""

    claim: Claim
    found: list[HeldKey] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.found = store.held_keys(self.claim.ids)
        return 0

    def apply(self, shard: Any, saved: bool, now_ms: int) -> None:
        if saved:
            self.claim.done(self.found)
        else:
            self.missed(shard, now_ms)

    def missed(self, shard: Any, now_ms: int) -> None:
        shard.queue.held.claims.append(self.claim)

    def refuse(self, error: FoqsError) -> None:
        self.claim.done(error)
