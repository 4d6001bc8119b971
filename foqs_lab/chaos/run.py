"""A chaos run: clients at work on every host, an operator who moves shards, one fault after another, and a verdict."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic, monotonic_ns

from foqs.client import Client
from foqs_lab.chaos.arena import Arena, arena
from foqs_lab.chaos.faults import FAULTS, OWNER_IS_LOST
from foqs_lab.chaos.operator import Operator
from foqs_lab.crash import tenants
from foqs_lab.crash.checker import Lie, Tally, check, tally
from foqs_lab.crash.clients import NAMESPACE, TOPICS, Crew, Load, drain, work
from foqs_lab.crash.history import Crash, Log, read
from foqs_lab.servers import Kind

LOAD = Load(producers=6, consumers=6, backlog=2_000)
TENANTS_LOAD = Load(producers=4, consumers=3, backlog=1_000)
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
        from the look before that one counts, as a host may hear of it a while after it was replaced."""
        now_ns, known = self._now_ns(), self._count()
        if certain or known > self._known:
            self._log.add([Crash(self._since_ns if certain else self._before_ns, now_ns, "host")])
        self._before_ns, self._since_ns, self._known = self._since_ns, now_ns, known

    def _count(self) -> int:
        return self._said("clean=False") + self._said("shard.lost")


@dataclass
class Report:
    """`recoveries_s` by fault: from its end until every shard was served and items of each were stored and acked."""

    seed: int
    tally: Tally
    lies: list[Lie]
    unfair: list[str]
    faults_logged: list[str]
    epochs: list[str]
    left: list[str]
    moves: int
    took_s: float
    recoveries_s: dict[str, list[float]] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not (self.lies or self.unfair or self.faults_logged or self.epochs or self.left)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {sum(map(len, self.recoveries_s.values()))} faults in {self.took_s:.0f} s, "
                 f"{self.moves} changes by an operator", str(self.tally)]  # fmt: skip
        for what, times in sorted(self.recoveries_s.items()):
            lines.append(
                f"{what}: {len(times)} times, recovered after {median(times):.1f} s (at most {max(times):.1f})"
            )
        lines += [*map(str, self.lies[:10]), *self.unfair, *self.faults_logged[:10], *self.epochs[:10], *self.left[:10]]
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
    """Runs for about `seconds`, in `folder`. Raises TimeoutError when something does not recover."""
    began, rng = monotonic(), random.Random(f"{seed}/faults")
    recoveries: dict[str, list[float]] = defaultdict(list)
    with arena(kind, folder, hosts=hosts, databases=databases, shards=shards) as at:
        log, operator = Log(folder / "crashes.jsonl"), Operator(at, str(seed))
        replaced = Replaced(at.said, log)
        operator_of = Client(f"127.0.0.1:{at.ports[0]}", NAMESPACE)
        operator_of.put_settings(tenants.settings())
        shared = folder / "tenants"
        shared.mkdir()
        producers = (tenants.FreeProducer, tenants.ThrottledProducer)
        with (
            Crew(at.ports, folder, str(seed), LOAD) as crew,
            Crew(at.ports, shared, str(seed), TENANTS_LOAD, producers, tenants.TenantConsumer) as sharing,
        ):
            work(crew, at.cluster.shards, 10)
            operator.start()
            while monotonic() < began + seconds or len(recoveries) < len(FAULTS):
                fault = _next(rng, recoveries)
                say(f"{monotonic() - began:6.1f} s  {fault.__name__}")
                replaced.look()
                fault(at, rng)
                ended = monotonic()
                at.cluster.settled(*at.cluster.hosts)
                work(crew, at.cluster.shards, 1)
                recoveries[fault.__name__].append(monotonic() - ended)
                replaced.look(certain=fault in OWNER_IS_LOST)
                work(crew, at.cluster.shards, rng.randint(1, 100))
            operator.stop()
        sharing.raise_errors()
        throttled_until_ns = monotonic_ns()
        operator_of.put_settings(remove=tenants.settings())
        operator_of.close()
        drain(at.ports[0], folder, lambda: not _rows(at), _DRAIN_S, (*TOPICS, tenants.TOPIC))
        at.cluster.settled(*at.cluster.hosts)  # replaced owners have noticed it
        replaced.look()
        owners = at.cluster.registry.facts.owners
        left = [f"{row}, of {owners.get(shard.number)}" for shard in at.cluster.shards for row in shard.left()]
        faults_logged = [line for host in at.cluster.hosts.values() for line in host.faults()]
        epochs = epochs_twice([host.log.read_text(errors="replace") for host in at.cluster.hosts.values()])
        log.close()
    events = sorted(read(folder) + read(shared), key=lambda event: event.began)
    unfair = tenants.lies(events, throttled_until_ns)
    return Report(
        seed, tally(events), check(events), unfair, faults_logged, epochs, left, operator.changes, monotonic() - began,
        dict(recoveries),
    )  # fmt: skip


def _next(rng: random.Random, recoveries: dict[str, list[float]]) -> Callable[[Arena, random.Random], None]:
    """Each kind once, then any."""
    new = [fault for fault in FAULTS if fault.__name__ not in recoveries]
    return rng.choice(new or FAULTS)


def epochs_twice(logs: list[str]) -> list[str]:
    """Shards that two owners served with one epoch."""
    served = Counter(found for text in logs for found in _SERVING.findall(text))
    return [f"shard {shard} was served twice with epoch {epoch}" for (epoch, shard), n in served.items() if n > 1]


def _rows(at: Arena) -> int:
    return sum(shard.rows() for shard in at.cluster.shards)
