"""The promises, checked against what clients and databases see of a run.

1 nothing is lost, or stored twice · 2 an acked item stays acked · 3 an item is removed for a cause only · 4 an item has
one lease at a time, and is not changed during a lease · 5 a ready item reaches a consumer that waits at any host, and
a change gives an item the priority and the time that it names · 6 a key is stored once, and remembered
by the only shard that has its slot · 7 a quota and a bound on stored items are never exceeded · 8 every request is
answered once, in time, after at most one hop · 11 a throttle key is in no more leases than its rate allows (see
`throttles`) · 15 a host leases and delivers nothing of a topic that is paused by the settings that it applied, nor of a
paused tenant · 21 the items of an order key are delivered in the order of their requests, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foqs.errors import Code, FoqsError
from foqs.ids import HASH_SLOTS, shard_of
from foqs.item import Item
from foqs.rows import AT_MOST_ONCE, Batch
from foqs.shardmgr.facts import Slots
from foqs.shardmgr.routing import has
from tests.kernel.run import Run, Stuck
from tests.sim.memory_database import MemoryDatabase
from tests.sim.records import broken, spec_number
from tests.sim_peers.profile import BOUNDED, FREE, Profile


@dataclass(eq=False)
class Spec:
    """An item that a client enqueues: once, unless it has a key. `open`: requests that may still store it."""

    number: int
    ns: str
    topic: str
    key: str | None = None
    throttles: tuple[str, ...] = ()
    tenant: str | None = None
    order: str | None = None
    request: int = 0  # of items with order keys
    open: int = 0
    ids: set[int] = field(default_factory=set)
    refused: bool = False

    @property
    def payload(self) -> bytes:
        return f"{self.number}:".encode()


@dataclass(eq=False)
class Lease:
    """`delivered`: a client has it. `ended`: a client asked to end it."""

    token: int
    until_ms: int
    delivered: bool = False
    ended: bool = False
    released: bool = False


@dataclass(eq=False)
class Wanted:
    """A change of an item that a client asks for; None: it stays. `until_ms`: the latest time that the delay can mean.
    `done`: the client was answered OK."""

    priority: int | None
    delay_ms: int | None
    from_ms: int
    until_ms: int

    def fits(self, priority: int, at_ms: int, before: Any) -> bool:
        if priority != (before.priority if self.priority is None else self.priority):
            return False
        if self.delay_ms is None or at_ms == before.deliver_after_ms:
            return at_ms == before.deliver_after_ms
        return self.delay_ms == 0 or self.from_ms <= at_ms - self.delay_ms <= self.until_ms


@dataclass(eq=False)
class Spent:
    """Tokens that an admission spent, and that stored an item or may have."""

    at_ms: int
    tokens: int


class Checks:
    def __init__(self, sim: Run, profile: Profile, dbs: dict[int, MemoryDatabase]) -> None:
        self.specs: dict[int, Spec] = {}
        self.counts = sim.counts
        self._sim = sim
        self._profile = profile
        self._dbs = dbs
        self._spec_of: dict[int, Spec] = {}  # by item id
        self._leases: dict[int, Lease] = {}  # by item id: the latest
        self._removable: set[int] = set()  # a client asked to ack or delete them
        self._acked: set[int] = set()
        self._wanted: dict[int, list[Wanted]] = {}  # by item id
        self._spent: list[Spent] = []
        self._in_order: dict[str | None, list[Spec]] = {}  # by order key, the stored specs without a delay
        for number, db in dbs.items():
            db.observers.append(lambda epoch, batch, number=number: self._committing(number, batch))

    def new_spec(self, ns: str, topic: str, key: str | None = None, throttles: tuple[str, ...] = ()) -> Spec:
        tenants, number = self._profile.tenants, len(self.specs) + 1
        tenant = self._sim.rng.choice([None, *tenants]) if tenants else None
        spec = self.specs[number] = Spec(number, ns, topic, key, throttles, tenant)
        return spec

    def spec_of(self, item_id: int) -> Spec:
        return self._spec_of[item_id]

    # ------------------------------------------------------------------------------------- databases

    def _committing(self, number: int, batch: Batch) -> None:
        for item in batch.inserts:
            spec = self.specs[spec_number(item)]
            if spec.ids:
                broken(6 if spec.key else 1, f"spec {spec.number} is stored as {item.id} and as {spec.ids}")
            if spec.refused or not spec.open:
                broken(1, f"spec {spec.number} is stored as {item.id}, and its request was refused")
            spec.ids.add(item.id)
            self._spec_of[item.id] = spec
            self.counts["stored"] += 1
            if spec.order:
                self._check_order(spec, item)
        if self._profile.max_stored:
            self._check_bound(batch)
        for item_id, priority, at_ms, _ in batch.placed:
            self._check_change(item_id, priority, at_ms, self._dbs[number].items[item_id])
        for item_id in batch.item_gone:
            if item_id not in self._removable and self._dbs[number].items[item_id].delivery != AT_MOST_ONCE:
                broken(3, f"item {item_id} is removed, and no client asked for it")

    def _check_order(self, spec: Spec, item: Any) -> None:
        """Before the item is stored. All items of a key are in one shard, in the order of their request."""
        before = [other for other in self._in_order.get(spec.order, ()) if other.topic == spec.topic]
        for other in before:
            other_id = min(other.ids)
            if other.request == spec.request and (other_id < item.id) is not (other.number < spec.number):
                broken(21, f"{spec} is stored as {item.id}, and {other}")
            if shard_of(other_id) != shard_of(item.id) and other_id in self._dbs[shard_of(other_id)].items:
                broken(21, f"{spec} is stored as {item.id}, and {other} is on another shard")
        if not item.due_ms:
            self._in_order.setdefault(spec.order, []).append(spec)
        self.counts["ordered"] += 1

    def _check_change(self, item_id: int, priority: int, at_ms: int, before: Any) -> None:
        lease = self._leases.get(item_id)
        if lease is not None and lease.delivered and not lease.ended and lease.until_ms > self._sim.now_ms:
            broken(4, f"item {item_id} is changed while {lease} holds")
        wanted = self._wanted.get(item_id, [])
        if not any(one.fits(priority, at_ms, before) for one in wanted):
            broken(5, f"item {item_id} gets {priority} and {at_ms}, and was {before}: {wanted}")
        self.counts["placed"] += 1

    def _check_bound(self, batch: Batch) -> None:
        """Before the batch is applied."""
        there = {item_id for db in self._dbs.values() for item_id in db.items}
        specs = [self._spec_of[item_id] for item_id in there | {item.id for item in batch.inserts}]
        count = sum((spec.ns, spec.topic) == (FREE, BOUNDED) for spec in specs)
        if batch.inserts and count > self._profile.max_stored:
            broken(7, f"{count} items of {BOUNDED} are stored, and its bound is {self._profile.max_stored}")
        self.counts["at the bound"] += count == self._profile.max_stored

    def owner_changed(self, number: int) -> None:
        """Void leases that the last owner has not written. An extension in flight may still shorten the rest."""
        timer = self._dbs[number].timer
        for item_id in [item_id for item_id in self._leases if shard_of(item_id) == number]:
            lease, row = self._leases[item_id], timer.get(item_id)
            if row is not None and row.lease == lease.token:
                lease.until_ms = min(lease.until_ms, row.due_ms)
            else:
                lease.until_ms = 0

    # ------------------------------------------------------------------------------------- leases

    def leased(self, item: Item, number: int, now_ms: int) -> None:
        """The owner of the shard leases the item to a consumer."""
        if item.id not in self._dbs[number].items:
            broken(2, f"item {item.id} is leased and is not stored any more")
        if (spec := self._spec_of[item.id]).order:
            self._check_turn(item, spec, self._dbs[number], now_ms)
        last = self._leases.get(item.id)
        if last is not None and last.delivered:
            if not last.ended and last.until_ms > now_ms:
                broken(4, f"item {item.id} is leased while {last} holds")
            if item.at_most_once and not last.released:
                broken(4, f"at-most-once item {item.id} is leased again after {last}")
        self._leases[item.id] = Lease(item.lease, item.lease_expires_at_ms)

    def _check_turn(self, item: Item, spec: Spec, db: MemoryDatabase, now_ms: int) -> None:
        row = db.ordered.get(item.id)
        first = None if row is None else db.in_order(row.digest, 0, 1, of_one=True)[0]
        if first is None or first.id != item.id:
            broken(21, f"{item} is leased, and {first} is the first of its key")
        for other in self._in_order.get(spec.order, ()):
            other_id = min(other.ids)
            if other is spec or other.topic != spec.topic or other_id in self._removable:
                continue  # a delete may have been asked for before its lease
            lease = self._leases.get(other_id)
            if lease is not None and lease.delivered and not lease.ended and lease.until_ms > now_ms:
                broken(21, f"{item} is leased, and a client has {other}")
        self.counts["turns"] += 1

    def delivered(self, item: Any) -> None:
        """A client received the item."""
        spec = self._spec_of.get(item.id)
        if spec is None or (spec.ns, spec.topic, spec.payload) != (item.ns, item.topic, item.payload):
            broken(1, f"item {item.id} is delivered as {item.ns} {item.topic} {item.payload!r}, and is {spec}")
        lease = self._leases.get(item.id)
        if lease is not None and lease.token == item.lease:
            lease.delivered = True
        self.counts["delivered"] += 1

    def asked(self, kind: str, item_id: int, token: int, lease_ms: int = 0) -> None:
        """A client is about to ack, nack, release, extend or delete the item."""
        lease = self._leases.get(item_id)
        if kind in ("ack", "delete"):
            self._removable.add(item_id)
        if kind == "delete" and lease is not None:
            lease.ended = True
        if lease is None or lease.token != token:
            return
        if kind == "extend":
            lease.until_ms = min(lease.until_ms, self._sim.now_ms + lease_ms)
        else:
            lease.ended = True
            lease.released = lease.released or kind == "release"

    def asked_change(self, item_id: int, priority: int | None, delay_ms: int | None, most_ms: int) -> Wanted:
        """A client is about to change the item. A host may decide on it within `most_ms`."""
        now_ms = self._sim.now_ms
        wanted = Wanted(priority, delay_ms, now_ms, now_ms + most_ms)
        self._wanted.setdefault(item_id, []).append(wanted)
        return wanted

    def changed(self, item_id: int, wanted: Wanted, error: FoqsError | None) -> None:
        """The change was answered."""
        self.answered("change", item_id, error)
        item, alone = self._dbs[shard_of(item_id)].items.get(item_id), len(self._wanted[item_id]) == 1
        if error is None and item is not None and alone and wanted.priority not in (None, item.priority):
            broken(5, f"{wanted} of item {item_id} was answered OK, and the item is {item}")
        if error is not None and error.code is Code.CONFLICT and item_id not in self._leases:
            broken(5, f"{wanted} of item {item_id} was refused ({error}), and no consumer ever had the item")

    def answered(self, kind: str, item_id: int, error: FoqsError | None) -> None:
        there = item_id in self._dbs[shard_of(item_id)].items
        self.counts[kind if error is None else f"{kind} {error.code.name}"] += 1
        if error is None and kind in ("ack", "delete"):
            self._acked.add(item_id)
            if there:
                broken(2, f"the {kind} of item {item_id} was answered OK, and the item is stored")
        elif error is not None and error.code is Code.NOT_FOUND and there:
            broken(1, f"the {kind} of item {item_id} was answered NOT_FOUND, and the item is stored")

    # ------------------------------------------------------------------------------------- enqueues and quotas

    def enqueued(self, spec: Spec, outcome: int | FoqsError) -> None:
        self.counts["enqueued" if isinstance(outcome, int) else f"enqueue {outcome.code.name}"] += 1
        if isinstance(outcome, int):
            spec.open -= 1
            if outcome not in spec.ids:
                broken(1, f"spec {spec.number} was answered with id {outcome}, and is stored as {spec.ids}")
        elif outcome.code is not Code.OUTCOME_UNKNOWN:
            spec.open -= 1
            if spec.key is None:
                spec.refused = True
                if spec.ids:
                    broken(1, f"spec {spec.number} was refused ({outcome}), and is stored as {spec.ids}")

    def spend(self, tokens: int) -> Spent:
        spent = Spent(self._sim.time, tokens)
        self._spent.append(spent)
        self.counts["charged"] += tokens
        return spent

    def check_quota(self) -> None:
        debt, last_ms = 0.0, 0
        for one in self._spent:
            debt = max(0.0, debt - self._profile.per_second * (one.at_ms - last_ms) / 1_000) + one.tokens
            last_ms = one.at_ms
            if debt > self._profile.burst + 1e-6:
                broken(7, f"{debt} tokens are spent at {one.at_ms}, and the burst is {self._profile.burst}")

    # ------------------------------------------------------------------------------------- at the end

    def check_slots(self, slots: Slots) -> None:
        for slot in range(HASH_SLOTS):
            having = [number for number, db in self._dbs.items() if has(db.slots.bits, slot)]
            if having != [slots.shards[slot]]:
                raise Stuck(f"slot {slot} is on shards {having}, and the record says {slots.shards[slot]}")

    def left(self) -> list[int]:
        return [item_id for db in self._dbs.values() for item_id in db.items]
