"""A chaos run: clients at work on every host, an operator who moves shards, one fault after another, and a verdict.

Every connection of the cluster can be cut or held: to the databases, to ZooKeeper, between hosts.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import monotonic, monotonic_ns

from foqs.client import Client
from foqs.errors import FoqsError
from foqs.shardmgr.facts import Facts
from foqs.shardmgr.operate import Assign, Change, MarkHost, drain_host, move_shard, undrain_host
from foqs.zk.protocol import ZkConflict, ZkError, ZkUnavailable, ZkUnknown
from foqs_lab.cluster import LocalCluster, make_shards
from foqs_lab.crash import kept, schedules, tenants, unique
from foqs_lab.crash.checker import Lie, Tally, check, tally
from foqs_lab.crash.clients import NAMESPACE, TOPICS, Crew, Load, Wire, drain, work
from foqs_lab.crash.history import Crash, Log, read
from foqs_lab.relay import Relay
from foqs_lab.servers import ContainerServer, DatabaseServer, Kind, ServerSettings, SqlEndpoint, ZookeeperServer
from foqs_lab.servers import start_database_server as start_server
from foqs_lab.servers.process import free_port

SESSION_MS = 3_000
SETTINGS = {"zookeeper": {"session_timeout_ms": SESSION_MS, "settle_ms": 2_000, "balance_every_ms": 10_000}}


@dataclass
class Arena:
    """A relay is before each host, before ZooKeeper for each host, and before each database for all hosts."""

    cluster: LocalCluster
    databases: Sequence[DatabaseServer | ContainerServer]
    to_database: Sequence[Relay]
    to_zookeeper: dict[str, Relay]
    to_host: dict[str, Relay]

    @property
    def ports(self) -> list[int]:
        return [host.port for host in self.cluster.hosts.values()]

    def said(self, text: str) -> int:
        """Return the number of times that the logs of all hosts hold it."""
        return sum(host.log.read_bytes().count(text.encode()) for host in self.cluster.hosts.values())


@contextmanager
def arena(kind: Kind, folder: Path, *, hosts: int, databases: int, shards: int) -> Iterator[Arena]:
    """Start hosts that serve all shards, and end everything at the end."""
    with ExitStack() as stack:

        def relay(target: int) -> Relay:
            made = Relay(target)
            stack.callback(made.close)
            return made

        settings = ServerSettings(buffer_pool_bytes=64 << 20)
        servers: list[DatabaseServer | ContainerServer] = []
        for _ in range(databases):
            servers.append(start_server(kind, settings))
            stack.enter_context(servers[-1])
        ways: dict[SqlEndpoint, Relay] = {server: relay(server.port) for server in servers}
        zookeeper = stack.enter_context(ZookeeperServer())
        direct = make_shards(servers, -(-shards // databases), "chaos")[:shards]
        detours = [replace(shard, server=SqlEndpoint(kind, ways[shard.server].port)) for shard in direct]
        cluster = LocalCluster(zookeeper, detours, folder, SETTINGS)
        stack.callback(cluster.stop)
        cluster.shards = direct  # the checks of rows bypass the relays
        names, to_zookeeper, to_host = [f"host-{n}" for n in range(1, hosts + 1)], {}, {}
        for name in names:
            port = free_port()
            to_zookeeper[name], to_host[name] = relay(zookeeper.port), relay(port)
            ways_of_host = {
                "zookeeper": {"hosts": f"127.0.0.1:{to_zookeeper[name].port}"},
                "server": {"advertise": f"127.0.0.1:{to_host[name].port}"},
            }
            cluster.add(name, port, ways_of_host)
        cluster.start(*names)
        cluster.settled()
        yield Arena(cluster, servers, list(ways.values()), to_zookeeper, to_host)


_SESSION_S = SESSION_MS / 1000
_LOST_MS = 60_000


def host_killed(arena: Arena, rng: random.Random) -> None:
    """Kill a host, and start it again at once, or after other hosts have taken its shards."""
    name = _one_of(arena, rng)
    host = arena.cluster.hosts[name]
    host.kill()
    if rng.random() < 0.5:
        _until_lost(arena, name)
    arena.cluster.start(name)


def host_frozen(arena: Arena, rng: random.Random) -> None:
    """Freeze a host beyond its session: it wakes up with the belief that it still owns its shards."""
    name = _one_of(arena, rng)
    arena.cluster.hosts[name].pause()
    _until_lost(arena, name)
    time.sleep(rng.uniform(0, 1))
    arena.cluster.hosts[name].resume()


def host_without_zookeeper(arena: Arena, rng: random.Random) -> None:
    """Cut a living host off from ZooKeeper until the other hosts take its shards."""
    name = _one_of(arena, rng)
    arena.to_zookeeper[name].hold()
    _until_lost(arena, name)
    time.sleep(rng.uniform(0, 1))
    arena.to_zookeeper[name].flow()


def zookeeper_away(arena: Arena, rng: random.Random) -> None:
    """Kill the ZooKeeper for longer than the sessions last."""
    arena.cluster.zookeeper.kill()
    time.sleep(_SESSION_S + rng.uniform(0.5, 2))
    arena.cluster.zookeeper.start()


def zookeeper_cut(arena: Arena, rng: random.Random) -> None:
    for relay in arena.to_zookeeper.values():
        relay.cut()


def database_killed(arena: Arena, rng: random.Random) -> None:
    database = rng.choice(arena.databases)
    database.kill()
    time.sleep(rng.uniform(0, 1))
    database.restart()


def database_cut(arena: Arena, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 5)):
        rng.choice(arena.to_database).cut()
        time.sleep(rng.uniform(0, 0.3))


def database_held(arena: Arena, rng: random.Random) -> None:
    """Make a connection half-open: no data arrives, and neither end gets an error."""
    relay = rng.choice(arena.to_database)
    relay.hold()
    time.sleep(rng.uniform(0.1, 3))
    relay.flow()


def peers_cut(arena: Arena, rng: random.Random) -> None:
    for relay in arena.to_host.values():
        relay.cut()


def peers_held(arena: Arena, rng: random.Random) -> None:
    relay = arena.to_host[_one_of(arena, rng)]
    relay.hold()
    time.sleep(rng.uniform(0.1, 3))
    relay.flow()


OWNER_IS_LOST = (host_killed, host_frozen, host_without_zookeeper)
"""In these an owner is replaced before it could write its leases: at-least-once items may come again early."""
FAULTS: tuple[Callable[[Arena, random.Random], None], ...] = (
    *OWNER_IS_LOST, zookeeper_away, zookeeper_cut, database_killed, database_cut, database_held, peers_cut, peers_held,
)  # fmt: skip


def _one_of(arena: Arena, rng: random.Random) -> str:
    return rng.choice(sorted(arena.cluster.hosts))


def _until_lost(arena: Arena, name: str) -> None:
    arena.cluster.registry.wait_for(lambda facts: name not in facts.hosts, timeout_ms=_LOST_MS)


_PAUSE_S = (0.3, 2.0)


class Operator(threading.Thread):
    """Makes changes like an operator; `changes` counts them. At the end no host is drained."""

    def __init__(self, arena: Arena, seed: str) -> None:
        super().__init__(name="operator", daemon=True)
        self.changes = 0
        self.error: Exception | None = None
        self._arena = arena
        self._rng = random.Random(f"{seed}/operator")
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        if self.error is not None:
            raise self.error
        registry = self._arena.cluster.registry
        while drained := registry.wait_for(lambda _: True).drained:
            with suppress(ZkConflict, ZkUnavailable, ZkUnknown):  # the next look tells
                for host in sorted(drained):
                    registry.carry_out(MarkHost(host, drained=False))
                registry.wait_for(lambda facts: not facts.drained)

    def run(self) -> None:
        try:
            while not self._stopping.wait(self._rng.uniform(*_PAUSE_S)):
                self._step()
        except Exception as error:  # noqa: BLE001 - `stop` raises it
            self.error = error

    def _step(self) -> None:
        registry = self._arena.cluster.registry
        try:
            action = self._decide(registry.facts).action
            if isinstance(action, Assign | MarkHost):
                registry.carry_out(action)
                self.changes += 1
        except (FoqsError, ZkError):
            return  # refused as things are, or ZooKeeper is away

    def _decide(self, facts: Facts) -> Change:
        rng = self._rng
        if facts.drained:
            return undrain_host(facts, rng.choice(sorted(facts.drained)))
        hosts = sorted(self._arena.cluster.hosts)
        if rng.random() < 0.25:
            return drain_host(facts, rng.choice(hosts))
        return move_shard(facts, rng.choice(sorted(facts.shards)), rng.choice(hosts))


LOAD = Load(producers=6, consumers=6, backlog=2_000)
TENANTS_LOAD = Load(producers=4, consumers=3, backlog=1_000)
KEPT_LOAD = Load(producers=2, consumers=2, backlog=500)
_KEYS = 200
_KEYS_PAUSE_S = 0.1
_SERVING = re.compile(r"shard\.serving +epoch=(\d+) shard=(\d+)")
_DRAIN_S = 120.0


class Replaced:
    """Writes down when owners were replaced that could not write their leases first: at-least-once items may come again
    early then. That may be an aftermath: a host that is slow to find ZooKeeper again loses its session."""

    def __init__(self, said: Callable[[str], int], log: Log, now_ns: Callable[[], int] = monotonic_ns) -> None:
        """`said`: how often the hosts' logs hold a text."""
        self._said = said
        self._log = log
        self._now_ns = now_ns
        self._known = self._count()
        self._since_ns = self._before_ns = now_ns()

    def look(self, *, certain: bool = False) -> None:
        """To be called again and again. `certain`: some were since the last look, whatever the logs say. Else the time
        counts from the look before the previous one, as a host may hear of it a while after it was replaced."""
        now_ns, known = self._now_ns(), self._count()
        if certain or known > self._known:
            self._log.add([Crash(self._since_ns if certain else self._before_ns, now_ns, "host")])
        self._before_ns, self._since_ns, self._known = self._since_ns, now_ns, known

    def _count(self) -> int:
        return self._said("clean=False") + self._said("shard.lost")


