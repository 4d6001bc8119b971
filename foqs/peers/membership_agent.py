"""A host's part in its cluster. Facts, the session's state and the time go in; orders to the host's shards and writes
to the cluster's facts go out.

`foqs.shardmgr.membership` decides what this host does and, on the elected host, `foqs.shardmgr.controller` decides for
the cluster, by the load of each shard (`ShardLoads`). `foqs.server.cluster_node` supplies the clock and the event loop;
so does the simulation of clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.peers.forwarded import Ask
from foqs.shardmgr.controller import Controller, ControllerSettings, Write, takers
from foqs.shardmgr.facts import (
    Facts,
    HostFact,
    OwnerFact,
    Session,
    ShardFact,
    SlotMove,
    Slots,
    other_protocol,
    protocol_error,
)
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.membership import Held, Lasting, Membership, Reach, cut_off
from foqs.shardmgr.routing import arrived, planned


class Shards(Protocol):
    """The shards that this host holds."""

    def held(self) -> Mapping[int, Held]: ...

    def take(self, fact: ShardFact, epoch_above: int) -> None: ...

    def release(self, number: int) -> None: ...

    def recheck_owner(self, number: int) -> None:
        """Have the shard's database confirm that this host still owns it."""

    def seal(self, sealed: frozenset[int]) -> None:
        """Refuse new items for these shards, and accept them for all other shards."""

    def down(self) -> Collection[int]:
        """Return the shards assigned to this host whose database does not answer it."""

    def read_only(self) -> Collection[int]:
        """Return the shards that are `down` and whose database answers and takes no writes."""

    def silent_ms(self) -> Mapping[int, int]:
        """Return for how many ms a database has not answered this host, by shard. Shards are in it that are `down`, or
        have a call that takes longer than `breaker.hang_ms`."""

    def probe(self, fact: ShardFact, done: Callable[[bool], None]) -> None:
        """Connect to the shard's database; `done(True)` is called later if it answered, else `done(False)`."""


class FactWriter(Protocol):
    """Writes to the cluster's facts. A write may fail: the next facts show its outcome."""

    def join(self, host: HostFact) -> None: ...

    def own(self, owner: OwnerFact) -> None: ...

    def disown(self, shard: int, epoch: int) -> None: ...

    def assign(self, write: Write) -> None: ...

    def share_slots(self, wanted: Slots, done: Callable[[], None]) -> None:
        """Replace the record of slots. `done` is called with either outcome."""


