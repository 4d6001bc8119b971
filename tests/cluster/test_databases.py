"""A database server dies under a cluster of processes: hosts stay ready, and no shard is moved."""

from __future__ import annotations

import json
import time

import pytest

from foqs_lab.cluster import LocalCluster
from tests.admin.scraping import Scrape, get, missing
from tests.api.hosts import foqs, until
from tests.cluster.conftest import MISSED, NewCluster
from tests.conftest import NewServer

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]

BALANCE_MS = 1_000
READ_ONLY = "shard {}: its database is read-only: is it a replica, or no longer the primary?"


def ready(cluster: LocalCluster, name: str) -> bool:
    return missing(("127.0.0.1", cluster.hosts[name].admin_port)) == []


def notes(cluster: LocalCluster, name: str) -> list[str]:
    return list(json.loads(get(("127.0.0.1", cluster.hosts[name].admin_port), "/readyz")[1])["notes"])


def unreachable(cluster: LocalCluster, name: str) -> float:
    return Scrape(("127.0.0.1", cluster.hosts[name].admin_port)).sum("foqs_shards_unreachable")


def states(cluster: LocalCluster) -> list[str]:
    ran = foqs("cluster", "status", "--json", "--config", str(cluster.config))
    assert ran.returncode == 0, ran.stderr
    return [row["state"] for row in json.loads(ran.stdout)["shards"]]


def test_a_dead_database_server_moves_nothing(new_server: NewServer, new_cluster: NewCluster) -> None:
    server = new_server("mariadb")
    settings = {**MISSED, "zookeeper": {**MISSED["zookeeper"], "balance_every_ms": BALANCE_MS}}
    settings["store"] = {"io_timeout_ms": 5_000}
    cluster = new_cluster("a", "b", server=server, settings=settings)
    facts = cluster.registry.facts
    shards = set(facts.shards)
    server.kill()
    cluster.registry.wait_for(lambda facts: shards <= set().union(*(host.unreachable for host in facts.hosts.values())))

    cluster.start("c")  # has nothing, and is given nothing
    before = cluster.registry.wait_for(lambda facts: "c" in facts.hosts).assignment
    cluster.registry.wait_for(lambda facts: all(host.unreachable for host in facts.hosts.values()))
    time.sleep(5 * BALANCE_MS / 1_000)  # nothing happens in it
    assert cluster.registry.facts.assignment == before
    assert all(ready(cluster, name) for name in "abc")

    cluster.hosts["b"].kill()
    cluster.start("b")  # it had never opened a shard
    until(lambda: ready(cluster, "b"), "the host that was started while the database was dead")
    facts = cluster.registry.wait_for(lambda facts: set(facts.assignment.hosts) == shards)
    for name in "ac":
        kept = {shard for shard, host in before.hosts.items() if host == name}
        assert kept <= {shard for shard, host in facts.assignment.hosts.items() if host == name}
    until(lambda: sum(unreachable(cluster, name) for name in "abc") == len(shards), "all shards to be counted")

    server.restart()
    cluster.settled("a", "b", "c")
    until(lambda: all(ready(cluster, name) for name in "abc"), "the hosts after it came back")


def test_a_read_only_database_server_moves_nothing(new_server: NewServer, new_cluster: NewCluster) -> None:
    """It answers each host, and none could write there. Its hosts say so, and serve again when it takes writes."""
    server = new_server("mariadb")
    settings = {**MISSED, "zookeeper": {**MISSED["zookeeper"], "balance_every_ms": BALANCE_MS}}
    cluster = new_cluster("a", "b", server=server, settings=settings)
    shards = set(cluster.registry.facts.shards)
    server.query("SET GLOBAL read_only = 1")  # root may write all the same: its hosts notice when they confirm
    facts = cluster.registry.wait_for(
        lambda facts: shards <= set().union(*(host.unreachable for host in facts.hosts.values()))
    )
    before = facts.assignment
    time.sleep(5 * BALANCE_MS / 1_000)  # nothing happens in it
    assert cluster.registry.facts.assignment == before
    for name in "ab":
        own = sorted(shard for shard, host in before.hosts.items() if host == name)
        until(lambda: notes(cluster, name) == [READ_ONLY.format(shard) for shard in own], f"the notes of {name}")  # noqa: B023
        assert ready(cluster, name)
    assert set(states(cluster)) == {"read-only"}

    server.query("SET GLOBAL read_only = 0")
    cluster.settled("a", "b")
    until(lambda: all(notes(cluster, name) == [] for name in "ab"), "the hosts after it took writes")
