"""A schedule that fires each second, while hosts and workers are killed: whether each second has one item, and its task
is done."""

from __future__ import annotations

import json
import random
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep, time
from typing import NamedTuple

from foqs.client import Client
from foqs.errors import FoqsError
from foqs_lab.cluster import LocalCluster, Shard, local_cluster
from foqs_lab.crash import jobs
from foqs_lab.crash.history import NS_PER_MS
from foqs_lab.crash.losses import Losses

NAMESPACE = "schedules"
_SETTINGS = {"zookeeper": {"session_timeout_ms": 3_000, "settle_ms": 1_000}}
_CATCH_UP_S = 60.0
_DOWN_S = 1.0
_COORDINATORS_SHARE = 0.5
_FOREVER_MS = 1 << 42
_NONE = Losses()


class Kills(NamedTuple):
    hosts: int
    coordinators: int = 0
    """Of the hosts."""
    workers: int = 0


@dataclass
class Report:
    """`missing` seconds have no item, `twice` ones several, and no worker has ended the task of `undone` ones.
    `late_ms`: how late the latest one was enqueued."""

    seed: int
    kills: Kills
    seconds: int
    late_ms: int
    missing: list[int] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)
    undone: list[int] = field(default_factory=list)
    again: int = 0

    @property
    def good(self) -> bool:
        return not (self.missing or self.twice or self.undone)

    def __str__(self) -> str:
        kills = self.kills
        lines = [
            f"seed {self.seed}: {self.seconds:,} seconds, {kills.hosts} kills of hosts ({kills.coordinators} chosen as "
            f"the coordinator) and {kills.workers} of workers, {self.late_ms:,} ms late at most, "
            f"{self.again} tasks run again"
        ]
        lines += [f"{len(self.missing)} seconds without an item: {self.missing[:10]}"] if self.missing else []
        lines += [f"{len(self.twice)} seconds with several items: {self.twice[:10]}"] if self.twice else []
        lines += [f"{len(self.undone)} seconds whose task was not done: {self.undone[:10]}"] if self.undone else []
        return "\n  ".join(lines)


class Firing:
    """A schedule that fires each second, and a consumer that acks its items. `items`: by the time of the schedule, with
    the time of the enqueue (both ms)."""

    def __init__(self, addresses: str) -> None:
        self.items: dict[int, dict[int, int]] = defaultdict(dict)
        self._addresses = addresses
        self._stopping = threading.Event()
        with self.client() as client:
            client.put_settings({f"schedule.{name}": json.dumps(value) for name, value in jobs.clock.schedules.items()})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        _wait(lambda: self.has_fired(0), _CATCH_UP_S)

    def client(self) -> Client:
        return Client(self._addresses, NAMESPACE, timeout_ms=20_000)

    def has_fired(self, end_ms: int) -> bool:
        """Return True if all times up to `end_ms` have fired, from the first one that did."""
        return bool(self.items) and self.items.keys() >= set(_times(self.items, end_ms))

    def end(self) -> int:
        """Remove the schedule once all times up to now have fired, or did not in time. Return the last one (ms)."""
        end_ms = int(time()) * 1_000
        with suppress(TimeoutError):  # the verdict has the missing ones
            _wait(lambda: self.has_fired(end_ms), _CATCH_UP_S)
        with self.client() as client:
            client.put_settings(remove=[f"schedule.{name}" for name in jobs.clock.schedules])
        return end_ms

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with self.client() as client:
            while not self._stopping.is_set():
                with suppress(FoqsError):
                    items = client.dequeue(jobs.TICKS, 100, wait_ms=500)
                    for item in items:
                        due_ms = int((item.headers or {})["schedule_at_ms"])
                        self.items[due_ms][item.id] = item.enqueued_at_ms or 0
                    client.ack_many(items)


class Working(Firing):
    """The same with `foqs worker` processes in place of the consumer. `done`: the items whose task has ended."""

    def __init__(self, addresses: str, folder: Path, workers: int) -> None:
        self.workers = [jobs.worker(folder, "clock", addresses, NAMESPACE) for _ in range(workers)]
        self.done: set[int] = set()
        self.runs = 0
        self._journal = jobs.Journal(folder)
        super().__init__(addresses)

    def has_fired(self, end_ms: int) -> bool:
        for line in self._journal.read():
            match line:
                case ["began", _, item_id, due_ms, at_ms]:
                    self.items[due_ms][item_id] = at_ms
                    self.runs += 1
                case ["done", _, item_id]:
                    self.done.add(item_id)
        old = [its for due_ms, its in self.items.items() if due_ms <= end_ms]
        return super().has_fired(end_ms) and all(map(self.done.issuperset, old))

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        super().stop()

    def _run(self) -> None:
        """The workers take the items."""


