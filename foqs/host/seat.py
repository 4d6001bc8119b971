"""A host's seat in its cluster: facts, session and time go in; what is done is asked of the shards and of ZooKeeper.

What is done is decided by `foqs.shardmgr.membership` and, on the host that was elected, by `foqs.shardmgr.controller`.
No clock and no event loop: `foqs.host.member` gives them, and so does the simulation of clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from foqs.shardmgr.controller import Controller, ControllerSettings, Write, takers
from foqs.shardmgr.facts import Facts, HostFact, ShardFact, SlotMove, Slots
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.membership import Held, Membership
from foqs.shardmgr.reach import Lasting, Reach, cut_off
from foqs.shardmgr.slots import arrived, planned
from foqs.zk.protocol import FactStore, Session, ZkConflict, ZkError

log = structlog.get_logger("foqs.host")


class Shards(Protocol):
    """Those that a host holds."""

    def held(self) -> Mapping[int, Held]: ...

    def take(self, fact: ShardFact, epoch_above: int) -> None: ...

    def release(self, number: int) -> None: ...

    def doubt(self, number: int) -> None:
        """Has the shard's database say whether it still is this host's."""

    def seal(self, sealed: frozenset[int]) -> None:
        """These take no new items; the others do."""

    def down(self) -> Collection[int]:
        """Shards assigned to this host whose database does not answer it."""

    def probe(self, fact: ShardFact, done: Callable[[bool], None]) -> None:
        """Connects to the shard's database; `done(whether it answered)` comes once, later."""


