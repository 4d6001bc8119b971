"""What a scenario runs on: one host or a cluster, clients for each host, and what every scenario does with them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from foqs.client import Client
from foqs.client.items import Item, ItemSpec
from foqs_lab.cluster import HostProcess, LocalCluster, local_cluster, make_shards
from foqs_lab.crash.tenants import Rate, exceeded
from foqs_lab.relay import Relay
from foqs_lab.servers import Kind, ServerSettings, start_database_server

SESSION_MS = 4_000
LEASE_MS = 3_600_000
HOSTS = ("a", "b", "c")
_NAMESPACE, _BATCH, _FILLERS = "bench", 1_000, 4
_NS, _ROUNDING = 1_000_000_000, 1e-3
_TICKS = os.sysconf("SC_CLK_TCK")


class Outcome(NamedTuple):
    """Of one scenario: `met` says whether `figures` are within the `bar`."""

    number: int
    title: str
    bar: str
    met: bool
    figures: Mapping[str, float]


class Delivered(NamedTuple):
    """One delivery: between `asked_s` and `at_s` of the monotonic clock, in seconds."""

    asked_s: float
    at_s: float
    item: Item


@dataclass
class Stage:
    """`clients`: one for each host, which calls that host alone. `share`: the part of the full size of a scenario.
    `relay`, if there is one, leads to the database of the last shard."""

    hosts: Mapping[str, HostProcess]
    share: float
    cluster: LocalCluster
    folder: Path
    relay: Relay | None
    clients: list[Client] = field(default_factory=list)

    @property
    def client(self) -> Client:
        return self.clients[0]

    def size(self, items: int, least: int = 1) -> int:
        return max(least, int(items * self.share))

    def seconds(self, full_s: float, least_s: float = 2.0) -> float:
        return max(least_s, full_s * self.share)

    def settings(self, entries: Mapping[str, str]) -> None:
        """Change settings; returns when every host acts on them. Raises RuntimeError if one does not say so."""
        change = self.client.put_settings(entries)
        if change.missing:
            raise RuntimeError(f"{', '.join(change.missing)} did not confirm the settings")

    def fill(self, specs: Iterable[ItemSpec], client: Client | None = None) -> int:
        """Enqueue all of `specs`; how many. Raises the error of an item."""
        one = client or self.client

        def put(batch: list[ItemSpec]) -> int:
            left = batch
            while left:
                outcomes = one.enqueue_many(left)
                errors = [outcome for outcome in outcomes if not isinstance(outcome, int)]
                if errors and not errors[0].retryable:
                    raise errors[0]
                left = [spec for spec, outcome in zip(left, outcomes, strict=True) if not isinstance(outcome, int)]
            return len(batch)

        batches, stored = iter(specs), 0
        with ThreadPoolExecutor(_FILLERS) as threads:
            while some := [list(islice(batches, _BATCH)) for _ in range(_FILLERS)]:
                counts = [threads.submit(put, batch) for batch in some if batch]
                if not counts:
                    break
                stored += sum(count.result() for count in counts)
        return stored

    def rss_bytes(self, name: str) -> int:
        pages = int(Path(f"/proc/{self.hosts[name].pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def processor_s(self, name: str) -> float:
        """Processor time that the host has used."""
        fields = Path(f"/proc/{self.hosts[name].pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def deliveries(client: Client, topic: str, batch: int, *, wait_ms: int = 2_000) -> Iterator[Item]:
    """Yield the items of a topic in the order of delivery, each batch acked; ends when a wait brings none."""
    while items := client.dequeue(topic, batch, wait_ms=wait_ms, lease_ms=LEASE_MS):
        client.ack_many(items)
        yield from items


class Consumers:
    """One thread for each client, which takes and acks until the context ends. `delivered` grows with each reply."""

    def __init__(
        self, clients: Sequence[Client], topic: str, batch: int, *, each: int = 1, pace_s: float = 0.0,
        done: Callable[[Client, Sequence[Item]], None] | None = None,
    ) -> None:  # fmt: skip
        """`each`: threads for each client. `pace_s`: the least time between two requests of a thread."""
        self.delivered: list[Delivered] = []
        self._topic, self._batch, self._pace_s = topic, batch, pace_s
        self._done = done
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(one,)) for one in clients for _ in range(each)]

    def _run(self, client: Client) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                items = client.dequeue(self._topic, self._batch, wait_ms=200, lease_ms=LEASE_MS)
                at = time.monotonic()
                self.delivered.extend(Delivered(began, at, item) for item in items)
                if items:
                    client.ack_many(items)
                    if self._done is not None:
                        self._done(client, items)
                if self._pace_s:
                    self._stop.wait(max(0.0, began + self._pace_s - time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - the end of the context raises it
            self._errors.append(error)

    def __enter__(self) -> Consumers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def between(self, from_s: float, to_s: float) -> list[Delivered]:
        return [one for one in self.delivered if from_s <= one.at_s < to_s]


def exceeded_by(delivered: Iterable[Delivered], per_second: float, burst: int) -> float:
    """Return by how many deliveries the worst interval exceeds `burst + per_second * t` at least; 0 if none does."""
    spans = [(round(one.asked_s * _NS), round(one.at_s * _NS)) for one in delivered]
    over = exceeded(spans, Rate(per_second, burst)) if spans else 0.0
    return over if over > _ROUNDING else 0.0


@contextmanager
def stage(
    kind: Kind, folder: Path, hosts: Sequence[str], shards: int, share: float,
    host: Mapping[str, object] | None = None, *, relayed: bool = False,
) -> Iterator[Stage]:  # fmt: skip
    """Hosts with `shards` shards in all, spread evenly; `host` are settings of their section of that name. `relayed`:
    the last shard's database is behind a relay."""
    settings: dict[str, Mapping[str, object]] = {
        "zookeeper": {"session_timeout_ms": SESSION_MS, "balance_every_ms": 3_600_000},
        "host": dict(host or {}),
    }
    with ExitStack() as stack:
        server = stack.enter_context(start_database_server(kind, ServerSettings(buffer_pool_bytes=512 << 20)))
        folder.mkdir()
        made_shards = make_shards([server], shards, "bench")
        relay = None
        if relayed:
            relay = stack.enter_context(closing(Relay(server.port)))
            made_shards[-1] = replace(made_shards[-1], way=relay.port)
        cluster = stack.enter_context(local_cluster(made_shards, folder, settings))
        cluster.start(*hosts)
        cluster.place({shard.number: hosts[at % len(hosts)] for at, shard in enumerate(cluster.shards)})
        made = Stage(cluster.hosts, share, cluster, folder, relay)
        for name in hosts:
            address = f"127.0.0.1:{cluster.hosts[name].port}"
            made.clients.append(stack.enter_context(Client(address, _NAMESPACE, routing=False)))
        yield made
