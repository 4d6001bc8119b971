"""A host that ends before its database has answered."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.api.wire import spec
from tests.peers.nodes import PATIENCE_S, cluster_in


def test_a_trip_that_ends_after_its_host_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it end with a traceback."""
    faults: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", faults.append)
    with cluster_in(tmp_path) as cluster:
        a = cluster.add("a", 1, server={"grace_ms": 0})
        thread, shard = a.runner._workers[1]._thread, a.engine.state.shards[1]
        connection = sqlite3.connect(cluster.path(1), timeout=30, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        cluster.wire(a).send_call("Enqueue", ns="test", items=[spec("t")])
        cluster.until(
            lambda: shard.queue.in_flight is not None and shard.queue.in_flight.transaction is not None, "a transaction"
        )
    with closing(connection):
        connection.execute("ROLLBACK")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert faults == []