class Seat:
    """`facts` are those of a session that stands as long as `fresh`: nothing is begun on others."""

    def __init__(
        self,
        host: str,
        settings: ControllerSettings,
        handover_ms: int,
        store: FactStore,
        shards: Shards,
        clock_ms: Callable[[], int],
    ) -> None:
        self.facts = Facts()
        self.fresh = False
        self._id = host
        self._store = store
        self._shards = shards
        self._membership = Membership(host, handover_ms)
        self._controller = Controller(host, settings)
        self._reach = Reach(host)
        self._cut_off = Lasting(settings.session_timeout_ms)
        self.cut_off: frozenset[int] = frozenset()
        """Shards whose database this host cannot reach and another host can."""
        self._fact: HostFact | None = None
        self._connected = False
        self._clock_ms = clock_ms  # of the world, for stamps that go on when ZooKeeper begins anew
        self._sharing: int | None = None  # the version that is being replaced
        self.state: Session | None = None  # of the session, once ZooKeeper has answered
        self.changes: Counter[Session] = Counter()  # of that state
        self.seen = False
        """Whether this host was among those of the facts."""

    def reconfigure(self, settings: ControllerSettings) -> None:
        self._controller.reconfigure(settings)
        self._cut_off.hold_ms = settings.session_timeout_ms

    def join(self, fact: HostFact) -> None:
        self._fact = fact
        self._membership.address = fact.address
        self._store.join(fact)

    def end(self) -> None:
        """Nothing is done any more, whatever facts come."""
        self.fresh, self._fact = False, None

    def twin(self, address: str) -> HostFact | None:
        """The other process that has this host's id, as long as it keeps the host at `address` from joining."""
        here = self.facts.hosts.get(self._id)
        return None if self.seen or here is None or here.address == address else here

    @property
    def fact(self) -> HostFact | None:
        """What was joined with; None before that, and when nothing is done in that name any more."""
        return self._fact

    def others(self) -> bool:
        """Whether there is a host that shards may be moved to."""
        return bool(takers(self.facts) - {self._id})

    def changed(self, facts: Facts) -> str | None:
        """Why this host cannot go on, if another process has its id."""
        self.facts = facts
        self.fresh = self._connected  # what was read before the connection was lost may be told after it
        here = facts.hosts.get(self._id)
        if here is None or self._fact is None:
            return None
        if here.run == self._fact.run:
            self.seen = True
        elif self.seen:
            self.end()
            return f"another process runs as host {self._id}, at {here.address}: give each host its own server.id"
        return None

    def session(self, session: Session) -> None:
        self.fresh, self._connected = False, session is Session.CONNECTED
        self.state = session
        self.changes[session] += 1
        if self._connected:
            return  # its facts come next
        self._controller.lost()
        if session is Session.EXPIRED:
            self._membership.expired()
            for number, shard in self._shards.held().items():
                if shard.state in (ShardState.SERVING, ShardState.DRAINING):
                    self._shards.doubt(number)

    def act(self, now_ms: int, measured: Mapping[int, float]) -> int | None:
        """Does what follows from the facts, and from how busy shards are. When to come again, if nothing changes; None:
        only when something did."""
        if not self.fresh or self._fact is None or not self.seen:
            return None
        facts, shards = self.facts, self._shards
        steps = self._membership.decide(facts, shards.held(), now_ms)
        shards.seal(steps.sealed)
        for number in steps.doubtful:
            shards.doubt(number)
        for number in steps.release:
            shards.release(number)
        for fact in steps.open:
            known = facts.owners.get(fact.id)
            shards.take(fact, known.epoch if known is not None else 0)
        for owner in steps.announce:
            self._store.own(owner, _done("announce", owner.shard))
        for owner in steps.withdraw:
            self._store.disown(owner.shard, owner.epoch, _done("withdraw", owner.shard))
        if facts.controller == self._id and facts.slots.shards:
            self.share_slots()
        report_ms = self._report(now_ms)
        step = self._controller.decide(facts, now_ms, measured)
        if step.write is not None:
            self._write(step.write)
        return min((at for at in (steps.next_ms, step.next_ms, report_ms) if at is not None), default=None)

    def _report(self, now_ms: int) -> int | None:
        """Keeps the part of the host's record that says which databases it reaches."""
        assert self._fact is not None
        served = [number for number, shard in self._shards.held().items() if shard.state is ShardState.SERVING]
        report = self._reach.decide(self.facts, self._shards.down(), served, now_ms)
        for number in report.check:
            self._shards.doubt(number)
        if report.probe is not None:
            self._shards.probe(report.probe, lambda ok: self._reach.probed(ok=ok))
        fact = replace(self._fact, unreachable=report.unreachable, reached=report.reached)
        if fact != self._fact:
            self._fact = fact
            self._store.join(fact)
        self.cut_off = self._cut_off.update(cut_off(self.facts).get(self._id, frozenset()), now_ms)
        times = (report.next_ms, self._cut_off.next_ms(now_ms))
        return min((at for at in times if at is not None), default=None)

    def share_slots(self) -> None:
        """Has each slot of deduplication keys be on a shard that takes items, or move to one."""
        self._write_slots(planned(self.facts, self._clock_ms()))

    def slots_arrived(self, moved: Mapping[int, SlotMove]) -> None:
        """The rows of these slots are where they were to go."""
        self._write_slots(arrived(self.facts.slots, moved, self._clock_ms()))

    def _write_slots(self, wanted: Slots) -> None:
        before = self.facts.slots
        if not self.fresh or wanted == before or self._sharing == before.version:
            return
        self._sharing = before.version

        def done(error: ZkError | None) -> None:
            self._sharing = None
            version, moving = before.version + 1, len(wanted.moves)
            if error is None:
                log.info("slots.written", version=version, moving=moving)
            elif not isinstance(error, ZkConflict):
                log.warning("slots.not_written", version=version, moving=moving, reason=str(error))

        self._store.share_slots(wanted, done)

    def _write(self, write: Write) -> None:
        def done(error: ZkError | None) -> None:
            # A conflict is another controller's write, or ours before: the facts will tell.
            version = write.version + 1
            if error is None:
                log.info(
                    "assignment.written",
                    version=version, placed=write.placed, moved=write.moved, dropped=write.dropped,
                )  # fmt: skip
            elif not isinstance(error, ZkConflict):
                log.warning("assignment.not_written", version=version, reason=str(error))

        self._store.assign(write.hosts, write.version, done)


def _done(what: str, number: int) -> Callable[[ZkError | None], None]:
    def done(error: ZkError | None) -> None:
        if error is not None:  # it is asked for again, if the facts still want it
            log.warning("owner.not_written", what=what, shard=number, reason=str(error))

    return done
