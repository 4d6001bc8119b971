"""Redrives into closed and full topics on hosts as processes, each with shards of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from foqs.client import Client, ItemSpec, Overloaded, Unavailable
from foqs_lab.cluster import LocalCluster
from tests.api.hosts import foqs, until
from tests.cluster.conftest import NewCluster

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]

DEAD = "t.dlq"
ITEMS = 60


@pytest.fixture(params=["mariadb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(new_cluster: NewCluster) -> LocalCluster:
    made = new_cluster("a", "b", "c", shards=3)
    until(lambda: len(set(made.settled().assignment.hosts.values())) == 3, "each host has a shard")
    return made


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(f"127.0.0.1:{cluster.hosts['a'].port}", "shop") as made:
        yield made


def policies(client: Client, **topics: dict[str, object]) -> None:
    """Return when all hosts act on it."""
    entries = {f"topic.{name}": json.dumps(policy) for name, policy in topics.items()}
    client.put_settings(entries)
    until(lambda: not client.put_settings(entries).missing, "all hosts to act on the settings")


def dead_letters(client: Client, topic: str, count: int) -> None:
    """Store `count` items over all shards, and reject each."""
    for _ in range(count // 10):
        client.enqueue_many([ItemSpec(topic, b"x") for _ in range(10)])
    left = count
    while left:
        for item in client.dequeue(topic, count=left, wait_ms=10_000):
            client.nack(item, reject=True, reason="no")
            left -= 1


def dead(client: Client) -> int:
    return sum(group.count for group in client.list_failures(DEAD).groups)


def test_refused_dead_letters_stay_on_all_hosts(cluster: LocalCluster, client: Client) -> None:
    policies(client, u={"dead": {"topic": DEAD}})
    dead_letters(client, "t", ITEMS)
    dead_letters(client, "u", ITEMS // 2)
    policies(client, t={"closed": True})
    found = client.redrive(DEAD)
    assert (found.at_least, found.at_most, found.more) == (ITEMS // 2, ITEMS // 2, False)
    assert [one[:3] for one in found.refused] == [("t", ITEMS, True)]
    assert dead(client) == ITEMS
    with pytest.raises(Unavailable, match=r"no item was redriven: the topic t is closed .*60 dead letters stay"):
        client.redrive(DEAD)
    shown = foqs("dead", "redrive", DEAD, "--to-topic", "t", "--ns", "shop", "--address", client.address)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "foqs topic open t --ns shop" in shown.stderr

    policies(client, t={"max_stored": 20})
    moved = 0

    def full() -> bool:
        nonlocal moved
        try:
            moved += client.redrive(DEAD).at_most
        except Overloaded:
            return moved == 20
        return False

    until(full, "the topic to be full")
    assert (moved, dead(client)) == (20, ITEMS - 20)
    stats = client.topic_stats("t")
    assert stats.ready == 20
    policies(client, t={"paused": True})
    assert client.redrive(DEAD).at_least == ITEMS - 20
    assert dead(client) == 0
