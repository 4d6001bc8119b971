"""When the elected host writes a new assignment, and which. Facts and the time go in, a compare-and-set comes out.

- Orphans (shards without a living host) are placed at once, but not before this host has watched the cluster for one
  session time-out: whoever lives has come back by then, and the first one back is not given everything. It counts from
  when the host began to watch, not from its election: if the controller itself dies, a host that has watched all along
  takes over at once. In a fresh cluster nobody is waited for who serves anything: hosts that were started together are
  given `settle_ms` from the first one on, so that they share.
- A host that vanished gets no grace: its node stood as long as its session. A shard that is still served by a living
  host, whatever the assignment says, is no orphan: it is assigned to that one.
- A host that is drained or leaving is emptied in one write, whatever `max_moves` says, and before orphans may be placed
  (a rolling restart has a new controller often). It has a short time, each of its shards is paused by its own hand-over
  only, and until then it is served; a bound here would let shards that cannot be opened anywhere hold up the others.
- Balance comes every `balance_every_ms`, at most `max_moves` at a time, when no shard is under way: that is one which
  its assigned host does not serve. With its database down a shard never gets there, so this is waited for no longer
  than another `balance_every_ms`; then the shards under way are left alone and the others are balanced.
- A shard whose database its host cannot reach stays: another host could do no better, and its load is not known, so it
  counts as a mean one. Only when another host reaches that database server, for one session time-out, is the shard
  moved there (`foqs.shardmgr.reach`). A host that cannot reach a server that others reach is given nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from foqs.shardmgr.assignment import Situation, balance, empty_hosts, place_orphans, rescue
from foqs.shardmgr.facts import Facts, ShardUse
from foqs.shardmgr.reach import Lasting, cut_off, stranded, unreachable

IDLE_LOAD = 0.1
"""What a shard without traffic counts, in mean ones: it has a connection and memory, and its traffic may come back."""

_NOT_MEASURED: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """`again_ms`: a write that the facts do not show after this long is given up and decided anew."""

    session_timeout_ms: int = 10_000
    settle_ms: int = 1_000
    balance_every_ms: int = 60_000
    max_moves: int = 10
    again_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class Write:
    """What `FactStore.assign` is to be asked for. `placed`, `moved` and `dropped` are the shards that changed, for the
    audit line: given to a host, given to another one, and taken out."""

    hosts: Mapping[int, str]
    version: int
    placed: tuple[int, ...]
    moved: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """`next_ms`: ask again then, even if no fact changed; None: only when one did."""

    write: Write | None
    next_ms: int | None


class Controller:
    """Of one host, elected or not. It is asked whenever facts change, and when `Step.next_ms` has come, but not while
    the session is suspended."""

    __slots__ = ("_asked", "_balance_ms", "_host", "_ready_ms", "_settings", "_stranded")

    def __init__(self, host: str, settings: ControllerSettings) -> None:
        self._host = host
        self._settings = settings
        self._stranded = Lasting(settings.session_timeout_ms)
        self.lost()

    def __repr__(self) -> str:
        return f"<Controller {self._host} ready_ms={self._ready_ms} balance_ms={self._balance_ms} asked={self._asked}>"

    def lost(self) -> None:
        """The session is suspended or has expired: what was seen until now says nothing of who will come back."""
        self._ready_ms: int | None = None  # orphans may be placed from then; None: nobody could take them
        self._stranded.clear()
        self._retire()

    def _retire(self) -> None:
        self._balance_ms: int | None = None  # the next balance; None: not elected
        self._asked: tuple[int, int] | None = (
            None  # version that a write was asked for, and until when it is waited for
        )

    def reconfigure(self, settings: ControllerSettings) -> None:
        """The next balance is so far away as a new controller's first one."""
        self._settings = settings
        self._stranded.hold_ms = settings.session_timeout_ms
        self._balance_ms = None

    def decide(self, facts: Facts, now_ms: int, measured: Mapping[int, float] = _NOT_MEASURED) -> Step:
        """`measured` is the load of shards in any one unit. What is to be written is said once for a version of the
        assignment, until `again_ms` have passed: whether it worked, the facts will tell, and twice does no harm."""
        self._watch(facts, now_ms)
        able = stranded(facts)
        lasting = self._stranded.update(able, now_ms)
        if facts.controller != self._host:
            self._retire()
            return Step(None, None)
        if self._balance_ms is None:
            self._balance_ms = now_ms + self._settings.balance_every_ms
        if self._ready_ms is None:
            return Step(None, None)
        if self._asked is not None and self._asked[0] == facts.assignment.version and now_ms < self._asked[1]:
            return Step(None, self._asked[1])
        write = self._repair(facts, measured, ready=now_ms >= self._ready_ms)
        if write is None and lasting:
            write = _write(facts, rescue(situation_of(facts, measured), {n: able[n] for n in lasting}).hosts)
        if write is None and now_ms >= max(self._ready_ms, self._balance_ms):
            write = self._balance(facts, measured, now_ms)
        if write is not None:
            self._asked = (write.version, now_ms + self._settings.again_ms)
            return Step(write, self._asked[1])
        return Step(None, self._wake_ms(now_ms))

    def _watch(self, facts: Facts, now_ms: int) -> None:
        if not takers(facts):
            self._ready_ms = None
            return
        if self._ready_ms is None:
            self._ready_ms = now_ms + self._settings.session_timeout_ms
        if facts.assignment.version < 0 and not facts.owners:
            self._ready_ms = min(self._ready_ms, now_ms + self._settings.settle_ms)

    def _repair(self, facts: Facts, measured: Mapping[int, float], *, ready: bool) -> Write | None:
        """What does not wait for the next balance; None when every shard is where it may stay."""
        assigned, may_take = facts.assignment.hosts, takers(facts)
        wanted = _wanted(facts)
        if len(assigned) == len(wanted) and all(assigned.get(shard) in may_take for shard in wanted):
            return None
        situation = situation_of(facts, measured)
        hosts = empty_hosts(situation).hosts
        if ready:
            hosts = place_orphans(replace(situation, current=hosts)).hosts
        return _write(facts, hosts)

    def _balance(self, facts: Facts, measured: Mapping[int, float], now_ms: int) -> Write | None:
        assert self._balance_ms is not None
        if moving(facts) - unreachable(facts) and now_ms < self._balance_ms + self._settings.balance_every_ms:
            return None
        self._balance_ms = now_ms + self._settings.balance_every_ms
        return _write(facts, balance(situation_of(facts, measured), self._settings.max_moves).hosts)

    def _wake_ms(self, now_ms: int) -> int:
        """The first of the times that matter and are still to come; the last one is the end of waiting for shards that
        are under way."""
        assert self._ready_ms is not None
        assert self._balance_ms is not None
        times = [self._ready_ms, self._balance_ms, self._balance_ms + self._settings.balance_every_ms]
        if (rescue_ms := self._stranded.next_ms(now_ms)) is not None:
            times.append(rescue_ms)
        return min(time_ms for time_ms in times if time_ms > now_ms)


