"""A worker process whose items are on other hosts than the one that it asks."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from foqs.client import Client, ItemSpec, Worker
from foqs.ids import shard_of
from tests.peers.nodes import Cluster
from tests.support.waiting import wait_until

LATER_MS = 60_000


@pytest.fixture
def clients(cluster: Cluster) -> tuple[Client, Client]:
    """Each asks one of two hosts."""
    members = [cluster.add("a", 1), cluster.add("b", 2)]
    cluster.tell()
    one, two = (Client(member.address, "n", routing=False) for member in members)
    return one, two


def test_items_on_two_hosts_count_together(cluster: Cluster, clients: tuple[Client, Client]) -> None:
    """The worker waits on one host, and each end of an item on the other one lets it have the next."""
    one, two = clients
    with one, two:
        for member in cluster.members:
            cluster.on_loop(lambda member=member: member.engine.apply_settings(settings()))  # type: ignore[misc]
        for client in clients:
            client.enqueue_many([ItemSpec("jobs", b"x") for _ in range(20)])
        lock, at_work, most, shards = threading.Lock(), 0, 0, Counter[int]()

        def handle(item: object) -> None:
            nonlocal at_work, most
            with lock:
                at_work += 1
                most = max(most, at_work)
                shards[shard_of(item.id)] += 1  # type: ignore[attr-defined]
            with lock:
                at_work -= 1

        workers = [Worker(one, ["jobs", "more"], handle, concurrency=4, wait_ms=LATER_MS) for _ in range(2)]
        for worker in workers:
            worker.start()
        wait_until(lambda: sum(worker.counts.done for worker in workers) == 40, "all items done")
        for worker in workers:
            worker.stop()
        assert most <= 2
        assert shards == {1: 20, 2: 20}


def test_a_name_refused_on_another_host_gets_its_next_item(cluster: Cluster, clients: tuple[Client, Client]) -> None:
    one, two = clients
    with one, two:
        for member in cluster.members:
            cluster.on_loop(lambda member=member: member.engine.apply_settings(settings()))  # type: ignore[misc]
        two.enqueue_many([ItemSpec("jobs", b"x") for _ in range(5)])
        first = two.dequeue("jobs", 5, worker="w")
        assert len(first) == 2
        got: list[list[object]] = []
        thread = threading.Thread(target=lambda: got.append(one.dequeue("jobs", 5, worker="w", wait_ms=LATER_MS)))
        thread.start()
        engine = cluster.members[1].engine
        cluster.until(lambda: "w" in engine.state.holdings.named, "the other host refused it")
        assert not got
        two.ack(first[0])
        thread.join(LATER_MS / 1_000)
        assert len(got[0]) == 1


def settings() -> object:
    from foqs.policies.settings import Settings

    return Settings("n", 1, {"topic.jobs": '{"per_worker": 2}'})
