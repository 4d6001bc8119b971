"""End events, checked from the outside: the rows of a transaction that ends items, and the events that it stores.

An event belongs to an end: the transaction that ends an item of a topic with `on_end_topic` stores one, and nothing
else does. A dead letter has ended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foqs.policies.failures import unpack_failure
from foqs.policies.topic_policy import TopicPolicy
from foqs.rows import AT_MOST_ONCE, Batch, Body, EndedState, FailureCause, FailureRow, LaneRow, NewItem
from tests.sim.memory_database import MemoryDatabase
from tests.sim.records import NACKS, Record, Spec, broken, is_event, lane_of, spec_number

PROMISE = 23
_HOW_OF_CAUSE = {
    "ack": "completed",
    "dead": "failed",
    "rejected": "failed",
    "exhausted": "failed",
    "ttl": "expired",
    "delete": "deleted",
    "cancelled": "cancelled",
    **dict.fromkeys(("dropped", *NACKS), "lease_ended"),  # at-most-once items end with any nack
}
_HOW_OF_STATE = {EndedState.COMPLETED: "completed", EndedState.FAILED: "failed"}
_FAILED = ("failed", "lease_ended", "expired")
"""Ends that may end an attempt, too."""


@dataclass
class _End:
    """What the transaction ends: an item of `topic`, which may have an event in one of `wanted`."""

    topic: tuple[str, str]
    wanted: set[str | None]
    events: list[NewItem] = field(default_factory=list)


class Events:
    """`policies_of` an item: all that were in effect where it is; `of_topics`: of a topic. `records` by item."""

    def __init__(
        self,
        records: dict[int, Record],
        specs: dict[int, Spec],
        policies_of: Callable[[Record], list[TopicPolicy]],
        of_topics: dict[tuple[str, str], list[TopicPolicy]],
        checks: Counter[str],
    ) -> None:
        self._records = records
        self._specs = specs
        self._policies_of = policies_of
        self._of_topics = of_topics
        self._checks = checks
        self._ends: dict[int, _End] = {}

    def storing(self, ends: list[int], batch: Batch, lanes: dict[int, LaneRow]) -> None:
        """A transaction is about to be applied, which removes or keeps the items `ends`. Nothing asked for its events,
        so each gets its spec here."""
        self._ends = {}
        for item_id in (*ends, *(row.id for row in batch.failure_new)):
            record = self._records[item_id]
            if not record.place[1].endswith(".dlq"):
                wanted = {policy.on_end_topic for policy in self._policies_of(record)}
                self._ends[item_id] = _End(record.place, wanted)
        for item in batch.inserts:
            if is_event(item):
                self._storing(item, lanes[item.lane])
        for item_id, end in self._ends.items():
            if len(end.events) > 1 or (not end.events and None not in end.wanted):
                broken(PROMISE, f"{item_id} of {end} ends with {len(end.events)} events: {self._records[item_id]}")

    def _storing(self, item: NewItem, lane: LaneRow) -> None:
        said = json.loads(item.payload)
        end, topic = self._ends.get(int(said["id"])), lane_of(lane)
        if end is None:
            broken(PROMISE, f"{said} is stored, and the transaction ends no such item")
        assert end is not None
        key = (lane.ns.decode(), lane.topic.decode())
        if key[0] != end.topic[0] or key[1] not in end.wanted or said["topic"] != end.topic[1]:
            broken(PROMISE, f"{said} is stored in {topic}, and is of {end}")
        spec = self._specs[spec_number(item)] = Spec(spec_number(item), key, poisoned=False)
        spec.tenant = self._records[int(said["id"])].spec.tenant
        end.events.append(item)
        entry = (item.priority, item.lease_ms, item.delivery, item.due_ms, item.expires_at_ms)
        from_ms = item.enqueued_at_ms
        if item.deliver_after_ms != (item.due_ms or from_ms) or not any(
            entry == (one.priority, one.lease_ms or 0, one.delivery, *_times(one, from_ms))
            for one in self._of_topics[key]
        ):
            broken(PROMISE, f"{item} has other values than the policy of {key}")

    def ended(self, db: MemoryDatabase, batch: Batch, causes: dict[int, str], now_ms: int) -> None:
        """A transaction ends items for these causes: what their events say."""
        kept = {row.id: _HOW_OF_STATE[EndedState(row.state)] for row in batch.ended_new}
        stored = dict(batch.results_new)
        dead = {row.id: row for row in batch.failure_new}
        for item_id, end in self._ends.items():
            if not end.events:
                continue
            said, event = json.loads(end.events[0].payload), end.events[0]
            record, how, cause = self._records[item_id], said["how"], causes.get(item_id, "dead")
            may = {_HOW_OF_CAUSE[cause]} | self._others(record, db.items[item_id], cause, now_ms)
            if item_id in kept or item_id in dead:
                may &= {kept.get(item_id, "failed")}
            if how not in may:
                broken(PROMISE, f"{said} is stored, and the end may be {may}, by {cause}: {record}")
            if not said["ended_at_ms"] == event.enqueued_at_ms <= now_ms:
                broken(PROMISE, f"{said} is stored at {now_ms}: {event}")
            self._result(said, record, stored.get(item_id) if kept.get(item_id) == "completed" else None)
            self._failure(said, record, cause, now_ms)
            _same_failure(said, dead.get(item_id), stored[item_id] if kept.get(item_id) == "failed" else None)
            self._checks[f"event {how}"] += 1
            self._checks["event with result"] += "result" in said
            self._checks["event of an event"] += record.spec.number < 0

    def _others(self, record: Record, body: Body, cause: str, now_ms: int) -> set[str]:
        """Several things may end an item at a time, and what the run has seen of them names one."""
        deletes, once = record.open_ops("delete"), body.delivery == AT_MOST_ONCE
        over = any(d.until_ms <= now_ms or d.void for d in record.deliveries[-1:])
        may = {
            "completed": bool(_acks(record)),
            "deleted": any(not op.digest for op in deletes),
            "cancelled": any(op.digest for op in deletes),
            "expired": 0 < body.expires_at_ms <= now_ms,
            "lease_ended": once and bool(record.deliveries),
            "failed": not once and (over or bool(record.open_ops(*NACKS))),
        }
        if cause == "delete" and not may["deleted"]:
            may["cancelled"] = True
        return {how for how, allowed in may.items() if allowed}

    def _result(self, said: dict[str, Any], record: Record, kept: bytes | None) -> None:
        """The result is that of the ack. A kept item has it, too."""
        result = said["result"].encode() if "result" in said else None
        allowed = _acks(record) if said["how"] == "completed" else {None}
        if result not in allowed or kept not in (None, result):
            broken(PROMISE, f"{said} is stored, kept is {kept!r}, and the results are {allowed}: {record}")

    def _failure(self, said: dict[str, Any], record: Record, cause: str, now_ms: int) -> None:
        """A failure says what its consumer said, or that its lease or its attempts are over."""
        failure, item_id = said.get("failure"), int(said["id"])
        if failure is None:
            last = record.deliveries[-1] if record.deliveries else None
            ended = {op.kind for op in record.open_ops(*NACKS, "release") if last and op.token == last.token}
            failed = cause == "fail" and ended == {"fail"} and last is not None and last.until_ms > now_ms
            if said["how"] == "failed" or (failed and said["how"] == "lease_ended"):
                broken(PROMISE, f"{said} does not say why: {record}")
            return
        reasons = {"expired": "", "limit": ""}
        if record.open_ops("fail"):
            reasons["failed"] = f"it broke {item_id}"
        if record.open_ops("reject"):
            reasons["rejected"] = "never"
        if said["how"] not in _FAILED or reasons.get(failure["cause"]) != failure["reason"] or failure["attempts"] < 1:
            broken(PROMISE, f"{said} is stored, and may have failed by {reasons}: {record}")
        self._checks["event with failure"] += 1


def _same_failure(said: dict[str, Any], dead: FailureRow | None, packed: bytes | None) -> None:
    """The row of a dead letter, or of a kept item, has the failure, too."""
    expected: dict[str, object] = {}
    if dead is not None:
        expected = {"cause": dead.cause, "reason": dead.reason, "worker": dead.worker, "attempts": dead.attempts}
    elif packed is not None:
        expected = dict(zip(("cause", "worker", "reason"), unpack_failure(packed), strict=True))
    told = dict(said.get("failure", {}))
    if "cause" in told:
        told["cause"] = FailureCause[told["cause"].upper()]
    for name, value in expected.items():
        if told.get(name) != (value.decode() if isinstance(value, bytes) else value):
            broken(PROMISE, f"{said} is stored, and the item failed by {expected}")


def _times(policy: TopicPolicy, from_ms: int) -> tuple[int, int]:
    """Return when an item of the topic is due and expires, 0 for none."""
    due_ms = from_ms + policy.delay_ms if policy.delay_ms else 0
    return due_ms, from_ms + policy.ttl_ms if policy.ttl_ms else 0


def _acks(record: Record) -> set[bytes | None]:
    """Return the results of acks that may have ended the item."""
    leases = {d.token for d in record.deliveries}
    return {op.result for op in record.open_ops("ack") if op.token in leases}
