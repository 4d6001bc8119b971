"""The decisions of the elected host: when to write a new assignment, and which. Facts and the time in, a
compare-and-set out.

- Orphans (shards without a living host) are placed at once, but only after this host has watched the cluster for one
  session time-out: by then every living host has registered again, so the first one does not get all shards. The wait
  counts from the start of the watch, not from the election: when the controller itself dies, a host that has watched
  the cluster takes over at once. A fresh cluster without owners waits `settle_ms` from the first host on, so that hosts
  that start together share the shards.
- A host that vanished gets no grace period: its node existed for its whole session. A shard that a living host still
  serves, whatever the assignment says, is no orphan: it is assigned to that host.
- A drained or leaving host is emptied in one write, regardless of `max_moves`, and before orphans may be placed (a
  rolling restart often changes the controller). Such a host has little time. Each shard pauses only during its own
  hand-over and is served until then. A bound would let shards that no host can open block the remaining ones.
- Balancing runs every `balance_every_ms`, with at most `max_moves`, when no shard moves, that is, when every assigned
  host serves its shards. A shard whose database is down counts as moving, so the controller waits at most another
  `balance_every_ms`. Then it balances without the moving shards.
- A shard whose database does not answer its host stays: another host could do no better. It keeps its weight, and the
  load that it had (see `foqs.peers.membership_agent`); a load that was never known counts as a mean one. The shard
  moves only when another host has reached that database server for one session time-out (`foqs.shardmgr.membership`). A
  host that cannot reach a server that other hosts reach gets no more shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from foqs.shardmgr.assignment import Situation, balance, empty_hosts, place_orphans, rescue
from foqs.shardmgr.facts import Facts, ShardUse
from foqs.shardmgr.membership import Lasting, away, cut_off, stranded

IDLE_LOAD = 0.1
"""Load of a shard without traffic, in mean loads: it has a connection and memory, and its traffic may return."""

_NOT_MEASURED: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings. `again_ms`: the controller gives up a write that the facts do not show after this time, and decides
    again."""

    session_timeout_ms: int = 10_000
    settle_ms: int = 1_000
    balance_every_ms: int = 60_000
    max_moves: int = 10
    again_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class Write:
    """Arguments for `FactStore.assign`. `placed`, `moved` and `dropped` are the changed shards for the audit line:
    assigned to a host, moved to another one, and removed from the assignment."""

    hosts: Mapping[int, str]
    version: int
    placed: tuple[int, ...]
    moved: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A decision. `next_ms`: decide again at that time even if no fact changed; None: only after a change."""

    write: Write | None
    next_ms: int | None


class Controller:
    """The controller of one host, elected or not. The host calls it at each change of the facts and at `Step.next_ms`,
    but not while the session is suspended."""

    __slots__ = ("_asked", "_balance_ms", "_host", "_ready_ms", "_settings", "_stranded")

    def __init__(self, host: str, settings: ControllerSettings) -> None:
        self._host = host
        self._settings = settings
        self._stranded = Lasting(settings.session_timeout_ms)
        self.lost()

    def __repr__(self) -> str:
        return f"<Controller {self._host} ready_ms={self._ready_ms} balance_ms={self._balance_ms} asked={self._asked}>"

    def lost(self) -> None:
        """Forget the facts: the session is suspended or has expired, so they no longer show which hosts will return."""
        self._ready_ms: int | None = None  # orphans may be placed from then on; None: no host can take them
        self._stranded.clear()
        self._retire()

    def _retire(self) -> None:
        self._balance_ms: int | None = None  # the next balance; None: not elected
        self._asked: tuple[int, int] | None = (
            None  # version of the last write, and the time until which the controller waits for it
        )

    def reconfigure(self, settings: ControllerSettings) -> None:
        """Change the settings. The next balancing is then as far away as after an election."""
        self._settings = settings
        self._stranded.hold_ms = settings.session_timeout_ms
        self._balance_ms = None

    def decide(self, facts: Facts, now_ms: int, measured: Mapping[int, float] = _NOT_MEASURED) -> Step:
        """Return the next step. `measured` is the load of shards in any one unit. A write is returned once for a
        version of the assignment, until `again_ms` have passed: the facts show its outcome, and a second write does no
        harm."""
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
            write = _write(facts, rescue(situation_of(facts, measured), {n: able[n] for n in lasting}))
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
        """Return a write that must not wait for the next balancing; None if every shard may stay in its place."""
        assigned, may_take = facts.assignment.hosts, takers(facts)
        wanted = _wanted(facts)
        if len(assigned) == len(wanted) and all(assigned.get(shard) in may_take for shard in wanted):
            return None
        situation = situation_of(facts, measured)
        hosts = empty_hosts(situation)
        if ready:
            hosts = place_orphans(replace(situation, current=hosts))
        return _write(facts, hosts)

    def _balance(self, facts: Facts, measured: Mapping[int, float], now_ms: int) -> Write | None:
        assert self._balance_ms is not None
        if moving(facts) - away(facts) and now_ms < self._balance_ms + self._settings.balance_every_ms:
            return None
        self._balance_ms = now_ms + self._settings.balance_every_ms
        return _write(facts, balance(situation_of(facts, measured), self._settings.max_moves))

    def _wake_ms(self, now_ms: int) -> int:
        """Return the earliest of the relevant times after `now_ms`; the last time is the end of the wait for moving
        shards."""
        assert self._ready_ms is not None
        assert self._balance_ms is not None
        times = [self._ready_ms, self._balance_ms, self._balance_ms + self._settings.balance_every_ms]
        if (rescue_ms := self._stranded.next_ms(now_ms)) is not None:
            times.append(rescue_ms)
        return min(time_ms for time_ms in times if time_ms > now_ms)


def takers(facts: Facts) -> frozenset[str]:
    """Return the hosts that may get shards."""
    return frozenset(host for host, fact in facts.hosts.items() if not fact.leaving and host not in facts.drained)


def moving(facts: Facts) -> frozenset[int]:
    """Return the moving shards: their assigned host does not serve them yet."""
    owners = facts.owners
    return frozenset(
        shard
        for shard, host in facts.assignment.hosts.items()
        if (owner := owners.get(shard)) is None or owner.host != host
    )


def situation_of(facts: Facts, measured: Mapping[int, float] = _NOT_MEASURED) -> Situation:
    """Return the input of `balance` and the other decisions: all shards except disabled ones. Each is on its assigned
    host, or on the host that serves it if that host is alive and the assigned host is not."""
    loads = _loads(facts, measured)
    current = dict(facts.assignment.hosts)
    for shard in loads:
        owner = facts.owners.get(shard)
        if owner is not None and owner.host in facts.hosts and current.get(shard) not in facts.hosts:
            current[shard] = owner.host
    may_take = takers(facts)
    return Situation(
        loads, current, may_take, facts.hosts.keys() - may_take, moving(facts) | away(facts), cut_off(facts).keys()
    )


def _loads(facts: Facts, measured: Mapping[int, float]) -> dict[int, float]:
    """Return weight times measured load, in mean loads; a shard without a measurement counts as a mean one."""
    wanted = _wanted(facts)
    known = [measured[shard] for shard in wanted if shard in measured]
    mean = sum(known) / len(known) if known else 0.0
    if mean <= 0:
        return {shard: facts.shards[shard].weight for shard in wanted}
    return {shard: facts.shards[shard].weight * max(measured.get(shard, mean) / mean, IDLE_LOAD) for shard in wanted}


def _wanted(facts: Facts) -> list[int]:
    return [shard for shard, fact in facts.shards.items() if fact.use is not ShardUse.DISABLED]


def _write(facts: Facts, hosts: Mapping[int, str]) -> Write | None:
    """Return the write, or None if it would change nothing."""
    before = facts.assignment.hosts
    changed = sorted(shard for shard, host in hosts.items() if before.get(shard) != host)
    dropped = tuple(sorted(before.keys() - hosts.keys()))
    if not changed and not dropped:
        return None
    placed = tuple(shard for shard in changed if before.get(shard) not in facts.hosts)
    moved = tuple(shard for shard in changed if before.get(shard) in facts.hosts)
    return Write(hosts, facts.assignment.version, placed, moved, dropped)
