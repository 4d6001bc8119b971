"""A cluster host's decisions about its shards. Facts and the host's shards in, steps out.

- The host opens a shard assigned to it once no other living host announces it. It takes the shard with a new epoch, so
  it need not know that a dead owner really is dead: the fence prevents the owner's writes.
- The host releases a shard that is assigned to another living host: it commits the requests in flight, closes the store
  in order, and only then withdraws the announcement. At most `HANDOVERS` at once: a host that is emptied continues to
  serve the remaining shards, and no request waits for more than one hand-over.
- The host keeps a shard that is assigned to no host or to a dead one, unless the shard was disabled or removed. It
  releases a shard whose URL changed and opens it at the new URL. (Its shell adopts a URL for the `same_account`.)
- The host announces the shards that it serves, with their epochs, and withdraws announcements of shards that it no
  longer holds.

The host decides nothing while ZooKeeper does not answer: it continues to serve, and the fence makes that safe. After
its session has expired it announces all its shards again. If another host has got a shard in the meantime, this host
loses it to the fence or releases it.

Hosts report in their records which database servers they reach (`Reach`). A shard whose database answers no host stays
in its place, because another host could do no better. A shard moves if its host cannot reach the database and another
host can. Both conclusions need real connections: when any host reports a shard, every other host connects to the
shard's server and reports the outcome. A host reports a call that hangs before it knows that the database is gone. Such
a shard stays in its place and keeps its weight, and operators see it. It moves only when the host gave the call up,
because a slow database hangs as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import urlsplit

from foqs.shardmgr.facts import Facts, OwnerFact, ShardFact, ShardUse
from foqs.shardmgr.lifecycle import ShardState

HANDOVERS = 8
AGAIN_MS = 1_000
"""A change that the facts do not show after this time is requested once more."""


@dataclass(frozen=True, slots=True)
class Held:
    """A shard on this host; `epoch` is valid while it is SERVING or DRAINING."""

    url: str
    state: ShardState
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps for the host. `doubtful` shards are announced by another host with a higher epoch: the host must ask their
    database for the owner. `sealed` shards are served until they are empty, and take no new items. Decide again at
    `next_ms` if no fact changes."""

    open: tuple[ShardFact, ...] = ()
    release: tuple[int, ...] = ()
    announce: tuple[OwnerFact, ...] = ()
    withdraw: tuple[OwnerFact, ...] = ()
    doubtful: tuple[int, ...] = ()
    sealed: frozenset[int] = frozenset()
    next_ms: int | None = None


