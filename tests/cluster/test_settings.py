"""Settings of a cluster: any host changes them, all act on them, and a host that does not say so is named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from foqs.client import Client, Conflict, Settings, SettingsChange
from foqs_lab.cluster import LocalCluster
from foqs_lab.relay import Relay
from tests.api.hosts import foqs, until
from tests.cluster.conftest import NewCluster

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]


def address(cluster: LocalCluster, name: str) -> str:
    return f"127.0.0.1:{cluster.hosts[name].port}"


def at(cluster: LocalCluster, name: str) -> Client:
    """A client that asks this host alone."""
    return Client(address(cluster, name), "shop", routing=False)


def test_a_change_names_the_hosts_that_act_on_it(new_cluster: NewCluster) -> None:
    """One host is cut off from ZooKeeper for a while: it keeps its version, and is named."""
    cluster = new_cluster("a", "b", shards=2)
    with closing(Relay(cluster.zookeeper.port)) as way:
        cluster.add("c", settings={"zookeeper": {"hosts": f"127.0.0.1:{way.port}"}})
        cluster.start("c")
        all_three = tuple(sorted(address(cluster, name) for name in "abc"))
        with at(cluster, "a") as a, at(cluster, "b") as b, at(cluster, "c") as c:
            until(lambda: len(cluster.registry.facts.hosts) == 3, "all hosts in the facts")
            first = SettingsChange(1, all_three, ())
            until(lambda: b.put_settings({"plans/acme": "gold"})[1:] == first[1:], "all hosts to know all hosts")
            version, entries = c.settings()
            assert entries == {"plans/acme": "gold"} == a.settings().entries

            way.hold()
            with_policy = a.put_settings({"topic.t": '{"paused": true}'}, expected_version=version)
            assert with_policy == SettingsChange(
                version + 1, tuple(sorted((address(cluster, "a"), address(cluster, "b")))), (address(cluster, "c"),)
            )
            assert b.settings() == Settings(version + 1, {"plans/acme": "gold", "topic.t": '{"paused": true}'})
            assert c.settings() == Settings(version, {"plans/acme": "gold"})
            shown = foqs("settings", "remove", "topic.t", "--ns", "shop", "--address", address(cluster, "b")).stdout
            assert shown.splitlines()[1:] == [f"not confirmed, may act on an older version: {address(cluster, 'c')}"]

            way.flow()
            until(lambda: c.settings().version == version + 2, "the host to follow")
            assert c.put_settings({"a": "1"}, expected_version=version + 2) == SettingsChange(
                version + 3, all_three, ()
            )


def test_of_changes_at_once_one_is_made(new_cluster: NewCluster) -> None:
    cluster = new_cluster("a", "b", "c", shards=1)
    rounds = 5
    clients = [at(cluster, name) for name in "abc"]

    def put(number: int, version: int) -> SettingsChange | Conflict:
        try:
            return clients[number].put_settings({f"by{version}": str(number)}, expected_version=version)
        except Conflict as error:
            return error

    with ThreadPoolExecutor(len(clients)) as pool:
        for version in range(rounds):
            outcomes = list(pool.map(put, range(len(clients)), [version] * len(clients)))
            (made,) = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, SettingsChange)]
            assert outcomes[made].version == version + 1  # type: ignore[union-attr]
            for client in clients:
                until(lambda client=client, version=version: client.settings().version > version, "all hosts")
                assert client.settings().entries[f"by{version}"] == str(made)
    cluster.hosts["a"].stop()
    cluster.start("a")
    assert clients[0].settings() == clients[1].settings()
    assert clients[0].settings().version == rounds
    for client in clients:
        client.close()
