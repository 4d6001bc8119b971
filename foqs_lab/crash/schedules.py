"""A schedule that fires each second, while hosts are killed: whether each second has one item."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep, time

from foqs.client import Client
from foqs.errors import FoqsError
from foqs_lab.cluster import LocalCluster, Shard, local_cluster

NAMESPACE = "schedules"
TOPIC = "ticks"
_SETTINGS = {"zookeeper": {"session_timeout_ms": 3_000, "settle_ms": 1_000}}
_CATCH_UP_S = 60.0
_DOWN_S = 1.0
_COORDINATORS_SHARE = 0.5


@dataclass
class Report:
    """`missing` seconds have no item, `twice` ones several. `late_ms`: how late the latest one was enqueued."""

    seed: int
    kills: int
    kills_of_coordinators: int
    seconds: int
    late_ms: int
    missing: list[int] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.missing or self.twice)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.seconds:,} seconds, {self.kills} kills of hosts "
            f"({self.kills_of_coordinators} chosen as the coordinator), {self.late_ms:,} ms late at most"
        ]
        lines += [f"{len(self.missing)} seconds without an item: {self.missing[:10]}"] if self.missing else []
        lines += [f"{len(self.twice)} seconds with several items: {self.twice[:10]}"] if self.twice else []
        return "\n  ".join(lines)


class _Consumer:
    """Acks all that fires. `items`: by the time of the schedule, with the time of the enqueue (both ms)."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.items: dict[int, dict[int, int]] = defaultdict(dict)
        self.stopping = threading.Event()
        self._addresses = addresses_of(ports)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with Client(self._addresses, NAMESPACE, timeout_ms=20_000) as client:
            while not self.stopping.is_set():
                try:
                    items = client.dequeue(TOPIC, 100, wait_ms=500)
                    client.ack_many(items)
                except FoqsError:
                    continue
                for item in items:
                    due_ms = int((item.headers or {})["schedule_at_ms"])
                    self.items[due_ms][item.id] = item.enqueued_at_ms or 0


def addresses_of(ports: Sequence[int]) -> str:
    return ",".join([f"127.0.0.1:{port}" for port in ports])


def run_schedules(shards: Sequence[Shard], folder: Path, seed: int, hosts: int, seconds: int, kills: int) -> Report:
    """Fire each second for some time, and kill a host now and then. Logs go to `folder`. Raises TimeoutError."""
    rng = random.Random(seed)
    with local_cluster(shards, folder, _SETTINGS) as cluster:
        names = [f"host-{number}" for number in range(1, hosts + 1)]
        cluster.start(*names)
        cluster.settled()
        ports = [cluster.hosts[name].port for name in names]
        consumer = _Consumer(ports)
        value = {"cron": "* * * * * *", "topic": TOPIC, "catch_up": "all"}
        with Client(addresses_of(ports), NAMESPACE, timeout_ms=20_000) as client:
            client.put_settings({"schedule.tick": json.dumps(value)})
        begun, kills_of_coordinators = monotonic(), 0
        _wait(lambda: bool(consumer.items), _CATCH_UP_S)
        for number in range(kills):
            sleep(max(0.0, begun + seconds * (number + 1) / (kills + 1) - monotonic()))
            with Client(addresses_of(ports), NAMESPACE, timeout_ms=20_000) as client:
                (row,) = client.schedules().schedules
            coordinators = [name for name in names if row.coordinator.endswith(f":{cluster.hosts[name].port}")]
            hits_coordinator = bool(coordinators) and rng.random() < _COORDINATORS_SHARE
            kills_of_coordinators += hits_coordinator
            _kill(cluster, rng.choice(coordinators if hits_coordinator else names))
        sleep(max(0.0, begun + seconds - monotonic()))
        end_ms = int(time()) * 1_000
        with suppress(TimeoutError):  # the verdict has the missing ones
            _wait(lambda: consumer.items.keys() >= set(_times(consumer.items, end_ms)), _CATCH_UP_S)
        consumer.stopping.set()
        consumer.thread.join()
        return verdict(consumer.items, seed, (kills, kills_of_coordinators), end_ms)


def _times(items: dict[int, dict[int, int]], end_ms: int) -> range:
    return range(min(items), end_ms + 1, 1_000)


def verdict(items: dict[int, dict[int, int]], seed: int, kills: tuple[int, int], end_ms: int) -> Report:
    wanted = _times(items, end_ms)
    late_ms = max(at_ms - due_ms for due_ms, its in items.items() for at_ms in its.values())
    missing = [due_ms for due_ms in wanted if due_ms not in items]
    twice = sorted(due_ms for due_ms, its in items.items() if len(its) > 1)
    return Report(seed, *kills, len(wanted), late_ms, missing, twice)


def _kill(cluster: LocalCluster, name: str) -> None:
    host = cluster.hosts[name]
    host.kill()
    sleep(_DOWN_S)
    host.launch()
    host.wait_listening()


def _wait(reached: Callable[[], bool], timeout_s: float) -> None:
    deadline = monotonic() + timeout_s
    while not reached():
        if monotonic() > deadline:
            raise TimeoutError(f"the schedule did not fire within {timeout_s:.0f} s")
        sleep(0.1)
