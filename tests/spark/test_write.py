"""Frames and streams into a cluster of two hosts, with tasks that fail and tasks that run twice."""

import json
import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from foqs.client import Client, DedupUntil, Item
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def client(endpoints: str, namespace: str) -> Any:
    with Client(endpoints, namespace) as client:
        yield client


@pytest.fixture
def save(endpoints: str, namespace: str) -> Any:
    """`save(frame, option=...)` appends it."""

    def save(frame: Any, **options: Any) -> None:
        given = {"endpoints": endpoints, "namespace": namespace} | {name: str(value) for name, value in options.items()}
        frame.write.format("foqs").options(**given).mode("append").save()

    return save


def drain(client: Client, topic: str, count: int) -> list[Item]:
    """Consume `count` items, and check that there are no more."""
    found: list[Item] = []

    def take() -> bool:
        items = client.dequeue(topic, 1_000, wait_ms=200)
        client.ack_many(items)
        found.extend(items)
        return len(found) >= count

    wait_until(take, "all items", 120)
    assert client.dequeue(topic, 1) == []
    assert len(found) == count
    return found


def test_every_column(spark: Any, save: Any, client: Client, tmp_path: Path) -> None:
    at = datetime(2020, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    rows = [
        ("t", "päyload", 3, at, 5_000, 3_600_000, b"m", {"a": "b"}, "at_most_once", "k1"),
        ("t", "bare", None, None, None, None, None, None, None, None),
    ]
    schema = (
        "topic string, payload string, priority int, deliver_after timestamp, lease_ms bigint, ttl_ms bigint, "
        "metadata binary, headers map<string,string>, delivery string, dedup_key string"
    )
    save(spark.createDataFrame(rows, schema), metricsPath=tmp_path / "m.json")
    bare, full = sorted(client.list_items("t"), key=lambda item: item.priority)
    assert (full.payload, full.metadata, full.headers) == ("päyload".encode(), b"m", {"a": "b"})
    assert full.at_most_once and full.expires_at_ms is not None
    assert (bare.payload, bare.priority, bare.metadata, bare.headers, bare.at_most_once) == (
        b"bare",
        0,
        None,
        None,
        False,
    )
    totals = json.loads((tmp_path / "m.json").read_text())
    assert (totals["rows"], totals["bytes"], totals["duplicates"]) == (2, len("päyload".encode()) + 4, 0)
    save(spark.createDataFrame(rows[:1], schema), metricsPath=tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text())["duplicates"] == 1
    later = datetime.now(tz=UTC) + timedelta(hours=1)
    save(spark.createDataFrame([(b"later", later)], "payload binary, deliver_after timestamp"), topic="late")
    (late,) = client.list_items("late")
    assert late.deliver_after_ms == -(-int(later.timestamp() * 1_000_000) // 1000)


def test_unique_work(spark: Any, save: Any, client: Client, tmp_path: Path) -> None:
    schema = "topic string, payload string, dedup_key string, dedup_until string, on_duplicate string"
    rows = [("t", "new", "a", "done", "replace"), ("t", "other", "b", "started", None), ("t", "x", None, "done", None)]
    first = client.enqueue("t", b"old", dedup_key="a", dedup_until=DedupUntil.DONE, delay_ms=3_600_000)
    with pytest.raises(Exception, match="dedup_until needs a dedup_key"):
        save(spark.createDataFrame(rows[2:], schema))
    save(spark.createDataFrame(rows[:2], schema), metricsPath=tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text())["duplicates"] == 1
    assert {(item.payload, item.id == first) for item in client.list_items("t")} == {(b"new", True), (b"other", False)}


@pytest.mark.parametrize(
    ("schema", "options", "says"),
    [
        ("topic string, payload int", {}, "column payload is int"),
        ("topic string, payload string, colour string", {}, "column colour is unknown"),
        ("payload string", {}, "column topic is missing"),
        ("topic string, payload string", {"colour": "red"}, "option colour is unknown"),
    ],
)
def test_wrong_frames_are_refused_before_a_row_is_sent(
    spark: Any, save: Any, client: Client, schema: str, options: dict[str, str], says: str
) -> None:
    values = [tuple(1 if part.split()[1] == "int" else "t" for part in schema.split(", "))]
    with pytest.raises(Exception, match=says):
        save(spark.createDataFrame(values, schema), **options)
    assert list(client.list_items("t")) == []


def test_a_queue_is_not_overwritten(spark: Any, endpoints: str, namespace: str) -> None:
    frame = spark.createDataFrame([("t", "x")], "topic string, payload string")
    with pytest.raises(Exception, match="cannot overwrite a queue"):
        frame.write.format("foqs").options(endpoints=endpoints, namespace=namespace).mode("overwrite").save()


def test_equal_rows_become_separate_items(spark: Any, save: Any, client: Client) -> None:
    save(spark.createDataFrame([("t", "x")] * 50, "topic string, payload string"))
    assert len(drain(client, "t", 50)) == 50


def test_tasks_that_fail_in_the_middle_and_run_again(
    spark: Any, save: Any, client: Client, endpoints: str, namespace: str, tmp_path: Path
) -> None:
    """The first attempt of each partition fails after it stored some of its rows."""
    count, parts = 20_000, 3
    marks = str(tmp_path)

    def fails_once(index: int, rows: Any) -> Any:
        for at, row in enumerate(rows):
            if at == 5_000 and not os.path.exists(f"{marks}/{index}"):
                open(f"{marks}/{index}", "w").close()
                with Client(endpoints, namespace) as seeing:
                    wait_until(lambda: any(seeing.list_items("t")), "an item", 120)
                raise RuntimeError("on purpose")
            yield row

    frame = spark.range(count, numPartitions=parts).selectExpr(
        "'t' as topic", "lpad(cast(id as string), 200, '0') as payload"
    )
    rdd = frame.rdd.mapPartitionsWithIndex(fails_once)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        save(spark.createDataFrame(rdd, frame.schema), batchRows=500, metricsPath=tmp_path / "m.json")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert len(list(tmp_path.iterdir())) == parts + 1
    payloads = Counter(item.payload for item in drain(client, "t", count))
    assert payloads == Counter(b"%0200d" % n for n in range(count))
    totals = json.loads((tmp_path / "m.json").read_text())
    assert totals["rows"] == count
    assert totals["duplicates"] > 0, "the first tries have stored some"


def test_a_row_that_is_invalid_fails_the_job(spark: Any, save: Any) -> None:
    frame = spark.createDataFrame([("t", "x", 1_000), ("t", "y", 0)], "topic string, payload string, lease_ms int")
    with pytest.raises(Exception, match="is invalid: lease_ms is 0"):
        save(frame.coalesce(1))


def test_invalid_rows_are_collected(spark: Any, save: Any, client: Client, tmp_path: Path) -> None:
    rows = [("t", "good", 1_000, None), ("t", "bad", 1, None), (None, "lost", 1_000, None), ("t", "so", 1_000, "never")]
    frame = spark.createDataFrame(rows, "topic string, payload string, lease_ms int, delivery string")
    where, metrics = tmp_path / "invalid", tmp_path / "m.json"
    save(frame, onInvalid="collect", invalidPath=where, metricsPath=metrics)
    assert [item.payload for item in drain(client, "t", 1)] == [b"good"]
    totals = json.loads(metrics.read_text())
    assert (totals["rows"], totals["invalid"]) == (1, 3)
    found = {row.reason: row.payload for row in spark.read.parquet(str(where)).collect()}
    assert found["topic is null"] is None
    assert any(reason.startswith("lease_ms is 1") and payload == b"bad" for reason, payload in found.items())
    assert any("delivery is 'never'" in reason for reason in found)


def test_a_repeated_job_replaces_its_files_of_invalid_rows(spark: Any, save: Any, tmp_path: Path) -> None:
    """It may have fewer partitions than its first attempt."""
    frame = spark.createDataFrame([("t", str(n), 1) for n in range(6)], "topic string, payload string, lease_ms int")
    options = {"onInvalid": "collect", "invalidPath": tmp_path, "jobId": "nightly"}
    for partitions in (3, 1):
        save(frame.repartition(partitions), **options)
        assert len(list(tmp_path.glob("*.parquet"))) == partitions
        assert sorted(int(row.payload) for row in spark.read.parquet(str(tmp_path)).collect()) == list(range(6))


def test_a_stream_that_is_restarted_writes_no_row_twice(
    spark: Any, client: Client, endpoints: str, namespace: str, tmp_path: Path
) -> None:
    """The tasks of its second batch fail after they sent some rows; the query restarts from its checkpoint."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def put(name: str, start: int) -> None:
        rows = "".join(json.dumps({"topic": "t", "payload": str(n)}) + "\n" for n in range(start, start + 500))
        (tmp_path / name).write_text(rows)
        (tmp_path / name).rename(source / name)

    mark = str(tmp_path / "failed")

    def fails_once(payload: str) -> str:
        if payload == "900" and not os.path.exists(mark):
            raise RuntimeError("on purpose")
        return payload

    def run() -> None:
        from pyspark.sql.functions import col, udf

        frame = spark.readStream.schema("topic string, payload string").json(str(source))
        frame = frame.withColumn("payload", udf(fails_once)(col("payload")))
        options = {"endpoints": endpoints, "namespace": namespace, "batchRows": "50"}
        query = frame.writeStream.format("foqs").options(**options).option("checkpointLocation", str(checkpoint))
        assert query.trigger(availableNow=True).start().awaitTermination(120)

    put("1.json", 0)
    run()
    put("2.json", 500)
    with pytest.raises(Exception, match="on purpose"):
        run()
    Path(mark).touch()
    run()
    run()
    payloads = Counter(item.payload for item in drain(client, "t", 1_000))
    assert payloads == Counter(b"%d" % n for n in range(1_000))


def test_a_batch_repeated_in_other_partitions_adds_no_row(
    spark: Any, client: Client, endpoints: str, namespace: str, tmp_path: Path
) -> None:
    """The partitions differ, as after a restart with another number of cores. Half of the rows equal rows of other
    partitions."""
    from pyspark.sql.functions import col, udf

    count, mark, metrics = 3_000, str(tmp_path / "failed"), tmp_path / "m.json"
    values = [str(n if n % 2 else n % 20) for n in range(count)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text("".join(json.dumps({"payload": value}) + "\n" for value in values))

    def fails_once(payload: str) -> str:
        if payload == "2999" and not os.path.exists(mark):
            raise RuntimeError("on purpose")
        return payload

    def run(partitions: int) -> int:
        parts = tmp_path / f"parts-{partitions}"
        parts.mkdir()

        def counted(payload: str) -> str:
            from pyspark import TaskContext

            (parts / str(TaskContext.get().partitionId())).touch()  # type: ignore[union-attr]
            return fails_once(payload)

        frame = spark.readStream.schema("payload string").json(str(tmp_path / "in"))
        frame = frame.withColumn("payload", udf(counted)(col("payload")))
        options = {"endpoints": endpoints, "namespace": namespace, "topic": "t", "batchRows": "50"}
        query = frame.writeStream.format("foqs").options(**options).option("metricsPath", str(metrics))
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        spark.conf.set("spark.sql.files.openCostInBytes", "1")
        spark.conf.set("spark.sql.files.minPartitionNum", str(partitions))
        try:
            assert query.trigger(availableNow=True).start().awaitTermination(120)
        finally:
            spark.conf.unset("spark.sql.files.openCostInBytes")
            spark.conf.unset("spark.sql.files.minPartitionNum")
        return len(list(parts.iterdir()))

    with pytest.raises(Exception, match="on purpose"):
        run(5)
    assert len(list((tmp_path / "parts-5").iterdir())) >= 3
    assert json.loads(metrics.read_text())["rows"] > 0, "the first try stored some"
    Path(mark).touch()
    assert run(2) == 2
    totals = json.loads(metrics.read_text())
    assert totals["rows"] == count
    assert totals["duplicates"] > 0
    payloads = Counter(item.payload.decode() for item in drain(client, "t", count))
    assert payloads == Counter(values)


def test_a_job_with_an_id_is_repeated_in_other_partitions(
    spark: Any, save: Any, client: Client, tmp_path: Path
) -> None:
    rows = spark.range(1_000, numPartitions=3).selectExpr("'t' as topic", "cast(id % 100 as string) as payload")
    for parts, known in ((5, 0), (2, 1_000)):
        save(rows.repartition(parts), jobId="import-7", metricsPath=tmp_path / "m.json")
        totals = json.loads((tmp_path / "m.json").read_text())
        assert (totals["rows"], totals["duplicates"]) == (1_000, known)
    payloads = Counter(item.payload for item in drain(client, "t", 1_000))
    assert payloads == {b"%d" % n: 10 for n in range(100)}


LARGE = "rpad(cast(id as string), 100000, ' ') as payload", "map('n', cast(id as string)) as headers", "'t' as topic"
"""Rows of 100 kB: 300 of them are more than a task's report may have."""


def sizes(client: Client, topic: str, count: int) -> Counter[tuple[int, int]]:
    """Return how often each row of `LARGE` is in the topic, by its number and its size, and consume it."""
    return Counter((int(item.payload), len(item.payload)) for item in drain(client, topic, count))


def test_a_job_with_many_large_equal_rows(spark: Any, save: Any, client: Client, tmp_path: Path) -> None:
    """60 MB of equal rows are in two partitions: they are stored once, also by a repetition with other partitions."""
    part = spark.range(300, numPartitions=1).selectExpr(*LARGE)
    rows = part.union(part).union(part.limit(5))
    for frame, known in ((rows, 0), (rows.repartition(4), 605)):
        save(frame, jobId="large", metricsPath=tmp_path / "m.json")
        totals = json.loads((tmp_path / "m.json").read_text())
        assert (totals["rows"], totals["duplicates"]) == (605, known)
    found = sizes(client, "t", 605)
    assert found == {(n, 100_000): 3 if found[n, 100_000] == 3 else 2 for n in range(300)}
    assert sum(number == 3 for number in found.values()) == 5
    assert list(Path(spark.conf.get("spark.local.dir")).rglob("foqs-*")) == []


def test_a_stream_with_many_large_equal_rows(
    spark: Any, client: Client, endpoints: str, namespace: str, tmp_path: Path
) -> None:
    """Two files of one batch have the same rows. The commit of the batch is lost, so Spark runs all of it again."""
    part = spark.range(300, numPartitions=1).selectExpr(*LARGE)
    for _ in range(2):
        part.write.mode("append").parquet(str(tmp_path / "in"))
    metrics = tmp_path / "m.json"

    def run() -> Any:
        frame = spark.readStream.schema("payload string, headers map<string,string>, topic string")
        writer = frame.parquet(str(tmp_path / "in")).writeStream.format("foqs")
        writer = writer.options(endpoints=endpoints, namespace=namespace, metricsPath=str(metrics))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert writer.start().awaitTermination(180)
        return json.loads(metrics.read_text())

    assert (run()["rows"], json.loads(metrics.read_text())["duplicates"]) == (600, 0)
    for file in (tmp_path / "checkpoint" / "commits").iterdir():
        file.unlink()
    assert run()["duplicates"] == 600
    assert sizes(client, "t", 600) == {(n, 100_000): 2 for n in range(300)}


def test_a_repeated_batch_of_foreach_batch_is_stored_once(
    spark: Any, client: Client, endpoints: str, namespace: str, tmp_path: Path
) -> None:
    """The function fails after its first write. Two batches with equal rows stay two."""
    (tmp_path / "in").mkdir()
    mark = tmp_path / "failed"

    def write(frame: Any, number: int) -> None:
        options = {"endpoints": endpoints, "namespace": namespace, "topic": "t", "jobId": "orders"}
        frame.write.format("foqs").options(**options).mode("append").save()
        if not mark.exists():
            mark.touch()
            raise RuntimeError("on purpose")

    def run() -> None:
        query = spark.readStream.schema("payload string").json(str(tmp_path / "in")).writeStream.foreachBatch(write)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert query.trigger(availableNow=True).start().awaitTermination(120)

    for name in ("1", "2"):
        (tmp_path / name).write_text('{"payload": "a"}\n{"payload": "b"}\n')
        (tmp_path / name).rename(tmp_path / "in" / f"{name}.json")
        if name == "1":
            with pytest.raises(Exception, match="on purpose"):
                run()
        run()
    assert Counter(item.payload for item in drain(client, "t", 4)) == {b"a": 2, b"b": 2}


def test_invalid_rows_of_a_stream_are_collected(
    spark: Any, client: Client, endpoints: str, namespace: str, tmp_path: Path
) -> None:
    """Invalid rows are in files that Spark reads."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"payload": "good"}\n{"payload": "bad", "lease_ms": 1}\n')
    options = {"endpoints": endpoints, "namespace": namespace, "topic": "t", "onInvalid": "collect"}
    frame = spark.readStream.schema("payload string, lease_ms long").json(str(tmp_path / "in"))
    frame = frame.withColumnRenamed("payload", "PAYLOAD")
    query = frame.writeStream.format("foqs").options(**options).option("invalidPath", str(tmp_path / "invalid"))
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    assert query.start().awaitTermination(120)
    assert [item.payload for item in drain(client, "t", 1)] == [b"good"]
    (row,) = spark.read.parquet(str(tmp_path / "invalid")).collect()
    assert (bytes(row.payload), row.reason.startswith("lease_ms is 1")) == (b"bad", True)


def test_sql_tables_and_views(spark: Any, client: Client, endpoints: str, namespace: str) -> None:
    given = f"'endpoints' = '{endpoints}', 'namespace' = '{namespace}'"
    spark.sql(f"CREATE TEMPORARY VIEW foqs_view USING foqs OPTIONS ({given}, 'topic' 'view')")
    spark.sql("CREATE TABLE foqs_table (topic string, payload string) USING foqs COMMENT 'c' TBLPROPERTIES ('x' = 'y')")
    spark.sql(f"CREATE TABLE foqs_whole USING foqs OPTIONS ({given})")
    try:
        spark.sql("INSERT INTO foqs_view (payload, priority) VALUES ('a', 3)")
        spark.sql(f"INSERT INTO foqs_table WITH ({given}) VALUES ('table', 'b')")
        spark.sql(f"INSERT INTO foqs_whole WITH ({given}) (topic, payload) VALUES ('whole', 'c')")
        with pytest.raises(Exception, match=r"endpoints is missing.*INSERT INTO name WITH"):
            spark.sql("INSERT INTO foqs_table VALUES ('table', 'b')")
    finally:
        spark.sql("DROP TABLE foqs_table")
        spark.sql("DROP TABLE foqs_whole")
        spark.catalog.dropTempView("foqs_view")
    found = {
        topic: [(item.payload, item.priority) for item in client.list_items(topic)]
        for topic in ("view", "table", "whole")
    }
    assert found == {"view": [(b"a", 3)], "table": [(b"b", 0)], "whole": [(b"c", 0)]}


def test_a_rate_for_the_whole_job(spark: Any, save: Any, client: Client) -> None:
    """Two tasks at a time share the rate: each waits between its batches."""
    began = monotonic()
    frame = spark.range(400, numPartitions=2).selectExpr("'t' as topic", "cast(id as string) as payload")
    save(frame, maxRowsPerSecond=200, tasks=2, batchRows=50)
    assert monotonic() - began >= 1.4, "the last of 4 batches begins after 150 rows' time"
    drain(client, "t", 400)
