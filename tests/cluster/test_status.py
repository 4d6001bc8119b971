"""`foqs cluster status` on hosts that answer, and on one that does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs import __version__
from foqs.client.items import ItemSpec
from foqs_lab.cluster import LocalCluster
from foqs_lab.crash.clients import NAMESPACE, Wire
from tests.api.hosts import foqs
from tests.cluster.conftest import NewCluster

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]


def status(cluster: LocalCluster) -> dict[str, Any]:
    ran = foqs("cluster", "status", "--json", "--config", str(cluster.config))
    assert (ran.returncode, ran.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_status_shows_items_load_and_version(new_cluster: NewCluster) -> None:
    cluster = new_cluster("a", "b", shards=2)
    wire = Wire(cluster.hosts["a"].port, NAMESPACE, timeout_ms=20_000)
    wire.enqueue([ItemSpec(topic="t", payload=b"x") for _ in range(7)])
    wire.enqueue([ItemSpec(topic="t", payload=b"x", delay_ms=600_000) for _ in range(3)])
    wire.close()
    found = status(cluster)
    assert {host["version"] for host in found["hosts"]} == {__version__}
    assert sum(host["items"] for host in found["hosts"]) == sum(shard["items"] for shard in found["shards"]) == 10
    assert all(shard["load"] >= 0 for shard in found["shards"])
    cluster.hosts["b"].kill()  # its session lasts for some time
    found = status(cluster)
    assert [host["version"] for host in found["hosts"]] == [__version__, None]
    assert [shard["items"] is None for shard in found["shards"]] == [shard["owner"] == "b" for shard in found["shards"]]
