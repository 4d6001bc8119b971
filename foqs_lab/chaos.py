"""A chaos run: clients at work on every host, an operator who moves shards, one fault after another, and a verdict.

Every connection of the cluster can be cut or held: to the databases, to ZooKeeper, between hosts.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from time import monotonic, monotonic_ns, time_ns

from foqs.client import Client
from foqs.errors import FoqsError
from foqs.shardmgr.facts import Facts
from foqs.shardmgr.operate import Assign, Change, MarkHost, drain_host, move_shard, undrain_host
from foqs.zk.protocol import ZkConflict, ZkError, ZkUnavailable, ZkUnknown
from foqs_lab.arena import Arena, arena
from foqs_lab.crash import kept, schedules, tenants, unique
from foqs_lab.crash.checker import Lie, Tally, check, tally
from foqs_lab.crash.clients import NAMESPACE, TOPICS, Crew, Load, drain, work
from foqs_lab.crash.history import Crash, Log, Loss, read
from foqs_lab.crash.losses import Losses
from foqs_lab.faults import FAULTS, OF_PROCESSES, OWNER_IS_LOST, Fault
from foqs_lab.servers import Kind

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
        self.raise_error()
        registry = self._arena.cluster.registry
        while drained := registry.wait_for(lambda _: True).drained:
            with suppress(ZkConflict, ZkUnavailable, ZkUnknown):  # the next look tells
                for host in sorted(drained):
                    registry.carry_out(MarkHost(host, drained=False))
                registry.wait_for(lambda facts: not facts.drained)

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            while not self._stopping.wait(self._rng.uniform(*_PAUSE_S)):
                self._step()
        except Exception as error:  # noqa: BLE001 - `stop` raises it
            self.error = error

    def _step(self) -> None:
        registry = self._arena.cluster.registry
        if not registry.facts.shards:
            return  # ZooKeeper has lost its data
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
_ITEMS_BETWEEN = 20
"""The most items of each shard that are stored and acked between two faults. More would be time without a fault."""
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

    def note(self, loss: Loss) -> None:
        """Write down that an older copy took the place of a database."""
        self._log.add([loss])

    def _count(self) -> int:
        return self._said("clean=False") + self._said("shard.lost")


@dataclass
class Report:
    """`recoveries_s` by fault: from its end until every shard was served and items of each were stored and acked.
    `wrong`: items with one key at the same time, and keys that are not free. `refused`: calls that hosts refused to
    each other. `losses`: changes that older copies have undone. `left_out`: faults that cannot occur here."""

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
    refused: list[str]
    moves: int
    took_s: float
    recoveries_s: dict[str, list[float]] = field(default_factory=dict)
    losses: str = ""
    left_out: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.fired.good and not (
            self.lies or self.wrong or self.unfair or self.faults_logged or self.epochs or self.left or self.refused
        )

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {sum(map(len, self.recoveries_s.values()))} faults in {self.took_s:.0f} s, "
                 f"{self.moves} changes by an operator", str(self.tally)]  # fmt: skip
        for what, times in sorted(self.recoveries_s.items()):
            lines.append(
                f"{what}: {len(times)} times, recovered after {median(times):.1f} s (at most {max(times):.1f})"
            )
        lines += [f"left out: {what}" for what in self.left_out]
        lines += [self.losses] if self.losses else []
        lines.append("keys: " + ", ".join(f"{what} {count:,}" for what, count in sorted(self.keys.items())))
        lines.append(str(self.fired))
        lines += [
            *map(str, self.lies[:10]),
            *self.wrong[:10],
            *self.unfair,
            *self.faults_logged[:10],
            *self.epochs[:10],
            *self.left[:10],
            *self.refused[:10],
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
    faults: int = 0,
    kinds: Sequence[Fault] = FAULTS,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run for about `seconds`, in `folder`, and until each of `kinds`, and `faults` in all, have occurred.

    Raises TimeoutError if something does not recover."""
    began, rng = monotonic(), random.Random(f"{seed}/faults")
    recoveries: dict[str, list[float]]
    with arena(kind, folder, hosts=hosts, databases=databases, shards=shards) as at:
        chosen = [fault for fault in kinds if at.of_processes or fault not in OF_PROCESSES]
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
            Crew(at.ports, shared, str(seed), TENANTS_LOAD, producers, (tenants.TenantConsumer,)) as sharing,
            Crew(
                at.ports, kept_logs, str(seed), KEPT_LOAD, (kept.KeptProducer, kept.Waiter), (kept.KeptConsumer,)
            ) as keeping,
        ):
            work(crew, at.cluster.shards, 10)
            operator.start()
            recoveries, crews = defaultdict(list), (crew, sharing, keeping)
            for fault in _faults(rng, chosen, began + seconds, faults):
                say(f"{monotonic() - began:6.1f} s  {fault.__name__}")
                recoveries[fault.__name__].append(_recovery_s(at, rng, fault, crews, replaced))
                operator.raise_error()
            operator.stop()
        lost = Losses(at.losses)
        wrong, end_ms = holding.close(lost), firing.end()
        throttled_until_ns = monotonic_ns()
        operator_of.put_settings(remove=tenants.settings())
        drain(at.ports[0], folder, lambda: not _rows(at), _DRAIN_S, (*TOPICS, tenants.TOPIC, *kept.TOPICS))
        firing.stop()
        kept.look_at_acked(at.ports, NAMESPACE, log, read(kept_logs))
        kept.delete_all(operator_of)
        operator_of.close()
        at.cluster.settled(*at.cluster.hosts)  # replaced owners have noticed it
        replaced.look()
        owners = at.cluster.registry.facts.owners
        left = [f"{row}, of {owners.get(shard.number)}" for shard in at.cluster.shards for row in shard.left()]
        hosts_ran = list(at.cluster.hosts.values())
        log.close()
    events = sorted(read(folder) + read(shared) + read(kept_logs), key=lambda event: event.began)
    unfair = tenants.lies(events, throttled_until_ns, lost)
    kills = schedules.Kills(len(recoveries.get("host_killed", ())))
    fired = schedules.verdict(firing.items, seed, kills, end_ms, None, lost, monotonic_ns() - time_ns())
    lies = check(events, lost)
    faults_logged = [line for host in hosts_ran for line in host.faults()]
    refused = [line for host in hosts_ran for line in host.lines("audit.refused")]
    epochs = epochs_twice([host.log.read_text(errors="replace") for host in hosts_ran])
    return Report(
        seed, tally(events), lies, wrong, holding.counts, fired, unfair, faults_logged, epochs, left, refused,
        operator.changes, monotonic() - began, dict(recoveries), str(lost),
        [fault.__name__ for fault in kinds if fault not in chosen],
    )  # fmt: skip


