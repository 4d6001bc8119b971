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
_NAME = "tick"
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


class Firing:
    """A schedule that fires each second, and a consumer that acks its items. `items`: by the time of the schedule, with
    the time of the enqueue (both ms)."""

    def __init__(self, addresses: str) -> None:
        self.items: dict[int, dict[int, int]] = defaultdict(dict)
        self._addresses = addresses
        self._stopping = threading.Event()
        value = {"cron": "* * * * * *", "topic": TOPIC, "catch_up": "all"}
        with self.client() as client:
            client.put_settings({f"schedule.{_NAME}": json.dumps(value)})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        _wait(lambda: bool(self.items), _CATCH_UP_S)

    def client(self) -> Client:
        return Client(self._addresses, NAMESPACE, timeout_ms=20_000)

    def end(self) -> int:
        """Remove the schedule once all times up to now have fired, or did not in time. Return the last one (ms)."""
        end_ms = int(time()) * 1_000
        with suppress(TimeoutError):  # the verdict has the missing ones
            _wait(lambda: self.items.keys() >= set(_times(self.items, end_ms)), _CATCH_UP_S)
        with self.client() as client:
            client.put_settings(remove=[f"schedule.{_NAME}"])
        return end_ms

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with self.client() as client:
            while not self._stopping.is_set():
                with suppress(FoqsError):
                    items = client.dequeue(TOPIC, 100, wait_ms=500)
                    for item in items:
                        due_ms = int((item.headers or {})["schedule_at_ms"])
                        self.items[due_ms][item.id] = item.enqueued_at_ms or 0
                    client.ack_many(items)


def addresses_of(ports: Sequence[int]) -> str:
    return ",".join([f"127.0.0.1:{port}" for port in ports])


def run_schedules(shards: Sequence[Shard], folder: Path, seed: int, hosts: int, seconds: int, kills: int) -> Report:
    """Fire each second for some time, and kill a host now and then. Logs go to `folder`. Raises TimeoutError."""
    rng = random.Random(seed)
    with local_cluster(shards, folder, _SETTINGS) as cluster:
        names = [f"host-{number}" for number in range(1, hosts + 1)]
        cluster.start(*names)
        cluster.settled()
        firing = Firing(addresses_of([cluster.hosts[name].port for name in names]))
        begun, kills_of_coordinators = monotonic(), 0
        for number in range(kills):
            sleep(max(0.0, begun + seconds * (number + 1) / (kills + 1) - monotonic()))
            with firing.client() as client:
                (row,) = client.schedules().schedules
            coordinators = [name for name in names if row.coordinator.endswith(f":{cluster.hosts[name].port}")]
            hits_coordinator = bool(coordinators) and rng.random() < _COORDINATORS_SHARE
            kills_of_coordinators += hits_coordinator
            _kill(cluster, rng.choice(coordinators if hits_coordinator else names))
        sleep(max(0.0, begun + seconds - monotonic()))
        end_ms = firing.end()
        firing.stop()
        return verdict(firing.items, seed, (kills, kills_of_coordinators), end_ms)


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
