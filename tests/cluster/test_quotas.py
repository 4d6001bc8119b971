"""A quota of two hosts as processes, under load, while one of them is killed and restarted. The stored rows decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event, Lock
from time import monotonic

import pytest

from foqs.client import Client, FoqsError, ItemSpec
from foqs.errors import Overloaded
from foqs_lab.cluster import LocalCluster
from tests.api.hosts import until
from tests.cluster.conftest import MISSED, NewCluster

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]

RATE, BURST, STORED = 600, 100, 700
QUOTAS = {
    "quotas.namespaces.rated": {"enqueues_per_second": RATE, "burst": BURST},
    "quotas.namespaces.stored": {"stored_items": STORED},
}
CLIENTS = 2  # of each host, for each namespace


def items(cluster: LocalCluster, ns: str) -> int:
    query = f"SELECT COUNT(*) FROM item JOIN lane USING (lane) WHERE ns = '{ns}'"
    return sum(int(shard.server.query(query, database=shard.database)[0][0]) for shard in cluster.shards)


class Load:
    """Clients of one host each, which continue after every error."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._ports = [host.port for host in cluster.hosts.values() for _ in range(CLIENTS)]
        self._over, self._lock = Event(), Lock()
        self.refused = {"rated": 0, "stored": 0}
        self.admitted = Counter[int]()
        """By port."""

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(len(self._ports) * len(self.refused)) as threads:
            works = [threads.submit(self._work, port, ns) for port in self._ports for ns in self.refused]
            try:
                yield
            finally:
                self._over.set()
            for work in works:
                work.result()

    def _work(self, port: int, ns: str) -> None:
        specs = [ItemSpec("t", b"x")] * 10
        with Client(f"127.0.0.1:{port}", ns, timeout_ms=200, routing=False) as client:
            while not self._over.is_set():
                with suppress(FoqsError):
                    outcomes = client.enqueue_many(specs)
                    with self._lock:
                        self.refused[ns] += sum(isinstance(one, Overloaded) for one in outcomes)
                        self.admitted[port] += sum(isinstance(one, int) for one in outcomes)


def test_rate_and_stored_items_keep_the_quota_while_a_host_dies(new_cluster: NewCluster) -> None:
    cluster = new_cluster("a", "b", settings=QUOTAS | MISSED)
    load, begun = Load(cluster), monotonic()

    def more(count: int) -> None:
        """Wait until `count` more items are enqueued, and check the rate."""
        aim = items(cluster, "rated") + count
        until(lambda: items(cluster, "rated") >= aim, f"{aim} items")
        assert items(cluster, "rated") <= BURST + RATE * (monotonic() - begun)
        assert items(cluster, "stored") <= STORED

    with load.running():
        more(200)
        cluster.hosts["b"].kill()
        more(1)
        cluster.settled("a")
        more(300)
        cluster.start("b")
        cluster.settled()
        back, admitted = cluster.hosts["b"].port, Counter(load.admitted)
        until(lambda: load.admitted[back] > admitted[back], "an item through the host that came back")
        more(300)
        until(lambda: items(cluster, "stored") >= STORED, "the quota of stored items")
        refused = dict(load.refused)
        until(lambda: all(load.refused[ns] > refused[ns] for ns in refused), "refusals")
    assert items(cluster, "stored") == STORED
    for name in ("a", "b"):
        assert cluster.hosts[name].stop() == 0
        assert cluster.hosts[name].counted("quota_admitted") > 0
        assert cluster.hosts[name].faults() == []
