"""The replies of all clients, and the commits of the database: the promises are checked against both.

Written from the outside: it knows requests, replies, committed rows and when a shard changed its owner, and nothing
of how a host decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from foqs.errors import Code, FoqsError
from foqs.fairness.keys import rules_of, tenancy_of, until_of
from foqs.ids import shard_of
from foqs.item import Item
from foqs.rows import AT_MOST_ONCE, Batch, Body, LaneRow, NewItem
from foqs.second_answer import Duplicate
from tests.sim.attempts import Attempts
from tests.sim.batches import ItemBatches
from tests.sim.changes import Changes
from tests.sim.events import Events
from tests.sim.kept import Kept
from tests.sim.memory_database import MemoryDatabase
from tests.sim.orders import Ordered, same_key
from tests.sim.progress import Checkpoints
from tests.sim.records import ENDING, NACKS, Delivery, Op, Record, Spec, broken, lane_of, spec_number
from tests.sim.unique import Unique

LATE_MS = 2_000
"""Hundreds of items due at once are moved one by one where `scan_rows` is 1."""


class Ledger:
    """`now_ms` is always the hosts' clock. `dbs` by shard number. `checks` counts checks by name. `time`: ms
    of a clock that is never set."""

    def __init__(
        self, dbs: dict[int, MemoryDatabase], checks: Counter[str], time: Callable[[], int] = lambda: 0
    ) -> None:
        self.dbs = dbs
        self.specs: dict[int, Spec] = {}
        self.records: dict[int, Record] = {}
        self.removals: Counter[tuple[int, int]] = Counter()  # by shard and epoch
        self.taken_ms: dict[int, int] = {}  # by shard: when its owner changed last
        self.checks = checks
        self.quiet_ms = 0  # since when nothing fails any more
        self.timed_ms: dict[int, int] = {}  # by item: when its row came into `timer`
        self.epochs: dict[int, int] = {}  # by item: of the owner that stored it
        self.written: set[tuple[int, int]] = set()  # item and lease of each lease row in `timer`, ever
        self.latest_ms = 0  # the clock before it was set back
        self.dropped: set[tuple[int, int]] = set()  # at-most-once items that ended with a lease: (id, lease)
        self.heard: set[tuple[int, int]] = set()  # at-most-once items that reached a consumer, however late
        self.doubtful: set[int] = set()  # those of answers that were lost, or were not sure
        self.crashed = False  # a host, with answers that it owed
        self.open_extends: list[Op] = []
        self.attempts = Attempts(self.records, dbs, checks)
        self.kept = Kept(self.records, self.attempts.policies_of, checks)
        policies_of, of_topics = self.attempts.policies_of, self.attempts.of_topics
        self.events = Events(self.records, self.specs, policies_of, of_topics, checks)
        self.checkpoints = Checkpoints(self.records, self.dbs, checks, time)
        self.unique = Unique(self.records, self.dbs, checks)
        self.changes = Changes(self.records, checks)
        self.orders = Ordered(self.records, dbs, self.attempts.policies_of, checks)
        self.batches = ItemBatches(self.records, self.specs, dbs, checks, self)

    def _db(self, item_id: int) -> MemoryDatabase:
        return self.dbs[shard_of(item_id)]

    # ------------------------------------------------------------------------------------- enqueue

    def enqueue_answered(self, spec: Spec, outcome: int | FoqsError) -> None:
        if isinstance(outcome, int):
            if outcome <= 0 or spec.id != outcome:
                broken(1, f"spec {spec.number} was answered with id {outcome} but is stored as {spec.id}")
            spec.state = "stored"
        elif outcome.code is Code.OUTCOME_UNKNOWN:
            spec.state = "unknown"
        else:
            if spec.id:
                broken(1, f"spec {spec.number} was refused ({outcome}) but is stored as {spec.id}")
            spec.state = "refused"
        invalid = not isinstance(outcome, int) and outcome.code is Code.INVALID
        if invalid and not (spec.poisoned or self.batches.may_refuse(spec)):
            broken(9, f"spec {spec.number} was refused for its neighbour: {outcome}")
        self.checks["enqueue"] += 1

    def keyed_answered(self, spec: Spec, outcome: int | FoqsError) -> None:
        """An enqueue of a spec with a key: another one may have stored it."""
        if isinstance(outcome, int) or outcome.code is not Code.OUTCOME_UNKNOWN:
            spec.open -= 1
        if spec.until:
            self.unique.answered(spec, outcome)
            return
        if isinstance(outcome, int):
            if outcome not in spec.ids:
                broken(1, f"spec {spec.number} was answered with id {outcome} but is stored as {spec.id}")
            if not isinstance(outcome, Duplicate):
                if outcome in spec.new:
                    broken(1, f"spec {spec.number} was called new twice")
                spec.new.add(outcome)
        elif outcome.code is Code.INVALID and not (spec.poisoned or self.batches.may_refuse(spec)):
            broken(9, f"spec {spec.number} was refused: {outcome}")
        self.checks["keyed"] += 1

    # ------------------------------------------------------------------------------------- the database

    def committing(self, shard: int, epoch: int, batch: Batch, now_ms: int) -> None:
        """A transaction is about to be applied."""
        db = self.dbs[shard]
        if epoch != db.epoch:
            broken(6, f"shard {shard}: epoch {epoch} changes rows of epoch {db.epoch}")
        lanes = {**db.lanes, **{row.lane: row for row in batch.lanes_new}} if batch.lanes_new else db.lanes
        remembered = {row.id: row.expires_at_ms for row in (*batch.dedup_new, *batch.dedup_again)}
        ends = self.kept.ends(db, batch)
        self.events.storing(ends, batch, lanes)
        for item in batch.inserts:
            spec = self.specs[spec_number(item)]
            forgotten = spec.dedup is not None and spec.remembered_ms <= now_ms
            if (spec.id and not forgotten) or (spec.state == "refused" and spec.dedup is None):
                broken(1, f"spec {spec.number} ({spec.state}, {spec.id}) is stored as {item.id}")
            if spec.dedup is not None and not spec.open:
                broken(1, f"spec {spec.number} is stored as {item.id}, and all its requests were refused")
            spec.id = item.id
            spec.ids.add(item.id)
            spec.remembered_ms = remembered.get(item.id, 0)
            self.records[item.id] = Record(spec, spec.key)
            self.epochs[item.id] = epoch
            self._in_its_lane(spec, item, lanes, dict(batch.weights))
        if self.quiet_ms:
            self._in_time(batch, db, now_ms)
        self.timed_ms.update((item.id, now_ms) for item in batch.inserts)
        self.timed_ms.update((row.id, now_ms) for row in batch.timer_new)
        self.written.update((row.id, row.lease) for row in batch.timer_new)
        self.orders.committing(shard, batch, lanes)
        self.attempts.committing(shard, batch, max(now_ms, self.latest_ms))
        self.batches.storing(shard, batch, max(now_ms, self.latest_ms))
        causes = {item_id: self._cause(item_id, db, now_ms) for item_id in ends}
        for item_id, cause in causes.items():
            self.records[item_id].removed = cause
            if any(op.digest for op in self.records[item_id].open_ops("delete")):
                self.records[item_id].spec.remembered_ms = 0  # if it is cancelled, its key is free
            self.removals[shard, epoch] += 1
            self.checks[f"removed by {cause}"] += 1
        self.kept.ended(db, batch, causes, max(now_ms, self.latest_ms))
        self.events.ended(db, batch, causes, max(now_ms, self.latest_ms))
        self.kept.removed(db, batch, max(now_ms, self.latest_ms))
        self.checkpoints.committing(shard, batch)
        self.unique.committing(shard, batch)
        self.batches.ending(shard, batch, causes, max(now_ms, self.latest_ms))
        self.changes.committing(db, batch, max(now_ms, self.latest_ms))

    def _in_its_lane(self, spec: Spec, item: NewItem, lanes: dict[int, LaneRow], weights: dict[int, int]) -> None:
        row = lanes.get(item.lane)
        if row is None or lane_of(row) != spec.lane(spec.key):
            broken(1, f"{spec} is stored in lane {row}")
        elif spec.weight not in (0, weights.get(row.lane, row.weight)):
            broken(10, f"{spec} is stored in lane {row}, which has the weight {weights.get(row.lane)}")

    def _in_time(self, batch: Batch, db: MemoryDatabase, now_ms: int) -> None:
        """Without failures, a delay or a lease that is over is noticed soon."""
        for row in (db.timer[item_id] for item_id in batch.timer_gone):
            late_ms = now_ms - max(row.due_ms, self.quiet_ms, self.timed_ms.get(row.id, 0))
            if late_ms > LATE_MS:
                broken(5, f"{row} was due {late_ms} ms ago")

    def _cause(self, item_id: int, db: MemoryDatabase, now_ms: int) -> str:
        """Why the item may be removed now."""
        now_ms = max(now_ms, self.latest_ms)
        record, body = self.records[item_id], db.items[item_id]
        timer, ready = db.timer.get(item_id), db.ready.get(item_id)
        current = {timer.lease if timer is not None else 0, ready.lease if ready is not None else 0}
        current.update(d.token for d in [d for d in record.deliveries if not d.void][-1:])
        ends = ("ack", "nack", "fail", "reject") if body.delivery == AT_MOST_ONCE else ("ack",)
        if item_id in self.batches.swept:
            return "cancelled"
        for op in record.open_ops(*ends, "delete"):
            if op.kind == "delete" or (op.kind in ends and op.token in current):
                return op.kind
        if body.expires_at_ms and body.expires_at_ms <= now_ms:
            if any(record.live(d, now_ms) for d in record.deliveries):
                broken(3, f"item {item_id} is removed by its TTL under a live lease")
            return "ttl"
        if any(op.kind in NACKS and op.token in current for op in record.ops) and body.expires_at_ms:
            return "ttl"
        if body.delivery == AT_MOST_ONCE and timer is not None and timer.lease and timer.due_ms <= now_ms:
            self.dropped.add((item_id, timer.lease))
            return "dropped"
        return self.attempts.removal(body, current, now_ms)

    def owner_changed(self, shard: int, now_ms: int) -> None:
        """Leases that the last owner had not written are void."""
        db = self.dbs[shard]
        self.taken_ms[shard] = now_ms
        self.attempts.owner_changed(shard)
        for item_id in db.items.keys() - db.ended:
            timer, ready = db.timer.get(item_id), db.ready.get(item_id)
            for d in self.records[item_id].deliveries:
                if timer is not None and timer.lease == d.token:
                    d.until_ms = timer.due_ms
                elif ready is None or ready.lease != d.token:
                    d.void = True

    def stopped(self, shard: int, now_ms: int) -> None:
        """A host that stopped in order has written every lease that a consumer may count on (promise 7)."""
        db = self.dbs[shard]
        for item_id in db.items.keys() - db.ended:
            row = db.timer.get(item_id)
            for d in self.records[item_id].deliveries:
                if self.records[item_id].live(d, now_ms) and (row is None or row.lease != d.token):
                    broken(7, f"the lease {d} of {item_id} was not written before its host stopped: {row}")
        self.checks["stopped"] += 1

    def clock_stepped(self, now_ms: int, to_ms: int) -> None:
        """A lease that was over before the clock was set back stays over. A lease that is not written yet keeps its
        remaining time; the end of one that is written stays."""
        self.latest_ms = max(self.latest_ms, now_ms)
        self.attempts.stepped = True
        for op in self.open_extends:
            op.sent_ms = min(op.sent_ms, op.sent_ms + to_ms - now_ms)
        for record in self.records.values():
            for d in record.deliveries:
                d.until_ms = 0 if d.until_ms <= now_ms else min(d.until_ms, d.until_ms + to_ms - now_ms)

    # ------------------------------------------------------------------------------------- leases

    def leased(self, item: Item, now_ms: int, *, delayed_ok: bool) -> None:
        """The host chose the item for a consumer."""
        record = self.records[item.id]
        if record.delivery(item.lease) is None:
            record.deliveries.append(Delivery(item.lease, item.lease_ms, item.lease_expires_at_ms))
        self.attempts.leased(item)
        self.changes.leased(item)
        body = self._db(item.id).items.get(item.id)
        if body is not None:
            if body.expires_at_ms and body.expires_at_ms <= now_ms:
                broken(3, f"{item} was leased though its TTL is over")
            failed = max(0, item.attempt - 1)  # each failed attempt may put it a millisecond behind the present
            if body.deliver_after_ms > now_ms + failed and not delayed_ok:
                broken(5, f"{item} was leased before its time {body.deliver_after_ms}")

    def delivered(self, item: Item, now_ms: int, *, current: bool, confirm_ms: int) -> None:
        """A consumer has it. `current`: by the shard's owner (else by one that does not know better yet)."""
        record, body = self.records[item.id], self._db(item.id).items.get(item.id)
        if item.lease <= 0 or item.attempt < 1 or item.body is None:
            broken(4, f"{item} was delivered with lease {item.lease} and attempt {item.attempt}")
        before = [d for d in record.deliveries if d.token != item.lease]
        if item.at_most_once:
            self.heard.add((item.id, item.lease))
            told = [d for d in before if d.told]
            released = {op.token for op in record.open_ops("release")}
            if any(d.token not in released for d in told):
                broken(4, f"at-most-once {item} was delivered again")
        if not current:
            self.checks["by a replaced owner"] += 1
            if (item.id, item.lease) in self.written:
                return  # leased before its owner was replaced; only the answer is late
        ended = [op.kind for op in record.ops if op.kind in ("ack", "delete") and op.state == "ok"]
        if record.removed or ended or body is None:
            broken(2, f"{item} was delivered after it was removed by {record.removed or ended}")
        for d in before:
            if record.live(d, now_ms):
                broken(4, f"{item} was delivered to a second consumer while lease {d} holds")
        if not current:
            taken_ms = self.taken_ms[shard_of(item.id)]
            if now_ms - taken_ms > confirm_ms:
                broken(4, f"{item} was delivered by an owner that was replaced {now_ms - taken_ms} ms ago")
            return  # its new owner knows nothing of this lease
        self._same(item, body)
        self.checkpoints.delivered(item)
        made = record.delivery(item.lease)
        if made is None:
            made = Delivery(item.lease, item.lease_ms, item.lease_expires_at_ms)
            record.deliveries.append(made)
        made.told = True
        self.attempts.delivered(item)
        self.orders.delivered(item, now_ms)
        self.checks["delivered"] += 1
        self.checks["redelivered"] += bool(before)
        self.checks["event delivered"] += record.spec.number < 0

    def _same(self, item: Item, body: Body | None) -> None:
        given = item.body
        assert given is not None and body is not None
        told = (given.payload, given.metadata, given.headers, item.priority, item.deliver_after_ms)
        stored = (body.payload, body.metadata, body.headers, body.priority, body.deliver_after_ms)
        size = sum(len(part or b"") for part in (*stored[:3], self.checkpoints.stored(item.id)))
        if item.bytes != size:
            broken(8, f"{item} counts as {item.bytes} bytes but has {size}")
        key = self.records[item.id].place
        if told != stored or item.lane.topic.key != key:
            broken(1, f"{item} was delivered as {item.lane.topic.key} {told} but is {key} {stored}")
        spec, dead = self.records[item.id].spec, key[1].endswith(".dlq")
        names = (*tenancy_of(item.lane.key), rules_of(item.lane.key))
        until = until_of(item.lane.key)
        if (*names, until) != (
            ("", (), None, 0) if dead else (spec.tenant, spec.throttles, spec.rules, spec.lane_until)
        ):
            broken(1, f"{item} was delivered of {item.lane.key} but is {spec}")
        if not same_key(given, spec):
            broken(1, f"{item} was delivered as {given} but is {spec}")

    # ------------------------------------------------------------------------------------- acks and the like

    def asked(self, op: Op) -> None:
        record = self.records.get(op.id)
        if record is None:
            return
        d = record.delivery(op.token)
        if d is None:
            op.late = True
        else:
            released = {other.token for other in record.open_ops("release")}
            later = record.deliveries[record.deliveries.index(d) + 1 :]
            op.late = any(d2.told and not d2.void and d2.token not in released for d2 in later)
            if op.kind == "extend":
                self.open_extends.append(op)
                if op.lease_ms or op.checkpoint is None:
                    d.until_ms = min(d.until_ms, op.sent_ms + (op.lease_ms or d.lease_ms))
        op.contested = bool(record.open_ops(*ENDING))
        if op.kind in ENDING:
            for other in record.ops:
                other.contested = True
        record.ops.append(op)

    def answered(self, op: Op, error: FoqsError | None, now_ms: int, *, current: bool) -> None:
        record = self.records.get(op.id)
        db = self.dbs.get(shard_of(op.id))
        if op in self.open_extends:
            self.open_extends.remove(op)
        self.checks[op.kind if error is None else f"{op.kind} {error.code.name}"] += 1
        if error is None:
            op.state = "ok"
            if record is None or op.wrong_ns:
                broken(7, f"{op} of no item was answered OK")
                return
            assert db is not None
            if op.kind == "change":
                self.changes.answered(op, None, record, db, current=current)
            else:
                self._done(op, record, db, current=current)
            return
        op.state = "unknown" if error.code is Code.OUTCOME_UNKNOWN else "refused"
        if record is None or op.wrong_ns or not current or db is None:
            return
        grows = any(one.keep or one.on_end_topic for one in self.attempts.policies_of(record))
        self.checks[f"{op.kind} without room"] += "is full" in error.message and not grows
        self.checks[f"{op.kind} refused"] += "the database refuses" in error.message
        if error.code is Code.NOT_FOUND and op.id in db.items and op.id not in db.ended:
            if (op.digest or op.body is not None) and op.id in db.failures:
                return  # a dead letter has ended
            broken(7, f"{op} was answered NOT_FOUND but the item is there")
        if op.kind == "change":
            self.changes.answered(op, error, record, db, current=current)
        if error.code is Code.STALE_LEASE:
            self._refused_rightly(op, record, db, now_ms)

    def _done(self, op: Op, record: Record, db: MemoryDatabase, *, current: bool) -> None:
        if op.kind in ("ack", "delete"):
            if op.digest:
                self.unique.cancelled(op)
            if op.id in db.items and (op.kind == "delete" or op.id not in db.ended):
                broken(2, f"{op} was answered OK but the item is there")
            return
        if op.body is not None:
            self.unique.replaced(op, record, db)
            return
        if not current and op.kind in ("extend", "release"):
            return  # of a lease that was not written, by an owner that does not know better yet
        if op.late:
            broken(7, f"{op} has a stale lease but was answered OK: {record}")
        d = record.delivery(op.token)
        assert d is not None
        later = record.ops[record.ops.index(op) + 1 :]
        if op.checkpoint is not None:
            self.checkpoints.accepted(op, current=current)
        moves = op.kind == "extend" and (op.lease_ms or op.checkpoint is None)
        if moves and not any(other.kind == "extend" for other in later):
            d.until_ms = op.sent_ms + (op.lease_ms or d.lease_ms)
        body = db.items.get(op.id)
        alone = all(other.state in ("ok", "refused") for other in record.ops)
        if op.kind in NACKS and body is not None and current and alone and record.ops[-1] is op:
            if body.delivery == AT_MOST_ONCE:
                broken(3, f"{op} of an at-most-once item was answered OK but the item is there")
            if op.metadata is not None and body.metadata != op.metadata:
                broken(1, f"{op} was answered OK but the item says {body.metadata!r}")

    def _refused_rightly(self, op: Op, record: Record, db: MemoryDatabase, now_ms: int) -> None:
        """STALE_LEASE for a lease that is the item's last one: something else must be ending it."""
        now_ms = max(now_ms, self.latest_ms)
        body, alive = db.items.get(op.id), [d for d in record.deliveries if not d.void]
        if body is None or op.id in db.ended or not alive or alive[-1].token != op.token:
            return
        if op.contested or (op.kind != "ack" and record.died_after(op.token)):
            return
        if body.expires_at_ms and body.expires_at_ms <= now_ms:
            return
        if alive[-1].until_ms <= now_ms and (op.kind != "ack" and body.delivery == AT_MOST_ONCE):
            return  # it is being dropped
        if alive[-1].until_ms <= now_ms and (op.kind in ("extend", "release") or self.attempts.dying(op, body, now_ms)):
            return
        if record.open_ops("replace"):
            return  # the lease is not of the new body
        if any(change.at_ms or op.kind != "ack" for change in record.open_ops("change")):
            return  # a delayed item has no lease that ended by time, and a nack does not go before a change
        broken(7, f"{op} was refused as stale but no other consumer got the item: {record}")
