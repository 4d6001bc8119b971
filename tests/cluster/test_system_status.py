"""`foqs status` of a cluster whose parts fail: it names each fault with its remedy, and ends in time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foqs.cli.status import PATIENCE_S
from foqs.client import Client, Overloaded
from foqs_lab.cluster import LocalCluster, Settings, local_cluster, make_shards
from tests.api.hosts import foqs, until
from tests.conftest import NewServer

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]

START_S = 0.5
"""Of the command itself."""
BUSY_S = 2.0
"""For the stalls of a machine that runs other tests, too."""
SETTINGS: Settings = {
    "zookeeper": {"session_timeout_ms": 60_000, "settle_ms": 300, "balance_every_ms": 3_600_000},
    "quotas": {"stored_items": 4},
}


def ask(cluster: LocalCluster, *names: str) -> dict[str, Any]:
    """Return the document of `foqs status`, asked at these hosts."""
    addresses = ",".join(f"127.0.0.1:{cluster.hosts[name].port}" for name in names)
    began = time.monotonic()
    done = foqs("status", "--json", "--address", addresses)
    took_s = time.monotonic() - began
    assert "Traceback" not in done.stderr, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == ["HEALTHY", "DEGRADED", "DOWN"].index(found["verdict"])
    assert took_s < PATIENCE_S + START_S + BUSY_S
    return found


def reasons(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {reason["code"]: (reason["text"], reason["remedy"]) for reason in found["reasons"]}


def seen(cluster: LocalCluster, *names: str, when: Callable[[dict[str, tuple[str, str]]], bool]) -> dict[str, Any]:
    """Ask until the reasons are so."""
    last: list[dict[str, Any]] = []

    def so() -> bool:
        last.append(ask(cluster, *names))
        return when(reasons(last[-1]))

    until(so, lambda: f"{last[-1]['reasons']}")
    return last[-1]


def test_each_fault_is_named(new_server: NewServer, tmp_path: Path) -> None:
    """One cluster for all of it, as its start takes longest."""
    cold, good = new_server("mariadb"), new_server("mariadb")
    shards = make_shards([cold, good], 2, "state")
    with local_cluster(shards, tmp_path, SETTINGS) as cluster:
        cluster.start("a", "b")
        cluster.place({shard.number: "a" if shard.number <= 2 else "b" for shard in shards})
        found = seen(cluster, "a", "b", when=lambda now: not now)
        assert (found["verdict"], {host["host"] for host in found["hosts"]}) == ("HEALTHY", {"a", "b"})
        assert {host["session"] for host in found["hosts"]} == {"connected"}
        assert all(shard["used_bytes"] for host in found["hosts"] for shard in host["shards"])

        a, b = (f"127.0.0.1:{cluster.hosts[name].port}" for name in ("a", "b"))
        with Client(b, "shop", routing=False) as client:
            for _ in range(4):
                client.enqueue("mail", b"x")
            with pytest.raises(Overloaded):
                client.enqueue("mail", b"x")
        now = reasons(ask(cluster, "a"))
        assert now.keys() == {"quota_full", "not_consumed"}
        assert "4 of 4 items" in now["quota_full"][0] and "[quotas]" in now["quota_full"][1]
        assert "shop/mail" in now["not_consumed"][0] and "foqs explain mail --ns shop" in now["not_consumed"][1]
        with Client(a, "shop", routing=False) as client:
            assert client.dequeue({"mail": 4}, wait_ms=10_000)

        cold.pause()
        found = seen(cluster, "b", when=lambda now: bool({"call_hangs", "shard_unreachable"} & now.keys()))
        text, remedy = next(iter(reasons(found).values()))
        assert found["verdict"] == "DEGRADED"
        assert f"on a (mysql://127.0.0.1:{cold.port})" in text and "database server" in remedy
        cold.resume()
        seen(cluster, "b", when=lambda now: not {"call_hangs", "shard_unreachable", "breaker_open"} & now.keys())

        cluster.hosts["a"].pause()
        try:
            now = reasons(ask(cluster, "a", "b"))
            text, remedy = now["host_silent"]
            assert text == f"host {a} did not answer within 2 s" and "foqs cluster status" in remedy
        finally:
            cluster.hosts["a"].resume()
        seen(cluster, "a", when=lambda now: "host_silent" not in now)

        cluster.zookeeper.kill()
        now = reasons(seen(cluster, "a", when=lambda now: "zookeeper_lost" in now))
        assert "repair ZooKeeper" in now["zookeeper_lost"][1]
        cluster.zookeeper.start()
        seen(cluster, "a", when=lambda now: "zookeeper_lost" not in now)

        cluster.hosts["a"].kill()
        cluster.hosts["b"].kill()
        found = ask(cluster, "a", "b")
        assert found["verdict"] == "DOWN" and "foqs doctor" in found["reasons"][0]["remedy"]
