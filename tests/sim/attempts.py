"""Promise 14, and what a dead letter is, checked from the outside: replies and committed rows."""

from __future__ import annotations

from collections import Counter

from foqs.fairness.keys import lane_key, rules_of, unpack_throttles
from foqs.ids import shard_of
from foqs.item import Item
from foqs.policies.item_rules import applied
from foqs.policies.layers import Policies
from foqs.policies.settings import Settings
from foqs.policies.topic_policy import TopicPolicy
from foqs.rows import AT_MOST_ONCE, Batch, Body, FailureCause, FailureRow, LaneRow, LastFailure, ReadyRow, TimerRow
from foqs.rules import unpack_rules
from tests.sim.memory_database import MemoryDatabase
from tests.sim.records import NACKS, Op, Record, broken, lane_of
from tests.sim.redrives import Redrives


class Attempts:
    """`policies` are those in effect on all hosts. `records` by item, `dbs` by shard.

    What a transaction does may have been decided by an earlier version of the policies; a delivery may not."""

    def __init__(self, records: dict[int, Record], dbs: dict[int, MemoryDatabase], checks: Counter[str]) -> None:
        self.policies = Policies()
        self.redrives = Redrives(records, checks)
        self.stepped = False  # a clock was set back
        self._checks = checks
        self._records = records
        self._dbs = dbs
        self.of_topics: dict[tuple[str, str], list[TopicPolicy]] = {}  # of a topic, all that were in effect
        self.last_failures: dict[int, tuple[int, int]] = {}  # by item, of committed transactions: attempt and cause
        self._owners: Counter[int] = Counter()  # changes of a shard's owner
        self._since: dict[int, int] = {}  # by item: the owners of its shard when it was delivered first

    def apply(self, settings: Settings, topics: list[tuple[str, str]]) -> None:
        """The hosts know these settings from now on."""
        self.policies.apply(settings)
        for key in topics:
            self.of_topics.setdefault(key, []).append(self.policies.of(key))

    def owner_changed(self, shard: int) -> None:
        self._owners[shard] += 1

    def policies_of(self, record: Record) -> list[TopicPolicy]:
        """Return those that were in effect for the item where it is. A dead letter has no rules."""
        policies, rules = self.of_topics[record.place], record.spec.rules
        if rules is None or record.place[1].endswith(".dlq"):
            return policies
        return [applied(policy, rules) for policy in policies]

    # ------------------------------------------------------------------------------------- deliveries

    def leased(self, item: Item) -> None:
        """The host chose the item: its attempts were not used up."""
        limit = self.policies.with_rules(item.lane.topic.key, rules_of(item.lane.key)).max_attempts
        if 0 < limit < item.attempt and not item.at_most_once:
            broken(14, f"{item} is delivered beyond {limit} attempts")

    def delivered(self, item: Item) -> None:
        """A consumer has it. Released leases do not count, nor do nacks that say so, nor lost replies."""
        record = self._records[item.id]
        policies = self.policies_of(record)
        if item.at_most_once or not all(policy.max_attempts for policy in policies):
            return
        most = max(policy.max_attempts for policy in policies)
        owners = self._owners[shard_of(item.id)]
        crashes = owners - self._since.setdefault(item.id, owners)
        if all(policy.exact_attempts for policy in policies):
            crashes = 0
        free = {op.token for op in record.open_ops("release", "nack") if op.kind == "release" or not op.counted}
        counted = [d for d in record.deliveries[record.first :] if d.told and d.token not in free]
        if len(counted) > most + crashes:
            broken(14, f"{item} was delivered {len(counted)} times, allowed are {most} and {crashes} crashes: {record}")
        self._checks["exact attempts"] += crashes == 0

    # ------------------------------------------------------------------------------------- rows

    def committing(self, shard: int, batch: Batch, now_ms: int) -> None:
        """A transaction is about to be applied: each item that moves is a dead letter, with its failure beside it."""
        db = self._dbs[shard]
        lanes = {**db.lanes, **{row.lane: row for row in batch.lanes_new}} if batch.lanes_new else db.lanes
        strays = [row for row in batch.moved if row[1] not in lanes]
        if strays:
            broken(14, f"{strays} move to lanes without a row")
        failures = {row.id: row for row in batch.failure_new}
        back = self.redrives.committing(shard, db, batch, lanes, now_ms)
        moved = [row[0] for row in batch.moved if row[0] not in back]
        if sorted(failures) != sorted(moved):
            broken(14, f"{moved} move with the failures {failures}")
        self._last_failures(db, batch)
        self._places(db, batch, now_ms)
        for item_id, number, _, expires_at_ms in batch.moved:
            if item_id in back:
                continue
            self._moving(db, lanes[number], failures[item_id], expires_at_ms, now_ms)

    def _moving(self, db: MemoryDatabase, lane: LaneRow, row: FailureRow, expires_at_ms: int, now_ms: int) -> None:
        record, body = self._records[row.id], db.items[row.id]
        target, spec = (lane.ns.decode(), lane.topic.decode()), record.spec
        if lane_of(lane) != lane_key(target):
            broken(14, f"{row} goes to the lane of a tenant: {lane}")
        if (row.fairness.decode(), unpack_throttles(row.throttles)) != (spec.tenant, spec.throttles):
            broken(14, f"{row} forgets the tenant or the throttle keys of {spec}")
        if unpack_rules(row.rules) != spec.rules:
            broken(14, f"{row} forgets the rules of {spec}")
        timer, ready = db.timer.get(row.id), db.ready.get(row.id)
        current = {timer.lease if timer is not None else 0, ready.lease if ready is not None else 0}
        current.update(d.token for d in record.deliveries[-1:])
        allowed = [
            policy
            for policy in self.policies_of(record)
            if target == (record.place[0], policy.dead_topic)
            and (expires_at_ms > 0) == (policy.dead_ttl_ms is not None)
            and self._may_die(policy, body, current, now_ms) is not None
        ]
        if not allowed or row.topic.decode() != record.place[1] or body.delivery == AT_MOST_ONCE:
            broken(14, f"{row} dies for no allowed cause, and goes to {target}: {body} {record}")
        self._checks["dead"] += 1
        self._checks[f"dead {FailureCause(row.cause).name}"] += 1
        record.place, record.first = target, len(record.deliveries)

    def _places(self, db: MemoryDatabase, batch: Batch, now_ms: int) -> None:
        """An attempt that certainly failed, and no other end of its lease, takes the item from its place. It was the
        last one if the item was too old by then."""
        moved = {row[0] for row in batch.moved}
        for row in (*batch.ready_new, *[row for row in batch.timer_new if not row.lease]):
            record, body, timer = self._records[row.id], db.items[row.id], db.timer.get(row.id)
            if row.id in moved or not record.deliveries or (timer is not None and not timer.lease):
                continue
            before = timer.attempt if timer is not None else 1 + (db.ready[row.id].attempt if row.id in db.ready else 0)
            last = record.deliveries[-1].token
            ops = [op for op in record.ops if op.token == last and op.kind in (*NACKS, "release")]
            by_nack = {op.kind for op in ops} == {"fail"}
            by_time = not ops and timer is not None and timer.lease == last
            uncounted = bool(ops) and all(op.kind == "nack" and not op.counted for op in ops)
            if uncounted and now_ms < record.deliveries[-1].until_ms:
                self._checks["uncounted attempts"] += 1
                if row.attempt != before - 1:
                    broken(14, f"{row} counts an attempt that was not to be counted: {record}")
            if row.attempt != before or not (by_nack or by_time):
                continue
            self._checks["failed attempts"] += 1
            causes = {FailureCause.EXPIRED, FailureCause.FAILED} if by_nack else {FailureCause.EXPIRED}
            self._last_failure(batch, row, causes, record)
            if isinstance(row, ReadyRow) and row.deliver_after_ms <= body.deliver_after_ms:
                broken(14, f"{row} failed, and is not behind the items of its priority: {body} {record}")
            policies = self.policies_of(record)
            age_ms = min([op.sent_ms for op in ops], default=0) - db.since_ms(row.id)
            too_old = all(0 < policy.max_total_ms <= age_ms for policy in policies)
            if by_nack and too_old and not self.stepped:
                broken(14, f"{row} failed, and is {age_ms} ms old: {body} {record}")

    def _last_failures(self, db: MemoryDatabase, batch: Batch) -> None:
        """The database has the last committed failure of each item, through all changes of owners. A failed attempt
        ends by a nack or by time, and its item returns."""
        items = {
            row.id for row in (*batch.ready_new, *batch.timer_new) if not isinstance(row, TimerRow) or not row.lease
        }
        for item_id, at_ms, packed in batch.failed_new:
            failed, record = LastFailure.unpack(packed), self._records[item_id]
            # A lease is taken back if its reply is lost, and the lease before it counts again.
            valid = [d for d in record.deliveries if not d.void]
            last = {d.token for d in (*valid[-1:], *[d for d in valid if d.told][-1:])}
            nacked = any(op.token in last and op.kind == "fail" for op in record.ops)
            if item_id not in items or (failed.cause == FailureCause.FAILED) > nacked or not 0 < failed.at_ms <= at_ms:
                broken(14, f"{failed} of {item_id} is no failed attempt: {record}")
        mine = {item_id: (failed.attempt, failed.cause) for item_id, failed in db.last_failures.items()}
        known = {item_id: self.last_failures[item_id] for item_id in mine if item_id in self.last_failures}
        if mine != known:
            broken(14, f"the last failures are {mine}, not {known}")
        for item_id, _, packed in batch.failed_new:
            failed = LastFailure.unpack(packed)
            self.last_failures[item_id] = failed.attempt, failed.cause

    def _last_failure(self, batch: Batch, row: ReadyRow | TimerRow, causes: set[FailureCause], record: Record) -> None:
        """An attempt that certainly failed is written with the item. (A nack may have been refused.)"""
        written = [LastFailure.unpack(packed) for item_id, _, packed in batch.failed_new if item_id == row.id]
        if [one.attempt for one in written] != [row.attempt] or written[0].cause not in causes:
            broken(14, f"attempt {row.attempt} of {row.id} failed by {causes}, and {written} is stored: {record}")
        self._checks["last failures"] += 1

    def dying(self, op: Op, body: Body, now_ms: int) -> bool:
        """Whether a late nack finds the item about to go to another topic."""
        shard = shard_of(body.id)
        if body.id in self._dbs[shard].failures and op.kind in NACKS and self.redrives.may_move(shard, op.sent_ms):
            return True
        policies = self.policies_of(self._records[body.id])
        return op.kind in NACKS and any(self._may_die(policy, body, {op.token}, now_ms) for policy in policies)

    def removal(self, body: Body, current: set[int], now_ms: int) -> str:
        """Why an item without a dead-letter topic may be removed now."""
        record = self._records[body.id]
        policies = [policy for policy in self.policies_of(record) if policy.dead_topic is None]
        causes = {self._may_die(policy, body, current, now_ms) for policy in policies} - {None}
        if not causes or body.delivery == AT_MOST_ONCE:
            broken(3, f"item {body.id} is removed for no allowed cause: {body} {record}")
        return "rejected" if FailureCause.REJECTED in causes else "exhausted"

    def _may_die(self, policy: TopicPolicy, body: Body, current: set[int], now_ms: int) -> FailureCause | None:
        """Why the item's attempts may be over; the rows are as before. `current`: tokens of its last lease."""
        record, db = self._records[body.id], self._dbs[shard_of(body.id)]
        if any(op.token in current for op in record.open_ops("reject")):
            return FailureCause.REJECTED
        timer, ready = db.timer.get(body.id), db.ready.get(body.id)
        row = timer or ready
        attempt, lease = (row.attempt, row.lease) if row is not None else (0, 0)
        unwritten = len(record.deliveries) > record.first and record.deliveries[-1].token != lease
        age_ms = now_ms - db.since_ms(body.id)
        over = 0 < policy.max_attempts <= attempt + unwritten or 0 < policy.max_total_ms <= age_ms
        if over and any(op.token in current for op in record.open_ops("fail")):
            return FailureCause.FAILED
        if over and timer is not None and timer.lease:
            return FailureCause.EXPIRED if timer.due_ms <= now_ms else None
        return FailureCause.LIMIT if 0 < policy.max_attempts <= attempt else None
