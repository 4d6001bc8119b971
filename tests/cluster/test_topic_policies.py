"""Policies of topics on hosts as processes: a pause that one host does not learn of, and a bound on stored items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from threading import Event, Lock
from time import monotonic, time

import pytest

from foqs.client import Client, FoqsError, Item, ItemSpec
from foqs_lab.cluster import LocalCluster
from foqs_lab.relay import Relay
from tests.api.hosts import foqs, until
from tests.cluster.conftest import NewCluster
from tests.cluster.test_settings import address, at

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]

LEASE_MS = 60_000
CLOCKS_MS = 20
"""Hosts follow the clock of the databases, which is that of this machine, and learn of it from messages."""
QUIET_S = 2.0
MOST = 300


@contextmanager
def working(*works: Callable[[], None]) -> Iterator[None]:
    """Each of `works` again and again, on a thread of its own."""
    over = Event()

    def repeat(work: Callable[[], None]) -> None:
        while not over.is_set():
            work()

    with ThreadPoolExecutor(len(works)) as threads:
        running = [threads.submit(repeat, work) for work in works]
        try:
            yield
        finally:
            over.set()
        for one in running:
            one.result()


class Deliveries:
    """The items that consumers of each host got, with the time of their lease and of their arrival."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._all: list[tuple[str, float, float]] = []

    def consume(self, host: str, client: Client) -> None:
        items: list[Item] = list(client.dequeue("mail", count=2, wait_ms=500, lease_ms=LEASE_MS))
        now = monotonic()
        with self._lock:
            self._all += [(host, item.lease_expires_at_ms - LEASE_MS, now) for item in items]
        client.ack_many(items)

    def leased_after(self, at_ms: float, *hosts: str) -> int:
        with self._lock:
            return sum(host in hosts and leased_ms > at_ms for host, leased_ms, _ in self._all)

    def first_after(self, at: float) -> float | None:
        with self._lock:
            return min((arrived for _, _, arrived in self._all if arrived > at), default=None)


def test_a_pause_holds_on_all_hosts_that_confirmed(new_cluster: NewCluster) -> None:
    """Scenario 25: one host is cut off from ZooKeeper when the topic is paused."""
    cluster = new_cluster("a", "b", shards=3)
    with closing(Relay(cluster.zookeeper.port)) as way:
        cluster.add("c", settings={"zookeeper": {"hosts": f"127.0.0.1:{way.port}"}})
        cluster.start("c")
        owners = zip(cluster.shards, "abc", strict=True)
        cluster.place({shard.number: cluster.hosts[name].ids[0] for shard, name in owners})
        until(lambda: len(cluster.registry.facts.hosts) == 3, "all hosts in the facts")
        got = Deliveries()
        clients = {name: at(cluster, name) for name in "abc"}
        for client in clients.values():
            client.enqueue_many([ItemSpec("mail", b"x")] * 5_000)
        with working(*[lambda name=name: got.consume(name, clients[name]) for name in "aabbcc"]):  # type: ignore[misc]
            until(lambda: all(got.leased_after(0, name) for name in "abc"), "deliveries of all hosts")

            way.hold()
            said = foqs("topic", "pause", "mail", "--ns", "shop", "--address", address(cluster, "a")).stdout
            paused_ms = time() * 1_000
            paused, confirmed, missing = said.splitlines()
            assert paused == "mail is paused"
            assert confirmed.endswith(f"in effect on {' '.join(sorted(address(cluster, name) for name in 'ab'))}")
            assert missing == f"not confirmed, may act on an older version: {address(cluster, 'c')}"
            _pass(QUIET_S)
            assert got.leased_after(paused_ms + CLOCKS_MS, "a", "b") == 0
            print(f"{got.leased_after(paused_ms, 'c')} deliveries by the host that did not confirm")

            way.flow()
            until(lambda: clients["c"].topic_stats("mail").paused, "the third host to follow")
            paused_ms = time() * 1_000
            _pass(QUIET_S)
            assert got.leased_after(paused_ms + CLOCKS_MS, "a", "b", "c") == 0
            stats = clients["b"].topic_stats("mail")
            assert (stats.ready > 0, stats.leased, stats.missing) == (True, 0, ())

            before = monotonic()
            change = clients["a"].put_settings({}, ["topic.mail"])
            until(lambda: got.first_after(before), "an item")
            first = got.first_after(before)
            assert change.missing == ()
            assert first is not None
            print(f"first item {(first - before) * 1_000:.0f} ms after the request to resume")
        for client in clients.values():
            client.close()


def _pass(seconds: float) -> None:
    end = monotonic() + seconds
    until(lambda: monotonic() >= end, "the end of a pause")


def items(cluster: LocalCluster) -> int:
    query = "SELECT COUNT(*) FROM item JOIN lane USING (lane) WHERE ns = 'shop' AND topic = 'mail'"
    return sum(int(shard.server.query(query, database=shard.database)[0][0]) for shard in cluster.shards)


def test_a_topic_never_has_more_items_than_its_bound(new_cluster: NewCluster) -> None:
    """Scenario 27: producers of two hosts, while consumers make room."""
    cluster = new_cluster("a", "b", shards=2)
    clients = [at(cluster, name) for name in "aabb"]
    until(lambda: len(clients[0].put_settings({"topic.mail": f'{{"max_stored": {MOST}}}'}).applied) == 2, "both hosts")

    def produce(client: Client) -> None:
        with suppress(FoqsError):
            client.enqueue_many([ItemSpec("mail", b"x")] * 7, timeout_ms=500)

    def consume(client: Client) -> None:
        with suppress(FoqsError):
            client.ack_many(client.dequeue("mail", count=3, wait_ms=50))

    def watch() -> None:
        counts.append(items(cluster))

    counts: list[int] = []
    producers = [lambda client=client: produce(client) for client in clients]  # type: ignore[misc]
    with working(*producers, watch):
        until(lambda: MOST in counts, "a full topic")
        with working(lambda: consume(clients[0]), lambda: consume(clients[2])):
            full = len(counts)
            until(lambda: len(counts) > full + 50, "counts beside consumers")
        full = len(counts)
        until(lambda: MOST in counts[full:], "a full topic again")
    print(f"{len(counts)} counts, {counts.count(MOST)} of them {MOST}")
    assert max(counts) == MOST
    assert min(counts[-50:]) < MOST
    for client in clients:
        client.close()