class Membership:
    """Membership of one host. The host calls it at each change of facts or of its shards, while the session is
    CONNECTED."""

    def __init__(self, host: str, handover_ms: int) -> None:
        """`handover_ms`: time that a released shard may take to be served again before the host releases the next
        ones."""
        self.host = host
        self.handover_ms = handover_ms
        self.address = ""
        self._asked: dict[OwnerFact, int] = {}  # end of the wait for an answer
        self._given: dict[int, int] = {}  # released shards -> end of the wait for each

    def expired(self) -> None:
        """Forget all announcements: they ended with the session."""
        self._asked.clear()

    def decide(self, facts: Facts, held: Mapping[int, Held], now_ms: int) -> Steps:
        self._asked = {owner: until for owner, until in self._asked.items() if until > now_ms}
        release = self._release(facts, held, now_ms)
        announce, withdraw, doubtful = self._announcements(facts, held)
        for owner in (*announce, *withdraw):
            self._asked[owner] = now_ms + AGAIN_MS
        return Steps(
            open=tuple(self._to_open(facts, held)),
            release=release,
            announce=announce,
            withdraw=withdraw,
            doubtful=doubtful,
            sealed=frozenset(number for number in held if _use(facts, number) is ShardUse.DRAINING),
            next_ms=min((*self._asked.values(), *self._given.values()), default=None),
        )

    def announce(self, facts: Facts, held: Mapping[int, Held], now_ms: int) -> Steps:
        """Return announcements of the shards that the host serves, and doubts, and decide nothing else."""
        self._asked = {owner: until for owner, until in self._asked.items() if until > now_ms}
        announce, _, doubtful = self._announcements(facts, held)
        self._asked |= dict.fromkeys(announce, now_ms + AGAIN_MS)
        return Steps(announce=announce, doubtful=doubtful)

    def _to_open(self, facts: Facts, held: Mapping[int, Held]) -> list[ShardFact]:
        return [
            facts.shards[number]
            for number, host in facts.assignment.hosts.items()
            if host == self.host
            and number not in held
            and _wanted(facts, number)
            and not self._elsewhere(facts, number)
        ]

    def _elsewhere(self, facts: Facts, number: int) -> bool:
        """Return True if another living host announces the shard."""
        owner = facts.owners.get(number)
        return owner is not None and owner.host != self.host and owner.host in facts.hosts

    def _release(self, facts: Facts, held: Mapping[int, Held], now_ms: int) -> tuple[int, ...]:
        self._given = {
            number: until
            for number, until in self._given.items()
            if until > now_ms and not self._arrived(facts, number)
        }
        room = HANDOVERS - len(self._given)
        release = []
        for number, shard in held.items():
            if shard.state is ShardState.DRAINING or not self._unwanted(facts, number, shard):
                continue
            if shard.state is ShardState.SERVING and _wanted(facts, number):
                if room <= 0:
                    continue
                room -= 1
                self._given[number] = now_ms + self.handover_ms
            release.append(number)
        return tuple(release)

    def _unwanted(self, facts: Facts, number: int, shard: Held) -> bool:
        if not _wanted(facts, number) or facts.shards[number].url != shard.url:
            return True
        assigned = facts.assignment.hosts.get(number)
        return assigned is not None and assigned != self.host and assigned in facts.hosts

    def _arrived(self, facts: Facts, number: int) -> bool:
        owner = facts.owners.get(number)
        return not _wanted(facts, number) or (owner is not None and owner.host == facts.assignment.hosts.get(number))

    def _announcements(
        self, facts: Facts, held: Mapping[int, Held]
    ) -> tuple[tuple[OwnerFact, ...], tuple[OwnerFact, ...], tuple[int, ...]]:
        announce, doubtful = [], []
        serving = {number: shard.epoch for number, shard in held.items() if shard.state in _SERVED}
        for number, epoch in serving.items():
            owner, ours = facts.owners.get(number), OwnerFact(number, self.host, self.address, epoch)
            if owner is not None and owner.epoch > epoch:
                doubtful.append(number)
            elif owner != ours and ours not in self._asked:
                announce.append(ours)
        withdraw = [
            owner
            for number, owner in facts.owners.items()
            if owner.host == self.host and number not in held and owner not in self._asked
        ]
        return tuple(announce), tuple(withdraw), tuple(doubtful)


_SERVED = (ShardState.SERVING, ShardState.DRAINING)


def _use(facts: Facts, number: int) -> ShardUse | None:
    fact = facts.shards.get(number)
    return None if fact is None else fact.use


def _wanted(facts: Facts, number: int) -> bool:
    return _use(facts, number) not in (None, ShardUse.DISABLED)


NOTICE_MS = 1_000
"""Shorter failures of a database are not reported: it was restarted, or one connection was cut."""
HUNG_MS = 2_000
"""A call that hung is reported for this time after its end: a slow database would change the record at each call."""
PROBE_MS = 5_000
"""Time between two probes of a reported server by one host."""


