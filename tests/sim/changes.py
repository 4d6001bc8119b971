"""Changes of items that wait, and pauses of tenants: what an operator asks for, and what the commits say of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from foqs.errors import Code, FoqsError
from foqs.fairness.keys import fairness_of, topic_key
from foqs.ids import shard_of
from foqs.item import Item
from foqs.policies.layers import NamespacePolicies
from foqs.rows import Batch
from tests.sim.memory_database import MemoryDatabase
from tests.sim.records import Op, Record, broken

if TYPE_CHECKING:
    from tests.sim.clients import Clients

_SLACK_MS = 60_000
"""The host's clock may be set between the request and its commit."""


class Changes:
    def __init__(self, records: dict[int, Record], checks: Counter[str]) -> None:
        self._records = records
        self._checks = checks
        self._policies = NamespacePolicies({})

    def apply(self, entries: dict[str, str]) -> None:
        """All hosts know these settings from now on."""
        self._policies = NamespacePolicies(entries)

    def leased(self, item: Item) -> None:
        """A host chose the item for a consumer."""
        key = item.lane.key
        tenant, paused = fairness_of(key), self._policies.of(topic_key(key)[1]).paused_tenants
        if tenant in paused:
            broken(15, f"{item} of tenant {tenant!r} was leased, and {sorted(paused)} are paused")
        self._checks["leased in a pause"] += bool(paused)

    def committing(self, db: MemoryDatabase, batch: Batch, now_ms: int) -> None:
        """The rows are as before."""
        new = {row.id: row for row in (*batch.ready_new, *batch.timer_new)}
        for item_id, priority, at_ms, _ in batch.placed:
            record, body = self._records[item_id], db.items[item_id]
            timer, ready = db.timer.get(item_id), db.ready.get(item_id)
            if timer is not None and timer.lease:
                broken(4, f"item {item_id} is changed under the lease {timer.lease}: {record}")
            if any(record.live(d, now_ms) for d in record.deliveries):
                broken(4, f"item {item_id} is changed under a live lease: {record}")
            attempt = timer.attempt if timer is not None else 0 if ready is None else ready.attempt
            if new[item_id].attempt != attempt:
                broken(14, f"item {item_id} is changed, and its attempts are {new[item_id].attempt}, not {attempt}")
            late = item_id in {row.id for row in batch.timer_new}
            if late and at_ms > body.deliver_after_ms and 0 < body.expires_at_ms <= at_ms:
                broken(3, f"item {item_id} waits until {at_ms}, past its TTL {body.expires_at_ms}")
            asked = [op for op in record.open_ops("change") if op.state != "refused"]
            if not any(self._fits(op, priority, at_ms, body.priority, body.deliver_after_ms, now_ms) for op in asked):
                broken(5, f"item {item_id} gets {priority} and {at_ms}, and was {body}: {asked}")
            self._checks["placed"] += 1
            self._checks["placed ready" if not late else "placed delayed"] += 1

    def _fits(self, op: Op, priority: int, at_ms: int, before: int, before_ms: int, now_ms: int) -> bool:
        if priority != (before if op.priority is None else op.priority):
            return False
        if op.at_ms is None:
            return at_ms == before_ms
        return at_ms in (op.at_ms, before_ms) or (op.at_ms <= now_ms + _SLACK_MS and at_ms <= now_ms + _SLACK_MS)

    def answered(self, op: Op, error: FoqsError | None, record: Record, db: MemoryDatabase, *, current: bool) -> None:
        body = db.items.get(op.id)
        if error is not None:
            if error.code is Code.CONFLICT and not record.deliveries:
                broken(7, f"{op} was refused ({error}), and no consumer ever had the item")
            endless = body is not None and not body.expires_at_ms and not record.first
            if error.code is Code.INVALID and (op.at_ms is None or endless):
                broken(9, f"{op} was refused ({error})")
            return
        alone = all(other is op or other.kind not in ("change", "replace") for other in record.ops)
        if alone and current and body is not None and op.priority not in (None, body.priority):
            broken(5, f"{op} was answered OK, and the item is {body}")
        self._checks["changed"] += 1


def change_some(clients: Clients) -> None:
    """Change a few items of one owner, whatever becomes of them."""
    rng, sim = clients.rng, clients.sim
    ids = [item_id for db in sim.dbs.values() for item_id in db.items]
    if not ids:
        return
    first = rng.choice(ids)
    chosen = [first, *[one for one in rng.sample(ids, min(3, len(ids))) if shard_of(one) == shard_of(first)]]
    now_ms = sim.now_ms
    asked = []
    for item_id in dict.fromkeys(chosen):
        op = Op("change", item_id, 0, now_ms)
        op.priority = rng.choice([None, -3, 0, 0, 4])
        op.at_ms = rng.choice([None, 0, 0, now_ms + 10, now_ms + 700, now_ms + 3_000])
        if op.priority is None and op.at_ms is None:
            op.priority = 1
        asked.append(op)
    clients.settle(clients.member_for(first), asked)
