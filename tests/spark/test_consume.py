"""Real Spark queries consume a topic."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from foqs.client import Client, Delivery, Invalid, ItemSpec, ItemState, NotFound
from tests.support.waiting import wait_until as until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.mariadb,
    pytest.mark.zookeeper,
    pytest.mark.process,
    pytest.mark.slow,
]
Sink = Callable[[Any, int], None]


@pytest.fixture
def client(endpoints: str, namespace: str) -> Iterator[Client]:
    with Client(endpoints, namespace) as client:
        yield client


class Job:
    """One query with its checkpoint; a test may start it any number of times."""

    def __init__(self, spark: Any, folder: Path, options: dict[str, str]) -> None:
        self.spark = spark
        self.folder = folder
        self.state = folder / "state"
        self.options = options | {"stateDir": str(self.state)}
        self.rows: list[Any] = []
        self.schema: str | None = None

    def collect(self, frame: Any, _number: int) -> None:
        self.rows += frame.collect()

    @property
    def ids(self) -> list[int]:
        return sorted(row.id for row in self.rows)

    @contextmanager
    def running(self, sink: Sink | None = None, **trigger: Any) -> Iterator[Any]:
        reader = self.spark.readStream.format("foqs").options(**self.options)
        stream = (reader if self.schema is None else reader.schema(self.schema)).load()
        writer = stream.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))
        query = writer.foreachBatch(sink or self.collect).trigger(**trigger or {"processingTime": "0 seconds"}).start()
        try:
            yield query
        finally:
            query.stop()

    def run(self, sink: Sink | None = None) -> None:
        """Run until no items are left. Raises the query's error."""
        with self.running(sink, availableNow=True) as query:
            assert query.awaitTermination(120)


@pytest.fixture
def job(spark: Any, endpoints: str, namespace: str, tmp_path: Path) -> Job:
    return Job(spark, tmp_path, {"endpoints": endpoints, "namespace": namespace, "topic": "t", "waitMs": "100"})


def filled(client: Client, count: int, topic: str = "t") -> list[int]:
    ids = client.enqueue_many(ItemSpec(topic, b"%d" % number) for number in range(count))
    assert all(isinstance(one, int) for one in ids)
    return sorted(ids)  # type: ignore[type-var]


def left(client: Client, topic: str = "t") -> set[int]:
    """A listing is no snapshot: it has an item twice if the item's lease is written during the listing."""
    return {item.id for item in client.list_items(topic)}


def empty(client: Client, topic: str = "t") -> bool:
    return not left(client, topic)


def fail(_frame: Any, _number: int) -> None:
    raise RuntimeError("on purpose")


def test_every_item_comes_once_and_the_topic_is_empty_then(client: Client, job: Job) -> None:
    job.options |= {"topic": "t, other", "maxItemsPerBatch": "40", "partitions": "3"}
    ids = filled(client, 100) + filled(client, 30, "other")
    with job.running():
        until(lambda: len(job.rows) >= len(ids))
        more = filled(client, 5)
        until(lambda: len(job.rows) >= len(ids) + len(more))
        until(lambda: empty(client) and empty(client, "other"))
    assert job.ids == sorted(ids + more)


def test_columns_come_as_the_schema_names_them(client: Client, job: Job) -> None:
    ids = filled(client, 3)
    job.schema = "payload binary, TOPIC string, id bigint"
    job.run()
    assert [tuple(row) for row in sorted(job.rows, key=lambda row: row.id)] == [
        (b"%d" % number, "t", item_id) for number, item_id in enumerate(ids)
    ]
    job.schema = "payload string"
    with pytest.raises(Exception, match="column payload is string, not binary"):
        job.run()


