"""A snapshot of a cluster as a table."""

import datetime as dt
from typing import Any

import pytest

from foqs.client._sync.client import Client
from foqs.client.items import ItemSpec
from foqs_lab.cluster import LocalCluster
from tests.conftest import Server

pytestmark = [pytest.mark.server, pytest.mark.mariadb, pytest.mark.zookeeper, pytest.mark.spark]


def _urls(cluster: LocalCluster) -> str:
    return " ".join(f"{shard.number}={shard.url}" for shard in cluster.shards)


def _frame(spark: Any, cluster: LocalCluster, namespace: str, **options: Any) -> Any:
    given = {"shards": _urls(cluster), "namespace": namespace, "pageRows": 7} | options
    return spark.read.format("foqs").options(**given).load()


def test_items_come_with_all_their_columns(spark: Any, cluster: LocalCluster, endpoints: str, namespace: str) -> None:
    with Client(endpoints, namespace=namespace) as client:
        headers = {"k": "wert ü", "b": ""}
        plain = client.enqueue_many([ItemSpec("tö", b"\x00\xff", priority=3, metadata=b"", headers=headers)])[0]
        late = client.enqueue_many([ItemSpec("tö", b"", delay_ms=3_600_000, ttl_ms=7_200_000)])[0]
        rows = {row.id: row for row in _frame(spark, cluster, namespace, payloads=True, topic="tö").collect()}
    assert rows.keys() == {plain, late}
    row = rows[plain]
    assert (row.state, row.topic, row.namespace, row.priority, row.shard) == ("ready", "tö", namespace, 3, plain >> 48)
    assert (bytes(row.payload), bytes(row.metadata), row.headers) == (b"\x00\xff", b"", headers)
    assert (row.expires_at, row.lease_expires_at, row.lease_ms, row.delivery) == (None, None, None, "AT_LEAST_ONCE")
    row = rows[late]
    assert (row.state, row.payload, row.metadata, row.headers, row.bytes) == ("delayed", b"", None, None, 0)
    assert row.deliver_after - row.enqueued_at == dt.timedelta(hours=1)


def test_each_id_comes_once_from_pages_and_parts(
    spark: Any, cluster: LocalCluster, endpoints: str, namespace: str
) -> None:
    with Client(endpoints, namespace=namespace) as client:
        ids = client.enqueue_many([ItemSpec(f"t{n % 3}", b"x" * n) for n in range(200)])
        client.delete_items(ids[50:90])
    kept = sorted(ids[:50] + ids[90:])
    frame = _frame(spark, cluster, namespace, partitionsPerShard=3)
    assert sorted(row.id for row in frame.collect()) == kept
    for condition in ("topic = 't1'", f"id > {kept[30]}", "topic like 't%' and shard = 2", "state in ('leased')",
                      "priority >= 1", "topic <> 't0'", "bytes > 100", "shard = 99"):  # fmt: skip
        expected = sorted(row.id for row in frame.collect() if _holds(row, condition, kept[30]))
        assert sorted(row.id for row in frame.where(condition).collect()) == expected, condition
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
        try:
            assert sorted(row.id for row in frame.where(condition).collect()) == expected, condition
        finally:
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def _holds(row: Any, condition: str, bound: int) -> bool:
    return {
        "topic = 't1'": row.topic == "t1", f"id > {bound}": row.id > bound,
        "topic like 't%' and shard = 2": row.shard == 2, "topic <> 't0'": row.topic != "t0",
        "bytes > 100": row.bytes > 100,
    }.get(condition, False)  # fmt: skip


def test_a_read_only_user_is_enough_and_errors_hide_passwords(
    spark: Any, cluster: LocalCluster, server: Server, namespace: str
) -> None:
    server.query("CREATE OR REPLACE USER reader@'%' IDENTIFIED BY 'rightword'")
    server.query("GRANT SELECT ON *.* TO reader@'%'")
    given = {"zookeeper": cluster.zookeeper.hosts, "user": "reader", "namespace": namespace}
    reader = spark.read.format("foqs").schema("STATE string, id bigint")
    frame = reader.options(**given, password="rightword").load()
    assert frame.collect() == []
    assert frame.columns == ["STATE", "id"]
    assert "rightword" not in frame._jdf.queryExecution().toString()
    with pytest.raises(Exception, match=r"shard \d cannot be read") as refused:
        reader.options(**given, password="wrongword").load().collect()
    assert "wrongword" not in str(refused.value)
