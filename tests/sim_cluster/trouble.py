"""Faults of a simulated cluster, and changes that operators make during them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from foqs.policies.settings import Settings
from foqs.shardmgr.facts import Facts, ShardFact, ShardUse
from foqs.zk.protocol import ZkConflict, ZkError, ZkUnknown
from tests.zk.memory import MemoryFactStore

if TYPE_CHECKING:
    from tests.sim_cluster.member import Member
    from tests.sim_cluster.simulation import Simulation


LOSS = "loss"
"""The kind of seeds in which ZooKeeper loses its data, or gets an older copy."""


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
            (3, self._use), (1, self._elsewhere), (4, self._move), (2, self._settings),
        ]  # fmt: skip
        self._commands = [self._drain, self._undrain, self._add, self._remove, self._use, self._elsewhere, self._move]
        # Each seed uses a sample, so that even a rare kind is frequent in some seeds.
        self._kinds = self.rng.sample(every, self.rng.randint(3, len(every)))
        self._shards = dict(sim.ensemble.shards)  # as operators want them
        self._doubtful: set[int] = set()  # an operator does not know the outcome of a change
        self._copies: list[tuple[float, Mapping[str, Any]]] = []
        self._witness: Member | None = None  # it knows what ZooKeeper has lost: nothing happens to it for a while
        if sim.trouble == LOSS:
            self._kinds += [(4, self._lose), (4, self._copy), (6, self._put_back)]

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
        # Commands of operators wait until hosts have written back the lost records.
        kinds = [kind for kind in self._kinds if self._witness is None or kind[1] not in self._commands]
        if kinds:
            self.rng.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]()
        self.begin()

    def _later(self, most_ms: int, what: Callable[[], None]) -> None:
        self._at(self.rng.random() * most_ms, what)

    def _at(self, delay_ms: float, what: Callable[[], None]) -> None:
        """Call `what` after `delay_ms`, unless all faults are mended by then."""
        self.sim.soon(delay_ms, lambda: None if self.sim.healing else what())

    def _member(self) -> Member | None:
        awake = [member for member in self.sim.members if not member.frozen and member is not self._witness]
        return self.rng.choice(awake) if awake else None

    def _ignored(self, error: ZkError | None) -> None:
        if isinstance(error, ZkConflict):
            self.sim.checks.counts["conflict"] += 1

    def _made(self, number: int, fact: ShardFact | None, error: ZkError | None) -> None:
        """An operator has put a shard (None: removed it), or tried to."""
        self._ignored(error)
        if isinstance(error, ZkUnknown):
            self._doubtful.add(number)
        elif error is None:
            self._doubtful.discard(number)
            if fact is not None:
                self._shards[number] = fact
            else:
                self._shards.pop(number, None)

    def wrong(self, facts: Facts) -> str:
        """Return how the shards differ from those that operators want, '' if they do not."""
        for number in sorted((self._shards.keys() | facts.shards.keys()) - self._doubtful):
            wanted, found = self._shards.get(number), facts.shards.get(number)
            revived = self.sim.trouble == LOSS and wanted is None and found and found.use is ShardUse.DISABLED
            if found != wanted and not revived:
                return f"shard {number} is {found}, operators want {wanted}"
        return ""

    # ------------------------------------------------------------------------------------- lost data

    def _copy(self) -> None:
        if self.sim.ensemble.up and not self._busy():
            self._copies.append((self.sim.now_ms, self.sim.ensemble.copy()))

    def _lose(self) -> None:
        self._replace_data("loses its data", {}, 0)

    def _put_back(self) -> None:
        if self._copies:
            at_ms, data = self.rng.choice(self._copies)
            self._replace_data(f"gets the copy of {at_ms:.0f}", data, at_ms)

    def over(self) -> bool:
        """Return True if hosts have written back all that was lost."""
        return self._witness is None

    def _busy(self) -> bool:
        """Whether hosts still write back lost records."""
        return self._witness is not None or not self.sim.ensemble.identity.id or self.sim.ensemble.identity.open

    def _replace_data(self, what: str, data: Mapping[str, Any], since_ms: float) -> None:
        """No host can bring back records that no living host knows: one host knows all, and lives until it is done."""
        ensemble = self.sim.ensemble
        witnesses = [member for member in self.sim.members if self._knows(member, since_ms)]
        if not ensemble.up or self._busy() or not witnesses:
            return
        self._witness = self.rng.choice(witnesses)
        self.sim.note("ZooKeeper", what, "and", self._witness, "knows")
        self.sim.checks.counts["lost"] += 1
        self.sim.checks.lost = True
        ensemble.put_back(data)
        self.sim.checks.lost = False
        self._release()

    def _knows(self, member: Member, since_ms: float) -> bool:
        known, truth = member.keeper.known, self.sim.truth()
        durable = ("shards", "drained", "assignment", "slots", "settings", "identity")
        seen = not since_ms or member.born_ms <= since_ms
        free = not member.frozen and not member.leaving and member.store.connected and member.keeper.settled
        return free and seen and all(getattr(known, kind) == getattr(truth, kind) for kind in durable)

    def _release(self) -> None:
        """Spare the witness until the event is over."""
        ensemble, witness = self.sim.ensemble, self._witness
        assert witness is not None
        if ensemble.identity.id and not ensemble.identity.open and witness.keeper.settled and witness.store.connected:
            self.sim.note(witness, "has written back")
            self._witness = None
        else:
            self.sim.soon(50, self._release)

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
        for at, member in enumerate(one for one in list(self.sim.members) if one is not self._witness):
            end = partial(self._ended, member, crash)
            self._at(at * gap_ms, end)
            self._at(at * gap_ms + self.profile.grace_ms + 500, partial(self.sim.start, member.id))

    def _ended(self, member: Member, crash: bool) -> None:
        if member.alive and member is not self._witness:
            member.crash() if crash else member.call(member.leave)

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
        self._operator.put_shard(fact, new=new, done=partial(self._made, fact.id, fact))

    def _add(self) -> None:
        number = self.rng.randint(1, self.profile.shards + 5)
        self._put(self.sim.new_shard(number), new=True)

    def _remove(self) -> None:
        if len(self.sim.ensemble.shards) > 1 and (fact := self._shard()) is not None:
            self.sim.note("operator removes", fact.id)
            self._operator.remove_shard(fact.id, partial(self._made, fact.id, None))

    def _use(self) -> None:
        if (fact := self._shard()) is not None:
            self._put(replace(fact, use=self.rng.choice([ShardUse.ENABLED, *ShardUse])))

    def _settings(self) -> None:
        """Change the settings at a host."""
        if (member := self._member()) is not None:
            value = str(self.rng.random())
            self.sim.note("settings", value, "at", member)
            change = partial(Settings.changed, entries={"plans/a": value}, remove=(), nonce=value)
            member.call(lambda: member.changes.change_settings("ns", change, lambda outcome: None))

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
