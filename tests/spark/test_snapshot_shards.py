"""Snapshots through Spark of shards in other places and states, and of a shard that does not answer."""

import datetime as dt
import socket
from pathlib import Path
from typing import Any

import pytest

from foqs.client import Client, Delivery, Item, ItemSpec
from foqs.ids import make_id
from foqs.rows import Batch, NewItem
from foqs.store.maintenance import create_schema
from foqs.store.sql import SqlStore
from foqs_lab.cluster import LocalCluster, toml
from tests.conftest import Server
from tests.store.contract import LANE, insert
from tests.store.shards import NOW_MS, new_item
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.mariadb, pytest.mark.zookeeper, pytest.mark.spark]


@pytest.fixture
def client(endpoints: str, namespace: str) -> Any:
    with Client(endpoints, namespace) as client:
        yield client


def load(spark: Any, **options: Any) -> Any:
    return spark.read.format("foqs").options(**options).load()


def take(client: Client, topic: str, count: int) -> list[Item]:
    """Lease `count` items for ten minutes."""
    found: list[Item] = []

    def more() -> bool:
        found.extend(client.dequeue(topic, count - len(found), lease_ms=600_000, wait_ms=200))
        return len(found) == count

    wait_until(more, "more rows")
    return found


def make_shard(url: str, number: int, *items: NewItem) -> None:
    create_schema(url, number)
    store = SqlStore(url, shard=number)
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    insert(store, *items)
    store.close()


def urls(cluster: LocalCluster) -> str:
    return ",".join(shard.url for shard in cluster.shards)


def test_items_that_are_leased(spark: Any, cluster: LocalCluster, client: Client, namespace: str) -> None:
    kinds = {"often": Delivery.AT_LEAST_ONCE, "once": Delivery.AT_MOST_ONCE}
    for topic, delivery in kinds.items():
        client.enqueue_many([ItemSpec(topic, b"%d" % n, delivery=delivery, lease_ms=5_000) for n in range(3)])
    client.nack(take(client, "often", 1)[0])
    held = {item.id: item for item in take(client, "often", 2) + take(client, "once", 2)}
    frame = load(spark, shards=urls(cluster), namespace=namespace)
    # A lease is written behind its reply, an at-most-once one before it.
    once = load(spark, shards=urls(cluster), namespace=namespace, topic="once", state="leased").collect()
    assert {row.id for row in once} >= {item.id for item in held.values() if item.topic == "once"}

    def written() -> Any:
        """An item that one host fetched from another, for a consumer that had its answer by then, is leased until it
        returns."""
        rows = {row.id: row for row in frame.collect()}
        return {row.id for row in rows.values() if row.state == "leased"} == held.keys() and rows

    rows = wait_until(written, "written rows")
    assert len(rows) == 6
    for item in held.values():
        row = rows.pop(item.id)
        assert (row.state, row.attempt, row.lease_ms) == ("leased", item.attempt, 5_000)
        assert row.delivery == kinds[row.topic].name
        assert round(row.lease_expires_at.timestamp() * 1000) == item.lease_expires_at_ms
    assert {(row.state, row.lease_expires_at) for row in rows.values()} == {("ready", None)}
    client.ack_many(held.values())


