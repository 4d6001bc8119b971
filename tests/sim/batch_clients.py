"""The callers of batches of items: they create, close and cancel them, and handlers add members before their ack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foqs.errors import FoqsError
from foqs.fairness.keys import TopicKey
from foqs.ids import shard_of
from foqs.item_batch import BatchInfo, BatchState, Callback, NewBatch
from foqs.rows import AT_LEAST_ONCE, NewItem, NewMember
from tests.sim.batches import BatchSpec
from tests.sim.memory_database import POISON
from tests.sim.records import Op, Spec, broken
from tests.sim.requests import TIMEOUTS_MS, Request

if TYPE_CHECKING:
    from tests.sim.clients import Clients
    from tests.sim.member import Member

_FEW = 12
_LONG_MS = 40_000


class BatchClients:
    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.sim, self.rng = clients.sim, clients.rng
        self.model = self.sim.ledger.batches
        self.model.refuses = self.sim.profile.poisoned > 0
        self.known: list[BatchSpec] = []  # that were answered with their ids
        self._plain = False  # no member is made

    def start(self) -> None:
        self._create_some()

    def _create_some(self) -> None:
        if self.sim.healing:
            return
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            self.create()
        self.sim.soon(self.rng.choice((20, 100, 400)), self._create_some)

    # ------------------------------------------------------------------------------------- batches

    def create(self) -> None:
        rng, sim, member = self.rng, self.sim, self.clients.any_member()
        if member.engine.state.draining:
            return
        now_ms = member.now_ms
        key = rng.choice(sim.profile.topics)
        parent = 0
        if self.known and rng.random() < 0.25:
            near = [one for one in self.known[-_FEW:] if one.ns == key[0] or rng.random() < 0.1]
            parent = rng.choice(near).id if near else 0
            if rng.random() < 0.05:
                parent = rng.choice((1 << 48 | 999_999, 99 << 48 | 1))
        expires_at_ms = now_ms + (rng.choice((300, 1_500)) if rng.random() < 0.2 else _LONG_MS)
        while expires_at_ms in self.model.asked:
            expires_at_ms += 1
        spec = self.model.asked[expires_at_ms] = BatchSpec(key[0], expires_at_ms, parent)
        on_success = on_end = None
        if rng.random() < 0.7:
            spec.success, on_success = self._callback(key, spec)
        if rng.random() < 0.7:
            spec.end, on_end = self._callback(rng.choice(self.clients.topics_with(key)), spec)
        timeout_ms = rng.choice(TIMEOUTS_MS)
        request = Request(self.clients, member, f"creation of {expires_at_ms}", timeout_ms)

        def reply(outcome: int | FoqsError) -> None:
            request.answered()
            sim.note("batch created", member.name, spec.expires_at_ms, outcome)
            self.model.created(spec, outcome)
            if isinstance(outcome, int):
                self.known.append(spec)
                self._later_turn(spec)

        sim.note("create batch", member.name, spec)
        new = NewBatch(key[0], on_success, on_end, expires_at_ms, parent)
        member.engine.create_batch(new, reply, now_ms, timeout_ms)

    def _callback(self, key: TopicKey, owner: BatchSpec) -> tuple[Spec, Callback]:
        rng = self.rng
        spec = self.clients.new_spec(key)
        spec.calls, spec.poisoned = owner.expires_at_ms, rng.random() < self.sim.profile.poisoned
        payload = (POISON if spec.poisoned else b"") + b"%d:callback" % spec.number
        delay_ms, ttl_ms = rng.choice((0, 0, 200)), 0
        made = Callback(
            key[1], payload, None, {"mine": "yes"}, 0, delay_ms, 500, ttl_ms, AT_LEAST_ONCE, "", (), "", 0
        )  # fmt: skip
        return spec, made

    def _later_turn(self, spec: BatchSpec) -> None:
        at = self.rng.random()
        after_ms = self.rng.choice((0, 50, 500, 2_000))
        if at < 0.7:
            self.sim.soon(after_ms, lambda: self.turn(spec, BatchState.CLOSED))
        if 0.6 < at < 0.85:
            self.sim.soon(after_ms, lambda: self.turn(spec, BatchState.CANCELLED))
        if 0.65 < at < 0.68:
            self.sim.soon(after_ms, lambda: self.turn(spec, BatchState.CLOSED))

    def turn(self, spec: BatchSpec, to: BatchState) -> None:
        batch, sim = spec.id, self.sim
        member, ns = self.clients.member_for(batch), spec.ns
        if self.rng.random() < 0.05 and not sim.healing:
            ns = "other" if ns == "ns" else "ns"
        elif to == BatchState.CLOSED:
            spec.closes = True
        else:
            spec.cancels = True
        timeout_ms = self.rng.choice(TIMEOUTS_MS)
        request = Request(self.clients, member, f"{to.name} of {batch}", timeout_ms)

        def reply(error: FoqsError | None) -> None:
            request.answered()
            sim.note("batch turned", member.name, batch, to.name, error)
            if ns == spec.ns:
                self.model.turned(batch, to, error)
            elif error is None:
                broken(22, f"{to.name} of {batch} by {ns} was answered OK")

        sim.note("turn batch", member.name, batch, to.name)
        turn = member.engine.close_batch if to == BatchState.CLOSED else member.engine.cancel_batch
        turn(ns, batch, reply, member.now_ms, timeout_ms)

    def find(self, spec: BatchSpec) -> None:
        member, timeout_ms = self.clients.member_for(spec.id), self.rng.choice(TIMEOUTS_MS)
        request = Request(self.clients, member, f"search of {spec.id}", timeout_ms)

        def reply(outcome: BatchInfo | FoqsError) -> None:
            request.answered()
            if isinstance(outcome, FoqsError):
                return
            one = self.model.stored[spec.id]
            if outcome.row.ns.decode() != spec.ns or (outcome.row.ended_at_ms > 0) > one.ended:
                broken(22, f"{outcome} is said of {one}")
            self.sim.counts["batch found"] += 1

        member.engine.find_batch(spec.ns, spec.id, reply, member.now_ms, timeout_ms)

    def operate(self) -> None:
        if self.known:
            self.find(self.rng.choice(self.known))

    def drain(self) -> None:
        """Each batch is closed, and ends."""
        live = [row for db in self.sim.dbs.values() for row in db.batches.rows.values() if not row.ended_at_ms]
        for row in live:
            if row.state == BatchState.OPEN and row.expires_at_ms > self.sim.now_ms + 1_000:  # else it expires
                spec = self.model.stored[row.id].spec
                self.turn(spec, self.rng.choice((BatchState.CLOSED, BatchState.CLOSED, BatchState.CANCELLED)))
        if not self.clients.stopped:
            self.sim.soon(500, self.drain)

    # ------------------------------------------------------------------------------------- members

    def member(self, spec: Spec, item: NewItem) -> NewItem:
        """Return a new item, often as a member of a batch."""
        rng = self.rng
        if self._plain or not self.known or rng.random() < 0.3:
            return item
        recent = self.known[-_FEW:]
        mine = [one for one in recent if one.ns == spec.key[0]]
        at = rng.random()
        if at < 0.06:
            batch = rng.choice(recent).id
        elif at < 0.08:
            batch = rng.choice((shard_of(recent[0].id) << 48 | 999_999, 99 << 48 | 1))
        elif mine:
            still = [one for one in mine if self.model.stored[one.id].state == BatchState.OPEN]
            batch = rng.choice(still if still and rng.random() < 0.85 else mine).id
        else:
            return item
        return self.as_member(spec, item, batch)

    def as_member(self, spec: Spec, item: NewItem, batch: int) -> NewItem:
        spec.batch = batch
        return NewMember.of(item, batch)

    def add_first(self, member: Member, asked: list[Op]) -> None:
        """Settle, but handlers of some members add further members before their ack."""
        rest = []
        for op in asked:
            record = self.sim.ledger.records.get(op.id)
            batch = self.model.members.get(op.id, 0)
            adds = self.rng.random() < (0.05 if self.sim.healing else 0.4)
            if op.kind == "ack" and batch and record is not None and adds:
                self._add(member, batch, record.spec.key, op)
            else:
                rest.append(op)
        if rest:
            self.clients.settle(member, rest)

    def _add(self, member: Member, batch: int, key: TopicKey, op: Op) -> None:
        host = self.clients.any_member()
        if host.engine.state.draining:
            return
        self.sim.counts["batch handlers"] += 1
        self._plain = True
        made = [self.clients.new_item(key, host.now_ms) for _ in range(self.rng.choice((1, 2)))]
        self._plain = False
        specs = [spec for spec, _ in made]
        items = [self.as_member(spec, item, batch) for spec, item in made]
        self.clients.send(host, specs, items, self.rng.choice(TIMEOUTS_MS), lambda: self._settle(member, op))

    def _settle(self, member: Member, op: Op) -> None:
        if member.alive:
            op.sent_ms = self.sim.now_ms
            self.clients.settle(member, [op])