@dataclass
class Report:
    """`recoveries_s` by fault: from its end until every shard was served and items of each were stored and acked.
    `wrong`: items with one key at the same time, and keys that are not free."""

    seed: int
    tally: Tally
    lies: list[Lie]
    wrong: list[str]
    keys: Counter[str]
    fired: schedules.Report
    unfair: list[str]
    faults_logged: list[str]
    epochs: list[str]
    left: list[str]
    moves: int
    took_s: float
    recoveries_s: dict[str, list[float]] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return self.fired.good and not (
            self.lies or self.wrong or self.unfair or self.faults_logged or self.epochs or self.left
        )

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {sum(map(len, self.recoveries_s.values()))} faults in {self.took_s:.0f} s, "
                 f"{self.moves} changes by an operator", str(self.tally)]  # fmt: skip
        for what, times in sorted(self.recoveries_s.items()):
            lines.append(
                f"{what}: {len(times)} times, recovered after {median(times):.1f} s (at most {max(times):.1f})"
            )
        lines.append("keys: " + ", ".join(f"{what} {count:,}" for what, count in sorted(self.keys.items())))
        lines.append(str(self.fired))
        lines += [
            *map(str, self.lies[:10]),
            *self.wrong[:10],
            *self.unfair,
            *self.faults_logged[:10],
            *self.epochs[:10],
            *self.left[:10],
        ]
        lines.append("every promise held" if self.good else "a promise was broken")
        return "\n  ".join(lines)