def test_the_time_zone_of_a_session_changes_no_moment(spark: Any, tmp_path: Path) -> None:
    """Two items an hour apart, in St. John's at the same local time: clocks were set back in between."""
    url = f"sqlite:///{tmp_path}/shard.db"
    first_ms = int(dt.datetime(2020, 11, 1, 4, 15, 0, 7_000, tzinfo=dt.UTC).timestamp() * 1000)
    times = [first_ms, first_ms + 3_600_000]
    make_shard(
        url, 7, *(new_item(n, deliver_after_ms=at_ms, expires_at_ms=at_ms + 1) for n, at_ms in enumerate(times, 1))
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    try:
        frame = load(spark, shards=url).orderBy("id")
        said = ("unix_millis(deliver_after)", "unix_millis(expires_at)", "unix_millis(enqueued_at)")
        rows = frame.selectExpr(*said, "string(deliver_after) as words").collect()
        second = frame.where("deliver_after = timestamp '2020-11-01 05:15:00.007 UTC'").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert [tuple(row)[:3] for row in rows] == [(at_ms, at_ms + 1, NOW_MS) for at_ms in times]
    assert [row.words for row in rows] == ["2020-11-01 01:45:00.007"] * 2
    assert [row.id & 0xFF for row in second] == [2]


def test_a_database_that_is_not_there(spark: Any, cluster: LocalCluster, namespace: str) -> None:
    living = f"1={cluster.shards[0].url}"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and never listening, so no other process can listen there either
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        dead = f"mysql://reader:topsecret@{place}/queue"
        for shards, name in (
            (f"{living} 77={dead}", "shard 77"),
            (f"{living} {dead}", f"the shard at mysql://{place}/queue"),
        ):
            why = f"cannot connect to MySQL at {place}: connection refused"
            says = f"foqs.errors.Unavailable: {name} cannot be read: {why}"
            with pytest.raises(Exception, match=says) as refused:
                load(spark, shards=shards, namespace=namespace).collect()
            assert "topsecret" not in str(refused.value)


def test_a_database_without_a_shard(spark: Any, server: Server, tmp_path: Path) -> None:
    empty = server.url(server.create_database("empty"))
    for url, says in (
        (f"9={empty}", "shard 9 cannot be read: the database has no foqs schema"),
        (f"9=sqlite:///{tmp_path}/none.db", "shard 9 cannot be read: there is no database file"),
        ("9=postgresql://me:topsecret@h/q", "shard 9 cannot be read: postgresql is no database of foqs"),
        ("mysql://me:topsecret@h:port/q", "the shard at an unknown place cannot be read"),
    ):
        with pytest.raises(Exception, match=f"foqs.errors.Invalid: {says}") as refused:
            load(spark, shards=url).collect()
        assert "topsecret" not in str(refused.value)


def test_a_configuration_says_where_the_shards_are(
    spark: Any, cluster: LocalCluster, client: Client, namespace: str, tmp_path: Path
) -> None:
    ids = set(client.enqueue_many([ItemSpec("t", b"x")] * 20))
    listed, foreign, nothing = (tmp_path / f"{name}.toml" for name in ("listed", "foreign", "nothing"))
    listed.write_text(toml({"server": {"id": "any"}}, cluster.shards))
    for file in (listed, cluster.config):  # of shards, and of a ZooKeeper
        assert {row.id for row in load(spark, config=file, namespace=namespace).collect()} == ids
    foreign.write_text("[hostt]\n")
    nothing.write_text('[server]\nid = "any"\n')
    for file, says in (
        (foreign, "hostt"),
        (nothing, "neither"),
        (tmp_path / "missing.toml", "no configuration file at"),
    ):
        with pytest.raises(Exception, match=rf"(?s)foqs\.(errors\.Invalid|config\.load\.NotValid): .*{says}"):
            load(spark, config=file).collect()


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("id bigint, colour string", "column colour is unknown"),
        ("id bigint, priority bigint", "column priority is bigint, not int"),
        ("enqueued_at timestamp_ntz", "column enqueued_at is timestamp_ntz, not timestamp"),
        ("headers map<string,binary>", "column headers is map<string,binary>, not map<string,string>"),
    ],
)
def test_a_schema_of_other_columns_is_refused(spark: Any, cluster: LocalCluster, schema: str, says: str) -> None:
    with pytest.raises(Exception, match=f"foqs.errors.Invalid: the schema is wrong: {says}"):
        spark.read.format("foqs").schema(schema).options(shards=urls(cluster)).load().collect()


@pytest.mark.mysql
def test_every_kind_of_database_in_one_frame(
    spark: Any, server: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    mysql: Server = request.getfixturevalue("mysql")
    shards = {
        101: f"sqlite:///{tmp_path}/shard.db",
        102: mysql.url(mysql.create_database("snapshot_kinds")),
        103: server.url(server.create_database("snapshot_kinds")),
    }
    for number, url in shards.items():
        ids = [make_id(number, n) for n in range(1, 31)]
        make_shard(url, number, *(new_item(item_id=one, payload=b"%d" % n, priority=n) for n, one in enumerate(ids, 1)))
    # Without numbers: each database has the number of its shard.
    frame = load(spark, shards=" ".join(shards.values()), partitionsPerShard=2, pageRows=4, payloads=True)
    assert frame.rdd.getNumPartitions() == 6
    rows = frame.where("priority <= 20").collect()
    assert sorted((row.shard, int(row.payload)) for row in rows) == [(n, at) for n in shards for at in range(1, 21)]
    assert {(row.namespace, row.topic, row.state) for row in rows} == {("ns", "topic", "ready")}
    with pytest.raises(Exception, match="Invalid: shard 101 is named twice"):
        load(spark, shards=f"{shards[101]} 101={shards[101]}").collect()
