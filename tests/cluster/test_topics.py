"""An enqueue at any host wakes a consumer at any other host, and any host answers for the cluster."""

from __future__ import annotations

import threading
from collections import Counter
from time import monotonic

import pytest

from foqs.client.items import Item, ItemSpec
from foqs_lab.cluster import LocalCluster
from foqs_lab.crash.clients import NAMESPACE, Wire
from tests.cluster.conftest import NewCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]


def wire_to(cluster: LocalCluster, name: str) -> Wire:
    return Wire(cluster.hosts[name].port, NAMESPACE, timeout_ms=20_000)


class Waiting(threading.Thread):
    """A consumer that waits for one item at one host, for longer than the test may take."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        super().__init__(daemon=True)
        self.wire = wire_to(cluster, name)
        self.items: list[Item] = []
        self.start()

    def run(self) -> None:
        self.items = self.wire.dequeue(["t"], 1, wait_ms=100_000, lease_ms=300_000)
        self.got = monotonic()


def test_a_consumer_is_woken_by_an_item_on_another_host(new_cluster: NewCluster) -> None:
    cluster = new_cluster("a", "b", "c", shards=2)
    took = []
    at_a = wire_to(cluster, "a")
    for name in ("b", "c", "b", "c"):
        consumer = Waiting(cluster, name)
        put = monotonic()
        (item_id,) = at_a.enqueue([ItemSpec("t", b"x")])
        consumer.join(60)
        assert [item.id for item in consumer.items] == [item_id]
        took.append(consumer.got - put)
    at_a.close()
    print(f"enqueue to delivery on another host: {sorted(round(s * 1000) for s in took)} ms")


def test_consumers_of_many_hosts_empty_one_of_another(new_cluster: NewCluster) -> None:
    """More items than consumers, more consumers than items: each item goes to one consumer, and no host polls."""
    cluster = new_cluster("a", "b", "c", shards=2)
    consumers = [Waiting(cluster, name) for name in ("b", "c") for _ in range(8)]
    at_a = wire_to(cluster, "a")
    ids = at_a.enqueue([ItemSpec("t", b"x") for _ in range(10)])
    wait_until(lambda: sum(bool(consumer.items) for consumer in consumers) == 10, "items for 10 consumers")
    ids += at_a.enqueue([ItemSpec("t", b"x") for _ in range(6)])
    for consumer in consumers:
        consumer.join(60)
    assert Counter(item.id for consumer in consumers for item in consumer.items) == Counter(ids)
    at_a.close()
    for host in cluster.hosts.values():
        host.stop()
    forwarded = sum(host.counted("forwarded") for host in cluster.hosts.values())
    assert forwarded <= 16 + 4 * 2 * 16, "a ready item wakes waiting consumers, and no host polls"