def chaos(
    kind: Kind,
    folder: Path,
    *,
    seed: int,
    seconds: float,
    hosts: int = 3,
    databases: int = 2,
    shards: int = 6,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run for about `seconds`, in `folder`. Raises TimeoutError if something does not recover."""
    began, rng = monotonic(), random.Random(f"{seed}/faults")
    recoveries: dict[str, list[float]] = defaultdict(list)
    with arena(kind, folder, hosts=hosts, databases=databases, shards=shards) as at:
        log, operator = Log(folder / "crashes.jsonl"), Operator(at, str(seed))
        replaced = Replaced(at.said, log)
        operator_of = Client(f"127.0.0.1:{at.ports[0]}", NAMESPACE)
        operator_of.put_settings({**tenants.settings(), **kept.settings()})
        shared, kept_logs = folder / "tenants", folder / "kept"
        shared.mkdir()
        kept_logs.mkdir()
        producers = (tenants.FreeProducer, tenants.ThrottledProducer)
        addresses = schedules.addresses_of(at.ports)
        firing = schedules.Firing(addresses)
        holding = unique.Crew(addresses, seed, _KEYS, 1 << 60, _KEYS_PAUSE_S)
        holding.begin(2, 2)
        with (
            Crew(at.ports, folder, str(seed), LOAD) as crew,
            Crew(at.ports, shared, str(seed), TENANTS_LOAD, producers, tenants.TenantConsumer) as sharing,
            Crew(
                at.ports, kept_logs, str(seed), KEPT_LOAD, (kept.KeptProducer, kept.Waiter), kept.KeptConsumer
            ) as keeping,
        ):
            work(crew, at.cluster.shards, 10)
            operator.start()
            while monotonic() < began + seconds or len(recoveries) < len(FAULTS):
                fault = _next(rng, recoveries)
                say(f"{monotonic() - began:6.1f} s  {fault.__name__}")
                recoveries[fault.__name__].append(_recovery_s(at, rng, fault, crew, replaced))
            operator.stop()
        sharing.raise_errors()
        keeping.raise_errors()
        wrong, end_ms = holding.close(), firing.end()
        throttled_until_ns = monotonic_ns()
        operator_of.put_settings(remove=tenants.settings())
        drain(at.ports[0], folder, lambda: not _rows(at), _DRAIN_S, (*TOPICS, tenants.TOPIC, *kept.TOPICS))
        firing.stop()
        with closing(Wire(at.ports[0], NAMESPACE, timeout_ms=30_000)) as wire:
            kept.look_at_acked(wire, log, read(kept_logs))
        kept.delete_all(operator_of)
        operator_of.close()
        at.cluster.settled(*at.cluster.hosts)  # replaced owners have noticed it
        replaced.look()
        owners = at.cluster.registry.facts.owners
        left = [f"{row}, of {owners.get(shard.number)}" for shard in at.cluster.shards for row in shard.left()]
        faults_logged = [line for host in at.cluster.hosts.values() for line in host.faults()]
        epochs = epochs_twice([host.log.read_text(errors="replace") for host in at.cluster.hosts.values()])
        log.close()
    events = sorted(read(folder) + read(shared) + read(kept_logs), key=lambda event: event.began)
    unfair = tenants.lies(events, throttled_until_ns)
    fired = schedules.verdict(firing.items, seed, schedules.Kills(len(recoveries["host_killed"])), end_ms)
    return Report(
        seed, tally(events), check(events), wrong, holding.counts, fired, unfair, faults_logged, epochs, left,
        operator.changes, monotonic() - began, dict(recoveries),
    )  # fmt: skip


def _recovery_s(
    at: Arena, rng: random.Random, fault: Callable[[Arena, random.Random], None], crew: Crew, replaced: Replaced
) -> float:
    """Let one fault occur, and let the clients work after it. Return the time until they could."""
    replaced.look()
    fault(at, rng)
    ended = monotonic()
    at.cluster.settled(*at.cluster.hosts)
    work(crew, at.cluster.shards, 1)
    took_s = monotonic() - ended
    replaced.look(certain=fault in OWNER_IS_LOST)
    work(crew, at.cluster.shards, rng.randint(1, 100))
    return took_s


def _next(rng: random.Random, recoveries: dict[str, list[float]]) -> Callable[[Arena, random.Random], None]:
    """Return each kind once, then any."""
    new = [fault for fault in FAULTS if fault.__name__ not in recoveries]
    return rng.choice(new or FAULTS)


def epochs_twice(logs: list[str]) -> list[str]:
    """Return the shards that two owners served with one epoch."""
    served = Counter(found for text in logs for found in _SERVING.findall(text))
    return [f"shard {shard} was served twice with epoch {epoch}" for (epoch, shard), n in served.items() if n > 1]


def _rows(at: Arena) -> int:
    return sum(shard.rows() for shard in at.cluster.shards)
