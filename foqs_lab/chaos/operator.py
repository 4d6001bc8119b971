"""An operator who moves shards and empties hosts all the while."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

from foqs.errors import FoqsError
from foqs.shardmgr.facts import Facts
from foqs.shardmgr.operate import Assign, Change, MarkHost, drain_host, move_shard, undrain_host
from foqs.zk.protocol import ZkConflict, ZkError, ZkUnavailable, ZkUnknown
from foqs_lab.chaos.arena import Arena

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
