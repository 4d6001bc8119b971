"""A simulated host process: the production membership agent and shard driver, over shards that are only epochs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from foqs.engine import shard_driver as steps
from foqs.engine.shard_driver import ShardDriver
from foqs.opened import Opened
from foqs.peers.fact_keeper import FactKeeper, Returned
from foqs.peers.membership_agent import MembershipAgent
from foqs.peers.settings_sync import HostSettings
from foqs.policies.settings import Settings
from foqs.server.cluster_node import LoggedFactWriter
from foqs.server.settings import ClusterSettings
from foqs.shardmgr.continuity import Finding
from foqs.shardmgr.facts import Facts, HostFact, Identity, OwnerFact, Session, ShardFact, ShardUse, Slots
from foqs.shardmgr.lifecycle import ShardState, moved
from foqs.shardmgr.membership import Held
from foqs.zk.protocol import Done
from tests.sim_cluster.checks import broken
from tests.zk.memory import MemoryFactStore

if TYPE_CHECKING:
    from tests.sim_cluster.simulation import Simulation

_HANG_MS = 1_500
_CLOSE_MS = 50


class _Engine:
    def apply_settings(self, settings: Settings) -> None:
        """No item depends on them here."""


class Shard:
    def __init__(self, url: str) -> None:
        self.url, self.state, self.epoch = url, ShardState.ASSIGNED, 0
        self.owner = self  # the shard driver moves it
        self.sealed = False
        self.lost = False  # its database did not answer the last time
        self.idle_ms = 0.0  # when a released shard has finished its work

    def __repr__(self) -> str:
        return f"{self.url} {self.state.value} {self.epoch}{' sealed' if self.sealed else ''}"

    def to(self, state: ShardState) -> None:
        self.state = moved(self.state, state)

    @property
    def served(self) -> bool:
        return self.state in (ShardState.SERVING, ShardState.DRAINING)


class _Asked:
    """Check each request of the membership agent to ZooKeeper, then pass it on."""

    def __init__(self, member: Member) -> None:
        self._member, self._checks, self._store = member, member.sim.checks, member.store

    def join(self, host: HostFact) -> None:
        self._store.join(host)

    def own(self, owner: OwnerFact, done: Done) -> None:
        if self._member.keeper.hold is None:
            self._member.begins(f"to announce shard {owner.shard}")
        self._checks.announcing(self._member, owner)
        self._store.own(owner, self._answered(done))

    def disown(self, shard: int, epoch: int, done: Done) -> None:
        self._checks.withdrawing(self._member, shard, epoch)
        self._store.disown(shard, epoch, self._answered(done))

    def assign(self, hosts: Mapping[int, str], version: int, done: Done) -> None:
        self._member.begins("to assign")
        self._checks.assigning(self._member, hosts, version)
        self._store.assign(hosts, version, self._answered(done))

    def share_slots(self, slots: Slots, done: Done) -> None:
        self._member.begins("to share slots")
        self._store.share_slots(slots, self._answered(done))

    def _answered(self, done: Done) -> Done:
        return lambda error: self._member.call(partial(done, error))


class _WrittenBack:
    """Pass on what the fact keeper writes, while the host begins nothing."""

    def __init__(self, member: Member) -> None:
        self._member, self._store = member, member.store

    def assign(self, hosts: Mapping[int, str], version: int, done: Done) -> None:
        self._holds("an assignment")
        self._store.assign(hosts, version, self._answered(done))

    def share_slots(self, slots: Slots, done: Done) -> None:
        self._holds("slots")
        self._store.share_slots(slots, self._answered(done))

    def identify(self, identity: Identity, done: Done) -> None:
        self._store.identify(identity, self._answered(done))

    def put_back_shard(self, fact: ShardFact, version: int, done: Done) -> None:
        self._holds("a shard")
        self._store.put_back_shard(fact, version, self._answered(done))

    def drain_host(self, host: str, *, drained: bool, done: Done) -> None:
        self._store.drain_host(host, drained=drained, done=self._answered(done))

    def _holds(self, what: str) -> None:
        if self._member.keeper.hold is None or self._member.seat.fresh:
            broken(f"{self._member} writes back {what}, and acts on facts")
        self._member.sim.checks.counts["written back"] += 1

    def _answered(self, done: Done) -> Done:
        return lambda error: self._member.call(partial(done, error))


class Member:
    """Callbacks to a frozen process wait until it thaws; a dead process gets none."""

    def __init__(self, sim: Simulation, host: str, run: int, address: str | None = None) -> None:
        self.sim, self.id, self.run = sim, host, run
        self.address = address or f"{host}:7707"
        self.rng, profile = sim.rng, sim.profile
        self.alive, self.frozen, self.leaving = True, False, False
        self.awake_since = self.born_ms = sim.now_ms
        self.expired_ms = self.connected_ms = -1.0
        self.watched_from = sim.now_ms  # when orphans were first seen by a host that might place them
        self.saw_fresh = False  # a cluster that never had an assignment
        self.shards: dict[int, Shard] = {}
        self.driver = ShardDriver(self.shards, static=False, take_over=True)
        self.given: dict[int, float] = {}
        self._parked: list[Callable[[], None]] = []
        self._due = False
        self._rings = 0
        self.store = MemoryFactStore(sim.ensemble)
        self.seat = MembershipAgent(
            host,
            profile.settings,
            profile.handover_ms,
            LoggedFactWriter(_Asked(self)),
            self,
            lambda: int(sim.now_ms),
        )  # type: ignore[arg-type]
        self.keeper = FactKeeper(
            host, _WrittenBack(self), profile.settings.session_timeout_ms, sim.new_id, self._follow,
            self._hold,
        )  # fmt: skip
        self.settings = HostSettings(_Engine(), partial(sim.checks.acting_on, self))  # type: ignore[arg-type]
        self.changes = ClusterSettings(self.store, self.settings, dict, self.soon)
        self.changes.why_not = lambda: "" if self.keeper.settled else "held"
        self.store.start(
            lambda facts: self.call(partial(self._changed, facts)),
            lambda session: self.call(partial(self._session, session)),
        )
        self._work()

    def __repr__(self) -> str:
        return f"{self.id}/{self.run}"

    @property
    def stopping(self) -> bool:
        return self.driver.stopping

    def call(self, what: Callable[[], None]) -> None:
        if self.frozen:
            self._parked.append(what)
        elif self.alive:
            what()

    def soon(self, delay_ms: float, what: Callable[[], None]) -> None:
        self.sim.soon(delay_ms, lambda: self.call(what))

    def _within(self, most_ms: int, what: Callable[[], None]) -> None:
        self.soon(self.rng.random() * most_ms, what)

    # ------------------------------------------------------------------------------------- what happens to it

    def crash(self) -> None:
        self.alive = self.frozen = False
        self._parked.clear()
        self.store.crash()
        self.sim.gone(self)

    def freeze(self) -> None:
        self.frozen = True
        self.store.cut()

    def thaw(self) -> None:
        """Continue with the work that was parked. The facts are stale until the connection is mended."""
        if not self.frozen:
            return
        self.frozen, self.awake_since = False, self.sim.now_ms
        parked, self._parked = self._parked, []
        for what in parked:
            self.call(what)
        self.store.mend()

    def leave(self) -> None:
        """Leave the cluster, as on SIGTERM."""
        if self.leaving or self.seat.fact is None:
            return
        self.leaving = True
        self.seat.join(replace(self.seat.fact, leaving=True))
        self._leave(self.sim.now_ms + self.sim.profile.grace_ms)

    def _leave(self, deadline_ms: float) -> None:
        wait = self.shards and self.seat.fresh and self.seat.others()
        if wait and self.sim.now_ms < deadline_ms:
            self.soon(20, lambda: self._leave(deadline_ms))
            return
        self.seat.end()
        self.driver.stop()
        for shard in self.shards.values():
            if shard.state is ShardState.SERVING:
                shard.to(ShardState.DRAINING)
        self._within(self.sim.profile.drain_ms, self._stopped)

    def _stopped(self) -> None:
        self.shards.clear()
        self.alive = False
        self.store.close(lambda: None)
        self.sim.gone(self)

    # ------------------------------------------------------------------------------------- what ZooKeeper tells

    def _changed(self, facts: Facts) -> None:
        now_ms = int(self.sim.now_ms)
        self.keeper.changed(facts, now_ms)
        if self.keeper.hold not in (None, Finding.FOREIGN):
            self.changes.follow(facts.settings, facts.vanished)
            self.seat.announce(facts, now_ms)
        self._act_soon()

    def _hold(self, finding: Finding, facts: Facts) -> None:
        self.sim.note(self, "holds", finding.value)
        self.sim.checks.counts[finding.value] += 1
        if finding is Finding.FOREIGN:
            broken(f"{self} takes {facts.identity} for another cluster than {self.keeper.known.identity}")

    def _follow(self, facts: Facts, returned: Returned | None) -> None:
        if returned is not None:
            self.sim.note(self, "goes on", returned)
        self.sim.checks.following(self, facts)
        self.changes.follow(facts.settings, facts.vanished)
        was_fresh, self.watched_from = self.seat.fresh, self._watched_from(facts)
        fatal = self.seat.changed(facts)
        if fatal is not None:
            broken(fatal)
        self.saw_fresh = (was_fresh and self.saw_fresh) or (facts.assignment.version < 0 and not facts.owners)
        self.sim.checks.routing(facts)
        if self.seat.fact is None and not self.stopping:
            self.seat.join(HostFact(self.id, self.address, str(self.run)))
        self._move_slots(facts)
        self._act_soon()

    def _move_slots(self, facts: Facts) -> None:
        """The rows of slots that move to a shard of this host arrive after a while."""
        mine = {number for number, shard in self.shards.items() if shard.state is ShardState.SERVING}
        if moves := {slot: move for slot, move in facts.slots.moves.items() if move.to in mine}:
            self._within(200, partial(self.seat.slots_arrived, moves))

    def _watched_from(self, facts: Facts) -> float:
        """Return since when a host was there that orphans could be given to."""
        before = self.seat.facts
        watched = self.seat.fresh and any(not h.leaving and h.id not in before.drained for h in before.hosts.values())
        return self.watched_from if watched else self.sim.now_ms

    def _session(self, session: Session) -> None:
        self.keeper.session(session)
        self.changes.reconnected()
        self.sim.note(self, session.value)
        if session is Session.EXPIRED:
            self.expired_ms = self.sim.now_ms
        elif session is Session.CONNECTED:
            self.connected_ms = self.sim.now_ms
        self.seat.session(session)

    def _act_soon(self) -> None:
        if not self._due:
            self._due = True
            self.soon(0, self._act)

    def _act(self) -> None:
        self._due = False
        self._rings += 1
        rings, now_ms = self._rings, int(self.sim.now_ms)
        self.sim.checks.arrived(self)
        times = [self.keeper.act(now_ms), self.seat.act(now_ms, {})]
        at_ms = min((at for at in times if at is not None), default=None)
        if at_ms is not None:
            self.soon(max(1, at_ms - now_ms), lambda: self._act_soon() if rings == self._rings else None)

    # ------------------------------------------------------------------------------------- its shards

    def held(self) -> Mapping[int, Held]:
        return {number: Held(shard.url, shard.state, shard.epoch) for number, shard in self.shards.items()}

    def seal(self, sealed: frozenset[int]) -> None:
        for number, shard in self.shards.items():
            shard.sealed = number in sealed

    def down(self) -> Collection[int]:
        hosts = self.seat.facts.assignment.hosts
        self.driver.keep_unreachable({number for number, host in hosts.items() if host == self.id})
        return self.driver.unreachable.union(number for number, shard in self.shards.items() if shard.lost)

    def read_only(self) -> Collection[int]:
        return self.driver.read_only

    def silent_ms(self) -> Mapping[int, int]:
        return {}

    def probe(self, fact: ShardFact, done: Callable[[bool], None]) -> None:
        self.sim.checks.counts["probed"] += 1

        def answered() -> None:
            done(self.reaches(fact.url))
            self._act_soon()

        self._within(_HANG_MS, answered)

    def reaches(self, url: str) -> bool:
        return self.sim.up(url, self.id)

    def take(self, fact: ShardFact, epoch_above: int) -> None:
        facts = self.seat.facts
        if fact.id in self.shards or facts.assignment.hosts.get(fact.id) != self.id or fact.use is ShardUse.DISABLED:
            broken(f"{self} opens shard {fact.id}")
        self.shards[fact.id] = Shard(fact.url)
        self._perform(self.driver.take(fact.id, epoch_above))

    def release(self, number: int) -> None:
        self._perform(self.driver.release(number, int(self.sim.now_ms), self.sim.profile.handover_ms))

    def recheck_owner(self, number: int) -> None:
        self._within(50, lambda: self._confirm(number, self.shards.get(number)))

    def begins(self, what: str) -> None:
        if self.stopping or not self.seat.fresh:
            broken(f"{self} begins {what}, with facts that may be old, or when it stops")

    # ------------------------------------------------------------------------------------- steps of the driver

    def _perform(self, todo: steps.Steps) -> None:
        for step in todo:
            match step:
                case steps.Prepare(number, attempt):
                    self.begins(f"to open shard {number}")
                    self._perform(self.driver.prepared(number, attempt, None))
                case steps.Open():
                    self._open(step)
                case steps.Serve(number, opened):
                    shard = self.shards[number]
                    shard.to(ShardState.SERVING)
                    shard.epoch = opened.epoch
                    self.sim.checks.serving(self, number, opened.epoch)
                case steps.Retire(number):
                    self._retire(number)
                case steps.Drain(number, attempt, after_ms):
                    self.soon(after_ms, partial(self._drained, number, attempt))
                case steps.End(number, _):
                    self.shards[number].to(ShardState.CLOSED)
                case steps.Close(number, attempt, _):
                    self._within(_CLOSE_MS, self._report(self.driver.closed, number, attempt))
                case steps.Retry(number, attempt, after_ms):
                    self.soon(after_ms, self._report(self.driver.retry, number, attempt))
                case steps.Forget(number):
                    del self.shards[number]
                case steps.Changed():
                    self._act_soon()

    def _report(self, result: Callable[[int, int], steps.Steps], number: int, attempt: int) -> Callable[[], None]:
        return lambda: self._perform(result(number, attempt))

    def _open(self, step: steps.Open) -> None:
        number, attempt, shard = step.number, step.attempt, self.shards[step.number]
        half_ms = self.sim.profile.open_ms / 2

        def arrived() -> None:
            """Take the epoch in the database, also when the process has died since."""
            if not self.reaches(shard.url):
                failed = partial(self.driver.not_opened, number, attempt, "down", held=False, down=True)
                self._within(_HANG_MS, lambda: self._perform(failed()))
                return
            self.sim.checks.taking(self, number)
            epoch = self.sim.rows[shard.url].take(self, step.epoch_above)
            self.sim.note(self, "takes", number, "epoch", epoch)
            self._within(50, lambda: self._perform(self.driver.opened(number, attempt, _opened(epoch))))

        self._within(int(half_ms), lambda: self.sim.soon(self.rng.random() * half_ms, arrived))

    def _retire(self, number: int) -> None:
        self.sim.checks.releasing(self, number)
        self.sim.note(self, "releases", number)
        shard = self.shards[number]
        shard.to(ShardState.DRAINING)
        shard.idle_ms = self.sim.now_ms + self.rng.random() * self.sim.profile.drain_ms

    def _drained(self, number: int, attempt: int) -> None:
        shard, now_ms = self.shards.get(number), self.sim.now_ms
        idle = shard is not None and now_ms >= shard.idle_ms and self.reaches(shard.url)
        self._perform(self.driver.drained(number, attempt, int(now_ms), idle=idle, in_grace=False))

    def _work(self) -> None:
        for number, shard in list(self.shards.items()):
            if shard.served:
                self._confirm(number, shard)
        self.soon(self.sim.profile.work_every_ms, self._work)

    def _confirm(self, number: int, shard: Shard | None) -> None:
        """Run a transaction, which fails if the shard has another owner."""
        if shard is None or not shard.served:
            return
        if shard.lost is self.sim.up(shard.url, self.id):
            shard.lost = not shard.lost
            self._act_soon()
        if shard.lost:
            return
        if self.sim.rows[shard.url].write(self, shard.epoch):
            return
        self.sim.checks.counts["refused"] += 1
        self.sim.note(self, "lost", number, "epoch", shard.epoch)
        shard.to(ShardState.CLOSED)
        self._perform(self.driver.lost(number))


def _opened(epoch: int) -> Opened:
    """Return the result of opening an empty shard."""
    return Opened(epoch, 1, 0, 0, [], [], {}, 0, [], replaced=False)