def test_extra_columns_pass_through_the_headers(
    spark: Any, client: Client, job: Job, endpoints: str, namespace: str, cluster: Any
) -> None:
    """A frame is written with columns that an item does not have, and read from a snapshot and by a stream. The stream
    writes its rows to another topic with the same columns."""
    extra = {"endpoints": endpoints, "namespace": namespace, "extraColumns": "headers"}
    rows = [("a", "acme", 3, True), ("b", None, None, None)]
    frame = spark.createDataFrame(rows, "payload string, customer string, Retries int, paid boolean")
    frame.write.format("foqs").options(**extra, topic="t").mode("append").save()
    stored = sorted(client.list_items("t"), key=lambda item: item.payload)
    assert [item.headers for item in stored] == [{"customer": "acme", "Retries": "3", "paid": "true"}, None]
    schema = "payload binary, customer string, Retries string, paid string"
    shards = " ".join(shard.url for shard in cluster.shards)
    given = {"shards": shards, "namespace": namespace, "extraColumns": "headers"}
    expected = [(b"a", "acme", "3", "true"), (b"b", None, None, None)]
    queued = spark.read.format("foqs").options(**given).schema(schema).load()
    assert sorted(tuple(row) for row in queued.collect()) == expected
    queued = spark.read.format("foqs").options(**given).load()
    assert {row.headers and row.headers["customer"] for row in queued.collect()} == {"acme", None}
    job.options["extraColumns"] = "headers"
    job.schema = schema

    def copy(batch: Any, number: int) -> None:
        batch.write.format("foqs").options(**extra, topic="copy", jobId=f"copy-{number}").mode("append").save()
        job.collect(batch, number)

    job.run(copy)
    assert sorted(tuple(row) for row in job.rows) == expected
    copies = sorted(client.list_items("copy"), key=lambda item: item.payload)
    assert [(item.payload, item.headers) for item in copies] == [(item.payload, item.headers) for item in stored]


def test_a_row_holds_all_of_the_item(client: Client, job: Job, namespace: str) -> None:
    item_id = client.enqueue(
        "t", b"\x00\xff", priority=-3, metadata=b"m", headers={"a": "é"}, delivery=Delivery.AT_MOST_ONCE
    )
    bare = client.enqueue("t", b"")
    item = client.get_item(item_id)
    job.run(lambda frame, number: job.collect(frame.selectExpr("*", "unix_millis(enqueued_at) AS ms"), number))
    rows = {row.id: row for row in job.rows}
    row = rows[item_id]
    assert (row.namespace, row.topic, row.priority, bytes(row.payload)) == (namespace, "t", -3, b"\x00\xff")
    assert (bytes(row.metadata), row.headers, row.attempt, row.delivery) == (b"m", {"a": "é"}, 1, "AT_MOST_ONCE")
    assert row.ms == item.enqueued_at_ms
    assert row.deliver_after == row.enqueued_at
    row = rows[bare]
    assert (bytes(row.payload), row.metadata, row.headers, row.delivery) == (b"", None, None, "AT_LEAST_ONCE")


def test_runs_until_nothing_is_left_ack_their_last_batch(client: Client, job: Job, spark: Any) -> None:
    job.options |= {"maxItemsPerBatch": "50"}
    ids: list[int] = []
    for count in (120, 0, 1):
        ids += filled(client, count) if count else []
        stream = spark.readStream.format("foqs").options(**job.options).load().writeStream
        stream = stream.option("checkpointLocation", str(job.folder / "checkpoint")).trigger(availableNow=True)
        query = stream.format("parquet").start(str(job.folder / "out"))
        assert query.awaitTermination(120)
        assert sorted(row.id for row in spark.read.parquet(str(job.folder / "out")).collect()) == sorted(ids)
        assert empty(client)


def test_a_failed_batch_is_repeated_and_acked_items_are_not(client: Client, job: Job) -> None:
    job.options |= {"maxItemsPerBatch": "10"}
    ids = filled(client, 25)
    seen: list[list[int]] = []

    def second_fails(frame: Any, number: int) -> None:
        seen.append(sorted(row.id for row in frame.collect()))
        if number == 1:
            fail(frame, number)
        job.collect(frame, number)

    with pytest.raises(Exception, match="on purpose"):
        job.run(second_fails)
    assert 0 < len(job.rows) <= 10
    assert left(client) == set(ids) - set(job.ids)
    with pytest.raises(Exception, match="on purpose"):
        job.run(second_fails)
    assert seen[2] == seen[1], "the same rows again"
    job.run()
    assert job.ids == ids
    assert empty(client)


def test_the_last_batch_of_a_stopped_query_is_acked_by_the_next(client: Client, job: Job) -> None:
    ids = filled(client, 3)

    def dies(frame: Any, number: int) -> None:
        job.collect(frame, number)
        os.kill(reader_of(job), signal.SIGKILL)

    with job.running(dies) as query, suppress(Exception):
        query.awaitTermination(90)
    assert job.rows
    assert left(client) == set(ids), "the batch was done, and the reader dead before it heard of it"
    job.run()
    assert job.ids == ids
    assert empty(client)


