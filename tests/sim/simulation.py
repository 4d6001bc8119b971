"""A run of one seed: hosts, shards and clients on a fake clock, and everything checked as it happens."""

from __future__ import annotations

import random
from functools import partial
from typing import Self

from foqs.engine import orders
from foqs.policies.settings import Settings
from foqs.shardmgr.lifecycle import ShardState
from tests.kernel.run import Run, Stuck
from tests.sim.audit import audit, audit_bounds, audit_budget, audit_parked, audit_topics
from tests.sim.batch_clients import BatchClients
from tests.sim.batch_profile import BATCHES
from tests.sim.clients import Clients
from tests.sim.concurrency import Concurrent
from tests.sim.faults import NONE, RandomFaults
from tests.sim.ledger import Ledger
from tests.sim.member import Member
from tests.sim.memory_database import MemoryDatabase
from tests.sim.order_homes import homes_bytes
from tests.sim.profile import random_profile
from tests.sim.records import MemoryWrong, broken
from tests.sim.schedules import Schedules
from tests.sim.slots import Record
from tests.sim.throttles import Throttles

START_MS = 1_700_000_000_000
_DRAIN_MS = 60_000
_AUDIT_EVERY = 40


class Simulation(Run):
    """`time` is true time; `now_ms` is the hosts' clock, which may be stepped (with the databases' clocks)."""

    most_events = 60_000

    def __init__(self, seed: int, trouble: str = "") -> None:
        super().__init__(seed, trouble, START_MS)
        self.profile = random_profile(self.rng, trouble)
        numbers = [shard.id for shard in self.profile.config.shards]
        self.dbs = {
            number: MemoryDatabase(lambda: self.now_ms, max_batch_bytes=self.profile.max_batch_bytes)
            for number in numbers
        }
        self.faults = {n: RandomFaults(random.Random(self.rng.getrandbits(64)), NONE) for n in numbers}
        self.ledger = Ledger(self.dbs, self.counts, lambda: self.time)
        self.throttles = Throttles(self)
        self.concurrency = Concurrent(self)
        for number, db in self.dbs.items():
            db.observers.append(
                lambda epoch, batch, number=number: self.ledger.committing(number, epoch, batch, self.now_ms)
            )
            db.forgot = partial(self.ledger.batches.forgot, number)
            if self.profile.throttled:
                db.observers.append(lambda _, batch: self.concurrency.committing(batch))
            if self.profile.scheduled:
                db.observers.append(lambda _, batch: self.schedules.committing(batch))
        self.versions = 0
        self.members: list[Member] = []
        self.set_policies(self.profile.policies[0])
        self.schedules = Schedules(self)
        self.owners: dict[int, Member] = dict.fromkeys(numbers)  # type: ignore[arg-type]
        self.record = Record(self)
        self.members = [Member(self, f"host-{n}") for n in range(1, 3 if self.profile.rival else 2)]
        self.owners = dict.fromkeys(numbers, self.members[0])
        self.clients = Clients(self)
        self.batches = BatchClients(self.clients) if self.profile.batches else None

    def run(self) -> Self:
        sizes = [(orders, name, size) for name, size in self.profile.order_sizes.items()]
        sizes += [(module, name, size) for name, size in self.profile.batches.items() for module in BATCHES[name]]
        known = [(module, name, getattr(module, name)) for module, name, _ in sizes]
        try:
            for module, name, size in sizes:
                setattr(module, name, size)
            return super().run()
        finally:
            for module, name, size in known:
                setattr(module, name, size)

    def after_event(self) -> None:
        if not self.events % _AUDIT_EVERY:
            self.audit()

    def play(self) -> None:
        profile = self.profile
        for number in self.owners:
            self.members[0].take(number)
        self.until(10)
        if profile.prefilled:
            self.clients.prefill(profile.prefilled)
            self.until(2_000)
            if self.rng.random() < 0.8:
                self._crash(self.members[0])  # nothing in memory: the next owner reads the backlog
            if profile.prompt:
                self.until(self.time + profile.config.host.confirm_ms + 100)  # a new owner hands out nothing before
        for number, rates in profile.rates.items():
            self.faults[number].rates = rates
        self.clients.start()
        if self.batches is not None:
            self.batches.start()
        self.record.start()
        begin = self.time
        spans = len(profile.policies) - profile.throttled  # the last throttles let the run end
        for at, entries in enumerate(profile.policies[1:], 1):
            self.soon(at * profile.active_ms // spans, partial(self.set_policies, entries))
        self.repeat(profile.crash_every_ms, self._crash_or_stop)
        self.repeat(1_000 if profile.rival else 0, self._take_over)
        self.repeat(1_000 if profile.clock_steps else 0, self._step_clock)
        self.repeat(300 if profile.rooms else 0, self._fill_or_free)
        self.until(begin + profile.active_ms)
        self._heal()
        self._drain()

    def set_policies(self, entries: dict[str, str]) -> None:
        """All hosts know these settings from now on."""
        self.versions += 1
        self.policies = entries
        self.ledger.changes.apply(entries)
        self.note("policies", entries)
        topics = self.profile.topics + self.profile.dead_topics
        self.settings = [Settings(ns, self.versions, entries) for ns in sorted({ns for ns, _ in topics})]
        for settings in self.settings:
            self.ledger.attempts.apply(settings, [key for key in topics if key[0] == settings.ns])
            for member in self.members:
                member.engine.apply_settings(settings)
        self.throttles.changed()
        self.concurrency.changed()
        if self.profile.scheduled and self.members:
            self.schedules.changed()

    def _crash_or_stop(self) -> None:
        member = self.rng.choice(self.members)
        if self.rng.random() < 0.3 and not member.engine.state.draining:
            self.note("stop", member.name)
            member.stop(lambda: self._start_again(member))
        else:
            self._crash(member)

    def _crash(self, member: Member) -> None:
        self.note("crash", member.name)
        self.counts["crash"] += 1
        member.crash()
        self._start_again(member)

    def _start_again(self, member: Member) -> None:
        self.note("start", member.name)
        at = self.members.index(member)
        self.members[at] = new = Member(self, member.name)
        self.clients.crashed(member)
        for number, owner in self.owners.items():
            if owner is member:
                self.owners[number] = new
                new.take(number)

    def _take_over(self) -> None:
        """Another host has to take a shard from a running one."""
        number = self.rng.choice(list(self.owners))
        old = self.owners[number]
        new = next(member for member in self.members if member is not old)
        if number not in new.engine.state.shards:
            self.note("take over", new.name, number)
            self.owners[number] = new
            if self.rng.random() < 0.2:
                old.release(number)  # in order, unless the new owner is faster
            new.take(number)
            if self.rng.random() < 0.4:
                old.cut_off.add(number)
            # Often while the old owner, or the new one, does not know the outcome of its last transaction.
            self.faults[number].next_commit = self.rng.choice(["", "applied", "not applied", "late", "down"])
        if self.rng.random() < 0.2:
            self._crash(self.rng.choice(self.members))

    def _fill_or_free(self) -> None:
        """A database has no room for a time: for items, or for any row."""
        number = self.rng.choice(list(self.owners))
        self.faults[number].room_for = self.rng.choice(self.profile.rooms)
        self.note("room for", self.faults[number].room_for, number)
        if self.faults[number].room_for != "items" and "none" in self.profile.rooms and self.rng.random() < 0.3:
            self._crash(self.owners[number])  # its next owner finds no room for the tail

    def _step_clock(self) -> None:
        by_ms = self.rng.choice([-5_000, -300, 300, 5_000, 60_000])
        self.ledger.clock_stepped(self.now_ms, self.now_ms + by_ms)
        self.set_forward(by_ms)
        self.note("clock stepped", by_ms)
        for member in self.members:
            member.clock_stepped(by_ms)

    def _heal(self) -> None:
        """No failures from here on; the lasting ones end."""
        self.note("healing")
        self.healing = True
        for faults in self.faults.values():
            faults.rates, faults.next_commit, faults.room_for = NONE, "", "items"
        self.until(self.time + 5_500)  # the longest hang, then every breaker's pause

    def _drain(self) -> None:
        """Everything that is left is delivered and acked: nothing is stuck."""
        for number, owner in self.owners.items():
            shard = owner.engine.state.shards.get(number)
            if shard is None or shard.owner.state is not ShardState.SERVING:
                raise Stuck(f"shard {number} is not served again: {shard and shard.owner.state}")
        self._wait_for_slots()
        self.ledger.quiet_ms = self.now_ms
        self.clients.drain()
        if self.batches is not None:
            self.batches.drain()
        if self.profile.scheduled:
            self.schedules.finish()
        # A clock that was set back delays everything that waits for a time of day.
        exact = self.profile.throttled and not (self.profile.clock_steps or self.profile.order_keys)
        most_ms = max(self.throttles.drain_ms(), self.concurrency.drain_ms()) if exact else _DRAIN_MS
        self.wait(most_ms, lambda: not any(db.items or db.batches.busy for db in self.dbs.values()), self._left)
        idle_ms = self.profile.config.host.lane_idle_ms + (20_000 if self.profile.clock_steps else 2_500)
        self.clients.stop()
        self.until(self.time + idle_ms)
        if self.profile.untils:
            left = lambda: any(db.held for db in self.dbs.values())  # noqa: E731
            self.wait(_DRAIN_MS, lambda: not left(), lambda: f"held keys: {[db.held for db in self.dbs.values()]}")
            self.ledger.unique.check_left()
        self._at_the_end()

    def _wait_for_slots(self) -> None:
        self.wait(_DRAIN_MS, lambda: not self.record.slots.moves, lambda: f"slots move: {self.record.slots.moves}")

    def _left(self) -> str:
        left = [body for db in self.dbs.values() for body in db.items.values()]
        if not left:
            return f"batches: {[db.batches.left() for db in self.dbs.values()]}"
        rows = [(db.ready.get(left[0].id), db.timer.get(left[0].id)) for db in self.dbs.values()]
        return f"{len(left)} items are left, the first: {left[0]} {rows} {self.ledger.records[left[0].id]}"

    def _at_the_end(self) -> None:
        self.audit()
        self.counts["fault"] += self.counts["crash"] + sum(faults.made for faults in self.faults.values())
        self.counts["fitted"] += sum(faults.fitted for faults in self.faults.values())
        self.counts["tails"] += sum(faults.tails for faults in self.faults.values())
        if self.profile.rooms and (refused := self.counts["ack without room"]):
            broken(2, f"{refused} acks were refused, which need no room")
        self.counts.update(f"items of {spec.tenant}" for spec in self.ledger.specs.values())
        self.throttles.check()
        self.ledger.orders.check_left()
        if self.batches is not None:
            self.ledger.batches.check_left()
        self.clients.check_all_answered()
        for number, db in self.dbs.items():
            if db.lanes or db.ready or db.timer or db.expiry or db.failures or db.ended or db.results or db.progress:
                raise Stuck(f"shard {number} still has {db.lanes} {db.ready} {db.timer} {db.expiry} {db.failures}")
        for member in self.members:
            known = sum(len(shard.memory.known) for shard in member.engine.state.shards.values())
            if member.engine.state.awaited.count or member.engine.state.awaited.calls:
                raise MemoryWrong(f"{member.name} has callers that wait: {member.engine.state.awaited.calls}")
            homes = sum(homes_bytes(shard) for shard in member.engine.state.shards.values())
            if known or member.engine.state.budget.used_bytes != homes:
                raise MemoryWrong(f"{member.name} knows {known} items, {member.engine.state.budget}")
            self._check_counts(member)
            if self.profile.skews_ms and member.served and abs(member.skew_ms) > self.profile.config.host.clock_jump_ms:
                raise MemoryWrong(f"{member.name} serves, and its clock is {member.skew_ms} ms ahead of the databases'")
        ledger = self.ledger
        untold = {item_id for item_id, _ in ledger.dropped - ledger.heard} - ledger.doubtful
        if untold and not ledger.crashed:
            broken(4, f"no consumer heard of the leases of at-most-once items {sorted(untold)}")

    def _check_counts(self, member: Member) -> None:
        """Promise 3: every removal is counted by the host that made it, if the host hears of it."""
        counted = member.engine.state.counters.removed.total()
        removed = sum(self.ledger.removals[place] for place in member.served)
        heard = removed - member.unheard_removals
        if counted > removed or (counted < heard and not member.lost_shards):
            broken(3, f"{member.name} counted {counted} removals and made {removed}")

    def audit(self) -> None:
        for member in self.members:
            for shard in member.engine.state.serving:
                if self.profile.batches:
                    self.ledger.batches.audit_joins(shard, member.links.open)
                if member.in_step(shard):
                    audit(shard, self.dbs[shard.number])
                    self.ledger.orders.audit(shard.number)
            audit_budget(member.engine, [one for one in member.listings if not one.done])
            audit_bounds(member.engine)
            audit_topics(member.engine)
            if member.lending is not None:
                audit_parked(member.engine)
                self.throttles.look(member)
        self.concurrency.audit()
        if self.profile.batches:
            self.ledger.batches.audit(self.now_ms)


def simulate(seed: int, trouble: str = "") -> Simulation:
    return Simulation(seed, trouble).run()