def takers(facts: Facts) -> frozenset[str]:
    """Hosts that may be given shards."""
    return frozenset(host for host, fact in facts.hosts.items() if not fact.leaving and host not in facts.drained)


def moving(facts: Facts) -> frozenset[int]:
    """Shards under way: their assigned host does not serve them, or not yet."""
    owners = facts.owners
    return frozenset(
        shard
        for shard, host in facts.assignment.hosts.items()
        if (owner := owners.get(shard)) is None or owner.host != host
    )


def situation_of(facts: Facts, measured: Mapping[int, float] = _NOT_MEASURED) -> Situation:
    """What `balance` and the others decide on: all shards but the disabled ones, each on its assigned host, or on the
    one that serves it if that one lives and the assigned one does not."""
    stuck = unreachable(facts)
    loads = _loads(facts, {shard: load for shard, load in measured.items() if shard not in stuck})
    current = dict(facts.assignment.hosts)
    for shard in loads:
        owner = facts.owners.get(shard)
        if owner is not None and owner.host in facts.hosts and current.get(shard) not in facts.hosts:
            current[shard] = owner.host
    may_take = takers(facts)
    return Situation(
        loads, current, may_take, facts.hosts.keys() - may_take, moving(facts) | stuck, cut_off(facts).keys()
    )


def _loads(facts: Facts, measured: Mapping[int, float]) -> dict[int, float]:
    """Weight times measured load, in mean ones; a shard that was not measured counts as a mean one."""
    wanted = _wanted(facts)
    known = [measured[shard] for shard in wanted if shard in measured]
    mean = sum(known) / len(known) if known else 0.0
    if mean <= 0:
        return {shard: facts.shards[shard].weight for shard in wanted}
    return {shard: facts.shards[shard].weight * max(measured.get(shard, mean) / mean, IDLE_LOAD) for shard in wanted}


def _wanted(facts: Facts) -> list[int]:
    return [shard for shard, fact in facts.shards.items() if fact.use is not ShardUse.DISABLED]


def _write(facts: Facts, hosts: Mapping[int, str]) -> Write | None:
    """None when nothing would change."""
    before = facts.assignment.hosts
    changed = sorted(shard for shard, host in hosts.items() if before.get(shard) != host)
    dropped = tuple(sorted(before.keys() - hosts.keys()))
    if not changed and not dropped:
        return None
    placed = tuple(shard for shard in changed if before.get(shard) not in facts.hosts)
    moved = tuple(shard for shard in changed if before.get(shard) in facts.hosts)
    return Write(hosts, facts.assignment.version, placed, moved, dropped)
