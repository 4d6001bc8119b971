"""The callers of a simulated run: producers, consumers of every temper, and operators.

Each request has a deadline by which it must be answered, once, unless its host crashed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from foqs.buffers.pending_dedup import Keyed
from foqs.engine import dedup
from foqs.engine.calls import DequeueCall, EnqueueCall, ItemsCall
from foqs.errors import FoqsError, NotServed
from foqs.fairness.keys import TopicKey
from foqs.ids import Dedup, content_of, digest_of, hash_slot_bounds, shard_of
from foqs.item import Item
from foqs.rows import AT_LEAST_ONCE, AT_MOST_ONCE, NewItem, NewMember
from tests.sim.changes import change_some
from tests.sim.kept import await_end, result_of
from tests.sim.memory_database import POISON
from tests.sim.order_homes import SaidHomes
from tests.sim.orders import enqueue_ordered
from tests.sim.profile import given_weight
from tests.sim.records import Op, Spec, broken
from tests.sim.redrives import redrive
from tests.sim.requests import TIMEOUTS_MS, Request, host_op, list_topic, look_at
from tests.sim.slots import FEW_SLOTS

if TYPE_CHECKING:
    from tests.sim.member import Member
    from tests.sim.simulation import Simulation


_UNIQUE_KEYS = 6


class Clients:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.rng = sim.rng
        self.open: dict[Request, None] = {}
        self.keyed: list[Spec] = []
        self.payloads: dict[int, bytes] = {}  # of those
        self.told: list[tuple[int, int]] = []  # ids and leases, to come back to with a stale lease
        self.homes = SaidHomes(sim)
        self.draining = False
        self.stopped = False
        self.requests = 1
        self._specs = 0
        self._steps = 0

    def start(self) -> None:
        profile = self.sim.profile
        for _ in range(profile.producers):
            self._after(50, self._produce)
        for _ in range(profile.consumers):
            self._after(50, self._consume)
        self._after(300, self._operate)

    def drain(self) -> None:
        """Only honest consumers from here on."""
        self.draining = True
        for _ in range(4):
            self._after(20, self._consume)

    def stop(self) -> None:
        self.stopped = True

    def prefill(self, count: int) -> None:
        while count > 0:
            if self.sim.profile.order_keys and self.rng.random() < 0.8:
                enqueue_ordered(self, min(count, 20), 30_000)
                count -= 20
            else:
                count -= self._enqueue(min(count, 20), 30_000)

    def crashed(self, member: Member) -> None:
        for request in [request for request in self.open if request.member is member]:
            del self.open[request]

    def check_all_answered(self, stopped: Member | None = None) -> None:
        """At the end, or by a host that stopped in order."""
        for request in self.open:
            if request.due < self.sim.time or request.member is stopped:
                broken(8, f"{request.what} was never answered")

    def _after(self, most_ms: int, what: Callable[[], Any]) -> None:
        self.sim.soon(self.rng.randint(1, most_ms), what)

    def any_member(self) -> Member:
        """One that takes requests, if there is one."""
        taking = [member for member in self.sim.members if not member.engine.state.draining]
        return self.rng.choice(taking or self.sim.members)

    def member_for(self, item_id: int) -> Member:
        owner = self.sim.owners.get(shard_of(item_id))
        return owner if owner is not None and (self.draining or self.rng.random() < 0.95) else self.any_member()

    # ------------------------------------------------------------------------------------- producers

    def _produce(self) -> None:
        if self.sim.healing:
            return
        if self.sim.profile.order_keys and self.rng.random() < 0.8:
            enqueue_ordered(self, self.rng.choice([1, 3, 10]), self.rng.choice(TIMEOUTS_MS))
        elif self.sim.profile.untils and self.rng.random() < 0.6:
            self._enqueue_unique(self.rng.choice([1, 3, 10]), self.rng.choice(TIMEOUTS_MS))
        elif self.rng.random() < 0.3:
            self._enqueue_keyed(self.rng.choice([1, 3, 10]), self.rng.choice(TIMEOUTS_MS))
        else:
            self._enqueue(self.rng.choice([1, 1, 3, 10, 40]), self.rng.choice(TIMEOUTS_MS))
        self._after(self.rng.choice([50, 300, 500]), self._produce)

    def _enqueue(self, count: int, timeout_ms: int) -> int:
        member = self.any_member()
        now_ms = member.now_ms
        if member.engine.state.draining:
            return count  # the service refuses
        specs, items = [], []
        key = self.rng.choice(self.sim.profile.topics)
        for _ in range(count):
            if self.rng.random() < 0.3:
                key = self.rng.choice(self.topics_with(key))
            spec, item = self.new_item(key, now_ms)
            specs.append(spec)
            items.append(item)
        self.send(member, specs, items, timeout_ms)
        return count

    def send(
        self,
        member: Member,
        specs: list[Spec],
        items: list[NewItem],
        timeout_ms: int,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        count, keys, now_ms = len(specs), [spec.lane(spec.key) for spec in specs], member.now_ms
        request = Request(self, member, f"enqueue of {count} from {specs[0].number}", timeout_ms)

        def reply(outcomes: list[int | FoqsError]) -> None:
            request.answered()
            self.sim.note("enqueued", member.name, [o if isinstance(o, int) else o.code.name for o in outcomes])
            for spec, outcome in zip(specs, outcomes, strict=True):
                self.sim.ledger.enqueue_answered(spec, outcome)
            answered()

        sizes = [len(i.payload) + len(i.metadata or b"") + len(i.headers or b"") for i in items]
        self.sim.note("enqueue", member.name, count, "first", specs[0].number)
        call = EnqueueCall(count, reply)
        weights = {spec.lane(spec.key): spec.weight for spec in specs if spec.weight} or None
        ruled = any(spec.rules for spec in specs)
        members = any(spec.batch for spec in specs)
        member.engine.enqueue(
            call, range(count), items, keys, sizes, now_ms, timeout_ms, weights, ruled=ruled, members=members
        )

    def _enqueue_unique(self, count: int, timeout_ms: int) -> None:
        """Items with a few keys, which are free when their items have started or are done."""
        member, rng, profile = self.any_member(), self.rng, self.sim.profile
        if member.engine.state.draining:
            return
        specs, items = [], []
        for number in rng.choices(range(_UNIQUE_KEYS), k=count):
            spec, item = self.new_item(profile.topics[number % len(profile.topics)], member.now_ms)
            spec.until = profile.untils[number % len(profile.untils)]
            low, _ = hash_slot_bounds(number % FEW_SLOTS)
            digest = low[:2] + digest_of("unique", str(number))[2:]
            spec.dedup = Dedup(digest, content_of(spec.key[1], b""))
            specs.append(spec)
            items.append(item)
        self.send_keyed(member, specs, items, timeout_ms)

    def _enqueue_keyed(self, count: int, timeout_ms: int) -> None:
        """New keys, and some that were enqueued before, whatever was said of them."""
        member, rng = self.any_member(), self.rng
        now_ms = member.now_ms
        if member.engine.state.draining:
            return
        specs, items = [], []
        for _ in range(count):
            old = rng.choice(self.keyed) if self.keyed and rng.random() < 0.5 else None
            topics = self.topics_with(specs[0].key) if specs else self.sim.profile.topics
            if old is not None and old.key not in topics:
                old = None
            spec, item = self.new_item(old.key if old else rng.choice(topics), now_ms)
            if old is not None:
                if item.batch or old.batch:
                    item = NewMember.of(item, old.batch)
                item.payload = self.payloads[old.number]
                spec = old
            else:
                low, _ = hash_slot_bounds(spec.number % FEW_SLOTS)
                digest = low[:2] + digest_of("ns", str(spec.number))[2:]
                spec.dedup = Dedup(digest, content_of(spec.key[1], item.payload))
                self.keyed.append(spec)
                self.payloads[spec.number] = item.payload
            specs.append(spec)
            items.append(item)
        self.send_keyed(member, specs, items, timeout_ms)

    def send_keyed(
        self,
        member: Member,
        specs: list[Spec],
        items: list[NewItem],
        timeout_ms: int,
        answered: Callable[[list[int | FoqsError]], None] = lambda outcomes: None,
    ) -> None:
        now_ms, parts = member.now_ms, []
        for at, (spec, item) in enumerate(zip(specs, items, strict=True)):
            spec.open += 1
            size = len(item.payload) + len(item.metadata or b"") + len(item.headers or b"")
            assert spec.dedup is not None
            parts.append(Keyed(at, spec.dedup, item, spec.lane(spec.key), size, spec.weight))
        request = Request(self, member, f"enqueue of keys {[spec.number for spec in specs]}", timeout_ms)

        def reply(outcomes: list[int | FoqsError]) -> None:
            request.answered()
            self.sim.note("keyed", member.name, [o if isinstance(o, int) else o.code.name for o in outcomes])
            for spec, outcome in zip(specs, outcomes, strict=True):
                self.sim.ledger.keyed_answered(spec, outcome)
            answered(outcomes)

        self.sim.note("enqueue keys", member.name, [spec.number for spec in specs])
        call = EnqueueCall(len(specs), reply)
        member.engine.state.deadlines.push(now_ms + timeout_ms, call)
        member.engine.state.alarm(now_ms + timeout_ms)
        for number, part in dedup.by_shard(member.neighbour.view.shards, parts).items():
            if away := dedup.place_taken(member.engine.state, call, number, part, now_ms):
                call.refused([one.at for one in away], NotServed())
                member.neighbour.moves.adopt()

    def new_spec(self, key: TopicKey) -> Spec:
        self._specs += 1
        spec = self.sim.ledger.specs[self._specs] = Spec(self._specs, key, poisoned=False)
        return spec

    def new_item(self, key: TopicKey, now_ms: int) -> tuple[Spec, NewItem]:
        profile, rng = self.sim.profile, self.rng
        spec = self.new_spec(key)
        payload = f"{spec.number}:".encode() + b"." * rng.randint(0, profile.payload_bytes)
        spec.poisoned = poisoned = rng.random() < profile.poisoned
        if profile.tenants:
            spec.tenant = rng.choice(profile.tenants)
            spec.throttles = rng.choice(profile.sets_of(spec.tenant))
            spec.weight = given_weight(spec.tenant)
        if len(profile.rules) > 1:
            spec.rules = rng.choice(profile.rules)
        due_ms = now_ms + rng.choice([1, 50, 500, 3_000]) if rng.random() < profile.delayed else 0
        ttl_ms = rng.choice([1, 100, 1_000, 5_000]) if rng.random() < profile.with_ttl else 0
        item = NewItem(
            payload=POISON + payload if poisoned else payload,
            metadata=rng.choice([None, b"m"]),
            headers=rng.choice([None, b"{}"]),
            priority=rng.randrange(profile.priorities) - profile.priorities // 2,
            deliver_after_ms=due_ms or now_ms,
            due_ms=due_ms,
            enqueued_at_ms=now_ms,
            expires_at_ms=now_ms + ttl_ms if ttl_ms else 0,
            lease_ms=rng.choice([0, 100, 700]),
            delivery=AT_MOST_ONCE if rng.random() < profile.at_most_once else AT_LEAST_ONCE,
        )
        if self.sim.batches is not None:
            item = self.sim.batches.member(spec, item)
        return spec, item

    def topics_with(self, key: TopicKey) -> list[TopicKey]:
        """Return the topics of which items may be in a request with one of that topic: with batches, it has one
        namespace."""
        topics = self.sim.profile.topics
        return topics if self.sim.batches is None else [one for one in topics if one[0] == key[0]]

    # ------------------------------------------------------------------------------------- consumers

    def _consume(self) -> None:
        if self.stopped or (self.sim.healing and not self.draining):
            if not self.stopped:
                self.sim.soon(500, self._consume)
            return
        member = self.any_member()
        if member.engine.state.draining:
            self.sim.soon(50, self._consume)
        else:
            self._dequeue(member, self.rng.choice([0, 5, 300]), self._consume)

    def _dequeue(self, member: Member, wait_ms: int, again: Callable[[], None]) -> None:
        """`again` is called some time after the answer, or when there will be none."""
        rng, host_config = self.rng, self.sim.profile.config.host
        topics = self.sim.profile.topics + self.sim.profile.dead_topics
        most = min(self.sim.profile.named, len(topics))
        keys = topics if self.draining else rng.sample(topics, rng.randint(1, most))
        wants = [(key, rng.choice([1, 5, 20])) for key in keys]
        lease_ms = rng.choice([0, 100, 400, 2_000])
        max_bytes = rng.choice([100, 5_000, 1 << 20])
        lost = rng.random() < 0.05 and not (self.draining or self.sim.profile.loyal)
        within_ms = max(wait_ms, host_config.confirm_ms) + host_config.confirm_ms  # for at-most-once leases
        request = Request(self, member, f"dequeue of {wants} waiting {wait_ms}", within_ms)
        cancelled = False
        # Flows whose throttle was removed wake in the next turns.
        ready = member.ready(keys) if self.sim.profile.prompt and not member.engine.state.slices.long_work else {}
        later_ms = member.later_ms()

        def reply(items: list[Item], doubtful: list[int]) -> bool:
            if not items and not doubtful and not cancelled and not call.found:  # else they ended before their leases
                now, now_ms = member.ready(keys), member.now_ms
                still = [
                    item_id
                    for item_id, made in now.items()
                    if ready.get(item_id) == made and later_ms.get(shard_of(item_id), 0) <= now_ms
                ]
                if still:
                    empty = f"{request.what} came back empty though {len(still)} items stayed ready: {still[0]:#x}"
                    broken(12 if member.lending else 5, empty)
            reached = set() if cancelled or lost else {item.id for item in items}
            for _, item, lease in call.found:
                if item.id not in reached:
                    self.sim.throttles.returned(item.id, lease)
            self.sim.ledger.doubtful.update(doubtful)
            if cancelled or lost:
                self.sim.ledger.doubtful.update(item.id for item in items)
            if cancelled:
                return False
            request.answered()
            leases = [(item.id, item.lease, item.attempt) for item in items]
            self.sim.note("dequeued", member.name, "reply lost" if lost else "", leases, doubtful)
            pauses_ms = (20,) if self.draining else self.sim.profile.pauses_ms
            self._after(rng.choice(pauses_ms) if items else 200, again)
            if lost:
                return False
            self._delivered(member, items)
            return True

        call = DequeueCall(wants, lease_ms, max_bytes, 50, reply)
        member.engine.dequeue(call, member.now_ms, wait_ms)
        if rng.random() < 0.03 and not request.answers:

            def cancel() -> None:
                nonlocal cancelled
                if not request.answers and member.alive:
                    cancelled = True
                    member.engine.cancel(call)
                    del self.open[request]
                    again()

            self._after(300, cancel)
        if request in self.open:
            self._watch(request, again)

    def _watch(self, request: Request, again: Callable[[], None]) -> None:
        """A consumer whose host died goes on with another."""

        def look() -> None:
            if request.member.alive:
                if request in self.open:
                    self.sim.soon(1_000, look)
            elif not request.answers:
                again()

        self.sim.soon(1_000, look)

    def _delivered(self, member: Member, items: list[Item]) -> None:
        config = self.sim.profile.config.host
        for item in items:
            number = shard_of(item.id)
            self.sim.ledger.delivered(
                item, self.sim.now_ms, current=member.current(number), confirm_ms=config.confirm_ms
            )
            self.told.append((item.id, item.lease))
            if member.current(number):
                self.sim.concurrency.delivered(item)
        at_once: list[tuple[int, int]] = []
        for item in items:
            what = (item.id, item.lease)
            if self.draining or self.sim.profile.loyal or self.rng.random() < 0.4:
                at_once.append(what)
            else:
                self._after(self.rng.choice([5, 150, 3_000]), partial(self.handle, [what]))
        if at_once:
            self._after(5, lambda: self.handle(at_once))

    def handle(self, held: list[tuple[int, int]]) -> None:
        """The next request of a consumer for the leases it holds."""
        rng = self.rng
        by_member: dict[Member, list[Op]] = {}
        for item_id, lease in held:
            op = self._op(item_id, lease)
            if op is None:
                continue  # it died
            by_member.setdefault(self.member_for(item_id), []).append(op)
            if op.kind == "extend" or rng.random() < 0.05:  # goes on with it, or does not know that it is done
                self._after(400, partial(self.handle, [(item_id, lease)]))
        for member, asked in by_member.items():
            if self.sim.batches is not None:
                self.sim.batches.add_first(member, asked)
            else:
                self.settle(member, asked)

    def _op(self, item_id: int, lease: int) -> Op | None:
        rng, now_ms = self.rng, self.sim.now_ms
        temper = 0.0 if self.draining or self.sim.profile.loyal else rng.random()
        if not self.draining and rng.random() < self.sim.profile.released:
            return Op("release", item_id, lease, now_ms)
        if self.sim.profile.dead_topics and not self.draining and rng.random() < 0.4:
            kind = rng.choice(["fail", "fail", "fail", "reject"])
            return Op(kind, item_id, lease, now_ms, rng.choice([None, b"half"]) if kind == "fail" else None)
        if self.sim.profile.steps and not self.draining and rng.random() < self.sim.profile.steps:
            self._steps += 1
            checkpoint, lease_ms = b"step %d" % self._steps, rng.choice([0, 0, 1_000])
            durable = rng.random() < 0.2
            return Op("extend", item_id, lease, now_ms, lease_ms=lease_ms, checkpoint=checkpoint, durable=durable)
        if temper < 0.6:
            brought = result_of(lease) if self.sim.profile.awaited and rng.random() < 0.5 else None
            return Op("ack", item_id, lease, now_ms, result=brought)
        if temper < 0.68:
            return Op("nack", item_id, lease, now_ms, counted=self._counted(lease))
        if temper < 0.76:
            metadata = rng.choice([None, b"half", b"", POISON if self.sim.profile.poisoned else b"most of it"])
            delay_ms = rng.choice([0, 10, 700])
            return Op("nack", item_id, lease, now_ms, metadata, delay_ms, counted=self._counted(lease))
        if temper < 0.84:
            return Op("release", item_id, lease, now_ms)
        if temper < 0.92:
            return Op("extend", item_id, lease, now_ms, lease_ms=rng.choice([0, 100, 1_000]))
        return None

    def _counted(self, lease: int) -> bool:
        return lease % 2 == 0 or not self.sim.profile.rules[1:]

    def settle(self, member: Member, asked: list[Op]) -> None:
        sim = self.sim
        timeout_ms = self.rng.choice(TIMEOUTS_MS)
        request = Request(self, member, f"settling of {asked}", timeout_ms)
        ns = None
        if self.rng.random() < 0.1:
            ns = "ns"
            for op in asked:
                record = sim.ledger.records.get(op.id)
                op.wrong_ns = record is not None and record.spec.key[0] != ns

        def reply(outcomes: list[FoqsError | None]) -> None:
            request.answered()
            sim.note(
                "settled",
                [(op.kind, op.id, e.code.name if e else "OK") for op, e in zip(asked, outcomes, strict=True)],
            )
            for op, error in zip(asked, outcomes, strict=True):
                sim.ledger.answered(op, error, sim.now_ms, current=self._current(member, op.id))
            if (
                more and not member.engine.state.draining
            ):  # as AckAndDequeue: a batch may be in the middle of being applied
                member.engine.state.slices.soon(lambda: self._dequeue(member, 0, lambda: None))

        sim.note("settle", member.name, [(op.kind, op.id) for op in asked])
        for op in asked:
            sim.ledger.asked(op)
            if op.kind == "release":
                sim.throttles.returned(op.id, op.token)
        call = ItemsCall(len(asked), reply)
        more = all(op.kind == "ack" for op in asked) and self.rng.random() < 0.2
        if all(op.kind == "ack" for op in asked):
            ids, tokens = [op.id for op in asked], [op.token for op in asked]
            results = [op.result for op in asked] if any(op.result is not None for op in asked) else None
            member.engine.ack(call, ids, tokens, ns, member.now_ms, timeout_ms, results)
        else:
            member.engine.settle(call, [(op.id, host_op(op)) for op in asked], ns, member.now_ms, timeout_ms)

    def _change(self, item_id: int) -> Op:
        """The deletion of an item; or what an item with a key may get."""
        rng, op, record = self.rng, Op("delete", item_id, 0, self.sim.now_ms), self.sim.ledger.records[item_id]
        keyed = record.spec.dedup
        if not self.sim.profile.untils or keyed is None:
            return op
        if rng.random() < 0.5:
            op.digest, op.leased = keyed.digest, rng.random() < 0.5
            return op
        op.kind, op.topic = "replace", record.place
        _, op.body = self.new_item(op.topic, op.sent_ms)
        op.body.payload = b"%d:" % record.spec.number + op.body.payload
        return op

    def _current(self, member: Member, item_id: int) -> bool:
        return shard_of(item_id) in self.sim.dbs and member.current(shard_of(item_id))

    # ------------------------------------------------------------------------------------- operators

    def _operate(self) -> None:
        if self.sim.healing:
            return
        rng, now_ms, sim = self.rng, self.sim.now_ms, self.sim
        ids = [item_id for db in sim.dbs.values() for item_id in db.items]
        what = rng.random()
        if ids and what < 0.3:
            item_id = rng.choice(ids)
            self.settle(self.member_for(item_id), [self._change(item_id)])
        elif self.told and what < 0.6:
            item_id, lease = rng.choice(self.told)
            kind = rng.choice(["ack", "nack", "extend", "release"])
            self.settle(self.member_for(item_id), [Op(kind, item_id, rng.choice([lease, lease + 1, 0]), now_ms)])
        elif what < 0.65:
            self.settle(self.any_member(), [Op("ack", rng.choice([0, -5, 1 << 48, 99 << 48 | 1]), 1, now_ms)])
        elif what < 0.75:
            list_topic(self)
        elif ids or self.told:
            look_at(self, rng.choice(ids) if ids else self.told[-1][0])
        redrive(self)
        if sim.profile.changes:
            change_some(self)
        if self.sim.profile.awaited:
            for _ in range(3):
                asked = rng.choice(ids) if ids and rng.random() < 0.8 else rng.choice(self.told or [(1 << 48, 0)])[0]
                await_end(self, asked)
        if sim.batches is not None:
            sim.batches.operate()
        self._after(100, self._operate)