@lru_cache(maxsize=1 << 15)
def server_of(url: str) -> str:
    """Return the database server of a shard's URL, for comparison only; a SQLite file is its own server."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return parts.netloc.rpartition("@")[2] or parts.path


# ------------------------------------------------------------------------------------- reports of all hosts


def unreachable(facts: Facts) -> frozenset[int]:
    """Return the shards whose assigned host is alive and cannot reach their database."""
    hosts = {host: fact.unreachable for host, fact in facts.hosts.items() if fact.unreachable}
    if not hosts:
        return frozenset()
    return frozenset(shard for shard, host in facts.assignment.hosts.items() if shard in hosts.get(host, ()))


def away(facts: Facts) -> frozenset[int]:
    """Return the shards whose assigned host is alive and gets no answer of their database, or cannot write there."""
    hosts = {id_: fact.unreachable | fact.hanging for id_, fact in facts.hosts.items()}
    return frozenset(shard for shard, host in facts.assignment.hosts.items() if shard in hosts.get(host, ()))


def read_only(facts: Facts) -> frozenset[int]:
    """Return the `unreachable` shards whose database answers and takes no writes."""
    return frozenset(n for n in unreachable(facts) if n in facts.hosts[facts.assignment.hosts[n]].read_only)


def reaching(facts: Facts) -> dict[str, frozenset[str]]:
    """Return the living hosts that connected to each reported server."""
    found: dict[str, set[str]] = {}
    for host, fact in facts.hosts.items():
        for server in _servers(facts, fact.reached) - _servers(facts, fact.unreachable):
            found.setdefault(server, set()).add(host)
    return {server: frozenset(hosts) for server, hosts in found.items()}


def cut_off(facts: Facts) -> dict[str, frozenset[int]]:
    """Return the living hosts that cannot reach a server that another host reaches, with the shards they report
    there."""
    able = reaching(facts)
    found = {}
    for host, fact in facts.hosts.items():
        if shards := frozenset(n for n in fact.unreachable if able.get(_server(facts, n))):
            found[host] = shards
    return found


def stranded(facts: Facts) -> dict[int, frozenset[str]]:
    """Return the shards that their assigned host cannot reach and other hosts can, with those hosts."""
    able = reaching(facts)
    if not able:
        return {}
    hosts = {shard: able.get(_server(facts, shard), frozenset()) for shard in unreachable(facts)}
    return {shard: found for shard, found in hosts.items() if found}


def _server(facts: Facts, shard: int) -> str:
    fact = facts.shards.get(shard)
    return "" if fact is None else server_of(fact.url)


def _servers(facts: Facts, shards: Collection[int]) -> set[str]:
    return {_server(facts, shard) for shard in shards} - {""}


class Lasting:
    """Shards that every update named for `hold_ms`: when a database returns, some hosts reach it before other hosts do,
    and that must move no shard."""

    def __init__(self, hold_ms: int) -> None:
        self.hold_ms = hold_ms
        self._since: dict[int, int] = {}

    def clear(self) -> None:
        self._since.clear()

    def update(self, shards: Collection[int], now_ms: int) -> frozenset[int]:
        self._since = {shard: self._since.get(shard, now_ms) for shard in shards}
        return frozenset(shard for shard, since in self._since.items() if now_ms - since >= self.hold_ms)

    def next_ms(self, now_ms: int) -> int | None:
        """Return the time at which the next shard has been named for `hold_ms`."""
        return min((at for since in self._since.values() if (at := since + self.hold_ms) > now_ms), default=None)


# ------------------------------------------------------------------------------------- reports of one host


@dataclass(frozen=True, slots=True)
class Report:
    """`unreachable`, `hanging` and `reached` go into the host's record. `probe`: connect to the database of this shard
    and pass the outcome to `Reach.probed`. `check`: served shards to confirm at their database."""

    unreachable: frozenset[int]
    reached: frozenset[int]
    probe: ShardFact | None
    check: tuple[int, ...]
    next_ms: int | None
    hanging: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Probe:
    shard: int
    begun_ms: int
    ok: bool | None = None  # None: no outcome yet


class Reach:
    """The reports of one host. It probes one server at a time: a silent server takes a connect time-out."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._since: dict[int, int] = {}  # shards of this host whose database fails or hangs -> since when
        self._hung: dict[int, int] = {}  # shards of this host with a call that hangs, or did -> when it was seen last
        self._probes: dict[str, _Probe] = {}  # by server, the last one
        self._under_way: _Probe | None = None

    def probed(self, *, ok: bool) -> None:
        """Record the outcome of the probe that `decide` requested."""
        assert self._under_way is not None
        self._under_way.ok, self._under_way = ok, None

    def decide(
        self,
        facts: Facts,
        down: Collection[int],
        served: Collection[int],
        now_ms: int,
        silent_ms: Mapping[int, int] = MappingProxyType({}),
    ) -> Report:
        """Return the next report. `down`: shards assigned to this host whose database failed the last call. `served`:
        shards that this host serves. `silent_ms`: for how long the databases have not answered, by shard; a
        database of a shard that is not down may still answer."""
        now = silent_ms.keys() - frozenset(down)
        self._hung = {shard: at for shard, at in self._hung.items() if at + HUNG_MS > now_ms and shard not in down}
        self._hung |= dict.fromkeys(now, now_ms)
        hanging, failing = frozenset(self._hung), now.union(down)
        over_ms = min((at + HUNG_MS for shard, at in self._hung.items() if shard not in now), default=None)
        self._since = {shard: self._since.get(shard, now_ms - silent_ms.get(shard, 0)) for shard in failing}
        noticed_ms = {shard: self._since[shard] + NOTICE_MS for shard in down}
        own = frozenset(shard for shard, at_ms in noticed_ms.items() if at_ms <= now_ms)
        others = frozenset[int]().union(*(fact.unreachable for id_, fact in facts.hosts.items() if id_ != self._host))
        if not own and not others and not self._probes:
            return Report(own, own, None, (), _earliest(min(noticed_ms.values(), default=None), over_ms), hanging)
        self._learn(facts, own, _servers(facts, frozenset(served) - failing), now_ms)
        suspects = self._suspects(facts, others, _servers(facts, own))
        known = suspects.keys() | _servers(facts, own)
        self._probes = {server: probe for server, probe in self._probes.items() if server in known}
        probe, check = self._next_probe(facts, suspects, served, now_ms)
        failed = (probe.shard for probe in self._probes.values() if probe.ok is False)
        reached = (probe.shard for probe in self._probes.values() if probe.ok)
        next_ms = _earliest(self._next_ms(noticed_ms, now_ms), over_ms)
        return Report(own.union(failed), frozenset(reached), probe, check, next_ms, hanging)

    def _learn(self, facts: Facts, own: frozenset[int], serving: set[str], now_ms: int) -> None:
        """Learn from the work on this host's own shards, which is as good as a probe. A failed server is probed until
        it answers, also after its shards moved away: otherwise the next balancing would return them."""
        self._probes = {
            server: probe for server, probe in self._probes.items() if probe.ok is not False or server not in serving
        }
        for shard in sorted(own & facts.shards.keys()):
            self._probes[_server(facts, shard)] = _Probe(shard, now_ms, ok=False)

    def _suspects(self, facts: Facts, reported: frozenset[int], failing: set[str]) -> dict[str, int]:
        """Return the servers to probe, each with a shard. Servers on which shards of this host fail already are left
        out."""
        failed = {probe.shard for probe in self._probes.values() if probe.ok is False}
        found: dict[str, int] = {}
        for shard in sorted(reported.union(failed)):
            fact = facts.shards.get(shard)
            if fact is None or fact.use is ShardUse.DISABLED:
                continue
            if (server := server_of(fact.url)) not in failing:
                found.setdefault(server, shard)
        return found

    def _next_probe(
        self, facts: Facts, suspects: Mapping[str, int], served: Collection[int], now_ms: int
    ) -> tuple[ShardFact | None, tuple[int, ...]]:
        if self._under_way is not None:
            return None, ()
        for server, shard in suspects.items():
            last = self._probes.get(server)
            if last is not None and last.begun_ms + PROBE_MS > now_ms:
                continue
            outcome = last.ok if last is not None else None
            self._probes[server] = self._under_way = _Probe(shard, now_ms, outcome)
            return facts.shards[shard], tuple(n for n in sorted(served) if _server(facts, n) == server)
        return None, ()

    def _next_ms(self, noticed_ms: Mapping[int, int], now_ms: int) -> int | None:
        times = [at_ms for at_ms in noticed_ms.values() if at_ms > now_ms]
        if self._under_way is None:  # otherwise its outcome comes first
            times += [probe.begun_ms + PROBE_MS for probe in self._probes.values()]
        return min(times, default=None)


def _earliest(one_ms: int | None, other_ms: int | None) -> int | None:
    return min((at_ms for at_ms in (one_ms, other_ms) if at_ms is not None), default=None)
