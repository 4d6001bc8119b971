"""A worker whose handler never ends, on real hosts: the topic's policy takes its items away."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from time import monotonic

import pytest

from foqs.client import Client, Item, Worker
from foqs.policies.settings import Settings
from tests.peers.nodes import PATIENCE_S, Cluster, Member
from tests.support.waiting import wait_until

STUCK_MS = 2_000
LEASE_MS = 600
ALLOWED_MS = STUCK_MS + 1_000


@pytest.fixture
def host(cluster: Cluster) -> Member:
    member = cluster.add("a", 1)
    cluster.tell()
    policy = Settings("shop", 1, {"topic.jobs": json.dumps({"stuck_after_ms": STUCK_MS})})
    cluster.on_loop(lambda: member.engine.state.policies.apply(policy))
    return member


@pytest.fixture
def client(host: Member) -> Iterator[Client]:
    with Client(host.address, "shop") as client:
        yield client


def test_an_item_that_is_extended_for_ever_is_delivered_again(client: Client) -> None:
    """The worker extends every 200 ms, until that is refused."""
    opened, begun, told = threading.Event(), threading.Event(), threading.Event()

    class Hangs:
        def handle(self, item: Item, job: object) -> None:
            lost = job.lease_lost  # type: ignore[attr-defined]
            begun.set()
            if lost.wait(PATIENCE_S):
                told.set()
            opened.wait(PATIENCE_S)

    item_id = client.enqueue("jobs", b"x")
    with Worker(client, "jobs", Hangs(), concurrency=1, lease_ms=LEASE_MS, wait_ms=100) as worker:
        assert begun.wait(PATIENCE_S)
        begun_at = monotonic()
        items: list[Item] = []
        wait_until(lambda: bool(items or items.extend(client.dequeue("jobs", wait_ms=1_000))), "it again", PATIENCE_S)  # type: ignore[func-returns-value]
        after_ms = (monotonic() - begun_at) * 1000
        (item,) = items
        assert (item.id, item.attempt) == (item_id, 2)
        assert STUCK_MS - LEASE_MS <= after_ms <= ALLOWED_MS
        assert told.wait(PATIENCE_S), "its handler learns that the lease is lost"
        opened.set()
        wait_until(lambda: worker.counts.lost == 1, "no outcome of it counts", PATIENCE_S)


def test_a_stuck_item_counts_as_an_attempt_for_its_dead_letter(client: Client, host: Member, cluster: Cluster) -> None:
    policy = Settings("shop", 2, {"topic.jobs": json.dumps({"stuck_after_ms": 300, "max_attempts": 1})})
    cluster.on_loop(lambda: host.engine.state.policies.apply(policy))
    item_id = client.enqueue("jobs", b"x")
    (item,) = client.dequeue("jobs", lease_ms=200, wait_ms=60_000)
    client.extend(item, 60_000)
    (dead,) = client.dequeue("jobs.dlq", wait_ms=60_000)
    assert (dead.id, dead.attempt) == (item_id, 1)
