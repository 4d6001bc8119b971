"""Redrives of a thousand dead letters on three hosts as processes, of which one is killed. The rows decide."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import pytest

from foqs.client import Client
from foqs.idl import idl
from foqs_lab.cluster import HostProcess, LocalCluster, Shard
from tests.api.hosts import until
from tests.api.wire import Wire, spec
from tests.cluster.conftest import MISSED, NewCluster

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]

ITEMS = 1_000
REASONS = [f"reason {letter}" for letter in "abcde"]
DEAD = "t.dlq"
KILLS = 3


def dead_letters(wire: Wire, count: int) -> None:
    """Store `count` items, and reject each for one of `REASONS`."""
    wire.enqueue(*(spec("t", b"x") for _ in range(count)))
    left = count
    while left:
        items = wire.dequeue("t", left, wait_ms=10_000, lease_ms=600_000)
        nacks = [
            idl.NackItem(item.id, item.lease, reason=REASONS[item.id % len(REASONS)], reject=True) for item in items
        ]
        assert not items or set(wire.settle("Nack", nacks, ns="ns")) == {0}
        left -= len(items)


def rows(cluster: LocalCluster, query: str) -> list[Any]:
    return [row for shard in cluster.shards for row in shard.server.query(query, database=shard.database)]


def topics(cluster: LocalCluster) -> Counter[str]:
    """Check that each item is in exactly one topic, with its failure if and only if it is dead. Return how many items
    each topic has."""
    found = Counter[str]()
    query = (
        "SELECT l.topic, COUNT(*), COUNT(r.id), COUNT(t.id), COUNT(f.id), SUM(f.lane = i.lane) FROM item i "
        "JOIN lane l USING (lane) LEFT JOIN ready r ON r.id = i.id AND r.lane = i.lane "
        "LEFT JOIN timer t ON t.id = i.id AND t.lane = i.lane LEFT JOIN failure f ON f.id = i.id GROUP BY l.topic"
    )
    for topic, items, ready, timer, failures, right in rows(cluster, query):
        name = topic.decode() if isinstance(topic, bytes) else str(topic)
        found[name] += int(items)
        assert int(failures) == (int(items) if name == DEAD else 0)
        assert name != DEAD or (int(right or 0), int(ready) + int(timer)) == (int(items), int(items))
    return found


def dead_of(shard: Shard) -> int:
    """Return how many dead letters the shard has."""
    return int(shard.server.query("SELECT COUNT(*) FROM failure", database=shard.database)[0][0])


def owner_of(cluster: LocalCluster, shard: int) -> HostProcess:
    host = cluster.settled().assignment.hosts[shard]
    return next(one for one in cluster.hosts.values() if host in one.ids)


def standstill(cluster: LocalCluster) -> bool:
    """Whether no item returns for half a second."""
    before = topics(cluster)
    sleep(0.5)
    return topics(cluster) == before


def test_a_host_is_killed_during_redrives(new_cluster: NewCluster) -> None:
    cluster = new_cluster("a", "b", "c", shards=6, settings=MISSED)
    port = cluster.hosts["c"].port
    with (
        Wire(("127.0.0.1", port), "ns") as wire,
        Client(f"127.0.0.1:{port}", "ns", routing=False) as client,
        ThreadPoolExecutor(1) as thread,
    ):
        dead_letters(wire, ITEMS)
        redriven = 0
        for round_number in range(KILLS):
            before, last = redriven, round_number == KILLS - 1
            ids = [cluster.hosts[name].ids[0] for name in "ab"]  # a call of c asks both
            cluster.place({shard.number: ids[at % 2] for at, shard in enumerate(cluster.shards)})
            # Shards are searched in order: the first one with dead letters is next.
            number = min(one.number for one in cluster.shards if dead_of(one))
            victim = owner_of(cluster, number)
            call = thread.submit(client.redrive, DEAD, 300, pace_per_second=100, timeout_ms=120_000)
            until(lambda: topics(cluster)["t"] > before + 30, "a part of the redrive")  # noqa: B023
            if last:  # it takes a page that it does not answer
                victim.pause()
                until(lambda: standstill(cluster), "a page that gets no answer")
            victim.kill()
            found = call.result()
            cluster.settled(*(name for name in cluster.hosts if cluster.hosts[name] is not victim))
            redriven = topics(cluster)["t"]
            print(f"killed {victim.name}: {found}, {redriven - before} redriven")
            assert found.at_least <= redriven - before <= found.at_most <= 300
            assert (found.at_least < found.at_most) or not last
            assert not found.missing_shards
            cluster.start(victim.name)
            cluster.settled()
        found = client.redrive(DEAD, timeout_ms=60_000)
        assert found[:2] == (ITEMS - redriven, ITEMS - redriven)
        assert topics(cluster) == {"t": ITEMS}
        assert client.list_failures(DEAD) == ([], ())
