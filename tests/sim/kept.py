"""Kept items and callers that wait for ends, checked from the outside: replies and committed rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from foqs.engine.endings import EndCall, Ending, Living
from foqs.errors import Code, FoqsError
from foqs.ids import shard_of
from foqs.policies.topic_policy import KeepEntry, TopicPolicy
from foqs.rows import Batch, EndedRow, EndedState
from tests.sim.memory_database import MemoryDatabase
from tests.sim.records import Record, broken
from tests.sim.requests import TIMEOUTS_MS, Request

if TYPE_CHECKING:
    from tests.sim.clients import Clients

_FAILED = ("rejected", "exhausted")
_NACKS = ("fail", "reject")
_ENDS = {EndedState.COMPLETED: ("ack",), EndedState.FAILED: (*_FAILED, "ack")}
"""Causes by which a run may explain an end: a failure may be faster than an ack in progress, which is named then."""
PROMISE = 17


def result_of(token: int) -> bytes:
    """The result that the ack of a lease brings: no other ack brings it."""
    return b"result of %d" % token


class Kept:
    """`policies_of` an item: all that were in effect for it. `records` by item."""

    def __init__(
        self, records: dict[int, Record], policies_of: Callable[[Record], list[TopicPolicy]], checks: Counter[str]
    ) -> None:
        self._records = records
        self._policies_of = policies_of
        self._checks = checks

    def _keeps(self, record: Record) -> list[KeepEntry | None]:
        return [policy.keep for policy in self._policies_of(record)]

    def ends(self, db: MemoryDatabase, batch: Batch) -> list[int]:
        """Return the items that a transaction ends, kept ones included."""
        return [*(item_id for item_id in batch.item_gone if item_id not in db.ended), *(r.id for r in batch.ended_new)]

    def ended(self, db: MemoryDatabase, batch: Batch, causes: dict[int, str], now_ms: int) -> None:
        """A transaction ends items for these causes. Each is kept as its topic's policy says, unless a delete, its
        TTL, a failure or the end of its lease may have been faster."""
        rows = {row.id: row for row in batch.ended_new}
        results = dict(batch.results_new)
        for item_id, cause in causes.items():
            record, row = self._records[item_id], rows.get(item_id)
            keeps = self._keeps(record)
            may_fail = bool(record.open_ops(*_NACKS)) or any(d.until_ms <= now_ms for d in record.deliveries[-1:])
            if row is not None:
                if cause == "ack" and row.state == EndedState.FAILED and not may_fail:
                    broken(PROMISE, f"{row} ended by an ack")
                self._kept(record, row, cause, results.get(item_id), keeps)
                self._checks[f"kept {EndedState(row.state).name}"] += 1
            elif record.open_ops("delete") or db.items[item_id].expires_at_ms:
                pass
            elif record.open_ops("ack") and may_fail:
                pass  # the end of its lease may have been faster, or another of these
            elif cause == "ack" and all(keep is not None and keep.completed_ms for keep in keeps):
                broken(PROMISE, f"item {item_id} was acked and is not kept: {record}")
            elif cause in _FAILED and all(keep is not None and keep.failed_ms for keep in keeps):
                broken(PROMISE, f"item {item_id} failed and is not kept: {record}")

    def _kept(
        self, record: Record, row: EndedRow, cause: str, stored: bytes | None, keeps: list[KeepEntry | None]
    ) -> None:
        """A repeated ack may have been asked for while something else ended the item, or an ack while another request
        could end it."""
        state = EndedState(row.state)
        acked = state is EndedState.COMPLETED and record.open_ops("ack")
        if cause not in _ENDS[state] and cause not in ("delete", "ttl") and not acked:
            broken(PROMISE, f"{row} ended by {cause}")
        for_ms = row.until_ms - row.ended_at_ms
        times = {keep.completed_ms if state is EndedState.COMPLETED else keep.failed_ms for keep in keeps if keep}
        if for_ms not in times:
            broken(PROMISE, f"{row} is kept for {for_ms} ms, not for one of {times}")
        if state is EndedState.COMPLETED:
            brought = {op.result for op in record.ops if op.kind == "ack"}
            if stored not in brought | {None}:
                broken(PROMISE, f"{row} has the result {stored!r} of none of its acks")
            if stored is None and None not in brought and all(keep is not None and keep.results for keep in keeps):
                broken(PROMISE, f"{row} has no result, and its ack brought one: {record}")
        elif stored is None:
            broken(PROMISE, f"{row} does not say why it failed")

    def removed(self, db: MemoryDatabase, batch: Batch, now_ms: int) -> None:
        """A transaction removes kept items: their time is over, their topic has too many, or a caller deletes them."""
        if not batch.ended_gone:
            return
        numbers: Counter[tuple[str, str]] = Counter(self._records[item_id].place for item_id in db.ended)
        for item_id in batch.ended_gone:
            row, record = db.ended[item_id], self._records[item_id]
            self._checks["kept and removed"] += 1
            if row.until_ms <= now_ms or record.open_ops("delete"):
                continue
            most = min(keep.most for keep in self._keeps(record) if keep is not None)
            if numbers[record.place] <= most:
                broken(PROMISE, f"{row} is removed too early, of {numbers[record.place]}")
            older = [one for one in db.ended.values() if one < row and self._records[one.id].place == record.place]
            if any(one.id not in batch.ended_gone for one in older):
                self._checks["removed before older ones"] += 1
            self._checks["removed above most"] += 1

    # ------------------------------------------------------------------------------------- callers


def await_end(clients: Clients, item_id: int) -> None:
    """Ask how an item ends, often for longer than the request of its consumer takes."""
    sim, member, number = clients.sim, clients.member_for(item_id), shard_of(item_id)
    record = sim.ledger.records.get(item_id)
    wait_ms = clients.rng.choice([0, 10, 500, 3_000])
    request = Request(clients, member, f"result of {item_id}", wait_ms + max(TIMEOUTS_MS))
    live = record is not None and not record.removed and member.current(number)

    def reply(outcome: Ending | Living | FoqsError) -> None:
        request.answered()
        current = member.current(number)
        if isinstance(outcome, FoqsError):
            sim.counts[f"result {outcome.code.name}"] += 1
            if outcome.code is Code.NOT_FOUND and current and record is not None:
                _not_found(outcome)
            return
        assert record is not None
        if isinstance(outcome, Living):
            sim.counts["result of a living item"] += 1
            if current and record.removed:
                broken(PROMISE, f"item {item_id} was removed by {record.removed}, and is said to live")
            return
        sim.counts[f"result {outcome.state.name}"] += 1
        if outcome.state is EndedState.FAILED:
            return
        if record.removed not in ("ack", "delete"):
            broken(PROMISE, f"item {item_id} is said to be COMPLETED: {record}")
        if outcome.result is not None and outcome.result not in {op.result for op in record.ops}:
            broken(PROMISE, f"item {item_id} is said to have the result {outcome.result!r}: {record}")
        stored = sim.dbs[number].results.get(item_id)
        if current and stored is not None and outcome.result != stored:
            broken(PROMISE, f"item {item_id} has the result {stored!r}, and not {outcome.result!r}")

    def _not_found(error: FoqsError) -> None:
        ended = sim.dbs[number].ended.get(item_id)
        if ended is not None and ended.until_ms > sim.now_ms:
            broken(PROMISE, f"{ended} is said to be {error.message}")
        acked = record is not None and record.removed == "ack"
        if live and acked and wait_ms and member.alive and "without a result" not in error.message:
            broken(PROMISE, f"item {item_id} was acked while a caller waited, and this one gets: {error.message}")

    call = EndCall(item_id, reply, member.engine.look_at_end)
    sim.note("await", member.name, item_id, wait_ms)
    member.engine.await_end(call, member.now_ms, wait_ms)
