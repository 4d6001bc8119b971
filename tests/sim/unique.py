"""Keys that items hold until they start or are done, checked from the outside by their rows."""

from __future__ import annotations

from collections import Counter, defaultdict

from foqs.errors import FoqsError
from foqs.ids import FOREVER_MS, Until, shard_of
from foqs.rows import Batch
from foqs.second_answer import Duplicate
from tests.sim.memory_database import MemoryDatabase
from tests.sim.records import Op, Record, Spec, broken

PROMISE = 19


class Unique:
    """`_holders`: by the digest of a key, the items that hold it: under DONE those that have not ended and are no dead
    letters, under STARTED those whose first lease is not written."""

    def __init__(self, records: dict[int, Record], dbs: dict[int, MemoryDatabase], checks: Counter[str]) -> None:
        self._records = records
        self._dbs = dbs
        self._checks = checks
        self._holders: dict[bytes, set[int]] = defaultdict(set)
        self._ids: dict[bytes, set[int]] = defaultdict(set)
        self._cancelled: set[int] = set()

    def answered(self, spec: Spec, outcome: int | FoqsError) -> None:
        if isinstance(outcome, int):
            assert spec.dedup is not None
            own = spec.id == outcome and not isinstance(outcome, Duplicate)
            other = isinstance(outcome, Duplicate) and outcome in self._ids[spec.dedup.digest]
            if not (own or other):
                broken(PROMISE, f"{spec} was answered with {outcome}")
            self._checks["unique " + ("stored" if own else "kept")] += 1

    def cancelled(self, op: Op) -> None:
        """The item of a key was removed by it."""
        self._cancelled.add(op.id)
        self._checks["unique cancelled"] += 1

    def replaced(self, op: Op, record: Record, db: MemoryDatabase) -> None:
        """The item got the body of this, or of a later one."""
        self._checks["unique replaced"] += 1
        later = [other.body for other in record.ops[record.ops.index(op) :] if other.body is not None]
        if op.id in db.items and db.items[op.id].payload not in {body.payload for body in later}:
            broken(PROMISE, f"{op} was answered OK, and the item is {db.items[op.id]}")

    def committing(self, shard: int, batch: Batch) -> None:
        """A transaction is about to be applied: items that end in it free their keys."""
        db = self._dbs[shard]
        for item_id in (*batch.item_gone, *(row.id for row in batch.ended_new)):
            self._free(item_id)
        dead = {row.id for row in batch.failure_new}
        for item_id in dead:
            self._free(item_id)
        started = [row.id for row in batch.timer_new if row.attempt] + [
            row.id for row in batch.ready_new if row.attempt
        ]
        for item_id in started:
            if self._records[item_id].spec.until == Until.STARTED:
                self._free(item_id)
        for item in batch.inserts:
            self._hold(item.id)
        for body in batch.bodies_new:
            self._has_not_begun(self._records[body.id])
        for row in batch.moved:
            if row[0] in db.failures and row[0] not in dead and self._records[row[0]].spec.until == Until.DONE:
                self._hold(row[0])
                self._checks["unique redriven"] += 1

    def _has_not_begun(self, record: Record) -> None:
        released = {op.token for op in record.open_ops("release")}
        if any(d.told and not d.void and d.token not in released for d in record.deliveries[record.first :]):
            broken(PROMISE, f"an item that has begun gets another body: {record}")

    def _hold(self, item_id: int) -> None:
        spec = self._records[item_id].spec
        if not spec.until:
            return
        assert spec.dedup is not None
        holders = self._holders[spec.dedup.digest]
        if holders - {item_id}:
            broken(PROMISE, f"{spec} is stored as {item_id}, and {holders} hold its key")
        holders.add(item_id)
        self._ids[spec.dedup.digest].add(item_id)

    def _free(self, item_id: int) -> None:
        spec = self._records[item_id].spec
        if spec.until and spec.dedup is not None:
            self._holders[spec.dedup.digest].discard(item_id)

    def check_left(self) -> None:
        """At the end, when shards have had their time: no key is held by an item that does not hold it."""
        for db in self._dbs.values():
            for row in db.dedup.values():
                mine = row.expires_at_ms >= FOREVER_MS and db.slots_have(row.digest)
                if mine and row.id not in self._holders[row.digest]:
                    broken(PROMISE, f"the key {row} is held by no item of shard {shard_of(row.id)}")
                if row.id in self._cancelled and db.slots_have(row.digest):
                    broken(PROMISE, f"the key {row} is of an item that was cancelled")
            if db.held:
                broken(PROMISE, f"keys {db.held} wait, or are of items that are gone")
