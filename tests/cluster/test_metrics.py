"""The admin ports of a cluster's hosts: owners, epochs, the session, and whether the hosts are ready."""

from __future__ import annotations

import signal

import pytest

from foqs.client.items import ItemSpec
from foqs_lab.cluster import LocalCluster
from foqs_lab.crash.clients import Wire
from tests.admin.scraping import Scrape, get, missing
from tests.api.hosts import until
from tests.cluster.conftest import NewCluster

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]

SHARDS = 4


@pytest.fixture
def cluster(new_cluster: NewCluster) -> LocalCluster:
    return new_cluster("a", "b", shards=SHARDS)


def admin(cluster: LocalCluster, host: str) -> tuple[str, int]:
    return "127.0.0.1", cluster.hosts[host].admin_port


def epochs(scrape: Scrape) -> dict[int, int]:
    return {int(labels["shard"]): int(value) for labels, value in scrape.of("foqs_shard_epoch")}


def session(scrape: Scrape) -> set[str]:
    return {labels["state"] for labels, value in scrape.of("foqs_zookeeper_session_state") if value}


def test_a_cluster_in_its_metrics(cluster: LocalCluster) -> None:
    """One cluster for all of it, as its start takes longest."""
    _both_serve(cluster)
    taker = cluster.registry.facts.controller
    assert taker is not None
    left = "b" if taker == "a" else "a"
    _one_hands_over(cluster, left, taker)
    _the_other_goes_on_without_zookeeper(cluster, taker)


def _both_serve(cluster: LocalCluster) -> None:
    for name in cluster.hosts:
        until(lambda name=name: missing(admin(cluster, name)) == [], "the host to be ready")  # type: ignore[misc]
    facts = cluster.registry.facts

    def up_to_date() -> bool:
        """Check every host: each sees the facts at its own time."""
        told = [Scrape(admin(cluster, name)) for name in cluster.hosts]
        return all(
            scrape.sum("foqs_assignment_version") == facts.assignment.version
            and scrape.sum("foqs_cluster_shards_moving") == 0
            and scrape.sum("foqs_cluster_hosts") == 2
            for scrape in told
        ) and [scrape.sum("foqs_controller") for scrape in told] == [facts.controller == name for name in cluster.hosts]

    until(up_to_date, "every host to know all hosts")
    scrapes = {name: Scrape(admin(cluster, name)) for name in cluster.hosts}
    told = {(name, shard): epoch for name, scrape in scrapes.items() for shard, epoch in epochs(scrape).items()}
    assert told == {(owner.host, shard): owner.epoch for shard, owner in facts.owners.items()}
    for name, scrape in scrapes.items():
        assert session(scrape) == {"connected"}
        assert scrape.sum("foqs_zookeeper_session_changes_total", state="expired") == 0
        assert scrape.sum("foqs_shards_assigned") == len(epochs(scrape))
        assert (scrape.sum("foqs_cluster_shards"), scrape.sum("foqs_cluster_slots_moving")) == (SHARDS, 0)
        assert scrape.of("foqs_host_info", id=name, address=f"127.0.0.1:{cluster.hosts[name].port}")

    # Through one host, acked through the other: each item is counted once, where it is, and forwards are.
    a, b = (Wire(cluster.hosts[name].port, "ns", timeout_ms=20_000) for name in "ab")
    assert all(isinstance(one, int) for one in a.enqueue([ItemSpec(topic="t", payload=b"x")] * 10))
    items = [item for _ in range(10) for item in a.dequeue(["t"], 1, wait_ms=20_000, lease_ms=300_000)]
    assert b.ack(items) == [None] * len(items)
    after = [Scrape(admin(cluster, name)) for name in cluster.hosts]

    def together(name: str, **labels: str) -> float:
        return sum(value for scrape in after for _, value in scrape.of(name, **labels))

    assert together("foqs_items_enqueued_total", namespace="ns") == 10
    assert together("foqs_items_delivered_total", namespace="ns") == len(items)
    assert together("foqs_items_removed_total", namespace="ns", cause="ack") == len(items)
    assert together("foqs_requests_forwarded_total") > 0


def _one_hands_over(cluster: LocalCluster, left: str, taker: str) -> None:
    """Its shards stay while the other host, which assigns them, is stopped: until then it is alive and not ready."""
    opened = Scrape(admin(cluster, taker)).sum("foqs_shard_moves_total", outcome="opened")
    cluster.hosts[taker].pause()
    try:
        cluster.hosts[left].signal(signal.SIGTERM)
        until(lambda: missing(admin(cluster, left)) == ["stopping"], "the end to begin")
        assert get(admin(cluster, left), "/healthz") == (200, "alive\n")
    finally:
        cluster.hosts[taker].resume()
    cluster.settled(taker)
    until(lambda: missing(admin(cluster, taker)) == [], "the other host to be ready")
    until(lambda: Scrape(admin(cluster, taker)).sum("foqs_cluster_hosts") == 1, "the other host to be alone")
    scrape = Scrape(admin(cluster, taker))
    assert sorted(epochs(scrape)) == list(range(1, SHARDS + 1))
    assert scrape.sum("foqs_shard_moves_total", outcome="opened") > opened


def _the_other_goes_on_without_zookeeper(cluster: LocalCluster, host: str) -> None:
    address = admin(cluster, host)
    before = epochs(Scrape(address))
    cluster.zookeeper.kill()
    until(lambda: session(Scrape(address)) != {"connected"}, "the session to be in doubt")
    assert missing(address) == []
    scrape = Scrape(address)
    assert epochs(scrape) == before
    assert scrape.sum("foqs_controller") == 0
    assert scrape.sum("foqs_zookeeper_session_changes_total", state="suspended") >= 1
    cluster.zookeeper.start()
    until(lambda: session(Scrape(address)) == {"connected"}, "the session to be back")