def _recovery_s(at: Arena, rng: random.Random, fault: Fault, crews: Sequence[Crew], replaced: Replaced) -> float:
    """Let one fault occur, and let the clients work after it. Return the time until they could."""
    replaced.look()
    known = len(at.losses)
    fault(at, rng)
    ended = monotonic()
    at.cluster.settled(*at.cluster.hosts)
    work(crews[0], at.cluster.shards, 1)
    took_s = monotonic() - ended
    for number, loss in enumerate(at.losses[known:], known):
        at.losses[number] = loss._replace(back=monotonic_ns())
        replaced.note(at.losses[number])
        for crew in crews:
            crew.progress.forget(loss.shards, loss.began)
    replaced.look(certain=fault in OWNER_IS_LOST)
    work(crews[0], at.cluster.shards, rng.randint(1, _ITEMS_BETWEEN))
    return took_s


def _faults(rng: random.Random, chosen: Sequence[Fault], until_s: float, least: int) -> Iterator[Fault]:
    """Yield each kind once, then any, until that time and at least `least`."""
    first = list(chosen)
    rng.shuffle(first)
    for number in count():
        if number >= max(least, len(first)) and monotonic() >= until_s:
            return
        yield first[number] if number < len(first) else rng.choice(chosen)


def epochs_twice(logs: list[str]) -> list[str]:
    """Return the shards that two owners served with one epoch."""
    served = Counter(found for text in logs for found in _SERVING.findall(text))
    return [f"shard {shard} was served twice with epoch {epoch}" for (epoch, shard), n in served.items() if n > 1]


def _rows(at: Arena) -> int:
    return sum(shard.rows() for shard in at.cluster.shards)
