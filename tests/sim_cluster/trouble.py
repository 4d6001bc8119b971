"""Faults of a simulated cluster, and changes that operators make during them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from foqs.shardmgr.facts import ShardFact, ShardUse
from foqs.zk.protocol import ZkConflict, ZkError
from tests.zk.memory import MemoryFactStore

if TYPE_CHECKING:
    from tests.sim_cluster.member import Member
    from tests.sim_cluster.simulation import Simulation


class Trouble:
    def __init__(self, sim: Simulation) -> None:
        self.sim, self.rng, self.profile = sim, sim.rng, sim.profile
        self._operator = MemoryFactStore(sim.ensemble)
        self._operator.start(lambda facts: None, lambda session: None)
        self._session_ms = self.profile.settings.session_timeout_ms
        every: list[tuple[int, Callable[[], None]]] = [
            (3, self._crash), (3, self._freeze), (3, self._leave), (3, self._join), (2, self._restart_all),
            (2, self._drain), (3, self._undrain), (3, self._cut), (1, self._stop_ensemble), (2, self._expire),
            (3, self._suspend), (2, self._database_down), (2, self._part), (1, self._add), (1, self._remove),
            (3, self._use), (1, self._elsewhere), (4, self._move),
        ]  # fmt: skip
        # Each seed uses a sample, so that even a rare kind is frequent in some seeds.
        self._kinds = self.rng.sample(every, self.rng.randint(3, len(every)))

    def begin(self) -> None:
        """Start the next fault after a random pause."""
        self.sim.soon(self.rng.random() * 2 * self.profile.trouble_every_ms, self._strike)

    def mend(self) -> None:
        """Mend every fault. A drained host stays drained if another host is there. One host may stay cut off from a
        database if every other host reaches it."""
        sim = self.sim
        sim.down.clear()
        sim.apart = set(sorted(sim.apart)[: self.rng.randint(0, 1)])
        if not sim.ensemble.up:
            sim.ensemble.go_on()
        for member in list(sim.members):
            member.thaw()
            member.store.mend()
        staying = [member.id for member in sim.members if not member.leaving]
        if not staying:
            sim.start(sim.new_name())
        elif sim.ensemble.drained.issuperset(staying):
            sim.ensemble.drained.discard(staying[0])
            sim.ensemble.changed("drained")
        if not {host for host in staying if host not in sim.ensemble.drained} - {host for host, _ in sim.apart}:
            sim.apart.clear()
        self._operator.mend()

    def _strike(self) -> None:
        if self.sim.healing:
            return
        kinds = self._kinds
        self.rng.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]()
        self.begin()

    def _later(self, most_ms: int, what: Callable[[], None]) -> None:
        self._at(self.rng.random() * most_ms, what)

    def _at(self, delay_ms: float, what: Callable[[], None]) -> None:
        """Call `what` after `delay_ms`, unless all faults are mended by then."""
        self.sim.soon(delay_ms, lambda: None if self.sim.healing else what())

    def _member(self) -> Member | None:
        awake = [member for member in self.sim.members if not member.frozen]
        return self.rng.choice(awake) if awake else None

    def _ignored(self, error: ZkError | None) -> None:
        if isinstance(error, ZkConflict):
            self.sim.checks.counts["conflict"] += 1

    # ------------------------------------------------------------------------------------- hosts

    def _crash(self) -> None:
        if (member := self._member()) is not None:
            self.sim.note(member, "crashes")
            member.crash()
            if self.rng.random() < 0.8:
                again_ms = self.rng.choice([200, self._session_ms, 3 * self._session_ms])
                self._later(again_ms, partial(self.sim.start, member.id))

    def _freeze(self) -> None:
        if (member := self._member()) is not None:
            self.sim.note(member, "freezes")
            member.freeze()
            self._later(self.rng.choice([300, self._session_ms, 3 * self._session_ms]), member.thaw)

    def _leave(self) -> None:
        if (member := self._member()) is not None:
            self.sim.note(member, "leaves")
            member.leave()
            if self.rng.random() < 0.5:
                self._later(3 * self._session_ms, partial(self.sim.start, member.id))

    def _join(self) -> None:
        if len(self.sim.members) < self.profile.most_hosts:
            self.sim.start(self.sim.new_name())

    def _restart_all(self) -> None:
        """Restart the hosts one after the other, or all at once."""
        gap_ms = self.rng.choice([0, 500, 3_000])
        crash = self.rng.random() < 0.3
        for at, member in enumerate(list(self.sim.members)):
            end = partial(self._crashed, member) if crash else partial(member.call, member.leave)
            self._at(at * gap_ms, end)
            self._at(at * gap_ms + self.profile.grace_ms + 500, partial(self.sim.start, member.id))

    def _crashed(self, member: Member) -> None:
        if member.alive:
            member.crash()

    def _drain(self) -> None:
        if (member := self._member()) is not None:
            self._drained(member.id, drained=True)

    def _undrain(self) -> None:
        if self.sim.ensemble.drained:
            self._drained(self.rng.choice(sorted(self.sim.ensemble.drained)), drained=False)

    def _drained(self, host: str, *, drained: bool) -> None:
        self.sim.note(host, "drained" if drained else "undrained")
        self._operator.drain_host(host, drained=drained, done=self._ignored)

    # ------------------------------------------------------------------------------------- ZooKeeper, databases

    def _cut(self) -> None:
        if (member := self._member()) is not None:
            self.sim.note(member, "is cut off")
            member.store.cut()
            self._later(self.rng.choice([300, self._session_ms, 4 * self._session_ms]), member.store.mend)

    def _suspend(self) -> None:
        if (member := self._member()) is not None:
            member.store.suspend()
            member.store.reconnect()

    def _expire(self) -> None:
        if (member := self._member()) is not None:
            self.sim.note(member, "loses its session")
            member.store.expire()

    def _stop_ensemble(self) -> None:
        ensemble = self.sim.ensemble
        if not ensemble.up:
            return
        self.sim.note("ZooKeeper stops")
        ensemble.stop()

        def go_on() -> None:
            self.sim.note("ZooKeeper goes on")
            ensemble.go_on()

        self._later(self.rng.choice([300, 3 * self._session_ms]), go_on)

    def _database_down(self) -> None:
        database = self.rng.randrange(self.profile.databases)
        if database not in self.sim.down:
            self.sim.note("database", database, "is down")
            self.sim.down[database] = self.sim.now_ms
            self._later(self.rng.choice([500, 5_000, 20_000]), lambda: self.sim.down.pop(database, None))

    def _part(self) -> None:
        """Cut every process of one host off from one database."""
        parted = self.sim.any_name(), self.rng.randrange(self.profile.databases)
        self.sim.note("host and database", parted, "do not reach each other")
        self.sim.apart.add(parted)
        self._later(self.rng.choice([2_000, 30_000, 60_000]), lambda: self.sim.apart.discard(parted))

    # ------------------------------------------------------------------------------------- shards

    def _shard(self) -> ShardFact | None:
        shards = self.sim.ensemble.shards
        return shards[self.rng.choice(sorted(shards))] if shards else None

    def _put(self, fact: ShardFact, *, new: bool = False) -> None:
        self.sim.note("operator puts", fact)
        self._operator.put_shard(fact, new=new, done=self._ignored)

    def _add(self) -> None:
        number = self.rng.randint(1, self.profile.shards + 5)
        self._put(self.sim.new_shard(number), new=True)

    def _remove(self) -> None:
        if len(self.sim.ensemble.shards) > 1 and (fact := self._shard()) is not None:
            self.sim.note("operator removes", fact.id)
            self._operator.remove_shard(fact.id, self._ignored)

    def _use(self) -> None:
        if (fact := self._shard()) is not None:
            self._put(replace(fact, use=self.rng.choice([ShardUse.ENABLED, *ShardUse])))

    def _elsewhere(self) -> None:
        """Switch a disabled shard to a copy in another database. The copy has the shard's row."""
        fact = self._shard()
        held = {number for member in self.sim.members for number in member.shards}
        if fact is not None and fact.use is ShardUse.DISABLED and fact.id not in held:
            self._put(replace(fact, url=self.sim.copied(fact)))

    def _move(self) -> None:
        ensemble = self.sim.ensemble
        facts = self.sim.truth()
        may_take = [host for host, fact in facts.hosts.items() if not fact.leaving and host not in facts.drained]
        number = self.rng.choice(sorted(facts.assignment.hosts)) if facts.assignment.hosts else None
        if number is None or not may_take:
            return
        # The host may be gone by now.
        to = self.rng.choice(may_take) if self.rng.random() < 0.8 else self.sim.any_name()
        late = self.rng.random() < 0.3
        self.sim.note("operator moves", number, "to", to)
        hosts = {**facts.assignment.hosts, number: to}
        self._operator.assign(hosts, ensemble.assignment.version - late, self._ignored)
