"""A crash test: load, kills at seeded random moments, a drain, and a verdict."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, monotonic_ns

from foqs_lab.cluster import HostProcess, Shard
from foqs_lab.crash import ends
from foqs_lab.crash.checker import Lie, Tally, check, tally
from foqs_lab.crash.clients import TOPICS, Crew, Load, drain, work
from foqs_lab.crash.history import Crash, Log, read
from foqs_lab.servers import ContainerServer, DatabaseServer

_LOAD = Load()
_DRAIN_S = 120.0
_STALL_S = 0.1
"""Before half of the kills the database stops for up to this long, like one whose disk is slow."""
_BOTH = 0.3
"""The share of the database's kills in which the host is killed as well, so that it starts without a database."""


@dataclass
class Report:
    seed: int
    tally: Tally
    lies: list[Lie]
    drained: bool
    left: list[str]
    faults: list[str]
    took_s: float
    recoveries_s: dict[str, list[float]] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        return self.drained and not (self.lies or self.faults or self.left)

    def __str__(self) -> str:
        slowest = ", ".join(
            f"{what} {sorted(times)[len(times) // 2]:.2f} s (at most {max(times):.2f})"
            for what, times in self.recoveries_s.items()
        )
        found = [", ".join(f"{name} {count:,}" for name, count in sorted(self.ends.items()))] if self.ends else []
        found += [f"{count} lies: {rule}" for rule, count in Counter(lie.rule.value for lie in self.lies).items()]
        found += [*map(str, self.lies[:10]), *self.faults[:10], *self.left[:10]]
        if not self.drained:
            found.append(f"not drained at {time.time_ns() // 1_000_000}")
        return "\n  ".join(
            [f"seed {self.seed}: {self.tally}", f"serving again after: {slowest}", f"took {self.took_s:.0f} s", *found]
        )


def schedule(seed: int, host_kills: int, database_kills: int) -> list[tuple[str, ...]]:
    """Return the processes to kill, in order. A pair dies together and counts for both."""
    rng = random.Random(f"{seed}/schedule")
    both = sum(rng.random() < _BOTH for _ in range(min(host_kills, database_kills)))
    plan: list[tuple[str, ...]] = [("database", "host")] * both
    plan += [("host",)] * (host_kills - both) + [("database",)] * (database_kills - both)
    rng.shuffle(plan)
    return plan


def crash_test(
    server: DatabaseServer | ContainerServer | None,
    shards: Sequence[Shard],
    folder: Path,
    seed: int,
    host_kills: int = 20,
    database_kills: int = 5,
    load: Load = _LOAD,
    *,
    events: bool = False,
) -> Report:
    """Run a test on `shards`, all of `server`; logs go to `folder`. Without a server, no database is killed. With
    `events`, each end of an item stores one. Raises TimeoutError when nothing recovers."""
    began = monotonic()
    rng = random.Random(f"{seed}/moments")
    log = Log(folder / "crashes.jsonl")
    recoveries: dict[str, list[float]] = {}
    with HostProcess("host", shards, folder) as host:
        with ExitStack() as crews:
            if events:
                crews.enter_context(ends.crew(host.port, folder / "ends", str(seed)))
            crew = crews.enter_context(Crew([host.port], folder, str(seed), load))
            for victims in schedule(seed, host_kills, database_kills):
                work(crew, shards, rng.randint(1, 300))
                stall_s = rng.choice((0, rng.uniform(0, _STALL_S)))
                killed_ns = monotonic_ns()
                _kill(victims, host, server, stall_s)
                work(crew, shards, 1)
                now_ns = monotonic_ns()
                log.add(Crash(killed_ns, now_ns, what) for what in victims)
                recoveries.setdefault("+".join(victims), []).append((now_ns - killed_ns) / 1e9)
            work(crew, shards, 300)
        if events:
            drained = _drain_with_events(host.port, folder, shards)
            left = []
        else:
            drained = drain(host.port, folder, lambda: not _rows(shards), _DRAIN_S)
            left = [row for shard in shards for row in shard.left()]
        faults = host.faults()
    log.close()
    history = read(folder)
    lies, counts = check(history), Counter[str]()
    if events:
        told, counts = ends.lies(history + read(folder / "ends"), _items(shards))
        lies += told
    return Report(seed, tally(history), lies, drained, left, faults, monotonic() - began, recoveries, counts)


def _drain_with_events(port: int, folder: Path, shards: Sequence[Shard]) -> bool:
    """Ack all but dead letters and late items, then read the events of all that has ended."""

    def without(topics: Collection[str]) -> bool:
        return not any(topic in topics for topic in _items(shards).values())

    return (
        drain(port, folder, lambda: without(TOPICS), _DRAIN_S)
        and drain(port, folder / "ends", lambda: without(ends.TOPICS), _DRAIN_S, ends.TOPICS)
        and ends.drain_events(port, folder / "ends", lambda: without((ends.EVENTS,)), _DRAIN_S)
    )


def _items(shards: Sequence[Shard]) -> dict[int, str]:
    return {item_id: topic for shard in shards for item_id, topic in shard.items().items()}


def _kill(
    victims: tuple[str, ...], host: HostProcess, server: DatabaseServer | ContainerServer | None, stall_s: float
) -> None:
    """In the stall nothing can be committed: what a host answers then, before it is killed, it has to take back."""
    if server is not None and stall_s:
        server.pause()
        time.sleep(stall_s)
    if "host" in victims:
        host.kill()
        host.launch()
    if server is None:
        return
    if "database" in victims:
        server.kill()
        server.restart()
    elif stall_s:
        server.resume()


def _rows(shards: Sequence[Shard]) -> int:
    return sum(shard.rows() for shard in shards)