class MembershipAgent:
    """`facts` belong to a connected session while `fresh`; on stale facts the agent begins nothing."""

    def __init__(
        self,
        host: str,
        settings: ControllerSettings,
        handover_ms: int,
        writer: FactWriter,
        shards: Shards,
        clock_ms: Callable[[], int],
    ) -> None:
        self.facts = Facts()
        self.fresh = False
        self._id = host
        self._writer = writer
        self._shards = shards
        self._membership = Membership(host, handover_ms)
        self._controller = Controller(host, settings)
        self._reach = Reach(host)
        self._cut_off = Lasting(settings.session_timeout_ms)
        self.cut_off: frozenset[int] = frozenset()
        """Shards whose database this host cannot reach and another host can."""
        self.fact: HostFact | None = None
        """The record that this host joined with; None before it joins and after it ended."""
        self._connected = False
        self._clock_ms = clock_ms  # time of day: stamps keep growing after ZooKeeper lost all its records
        self._sharing: int | None = None  # the version of the slots' record that a write replaces
        self.state: Session | None = None  # None until ZooKeeper has answered
        self.changes: Counter[Session] = Counter()  # of that state
        self.seen = False
        """True once this host was among the hosts of the facts."""

    def reconfigure(self, settings: ControllerSettings) -> None:
        self._controller.reconfigure(settings)
        self._cut_off.hold_ms = settings.session_timeout_ms

    def join(self, fact: HostFact) -> None:
        self.fact = fact
        self._membership.address = fact.address
        self._writer.join(fact)

    def end(self) -> None:
        """Stop acting, whatever facts arrive."""
        self.fresh, self.fact = False, None

    def twin(self, address: str) -> HostFact | None:
        """Return the other process that has this host's id, while it keeps the host at `address` from joining."""
        here = self.facts.hosts.get(self._id)
        return None if self.seen or here is None or here.address == address else here

    def others(self) -> bool:
        """Return True if another host can take shards."""
        return bool(takers(self.facts) - {self._id})

    def changed(self, facts: Facts) -> str | None:
        """Accept new facts. Return why this host must end: another process has its id, or a host with another protocol
        version was in the cluster first, or joined at the same time."""
        self.facts = facts
        self.fresh = self._connected  # facts read before the connection was lost may arrive after the loss
        here = facts.hosts.get(self._id)
        if here is None or self.fact is None:
            return None
        if here.run == self.fact.run:
            other = None if self.seen else other_protocol(facts, self._id)
            self.seen = True
            if other is not None:
                self.end()
                return protocol_error(other).message
        elif self.seen:
            self.end()
            return f"another process runs as host {self._id}, at {here.address}: give each host its own server.id"
        return None

    def session(self, session: Session) -> None:
        self.fresh, self._connected = False, session is Session.CONNECTED
        self.state = session
        self.changes[session] += 1
        if self._connected:
            return  # its facts follow
        self._controller.lost()
        if session is Session.EXPIRED:
            self._membership.expired()
            for number, shard in self._shards.held().items():
                if shard.state in (ShardState.SERVING, ShardState.DRAINING):
                    self._shards.recheck_owner(number)

    def announce(self, facts: Facts, now_ms: int) -> None:
        """Announce the shards that this host serves, on facts that it does not act on (yet)."""
        if self._connected and self.fact is not None:
            steps = self._membership.announce(facts, self._shards.held(), now_ms)
            for number in steps.doubtful:
                self._shards.recheck_owner(number)
            for owner in steps.announce:
                self._writer.own(owner)

    def act(self, now_ms: int, measured: Mapping[int, float]) -> int | None:
        """Carry out what follows from the facts and from the load of each shard. Return when to act next if no fact
        changes before; None: only when a fact changes."""
        if not self.fresh or self.fact is None or not self.seen:
            return None
        facts, shards = self.facts, self._shards
        steps = self._membership.decide(facts, shards.held(), now_ms)
        shards.seal(steps.sealed)
        for number in steps.doubtful:
            shards.recheck_owner(number)
        for number in steps.release:
            shards.release(number)
        for fact in steps.open:
            known = facts.owners.get(fact.id)
            shards.take(fact, known.epoch if known is not None else 0)
        for owner in steps.announce:
            self._writer.own(owner)
        for owner in steps.withdraw:
            self._writer.disown(owner.shard, owner.epoch)
        if facts.controller == self._id and facts.slots.shards:
            self.share_slots()
        report_ms = self._report(now_ms)
        step = self._controller.decide(facts, now_ms, measured)
        if step.write is not None:
            self._writer.assign(step.write)
        return min((at for at in (steps.next_ms, step.next_ms, report_ms) if at is not None), default=None)

    def _report(self, now_ms: int) -> int | None:
        """Keep up to date which databases this host reaches, in the host's record. Return when to do so next."""
        assert self.fact is not None
        served = [number for number, shard in self._shards.held().items() if shard.state is ShardState.SERVING]
        report = self._reach.decide(self.facts, self._shards.down(), served, now_ms, self._shards.silent_ms())
        for number in report.check:
            self._shards.recheck_owner(number)
        if report.probe is not None:
            self._shards.probe(report.probe, lambda ok: self._reach.probed(ok=ok))
        fact = replace(
            self.fact,
            unreachable=report.unreachable,
            reached=report.reached,
            hanging=report.hanging,
            read_only=report.unreachable.intersection(self._shards.read_only()),
        )
        if fact != self.fact:
            self.fact = fact
            self._writer.join(fact)
        self.cut_off = self._cut_off.update(cut_off(self.facts).get(self._id, frozenset()), now_ms)
        times = (report.next_ms, self._cut_off.next_ms(now_ms))
        return min((at for at in times if at is not None), default=None)

    def share_slots(self) -> None:
        """Put each slot of deduplication keys on a shard that takes items, or begin to move it to one."""
        self._write_slots(planned(self.facts, self._clock_ms()))

    def slots_arrived(self, moved: Mapping[int, SlotMove]) -> None:
        """Record that the rows of these slots are on the shards they were moved to."""
        self._write_slots(arrived(self.facts.slots, moved, self._clock_ms()))

    def _write_slots(self, wanted: Slots) -> None:
        before = self.facts.slots
        if not self.fresh or wanted == before or self._sharing == before.version:
            return
        self._sharing = before.version

        def done() -> None:
            self._sharing = None

        self._writer.share_slots(wanted, done)


