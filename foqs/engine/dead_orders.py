"""The order keys of a shard's dead letters, which a redrive returns to their shard.

No index finds the dead letters of a key. So a shard whose hash slots move reads all of them once, in pages, and follows
their changes from then on. Other shards know nothing of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foqs.bounds import Budget
from foqs.buffers.reads import Read, StoreReads
from foqs.errors import FoqsError
from foqs.ids import hash_slot_of
from foqs.order import Order

_READ_ROWS = 2_000
DEAD_BYTES = 320
"""Memory of a dead letter's key."""
_NOT_READ, _ALL_READ = -1, 1 << 63
Then = Callable[[FoqsError | None], None]


class DeadOrders:
    """`read_to`: the dead letters up to this id are known. `keys`: by hash slot, how many dead letters a key has."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._waiting: list[Then] = []
        self.items: dict[int, bytes] = {}
        self.keys: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
        self.read_to = _NOT_READ

    @property
    def due(self) -> bool:
        """Return True if the next batch reads dead letters."""
        return _NOT_READ < self.read_to < _ALL_READ

    @property
    def known(self) -> bool:
        return self.read_to == _ALL_READ

    def when_known(self, then: Then, *, some: bool) -> None:
        """Call `then` when all dead letters are known, or with an error when the shard is closed. `some`: the shard may
        have dead letters."""
        if self.read_to == _NOT_READ:
            self.read_to = 0 if some else _ALL_READ
        if self.known:
            then(None)
        else:
            self._waiting.append(then)

    def has(self, digest: bytes) -> bool:
        """Return True if a dead letter that is known has the key."""
        return digest in self.keys.get(hash_slot_of(digest), ())

    def died(self, item_id: int, digest: bytes) -> None:
        if self.read_to == _NOT_READ or item_id in self.items:
            return
        self.items[item_id] = digest
        keys = self.keys[hash_slot_of(digest)]
        keys[digest] = keys.get(digest, 0) + 1
        self._budget.take(DEAD_BYTES)

    def left(self, item_ids: Iterable[int]) -> None:
        """Forget the dead letters among these items."""
        for item_id in item_ids:
            digest = self.items.pop(item_id, None)
            if digest is not None:
                keys = self.keys[hash_slot_of(digest)]
                keys[digest] -= 1
                if not keys[digest]:
                    del keys[digest]
                self._budget.give(DEAD_BYTES)

    def read(self, rows: Sequence[tuple[int, bytes | None]], *, last: bool) -> None:
        for item_id, order_at in rows:
            if order_at is not None:
                self.died(item_id, Order.unpack(order_at, item_id).digest)
        self.read_to = _ALL_READ if last else rows[-1][0]
        if last:
            self.end(None)

    def end(self, error: FoqsError | None) -> None:
        """Call the waiting functions."""
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then(error)

    def drop(self) -> None:
        """Give back all memory."""
        self._budget.give(DEAD_BYTES * len(self.items))
        self.items = {}


@dataclass(slots=True, eq=False)
class DeadOrdersRead(Read):
    """The next dead letters."""

    after_id: int
    found: Sequence[tuple[int, bytes | None]] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.found = store.dead_orders(self.after_id, _READ_ROWS)
        return 0

    def apply(self, shard: Any, saved: bool, now_ms: int) -> None:
        shard.memory.orders.dead.read(self.found, last=len(self.found) < _READ_ROWS)