def test_a_reader_killed_in_the_middle_loses_nothing(client: Client, job: Job) -> None:
    ids = filled(client, 3)

    def dies(frame: Any, number: int) -> None:
        os.kill(reader_of(job), signal.SIGKILL)
        fail(frame, number)

    with pytest.raises(Exception, match="on purpose"), job.running(dies) as query:
        query.awaitTermination(90)
    assert job.rows == []
    job.run()
    assert job.ids == ids
    assert empty(client)


def test_a_sink_with_batch_numbers_gets_each_item_once(client: Client, job: Job) -> None:
    """The reader dies before and after it has written a batch, while a producer enqueues more.

    No batch is full: items that a killed reader was leasing ahead would stay leased for longer than the test.
    """
    job.options |= {"leaseMs": "600000"}
    ids = filled(client, 100)
    written: dict[int, list[int]] = {}
    deaths = {1: "before", 2: "after", 3: "before", 4: "after"}

    def sink(frame: Any, number: int) -> None:
        write_or_kill(job, deaths, written, frame, number)
        if deaths:
            ids.extend(filled(client, 4))

    while deaths:
        with suppress(Exception):
            job.run(sink)
    job.run(sink)
    job.run(sink)
    assert empty(client)
    assert sorted(one for rows in written.values() for one in rows) == sorted(ids)


def test_restarts_that_outlive_the_leases_deliver_once(client: Client, job: Job) -> None:
    """The reader is killed with a batch that is running, and perhaps one leased ahead. It starts again when no lease is
    left: the service delivers all of their items again, while the query acks them."""
    job.options |= {"leaseMs": "1000", "maxItemsPerBatch": "100", "connections": "8"}
    ids = filled(client, 1_000)
    written: dict[int, list[int]] = {}
    deaths = {1: "before", 2: "after", 4: "before", 5: "after"}
    sink = partial(write_or_kill, job, deaths, written)
    while deaths:
        with suppress(Exception):
            job.run(sink)
        until(lambda: all(item.state == ItemState.READY for item in client.list_items("t", page_items=1_000)))

    def done() -> bool:
        """Leases of killed readers, whose items never reached a file, end between the runs."""
        job.run(sink)
        return empty(client)

    until(done, timeout_s=120)
    assert sorted(one for rows in written.values() for one in rows) == sorted(ids)