def addresses_of(ports: Sequence[int]) -> str:
    return ",".join([f"127.0.0.1:{port}" for port in ports])


def run_schedules(
    shards: Sequence[Shard], folder: Path, seed: int, hosts: int, workers: int, seconds: int, kills: int
) -> Report:
    """Fire each second for some time, and kill a host or a worker, in turn. Raises TimeoutError."""
    rng = random.Random(seed)
    with local_cluster(shards, folder, _SETTINGS) as cluster:
        names = [f"host-{number}" for number in range(1, hosts + 1)]
        cluster.start(*names)
        cluster.settled()
        firing = Working(addresses_of([cluster.hosts[name].port for name in names]), folder, workers)
        begun, coordinators = monotonic(), 0
        for number in range(kills):
            sleep(max(0.0, begun + seconds * (number + 1) / (kills + 1) - monotonic()))
            if number % 2:
                rng.choice(firing.workers).kill_worker(rng)
                continue
            with firing.client() as client:
                (row,) = client.schedules().schedules
            found = [name for name in names if row.coordinator.endswith(f":{cluster.hosts[name].port}")]
            hits = bool(found) and rng.random() < _COORDINATORS_SHARE
            coordinators += hits
            _kill(cluster, rng.choice(found if hits else names))
        sleep(max(0.0, begun + seconds - monotonic()))
        end_ms = firing.end()
        firing.stop()
        report = verdict(firing.items, seed, Kills(kills - kills // 2, coordinators, kills // 2), end_ms, firing.done)
        report.again = firing.runs - sum(map(len, firing.items.values()))
        return report


def _times(items: dict[int, dict[int, int]], end_ms: int) -> range:
    return range(min(items), end_ms + 1, 1_000)


def verdict(
    items: dict[int, dict[int, int]],
    seed: int,
    kills: Kills,
    end_ms: int,
    done: Set[int] | None = None,
    losses: Losses = _NONE,
    epoch_ns: int = 0,
) -> Report:
    """Judge the items up to `end_ms`, and whether they are `done`. `epoch_ns`: 1970 on the clock of the losses."""
    wanted = _times(items, end_ms)
    late_ms = max(at_ms - due_ms for due_ms, its in items.items() for at_ms in its.values())
    clock = _Clock(items, losses, epoch_ns)
    missing = [due_ms for due_ms in wanted if due_ms not in items and not clock.was_undone(due_ms)]
    twice = sorted(due_ms for due_ms, its in items.items() if len(its) > 1 and not clock.was_repeated(due_ms))
    undone = [due_ms for due_ms in wanted if done is not None and items.get(due_ms, {}).keys() - done]
    return Report(seed, kills, len(wanted), late_ms, missing, twice, undone)


class _Clock:
    """Says whether a loss explains a second without an item, or with several."""

    def __init__(self, items: dict[int, dict[int, int]], losses: Losses, epoch_ns: int) -> None:
        self._items = items
        self._losses = losses
        self._epoch_ns = epoch_ns
        self._dues = sorted(items)

    def was_undone(self, due_ms: int) -> bool:
        """Return True if the enqueue of a second may have been undone. Seconds fire in order: it was made between the
        enqueues of its neighbours."""
        at = bisect_left(self._dues, due_ms)
        before = max(self._items[self._dues[at - 1]].values()) if at else due_ms
        after = min(self._items[self._dues[at]].values()) if at < len(self._dues) else _FOREVER_MS
        for loss in self._losses.all:
            if self._ns(max(due_ms, before)) < loss.ended and self._ns(after + 1) > loss.began:
                self._losses.name(loss, "seconds of the schedule lost", due_ms)
                return True
        return False

    def was_repeated(self, due_ms: int) -> bool:
        """Return True if losses may have undone all items of a second but the last: it was fired again."""
        earlier = sorted((at_ms, item_id) for item_id, at_ms in self._items[due_ms].items())[:-1]
        return all(
            self._losses.undone("seconds of the schedule repeated", item_id, self._ns(at_ms), self._ns(at_ms + 1))
            for at_ms, item_id in earlier
        )

    def _ns(self, at_ms: int) -> int:
        return at_ms * NS_PER_MS + self._epoch_ns


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
