"""Checkpoints of items, checked from the outside: those that were given, written and delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from foqs.ids import shard_of
from foqs.item import Item
from foqs.rows import Batch
from tests.sim.memory_database import MemoryDatabase
from tests.sim.records import Op, Record, broken

PROMISE = 18
_WRITTEN_MS = 1_000
_MOST_LATE = 5


class Checkpoints:
    """`_owed`: of each item the last checkpoint that was accepted and is not committed, with the time of the answer and
    the epoch of its shard. The next owner owes nothing of it. `_late`: how many more transactions may be sent without
    it, which is due: after a pause of the database, other changes wait for it before this one. They are many
    transactions where `batch_rows` is 1."""

    def __init__(
        self, records: dict[int, Record], dbs: dict[int, MemoryDatabase], checks: Counter[str], time: Callable[[], int]
    ) -> None:
        self._records = records
        self._dbs = dbs
        self._checks = checks
        self._time = time
        self._owed: dict[int, tuple[Op, int, int]] = {}
        self._late: dict[int, int] = {}

    def stored(self, item_id: int) -> bytes | None:
        row = self._dbs[shard_of(item_id)].progress.get(item_id)
        return None if row is None else row.checkpoint

    def _given(self, item_id: int) -> list[Op]:
        """Return the extensions that may have given the item a checkpoint, in the order of the leases; leases of a
        former owner come first."""
        record = self._records[item_id]
        ops = [op for op in record.open_ops("extend") if op.checkpoint is not None]
        tokens = [d.token for d in record.deliveries]
        return sorted(ops, key=lambda op: tokens.index(op.token) if op.token in tokens else -1)

    def accepted(self, op: Op, *, current: bool) -> None:
        """An extension with a checkpoint was answered OK."""
        self._checks["checkpoints"] += 1
        db = self._dbs[shard_of(op.id)]
        stored, given = self.stored(op.id), self._given(op.id)
        values = [other.checkpoint for other in given]
        if stored in values and values.index(stored) >= given.index(op):
            return
        if op.durable and current and op.id in db.items:
            broken(PROMISE, f"{op} was answered OK, and {stored!r} is stored")
        if current and op.id in db.items:
            self._owed[op.id] = op, self._time(), db.epoch
            self._late.pop(op.id, None)

    def committing(self, shard: int, batch: Batch) -> None:
        db = self._dbs[shard]
        for row in batch.progress_new:
            self._checks["progress rows"] += 1
            if row.checkpoint is None:
                continue
            given, stored = self._given(row.id), self.stored(row.id)
            values = [op.checkpoint for op in given]
            if row.checkpoint not in values:
                broken(PROMISE, f"{row} is written, given were {values}")
            new = given[values.index(row.checkpoint)]
            if stored is not None and self._lease_of(row.id, stored) > self._lease_of(row.id, row.checkpoint):
                broken(PROMISE, f"{row} of an earlier lease is written in place of {stored!r}")
            owed = self._owed.get(row.id)
            if owed is not None and given.index(owed[0]) <= given.index(new):
                del self._owed[row.id]
        for item_id, (_, _, epoch) in list(self._owed.items()):
            if shard_of(item_id) != shard:
                continue
            if item_id not in db.items or db.epoch != epoch or item_id in batch.item_gone:
                del self._owed[item_id]

    def sent(self, shard: int, batch: Batch, ahead: int) -> None:
        """The owner of a shard sends a transaction. `ahead`: the transactions for all changes that wait."""
        written = {row.id for row in batch.progress_new}
        written.update(batch.item_gone)  # with which it goes
        for item_id, (op, at_ms, epoch) in self._owed.items():
            overdue = shard_of(item_id) == shard and at_ms + _WRITTEN_MS < self._time()
            if item_id in written:
                self._late.pop(item_id, None)
            elif overdue and epoch == self._dbs[shard].epoch:
                self._late[item_id] = self._late.get(item_id, _MOST_LATE + ahead) - 1
                if self._late[item_id] < 0:
                    broken(PROMISE, f"{op} was answered OK {self._time() - at_ms} ms ago, and is not written")

    def _lease_of(self, item_id: int, checkpoint: bytes) -> int:
        tokens = [d.token for d in self._records[item_id].deliveries]
        token = next(op.token for op in self._records[item_id].ops if op.checkpoint == checkpoint)
        return tokens.index(token) if token in tokens else -1

    def delivered(self, item: Item) -> None:
        """A consumer has it from the owner of its shard."""
        assert item.body is not None
        found, db = item.body.checkpoint, self._dbs[shard_of(item.id)]
        if found is not None and found not in [op.checkpoint for op in self._given(item.id)]:
            broken(PROMISE, f"{item} is delivered with the checkpoint {found!r}, which no consumer gave")
        if item.id not in db.items:
            return
        self._checks["with checkpoint"] += found is not None
        owed = self._owed.get(item.id)
        later = owed is not None and owed[0].token == item.lease
        if found != self.stored(item.id) and not later:
            broken(PROMISE, f"{item} is delivered with the checkpoint {found!r}, and not with {self.stored(item.id)!r}")
        if owed is not None and not later and owed[2] == db.epoch:
            broken(PROMISE, f"{item} is delivered with the checkpoint {found!r}, and {owed[0]} was answered OK")
