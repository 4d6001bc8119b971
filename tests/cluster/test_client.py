"""The client library on a cluster of real processes: it routes to each shard's host, and no call fails in a restart."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from foqs.client import Client, Item, ItemSpec, Producer, Worker
from foqs.ids import shard_of
from foqs_lab.cluster import LocalCluster
from tests.client.peer import eventually
from tests.cluster.conftest import NewCluster

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]

ACKED_AT_ONCE = 20


def client_of(cluster: LocalCluster, *names: str) -> Client:
    """Return a client that gets the addresses of `names` only."""
    return Client(",".join(f"127.0.0.1:{cluster.hosts[name].port}" for name in names))


def knows(client: Client, cluster: LocalCluster) -> bool:
    """Whether its routing is what ZooKeeper says."""
    owners = {number: owner.address for number, owner in cluster.registry.facts.owners.items()}
    return {number: str(address) for number, address in client._router.routes.owners.items()} == owners


def test_acks_go_straight_to_owners(new_cluster: NewCluster) -> None:
    cluster = new_cluster("a", "b", "c", shards=6)
    with client_of(cluster, "b") as client:
        client.server_info()
        eventually(lambda: knows(client, cluster))
        ids: list[int] = []
        while len(ids) < 2_000 or len({shard_of(item_id) for item_id in ids}) < 6:
            ids += [one for one in client.enqueue_many([ItemSpec("t", b"x")] * 100) if isinstance(one, int)]
        items: list[Item] = []
        while len(items) < len(ids):
            items += client.dequeue("t", 500, wait_ms=5_000, lease_ms=300_000)
        random.shuffle(items)
        assert {client.get_item(item.id).id for item in items[:50]} == {item.id for item in items[:50]}
        assert client.extend_many(items) == [None] * len(items)
        for start in range(0, len(items), ACKED_AT_ONCE):
            part = items[start : start + ACKED_AT_ONCE]
            assert client.ack_many(part) == [None] * len(part)
        assert sum(shard.rows() for shard in cluster.shards) == 0
    for host in cluster.hosts.values():
        host.stop()
    # Which hosts have which topic is asked for all hosts, and a dequeue that finds nothing goes on. Through one host it
    # would be two for each request of acks.
    assert sum(host.counted("forwarded") for host in cluster.hosts.values()) < len(items) // ACKED_AT_ONCE


def test_a_client_with_one_address_feeds_all_hosts(new_cluster: NewCluster) -> None:
    """From its first call on, in one call or many, and by the shards of the hosts."""
    cluster = new_cluster("a", "b", "c", shards=4)
    with client_of(cluster, "b") as client:
        client.server_info()
        eventually(lambda: len(cluster.registry.facts.owners) == 4 and knows(client, cluster))  # b does, too
    with client_of(cluster, "b") as client:
        ids = client.enqueue_many([ItemSpec("t", b"x")] * 20_000)
    with client_of(cluster, "b") as client, Producer(client) as producer:
        ids += [future.result(60) for future in [producer.enqueue("t", b"x") for _ in range(20_000)]]
    for part in (ids[:20_000], ids[20_000:]):
        owners = {number: owner.host for number, owner in cluster.registry.facts.owners.items()}
        got = Counter(owners[shard_of(one)] for one in part if isinstance(one, int))
        assert got == {"a": pytest.approx(10_000, rel=0.1), "b": pytest.approx(5_000, rel=0.2), "c": got["c"]}, got


@pytest.mark.parametrize("topics", [1, 200])
def test_a_worker_finds_an_item_of_each_topic_at_once(new_cluster: NewCluster, topics: int) -> None:
    """On any host. Before one request named all topics, an item of one of 200 was found after 6 s."""
    cluster = new_cluster("a", "b", "c", shards=3)
    names, found, change = [f"t{n}" for n in range(topics)], set[bytes](), threading.Condition()

    def handle(item: Item) -> None:
        with change:
            found.add(item.payload)
            change.notify_all()

    waits_s, rng = [], random.Random(1)
    with client_of(cluster, "a") as client, client_of(cluster, "b") as other, Worker(client, names, handle):
        eventually(lambda: knows(client, cluster))
        for n in range(20):
            payload, began = b"%d" % n, time.monotonic()
            other.enqueue(rng.choice(names), payload)
            with change:
                assert change.wait_for(lambda payload=payload: payload in found, 30)
            waits_s.append(time.monotonic() - began)
    assert sorted(waits_s)[len(waits_s) // 2] < 1, waits_s


def test_a_rolling_restart_of_all_hosts_fails_no_call(new_cluster: NewCluster) -> None:
    cluster = new_cluster("a", "b", "c", shards=6)
    load = Load()
    with (
        client_of(cluster, "a", "b") as producing,
        client_of(cluster, "c") as consuming,
        Producer(producing, max_items=50) as producer,
        Worker(consuming, ["worked"], load.handled, concurrency=4, prefetch=40, wait_ms=500) as worker,
    ):
        threads = [
            load.run(lambda n: load.sent(producer.enqueue("worked", b"w%d" % n).result(60))),
            load.run(lambda n: load.sent(producing.enqueue("plain", b"p%d" % n))),
            load.run(lambda _: load.take(consuming)),
            load.run(lambda _: load.take(producing)),
        ]
        for name in ("a", "b", "c"):
            load.goes_on()
            cluster.hosts[name].stop()
            cluster.settled()
            load.goes_on()
            cluster.start(name)
            cluster.settled()
            load.goes_on()
        load.ended.set()
        for thread in threads:
            thread.join()
        assert load.errors == []
        eventually(lambda: load.take(consuming) or load.all_came(), 60.0)
        eventually(lambda: worker.counts.done == load.got_by_worker, 60.0)
        counts = worker.counts
    assert (counts.failed, counts.lost, counts.unsettled) == (0, 0, 0)
    assert load.got == Counter(load.stored), "nothing is lost, and nothing came twice"
    assert sum(shard.rows() for shard in cluster.shards) == 0
    assert [fault for host in cluster.hosts.values() for fault in host.faults()] == []


class Load:
    """Producers and consumers in threads, and their replies."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.errors: list[Exception] = []
        self.stored: list[int] = []
        self.got: Counter[int] = Counter()
        self.got_by_worker = 0
        self._lock = threading.Lock()

    def run(self, step: Callable[[int], None]) -> threading.Thread:
        """Does `step` until the end, with the numbers from 0."""

        def loop() -> None:
            number = 0
            while not self.ended.is_set():
                try:
                    step(number)
                except Exception as error:  # noqa: BLE001 - the test looks at them
                    self.errors.append(error)
                    return
                number += 1

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        return thread

    def sent(self, item_id: int) -> None:
        with self._lock:
            self.stored.append(item_id)

    def handled(self, item: Item) -> None:
        with self._lock:
            self.got[item.id] += 1
            self.got_by_worker += 1

    def take(self, client: Client) -> None:
        self.came(client, client.dequeue("plain", 20, wait_ms=200))

    def came(self, client: Client, items: list[Item]) -> None:
        with self._lock:
            self.got.update(item.id for item in items)
        client.extend_many(items[:1], 60_000)
        for error in client.ack_many(items):
            if error is not None:
                raise error

    def goes_on(self) -> None:
        """Until some hundred more items have come and gone. Raises AssertionError when that stops."""
        goal = self.got.total() + 200
        eventually(lambda: self.errors or self.got.total() >= goal, 60.0)
        assert self.errors == []

    def all_came(self) -> bool:
        return self.got.total() >= len(self.stored)
