"""Batches of items, checked from the outside: the members by their committed rows, the ends, and the callbacks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from foqs.buffers.checkpoint import NEVER_MS
from foqs.engine.shard import Shard
from foqs.ids import shard_of
from foqs.item_batch import MOST_FAILED_IDS, BatchRow, BatchState, Counts, Ends, HowEnded
from foqs.rows import AT_MOST_ONCE, Batch
from tests.sim.memory_database import MemoryDatabase
from tests.sim.records import NACKS, MemoryWrong, Record, Spec, broken, spec_number

if TYPE_CHECKING:
    from tests.sim.ledger import Ledger

PROMISE = 22
_LATE_MS = 8_000
"""Without failures, a batch ends within this after its time."""
_ENDED = (BatchState.SUCCEEDED, BatchState.ENDED, BatchState.EXPIRED)
_HOW_OF_STATE = {
    BatchState.SUCCEEDED: HowEnded.COMPLETED,
    BatchState.ENDED: HowEnded.FAILED,
    BatchState.EXPIRED: HowEnded.EXPIRED,
    BatchState.CANCELLED: HowEnded.CANCELLED,
}
_HOW_OF_CAUSE = {
    "ack": HowEnded.COMPLETED,
    "delete": HowEnded.DELETED,
    "ttl": HowEnded.EXPIRED,
    "cancelled": HowEnded.CANCELLED,
    "dropped": HowEnded.LEASE_ENDED,
}


@dataclass(eq=False)
class BatchSpec:
    """One batch that a caller asks for; no other one expires at that time. `success`, `end`: of its callbacks."""

    ns: str
    expires_at_ms: int
    parent: int = 0
    success: Spec | None = None
    end: Spec | None = None
    state: str = "sent"
    id: int = 0
    closes: bool = False  # it was asked for
    cancels: bool = False


@dataclass(eq=False)
class Stored:
    """A batch that is stored. `live`: members that have not ended. `dead`: those that have failed."""

    spec: BatchSpec
    row: BatchRow
    state: int = BatchState.OPEN
    since_ms: int = 0  # of its state
    cancelled: bool = False  # before its end
    ended: bool = False
    live: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    counts: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0] * len(Counts._fields)))
    """By shard, as `Counts`."""

    def add(self, member: int, how: int, count: int = 1) -> None:
        """Count a member, unless its shard has forgotten the batch."""
        if (counts := self.counts.get(shard_of(member))) is not None:
            counts[how] += count

    def total(self) -> Counts:
        made = Counts()
        for counts in self.counts.values():
            made = made.plus(Counts(*counts))
        return made


class ItemBatches:
    """`swept`: the members that the transaction takes from a cancelled batch."""

    def __init__(
        self, records: dict[int, Record], specs: dict[int, Spec], dbs: dict[int, MemoryDatabase], checks: Counter[str],
        ledger: Ledger,
    ) -> None:  # fmt: skip
        self._records = records
        self._specs = specs
        self._dbs = dbs
        self._checks = checks
        self._ledger = ledger
        self.asked: dict[int, BatchSpec] = {}  # by the times at which they expire
        self.stored: dict[int, Stored] = {}
        self.members: dict[int, int] = {}  # the batch of each member that is counted
        self.swept: set[int] = set()
        self._late_ms: dict[int, int] = {}  # since when a batch should have ended
        self.refuses = False  # the database refuses some callbacks: such a batch ends without any

    # ------------------------------------------------------------------------------------- answers

    def created(self, spec: BatchSpec, outcome: object) -> None:
        if isinstance(outcome, int):
            if spec.id != outcome or spec.state == "refused":
                broken(PROMISE, f"a batch was answered with {outcome}, and is stored as {spec.id}: {spec}")
            spec.state = "stored"
            self._checks["batch created"] += 1
            return
        code = outcome.code.name
        spec.state = "unknown" if code == "OUTCOME_UNKNOWN" else "refused"
        self._checks[f"batch {code}"] += 1
        if spec.id and spec.state == "refused":
            broken(PROMISE, f"{spec} was refused: {outcome}")
        if code == "INVALID" and not (spec.parent and self.refuses_members(spec.parent, spec.ns)):
            broken(PROMISE, f"{spec} was refused: {outcome}")

    def may_refuse(self, spec: Spec) -> bool:
        """Return True if an item may get INVALID for its batch."""
        self._checks["batch INVALID"] += spec.batch > 0
        return spec.batch > 0 and self.refuses_members(spec.batch, spec.key[0])

    def refuses_members(self, batch: int, ns: str) -> bool:
        """Return True if a batch takes no members of a namespace."""
        one = self.stored.get(batch)
        return one is None or one.spec.ns != ns or one.ended or one.state == BatchState.CANCELLED

    def turned(self, batch: int, to: int, error: object) -> None:
        """A close or a cancel was answered."""
        one = self.stored.get(batch)
        if one is None or error is not None:
            return
        self._checks[f"batch {BatchState(to).name}"] += 1
        turned = one.state in (to, BatchState.CANCELLED)
        if not one.ended and not turned:
            broken(PROMISE, f"batch {batch} was asked for {to}, and is {one}")

    # ------------------------------------------------------------------------------------- commits

    def storing(self, shard: int, batch: Batch, now_ms: int) -> None:
        """Note the rows of a transaction before they are applied."""
        self.swept = set()
        rows = batch.members
        for row in rows.created if rows is not None else ():
            spec = self.asked[row.expires_at_ms]
            if spec.id or spec.state == "refused" or row.ns.decode() != spec.ns or row.parent != spec.parent:
                broken(PROMISE, f"{row} is stored for {spec}")
            spec.id = row.id
            self.stored[row.id] = Stored(spec, row, since_ms=now_ms)
            if row.parent:
                self._add(row.id, row.parent, spec.ns)
        ends = rows.ends if rows is not None else []
        callbacks = {one for end in ends for one in (end.success_id, end.end_id)}
        for item in batch.inserts:
            spec = self._specs[spec_number(item)]
            if item.batch != spec.batch:
                broken(PROMISE, f"{item.id} is stored as a member of {item.batch}: {spec}")
            if item.batch:
                self._add(item.id, item.batch, spec.key[0])
            if spec.calls is not None and item.id not in callbacks:
                broken(PROMISE, f"callback {item.id} of {spec.calls} is stored, and the batch does not end: {ends}")
        for item_id in rows.ended.get(HowEnded.CANCELLED, ()) if rows is not None else ():
            one = self._of(item_id)
            if one is None or item_id in self.stored:
                continue
            if not one.cancelled:
                broken(PROMISE, f"{item_id} is removed, and its batch was not cancelled: {one}")
            if any(self._records[item_id].live(d, now_ms) for d in self._records[item_id].deliveries):
                broken(PROMISE, f"a consumer has {item_id}, which is removed with its batch")
            self.swept.add(item_id)
            self._checks["batch swept"] += 1

    def _of(self, item_id: int) -> Stored | None:
        batch = self.members.get(item_id)
        return None if batch is None else self.stored[batch]

    def _add(self, member: int, batch: int, ns: str) -> None:
        one = self.stored.get(batch)
        if one is None or one.spec.ns != ns:
            broken(PROMISE, f"{member} of {ns} is a member of {batch}: {one}")
        if one.ended and one.state != BatchState.EXPIRED:
            broken(PROMISE, f"{member} is stored, and its batch has ended: {one}")
        self.members[member] = batch
        one.live.add(member)
        one.counts[shard_of(member)][0] += 1
        self._checks["batch members"] += 1

    def ending(self, shard: int, batch: Batch, causes: dict[int, str], now_ms: int) -> None:
        """What the transaction ends. `causes`: of items."""
        db, rows = self._dbs[shard], batch.members
        ended = {item_id: how for how, ids in rows.ended.items() for item_id in ids} if rows is not None else {}
        if rows is not None:
            for end in rows.ends:
                self._ends(end, batch, now_ms)
        failed = {row.id for row in batch.failure_new}
        for item_id, *_ in batch.moved:
            one = self._of(item_id)
            if one is not None and item_id in db.failures and item_id not in failed:
                one.dead.discard(item_id)
                one.live.add(item_id)
                one.add(item_id, HowEnded.FAILED, -1)
                self._checks["batch redriven"] += 1
            elif one is not None and item_id in failed:
                self._fail(one, item_id)
        for item_id, cause in causes.items():
            one = self._of(item_id)
            if one is None or item_id in one.dead:
                continue
            how = ended.get(item_id)
            self._explained(item_id, how, cause, now_ms)
            if how is None:
                self._fail(one, item_id)
            else:
                self._end(one, item_id, how)
        if rows is not None:
            self._home(rows, now_ms)

    def _fail(self, one: Stored, member: int) -> None:
        one.live.remove(member)
        one.dead.add(member)
        one.add(member, HowEnded.FAILED)
        self._checks["batch FAILED"] += 1

    def _end(self, one: Stored, member: int, how: int) -> None:
        one.live.remove(member)
        one.add(member, how)
        del self.members[member]
        self._checks[f"batch {HowEnded(how).name}"] += 1

    def _explained(self, item_id: int, how: int | None, cause: str, now_ms: int) -> None:
        """Several things may end a member at a time, and what the run has seen of them names one."""
        record, body = self._records[item_id], self._dbs[shard_of(item_id)].items[item_id]
        if how == _HOW_OF_CAUSE.get(cause):
            return
        may = {
            HowEnded.COMPLETED: bool(record.open_ops("ack")),
            HowEnded.DELETED: bool(record.open_ops("delete")),
            HowEnded.EXPIRED: bool(body.expires_at_ms),
            HowEnded.CANCELLED: item_id in self.swept,
            HowEnded.LEASE_ENDED: body.delivery == AT_MOST_ONCE,
            None: bool(record.open_ops(*NACKS)) or any(d.until_ms <= now_ms for d in record.deliveries[-1:]),
        }
        if not may.get(how, False):  # type: ignore[call-overload]
            broken(PROMISE, f"member {item_id} counts as {how}, and ended by {cause}: {record}")

    def _ends(self, end: Ends, batch: Batch, now_ms: int) -> None:
        one = self.stored[end.batch]
        spec = one.spec
        if one.ended:
            if end.success_id or end.end_id:
                broken(PROMISE, f"{end}, and the batch has ended: {one}")
            return
        one.ended = True
        total = one.total()
        inserts = {item.id: item for item in batch.inserts}
        if end.state == BatchState.EXPIRED:
            if one.row.expires_at_ms > now_ms:
                broken(PROMISE, f"{end} is too early: {one}")
        else:
            late = {item_id for item_id in one.live if not self._untold(item_id, end.batch)}
            if late:
                broken(PROMISE, f"{end}, and {late} have not ended: {one}")
            if end.state != BatchState.CANCELLED and one.state != BatchState.CLOSED:
                broken(PROMISE, f"{end} was not closed: {one}")
            if (end.state == BatchState.CANCELLED) is not (one.state == BatchState.CANCELLED):
                broken(PROMISE, f"{end} is the end of {one}")
            acked = total.completed == total.members
            if not one.live and end.state != BatchState.CANCELLED and acked is not (end.state == BatchState.SUCCEEDED):
                broken(PROMISE, f"{end} is the end of {one}, {total}")
        success = spec.success if end.state == BatchState.SUCCEEDED else None
        for wanted, item_id in ((success, end.success_id), (spec.end, end.end_id)):
            if wanted is None and item_id:
                broken(PROMISE, f"{end} has a callback too many: {one}")
            elif wanted is not None and not item_id and not self.refuses:
                broken(PROMISE, f"{end} lacks a callback: {one}")
            elif wanted is not None and item_id:
                if not inserts[item_id].payload.startswith(b"%d:" % wanted.number):
                    broken(PROMISE, f"{end} calls {inserts[item_id].payload!r}, not {wanted}")
                self._checks["batch callbacks"] += 1
        if spec.end is not None and end.end_id and end.state != BatchState.EXPIRED and not one.live:
            self._check_headers(end, inserts[end.end_id].headers, total, one)
        one.state, one.since_ms = end.state, now_ms
        self._checks[f"batch ended {BatchState(end.state).name}"] += 1
        parent = self._of(end.batch)
        if parent is not None:
            how = _HOW_OF_STATE[BatchState(end.state)]
            if how == HowEnded.FAILED:
                self._fail(parent, end.batch)
            else:
                self._end(parent, end.batch, how)
            self._checks["batch in a batch"] += 1

    def _untold(self, item_id: int, batch: int) -> bool:
        """Return True for a dead letter that has returned and whose home may not know it."""
        return self._records[item_id].first > 0 and self._unsent(item_id, batch) if item_id in self._records else False

    def _unsent(self, item_id: int, batch: int) -> bool:
        count = self._dbs[shard_of(item_id)].batches.counts.get(batch)
        return count is not None and count.unsent

    def _check_headers(self, end: Ends, packed: bytes | None, total: Counts, one: Stored) -> None:
        headers = json.loads(packed or b"{}")
        said = Counts(**json.loads(headers["foqs-batch-counts"]))
        failed = [int(number) for number in headers["foqs-batch-failed"].split(",") if number]
        if headers["foqs-batch"] != str(end.batch) or headers["foqs-batch-state"] != BatchState(end.state).name:
            broken(PROMISE, f"{end} is called with {headers}")
        if any(self._unsent(item_id, end.batch) for item_id in one.dead):
            return  # some may have been redriven, and failed again
        if said != total or failed != sorted(one.dead)[:MOST_FAILED_IDS]:
            broken(PROMISE, f"{end} is called with {headers}, and is {one} {total}")
        self._checks["batch headers"] += 1

    def _home(self, rows: object, now_ms: int) -> None:
        for batch, state in rows.states:  # type: ignore[attr-defined]
            one = self.stored[batch]
            if one.ended:
                continue
            if not (one.spec.cancels if state == BatchState.CANCELLED else one.spec.closes) and not one.spec.parent:
                broken(PROMISE, f"{batch} is {BatchState(state).name}, and no caller asked for it: {one}")
            if one.state == BatchState.CANCELLED and state != BatchState.CANCELLED:
                broken(PROMISE, f"{batch} was cancelled, and is {state} then: {one}")
            if one.state != state:
                one.state, one.since_ms = state, now_ms
                one.cancelled = state == BatchState.CANCELLED
        for batch in rows.removed:  # type: ignore[attr-defined]
            one = self.stored[batch]
            if not one.ended:
                broken(PROMISE, f"{batch} is removed, and has not ended: {one}")
            left = [db for db in self._dbs.values() if db.batches.knows(batch)]
            if left and one.state != BatchState.EXPIRED:
                broken(PROMISE, f"{batch} is removed, and {len(left)} shards know it: {one}")
            self._checks["batch removed"] += 1
        gone = set(rows.left)  # type: ignore[attr-defined]
        for member in gone:
            owner = self._of(member)
            if owner is not None:
                if not owner.ended:
                    broken(PROMISE, f"{member} is forgotten, and its batch has not ended: {owner}")
                owner.live.discard(member)
                owner.dead.discard(member)
                del self.members[member]

    # ------------------------------------------------------------------------------------- rows

    def forgot(self, shard: int, batches: list[int]) -> None:
        """A transaction with these `forgotten` batches was applied."""
        for batch in batches:
            one = self.stored.get(batch)
            if one is None:
                continue
            if not one.ended:
                broken(PROMISE, f"shard {shard} forgets {batch}, which has not ended: {one}")
            one.counts.pop(shard, None)

    def audit(self, now_ms: int) -> None:
        """The rows of all shards are those that the ends of members imply, and batches end in time."""
        wanted: dict[int, dict[int, Counts]] = {shard: {} for shard in self._dbs}
        for batch, one in self.stored.items():
            for shard, counts in one.counts.items():
                if any(counts):
                    wanted[shard][batch] = Counts(*counts)
        for shard, db in self._dbs.items():
            found = {batch: count.counts for batch, count in db.batches.counts.items()}
            if found != wanted[shard]:
                raise MemoryWrong(f"shard {shard} counts {found}, not {wanted[shard]}")
            rows = {item_id: (row.batch, row.dead) for item_id, row in db.batches.members.items()}
            mine = {
                item_id: (batch, item_id in self.stored[batch].dead)
                for item_id, batch in self.members.items()
                if shard_of(item_id) == shard
            }
            if rows != mine:
                raise MemoryWrong(f"shard {shard} has the members {rows}, not {mine}")
        quiet_ms = self._ledger.quiet_ms
        if not quiet_ms or self._ledger.attempts.stepped:
            return
        late_ms = self._late_ms
        for one in self.stored.values():
            if one.ended:
                continue
            closed = one.state in (BatchState.CLOSED, BatchState.CANCELLED)
            over_ms = min(one.row.expires_at_ms, one.since_ms if closed and not one.live else NEVER_MS)
            if now_ms - max(quiet_ms, over_ms) > _LATE_MS:
                late_ms.setdefault(one.row.id, now_ms)
                if now_ms - late_ms[one.row.id] > _LATE_MS:
                    broken(PROMISE, f"{one} should have ended {now_ms - over_ms} ms ago")
            else:
                late_ms.pop(one.row.id, None)
            swept = one.state == BatchState.CANCELLED and now_ms - max(quiet_ms, one.since_ms) > _LATE_MS
            idle = [
                item_id for item_id in one.live if item_id in self._records and not self._records[item_id].deliveries
            ]
            if swept and idle:
                broken(PROMISE, f"{one} was cancelled, and {idle} are there")

    def audit_joins(self, shard: Shard, reports: Counter[int]) -> None:
        """The home of each new member that waits is asked. `reports` have no outcome, by batch."""
        members = shard.queue.members
        if shard.queue.in_flight is not None or members.again_ms != NEVER_MS:
            return
        for join in members.joins:
            asked = [batch for batch in join.waits if batch in members.wanted or reports[batch]]
            if len(asked) < len(join.waits):
                raise MemoryWrong(f"{join.what} of {join.ns} waits for {join.waits}, and only {asked} are asked")

    def check_left(self) -> None:
        for batch, one in self.stored.items():
            if not one.ended:
                broken(PROMISE, f"{batch} has not ended: {one}")
            success = one.spec.success if one.state == BatchState.SUCCEEDED else None
            called = [spec for spec in (success, one.spec.end) if spec is not None]
            for wanted in called:
                if not wanted.id and not any(spec.poisoned for spec in called):
                    broken(PROMISE, f"{wanted} of {one} was not called")
