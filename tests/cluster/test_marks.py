"""A cluster remembers in ZooKeeper how far the ids of its shards went."""

from __future__ import annotations

import pytest

from foqs.client.items import ItemSpec
from foqs_lab.cluster import LocalCluster
from foqs_lab.crash.clients import NAMESPACE, Wire
from tests.api.hosts import until
from tests.cluster.conftest import MISSED, NewCluster
from tests.store.copies import dump, restore

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.timeout(400)]


def enqueue(cluster: LocalCluster, name: str) -> set[int]:
    """Stores 500 items; those that are refused are sent again."""
    ids: set[int] = set()
    wire = Wire(cluster.hosts[name].port, NAMESPACE, timeout_ms=20_000)

    def stored() -> bool:
        outcomes = wire.enqueue([ItemSpec("t", b"x")] * 100)
        ids.update(one for one in outcomes if isinstance(one, int))
        return len(ids) >= 500

    until(stored, "500 items", 120)
    wire.close()
    return ids


def test_an_older_copy_gives_no_id_again(new_cluster: NewCluster) -> None:
    """After its owner was killed, and after it stopped in order: then the log says what happened."""
    cluster = new_cluster("a", shards=1, settings=MISSED)
    url = cluster.shards[0].url
    copy = dump(url)
    ids = enqueue(cluster, "a")
    cluster.hosts["a"].kill()
    restore(url, copy)
    cluster.start("a")
    more = enqueue(cluster, "a")
    assert not ids & more
    assert cluster.hosts["a"].stop() == 0
    restore(url, copy)
    cluster.start("a")
    cluster.hosts["a"].wait_for("shard.restored", timeout_ms=60_000)
    assert not (ids | more) & enqueue(cluster, "a")