def test_acks_that_are_later_than_the_next_lease_deliver_once(
    client: Client, endpoints: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader alone, without Spark: after each batch it ends without acks, and starts again when the leases have
    ended. Its acks reach the hosts after its requests for more items."""
    pytest.importorskip("pyarrow", reason="PySpark is not installed (pip install 'foqs[spark]')")
    from foqs.spark.consume_driver import Consumer
    from foqs.spark.options import ConsumeOptions

    ids = filled(client, 2_000)
    given = {"endpoints": endpoints, "namespace": namespace, "topic": "t", "stateDir": str(tmp_path), "leaseMs": "1000"}
    options = ConsumeOptions.parse(given | {"maxItemsPerBatch": "300", "waitMs": "0"})
    dequeue, ack_many = Client.dequeue, Client.ack_many
    leased = Event()

    def dequeued(self: Client, *asked: Any, **named: Any) -> Any:
        items = dequeue(self, *asked, **named)
        leased.set()
        return items

    def late(self: Client, items: Any, **named: Any) -> Any:
        leased.wait(0.5)
        return ack_many(self, items, **named)

    monkeypatch.setattr(Client, "dequeue", dequeued)
    monkeypatch.setattr(Client, "ack_many", late)
    batches: dict[int, list[int]] = {}
    start, end = 0, -1
    while end != start:
        start = max(end, 0)
        consumer = Consumer(Client(endpoints, namespace), options)
        consumer.only_what_is_there()
        leased.clear()
        if (end := consumer.latest(start, 300)) > start:
            batches[end] = consumer.batch(start, end)["id"].to_pylist()
        consumer.close()
        until(lambda: all(item.state == ItemState.READY for item in client.list_items("t", page_items=1_000)))
    assert sorted(one for rows in batches.values() for one in rows) == sorted(ids)
    assert empty(client)


def test_the_progress_shows_lag_and_rates(client: Client, job: Job) -> None:
    job.options |= {"maxItemsPerBatch": "20"}
    ids = filled(client, 100)

    def latest(query: Any) -> list[dict[str, Any]]:
        sources = [json.loads(progress.json)["sources"][0] for progress in query.recentProgress]
        return [source["latestOffset"] for source in sources if source["latestOffset"]]

    with job.running() as query:
        done = {"ready": 0, "leased": 0, "lagMs": 0, "ackedItems": len(ids), "unackedBatches": 0}

        def drained() -> bool:
            return any(done.items() <= one.items() for one in latest(query))

        until(drained, lambda: latest(query), 120)
        first, *_ = latest(query)
        assert (first["seq"], first["ready"] + first["leased"]) == (1, len(ids))
        assert first["lagMs"] > 0 and first["leasedPerSecond"] > 0
        assert any(one["ackedPerSecond"] > 0 for one in latest(query))
        rows = [json.loads(progress.json)["sources"][0]["numInputRows"] for progress in query.recentProgress]
        assert sum(rows) == len(ids)


def test_leases_are_extended_while_a_batch_runs(client: Client, job: Job) -> None:
    lease_ms = 12_000
    job.options |= {"leaseMs": str(lease_ms)}
    (item_id,) = filled(client, 1)

    def slow(frame: Any, number: int) -> None:
        first_ms = client.get_item(item_id).lease_expires_at_ms
        # So one that is extended when the first is over.
        until(lambda: client.get_item(item_id).lease_expires_at_ms > first_ms + lease_ms)
        assert client.dequeue("t") == []
        job.collect(frame, number)

    job.run(slow)
    assert [(row.id, row.attempt) for row in job.rows] == [(item_id, 1)]
    with pytest.raises(NotFound):
        client.get_item(item_id)


def test_a_new_checkpoint_over_the_same_folder_loses_nothing(client: Client, job: Job) -> None:
    job.options |= {"maxItemsPerBatch": "2"}
    ids = filled(client, 4)

    def second_fails(frame: Any, number: int) -> None:
        (fail if number == 1 else job.collect)(frame, number)

    with pytest.raises(Exception, match="on purpose"):
        job.run(second_fails)
    (job.folder / "checkpoint").rename(job.folder / "old")
    job.run()
    assert job.ids == ids
    assert Counter(job.ids).most_common(1)[0][1] == 1
    assert empty(client)
    (job.folder / "state").rename(job.folder / "old-state")
    with pytest.raises(Exception, match="not in stateDir"):
        job.run()


def test_options_that_are_wrong_are_named(spark: Any, job: Job) -> None:
    stream = spark.readStream.format("foqs").options(**job.options | {"leaseMs": "1", "color": "red"}).load()
    with pytest.raises(Exception, match=r"(?s)option leaseMs.*option color is unknown"):
        stream.writeStream.option("checkpointLocation", str(job.folder)).foreachBatch(fail).start().awaitTermination(60)


def test_a_stream_needs_a_folder(spark: Any, endpoints: str) -> None:
    from foqs.spark.source import FoqsSource

    source = FoqsSource({"endpoints": endpoints, "namespace": "n", "topic": "t"})
    with pytest.raises(Invalid, match="option stateDir is missing"):
        source.streamReader(None)


def write_or_kill(job: Job, deaths: dict[int, str], written: dict[int, list[int]], frame: Any, number: int) -> None:
    """Write a batch to `written`, and kill the reader before or after it if `deaths` says so."""
    death = deaths.pop(number, None)
    if death == "before":
        os.kill(reader_of(job), signal.SIGKILL)
        fail(frame, number)
    rows = sorted(row.id for row in frame.collect())
    assert written.setdefault(number, rows) == rows
    if death == "after":
        os.kill(reader_of(job), signal.SIGKILL)


def reader_of(job: Job) -> int:
    """The process that holds the folder's lock."""
    lock = str(job.state / "lock")
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and lock in opened(process):
            return int(process.name)
    raise AssertionError("no process has it")


def opened(process: Path) -> Iterator[str]:
    """Its open files; it may close some of them during the look."""
    with suppress(OSError):
        for fd in (process / "fd").iterdir():
            with suppress(OSError):
                yield os.readlink(fd)
