"""The client processes of a crash test of a cluster, and what kills them and the hosts while shards move."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns, sleep

from foqs.shardmgr.operate import Assign
from foqs.zk.protocol import ZkConflict
from foqs_lab.cluster import LocalCluster
from foqs_lab.crash.parts import Part
from foqs_lab.servers.process import Restartable, ServerProcess

_DOWN_S = 6.0
"""Twice the time of a session: half of the hosts are back before their shards have moved."""


class ClientProcess(Restartable):
    """A process of clients, `module` with a part. Started again, it has a journal of its own."""

    def __init__(self, module: str, part: Part, name: str) -> None:
        self._module, self._part, self._starts = module, part, 0
        self._log = Path(part.folder) / f"{name}.log"
        self.launch()

    def launch(self) -> None:
        self._starts += 1
        argv = [sys.executable, "-m", self._module, self._part.again(self._starts).json()]
        self._process = ServerProcess(argv, log=self._log)

    def errors(self) -> list[str]:
        return [line for line in self._log.read_text(errors="replace").splitlines() if "Error" in line]


class Crew:
    """The processes of clients. `kills`: how often, by kind; `trouble`: from when to when a process was away, in
    ns of the monotonic clock."""

    def __init__(
        self, cluster: LocalCluster, seed: int, producers: Sequence[ClientProcess], consumers: Sequence[ClientProcess]
    ) -> None:
        self.kills: Counter[str] = Counter()
        self.trouble: list[tuple[int, int]] = []
        self.producers = producers
        self._consumers = consumers
        self._cluster = cluster
        self._rng = random.Random(f"{seed}/kills")

    def kill(self, number: int) -> None:
        """Kill a consumer and move a shard, or kill a host, in turn, and start it again. Raises TimeoutError."""
        rng, began = self._rng, monotonic_ns()
        if number % 2:
            self.kills["consumer"] += 1
            victim = rng.choice(self._consumers)
            victim.kill()
            victim.launch()
            facts = self._cluster.registry.facts
            hosts = {**facts.assignment.hosts, rng.choice(self._cluster.shards).number: rng.choice([*facts.hosts])}
            with suppress(ZkConflict):  # the controller was faster
                self._cluster.registry.carry_out(Assign(hosts, facts.assignment.version))
                self.kills["move"] += 1
        else:
            self.kills["host"] += 1
            host = rng.choice([*self._cluster.hosts.values()])
            host.kill()
            sleep(rng.uniform(0, _DOWN_S))
            host.start()
        self._cluster.settled()
        self.trouble.append((began, monotonic_ns()))

    def errors(self) -> list[str]:
        return [line for one in (*self.producers, *self._consumers) for line in one.errors()]

    def close(self) -> None:
        for one in (*self.producers, *self._consumers):
            one.kill()
