"""A host that is killed during a write, and the package index of the distribution, written and consumed."""

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from foqs.client import Client, Item, Worker
from foqs.spark.jobs.enqueue import enqueue
from foqs_lab.cluster import LocalCluster, local_cluster, make_shards
from tests.conftest import Server
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
ROWS = 200_000


@pytest.fixture
def mortal(server: Server, tmp_path: Path) -> Iterator[LocalCluster]:
    """Two hosts for this test only."""
    settings = {"zookeeper": {"session_timeout_ms": 2_000, "settle_ms": 300}}
    with local_cluster(make_shards([server], 4, "mortal"), tmp_path, settings) as cluster:
        cluster.start("a", "b")
        cluster.settled()
        yield cluster


def addresses(cluster: LocalCluster) -> str:
    return ",".join(f"127.0.0.1:{host.port}" for host in cluster.hosts.values())


def test_a_host_is_killed_while_a_job_writes(spark: Any, mortal: LocalCluster, tmp_path: Path) -> None:
    metrics = tmp_path / "m.json"
    options = {"endpoints": addresses(mortal), "namespace": "n", "metricsPath": str(metrics)}
    frame = spark.range(ROWS, numPartitions=4).selectExpr("'t' as topic", "cast(id as string) as payload")

    with Client(addresses(mortal), "n") as client, ThreadPoolExecutor(1) as thread:

        def kill() -> None:
            wait_until(lambda: any(client.active_topics()), "a topic with items", 120)
            mortal.hosts["a"].kill()
            mortal.settled("b")
            mortal.start("a")

        killed = thread.submit(kill)
        frame.write.format("foqs").options(**options).mode("append").save()
        killed.result()
        assert json.loads(metrics.read_text())["rows"] == ROWS
        stored: dict[int, bytes] = {}

        def take() -> bool:
            """An item may be delivered twice: with such a short session a host may lose its shards again."""
            items = client.dequeue("t", 5_000, wait_ms=200)
            client.ack_many(items)
            stored.update((item.id, item.payload) for item in items)
            return len(stored) >= ROWS

        wait_until(take, "all items", 200)
        assert {item.id for item in client.list_items("t")} <= stored.keys()
    assert Counter(stored.values()) == Counter(b"%d" % n for n in range(ROWS))


def test_the_packages_of_the_distribution(
    spark: Any, cluster: LocalCluster, endpoints: str, namespace: str, tmp_path: Path
) -> None:
    """Each record becomes an item; a worker gets all of them, and their sizes sum up to that of the index."""
    records = packages()
    (tmp_path / "packages.json").write_text("".join(json.dumps(record) + "\n" for record in records))
    select = ["to_json(struct(*)) as payload", "concat('packages:', name, version, arch) as dedup_key"]
    for _ in range(2):  # the second time the service knows all of them
        enqueue([str(tmp_path / "packages.json")], namespace, endpoints, topic="packages", select=select)
    count, size, lock = 0, 0, threading.Lock()
    worker: Worker

    def handle(item: Item) -> None:
        nonlocal count, size
        found = json.loads(item.payload)
        with lock:
            count += 1
            size += found["size"]
            if count == len(records):
                worker.stop()

    with Client(endpoints, namespace) as client:
        worker = Worker(client, ["packages"], handle, concurrency=4, prefetch=500)
        worker.run()
        assert client.dequeue("packages", 1) == []
    assert (count, size) == (len(records), sum(record["size"] for record in records))


def packages() -> list[dict[str, Any]]:
    """Name, version, architecture and size of every package in the machine's package lists."""
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True)
    found = {}
    for record in listed.stdout.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in record.splitlines() if ": " in line and line[0] != " ")
        if "Size" in fields:
            key = (fields["Package"], fields["Version"], fields["Architecture"])
            found[key] = {"name": key[0], "version": key[1], "arch": key[2], "size": int(fields["Size"])}
    if len(found) < 10_000:
        pytest.skip("no package lists (apt-get update)")
    return list(found.values())
