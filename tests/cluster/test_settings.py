"""Settings of a cluster: any host changes them, all act on them, and a host that does not say so is named."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from kazoo.client import KazooClient

from foqs.client import Client, Conflict, FoqsError, SettingsChange
from foqs_lab.cluster import ROOT, LocalCluster
from foqs_lab.relay import Relay
from tests.api.hosts import foqs, until
from tests.cluster.conftest import MISSED, NewCluster
from tests.policies.log_checks import checked

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
            version, entries = c.settings()[:2]
            assert entries == {"plans/acme": "gold"} == a.settings().entries

            way.hold()
            with_policy = a.put_settings({"topic.t": '{"paused": true}'}, expected_version=version)
            assert with_policy == SettingsChange(
                version + 1, tuple(sorted((address(cluster, "a"), address(cluster, "b")))), (address(cluster, "c"),)
            )
            assert b.settings()[:2] == (version + 1, {"plans/acme": "gold", "topic.t": '{"paused": true}'})
            assert c.settings()[:2] == (version, {"plans/acme": "gold"})
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


def test_no_version_is_without_its_record_after_kills(new_cluster: NewCluster) -> None:
    """Two hosts change settings at once, and one of them is killed, again and again."""
    cluster = new_cluster("a", "b", shards=2, settings=MISSED)
    confirmed = [0]
    for life in range(3):
        stop = threading.Event()

        def change(name: str, life: int = life, stop: threading.Event = stop) -> None:
            with at(cluster, name) as client:
                number = 0
                while not stop.is_set():
                    number += 1
                    try:
                        entries = {f"key{number % 5}": f"{name} {life} {number}"}
                        confirmed.append(client.put_settings(entries, timeout_ms=5_000).version)
                    except FoqsError:
                        stop.wait(0.05)

        threads = [threading.Thread(target=change, args=[name]) for name in "ab"]
        for thread in threads:
            thread.start()
        floor = max(confirmed) + 10
        until(lambda floor=floor: max(confirmed) > floor, "some changes")
        cluster.hosts["b"].kill()
        floor = max(confirmed) + 3
        until(lambda floor=floor: max(confirmed) > floor, "changes on the other host")
        stop.set()
        for thread in threads:
            thread.join(60)
        cluster.start("b")
        for name in "ab":
            with at(cluster, name) as client:
                until(lambda client=client: client.settings().version >= max(confirmed), "the host to follow")
                checked(client, max(confirmed))


def test_the_log_outlives_zookeeper(new_cluster: NewCluster) -> None:
    """ZooKeeper loses the settings and their log: the shards have both."""
    cluster = new_cluster("a", "b", shards=2)
    with at(cluster, "a") as a:
        for number in range(5):
            a.put_settings({"a": str(number), f"b{number}": "x"})
        until(lambda: a.put_settings({"last": "1"}).missing == (), "all hosts to have written their copies")
        before = a.settings_log()
    for name in "ab":
        assert cluster.hosts[name].stop() == 0
    operator = KazooClient(cluster.zookeeper.hosts)
    operator.start()
    for folder in ("settings", "settings_log"):
        assert operator.get_children(f"{ROOT}/{folder}") == ["shop"]
        operator.delete(f"{ROOT}/{folder}/shop")
    operator.stop()
    operator.close()
    cluster.start("a", "b")
    for name in "ab":
        with at(cluster, name) as client:
            until(lambda client=client: client.settings().version == before.version, "the settings")
            assert client.settings_log() == before
            checked(client, before.version)
    with at(cluster, "b") as b:
        assert b.put_settings({"a": "new"}, expected_version=before.version).version == before.version + 1
        checked(b, before.version + 1)