_TIMEOUT_MS = 2_000
_KEPT = 0.5
"""Of the rate before: a burst between two questions is no reason to move a shard."""
_FRESH_MS = 500
"""`ShardLoads.measured` is computed again after this time: a cluster with many shards has many facts."""


class _Count(NamedTuple):
    address: str
    rows: int
    at_ms: int


class ShardLoads:
    """How busy each shard is, for the host that was elected to balance them: every host is asked now and then how many
    rows it has changed in each of its shards. None of it goes through ZooKeeper. `now_ms` must not go back.

    A shard whose database does not work changes no rows, and its work goes to other shards. Its host leaves it out of
    the answer, and it keeps its share of the work: its load before, as a part of the mean load of all shards. A rate
    counts when it is `lag_ms()` old: a database is silent for some time before its host says so.
    """

    def __init__(self, ask: Ask, now_ms: Callable[[], int], lag_ms: Callable[[], int]) -> None:
        self._ask = ask
        self._now_ms = now_ms
        self._lag_ms = lag_ms
        self._known: tuple[int, Mapping[int, float]] | None = None  # when `measured` was computed, and its value
        self._counts: dict[int, _Count] = {}
        self._rates: dict[int, list[tuple[int, float]]] = {}  # at which times they were measured, ascending
        self._silent: dict[int, float] = {}  # shards without a count, and their load before, in mean loads

    @property
    def measured(self) -> Mapping[int, float]:
        """Rows a second, of the shards of which it is known; of a silent shard the rate that it would have now."""
        now_ms = self._now_ms()
        if self._known is None or not 0 <= now_ms - self._known[0] < _FRESH_MS:
            self._known = now_ms, self._loads(now_ms - self._lag_ms())
        return self._known[1]

    def _loads(self, until_ms: int) -> Mapping[int, float]:
        rates = {shard: _last(past, until_ms) for shard, past in self._rates.items()}
        if not self._silent:
            return rates
        working = [rate for shard, rate in rates.items() if shard not in self._silent]
        shares = {shard: self._silent[shard] for shard in rates if shard in self._silent}
        left = len(rates) - sum(shares.values())
        if left <= 0 or not (total := sum(working)):
            return rates
        return rates | {shard: share * total / left for shard, share in shares.items()}

    def ask(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            self._ask(
                address, "GetServerInfo", idl.GetServerInfoRequest(), _TIMEOUT_MS, partial(self._answered, address)
            )

    def forget(self) -> None:
        """Another host balances."""
        self._counts.clear()
        self._rates.clear()
        self._silent.clear()
        self._known = None

    def _answered(self, address: str, response: Any, error: FoqsError | None) -> None:
        if error is not None:
            return
        now_ms, counted = self._now_ms(), response.shard_rows or {}
        self._known = None
        for shard in [n for n, count in self._counts.items() if count.address == address and n not in counted]:
            self._fall_silent(shard)
        for shard, rows in counted.items():
            before, self._counts[shard] = self._counts.get(shard), _Count(address, rows, now_ms)
            # A count that is lower, or another host's, began when the shard was opened again.
            if before is None or before.address != address or rows < before.rows or now_ms <= before.at_ms:
                continue
            self._silent.pop(shard, None)
            rate, past = (rows - before.rows) * 1_000 / (now_ms - before.at_ms), self._rates.setdefault(shard, [])
            past.append((now_ms, _KEPT * past[-1][1] + (1 - _KEPT) * rate if past else rate))
            while len(past) > 1 and past[1][0] <= now_ms - self._lag_ms():
                del past[0]

    def _fall_silent(self, shard: int) -> None:
        """Note that a shard has lost its count. The next count after that begins a new rate."""
        del self._counts[shard]
        if shard in self._silent or shard not in self._rates:
            return
        now_ms = self._now_ms()
        rates = self._loads(now_ms - self._lag_ms())
        mean = sum(rates.values()) / len(rates)
        self._rates[shard] = [(now_ms, rates[shard])]
        self._silent[shard] = rates[shard] / mean if mean else 1.0


def _last(past: Sequence[tuple[int, float]], until_ms: int) -> float:
    """Return the last rate that was measured by that time; the first one if all are later."""
    rate = past[0][1]
    for at_ms, later in past:
        if at_ms <= until_ms:
            rate = later
    return rate
