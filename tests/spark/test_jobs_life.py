"""The jobs on a real cluster, through the format "foqs": fill, look, export, redrive."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from foqs.client import Client, NotFound
from foqs.errors import Invalid
from foqs.rows import FailureCause
from foqs.spark.jobs.enqueue import OnInvalid, enqueue
from foqs.spark.jobs.export import export
from foqs.spark.jobs.move import move
from foqs.spark.jobs.report import report
from tests.api.hosts import environment, until

pytestmark = [pytest.mark.spark, pytest.mark.mariadb, pytest.mark.zookeeper, pytest.mark.process, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def urls(cluster):
    return [shard.url for shard in cluster.shards]


@pytest.fixture
def client(endpoints, namespace):
    with Client(endpoints, namespace) as client:
        yield client


def payloads(client, topic):
    return sorted(item.payload for item in client.list_items(topic))


def fill(client, topic="mail", count=60):
    return [client.enqueue(topic, b"%d" % n, priority=n % 3, headers={"n": str(n)}) for n in range(count)]


def test_enqueue_files(spark, client, endpoints, namespace, tmp_path, capsys):
    (tmp_path / "in.json").write_text("".join(json.dumps({"n": n, "urgency": n % 4}) + "\n" for n in range(300)))
    for said in ("300 items enqueued, 0 were there before", "0 items enqueued, 300 were there before"):
        enqueue(
            [str(tmp_path / "in.json")],
            namespace,
            endpoints,
            topic="import",
            payload_json=True,
            select=["cast(urgency as int) as priority"],
            job_id="import-7",
        )
        assert said in capsys.readouterr().out
    found = list(client.list_items("import"))
    assert sorted(json.loads(item.payload)["n"] for item in found) == list(range(300))
    assert all(json.loads(item.payload)["urgency"] == item.priority for item in found)


def test_enqueue_collects_invalid_rows(spark, client, endpoints, namespace, tmp_path):
    (tmp_path / "in.csv").write_text("topic,payload\nmail,a\n" + "x" * 300 + ",b\n")
    enqueue(
        [str(tmp_path / "in.csv")],
        namespace,
        endpoints,
        format="csv",
        options=["header=true"],
        on_invalid=OnInvalid.COLLECT,
        invalid_path=str(tmp_path / "bad"),
    )
    assert payloads(client, "mail") == [b"a"]
    assert any((tmp_path / "bad").rglob("*"))


def test_dry_run_of_enqueue(spark, client, endpoints, namespace, tmp_path):
    (tmp_path / "in.txt").write_text("a\n")
    enqueue([str(tmp_path / "in.txt")], namespace, endpoints, "text", topic="t", payload_column="value", dry_run=True)
    assert payloads(client, "t") == []


def test_report_of_a_namespace(spark, client, urls, namespace, tmp_path, capsys):
    ids = fill(client)
    client.enqueue("later", b"x", delay_ms=3_600_000)
    held = client.dequeue("mail", count=5, lease_ms=600_000)
    report(out=str(tmp_path / "out"), page=tmp_path / "page.html", shards=urls, namespace=namespace)
    assert "61 items of 2 topics" in capsys.readouterr().out
    rows = {row["topic"]: row for row in spark.read.parquet(str(tmp_path / "out" / "topics")).collect()}
    assert (rows["mail"]["items"], rows["later"]["delayed"]) == (60, 1)
    assert rows["mail"]["total_payload_bytes"] == sum(len(b"%d" % n) for n in range(60))
    assert rows["mail"]["oldest"][0]["id"] in ids
    text = (tmp_path / "page.html").read_text()
    assert "later" in text
    client.ack_many(held)


def test_export_of_a_topic(spark, client, urls, namespace, tmp_path):
    ids = fill(client, "a/b")
    export(str(tmp_path / "out"), shards=urls, namespace=namespace, topic="a/b")
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {row["id"] for row in rows} == set(ids)
    assert {bytes(row["payload"]) for row in rows} == {b"%d" % n for n in range(60)}
    assert {row["topic"] for row in rows} == {"a/b"}
    assert {int(row["headers"]["n"]) for row in rows} == set(range(60))


def given(namespace, endpoints, urls, **more):
    return {
        "from_namespace": namespace,
        "from_topic": "mail",
        "to_namespace": namespace,
        "to_topic": "again",
        "endpoints": endpoints,
        "shards": urls,
        "yes": True,
        **more,
    }


def test_move(spark, client, endpoints, namespace, urls, capsys):
    ids = fill(client)
    arguments = given(namespace, endpoints, urls, where="priority = 1")
    move(**{**arguments, "dry_run": True})
    assert "ready: 20" in capsys.readouterr().out
    assert payloads(client, "again") == []
    move(**arguments)
    moved = list(client.list_items("again"))
    assert sorted(int(item.payload) for item in moved) == list(range(1, 60, 3))
    assert all(item.priority == 1 and item.headers == {"n": item.payload.decode()} for item in moved)
    assert len(payloads(client, "mail")) == 40
    with pytest.raises(NotFound):
        client.get_item(ids[1])
    move(**arguments)  # no items are left for a move
    assert len(payloads(client, "again")) == 20


def test_a_part_of_a_dead_letter_topic_is_moved(spark, client, endpoints, namespace, urls):
    rejected = {n for n in range(24) if n % 3 == 0}
    numbers = make_dead_letters(client, 24, rejected)
    assert causes(client) == {FailureCause.FAILED: 16, FailureCause.REJECTED: 8}
    assert having_failure(urls, numbers) == set(numbers)
    wanted = "priority < 2 and cast(headers['n'] as int) between 8 and 13"
    move(**given(namespace, endpoints, urls, from_topic="mail.dlq", where=wanted))
    moved = {9, 10, 12, 13}
    left = {item_id for item_id, n in numbers.items() if n not in moved}
    found = {int(item.payload): item for item in client.list_items("again")}
    assert found.keys() == moved
    for n, item in found.items():
        assert (item.priority, item.headers, item.failure) == (n % 3, {"n": str(n)}, None)
    assert {item.id for item in client.list_items("mail.dlq")} == left
    assert causes(client) == {FailureCause.FAILED: 14, FailureCause.REJECTED: 6}
    assert having_failure(urls, numbers) == left
    assert client.redrive("mail.dlq").at_least == len(left)
    assert {item.id for item in client.list_items("mail")} == left
    assert causes(client) == {}
    assert having_failure(urls, numbers) == set()


def make_dead_letters(client, count, rejected):
    """Let `count` items of the topic mail fail, or be rejected; return their numbers by id."""
    client.put_settings({"topic.mail": '{"max_attempts": 1}'})
    numbers = {item_id: n for n, item_id in enumerate(fill(client, count=count))}
    left = set(numbers)
    while left:
        for item in client.dequeue("mail", count=count, wait_ms=500):
            reject = numbers[item.id] in rejected
            client.nack(item, failed=not reject, reject=reject, reason="no user" if reject else "SMTP 451")
            left.remove(item.id)
    return numbers


def causes(client):
    groups, missing = client.list_failures("mail.dlq")
    assert missing == ()
    return {group.cause: group.count for group in groups}


def having_failure(urls, ids):
    """Return those of `ids` that have a row in `failure`."""
    found = set()
    for url in urls:
        engine = create_engine(url)
        with engine.connect() as connection:
            found.update(connection.execute(text("SELECT id FROM failure")).scalars())
        engine.dispose()
    return found & set(ids)


def test_a_copy_that_is_repeated_is_one_copy(spark, client, endpoints, namespace, urls):
    fill(client)
    for _ in range(2):
        move(**given(namespace, endpoints, urls, copy=True, job_id="nightly"))
    assert len(payloads(client, "again")) == len(payloads(client, "mail")) == 60


def test_a_copy_consumed_then_a_move_loses_nothing(spark, client, endpoints, namespace, urls, capsys):
    fill(client, count=50)
    move(**given(namespace, endpoints, urls, copy=True))
    consumed = []
    while len(consumed) < 50:
        taken = client.dequeue("again", count=50, wait_ms=500)
        client.ack_many(taken)
        consumed += taken
    capsys.readouterr()
    move(**given(namespace, endpoints, urls))
    assert "50 stored in the new topic\n50 deleted from the old topic" in capsys.readouterr().out
    assert len(payloads(client, "again")) == 50
    assert payloads(client, "mail") == []


def test_leased_items_stay(spark, client, endpoints, namespace, urls):
    fill(client)
    held = []
    while len(held) < 10:  # an answer has the items of one host
        held += client.dequeue("mail", count=10 - len(held), lease_ms=600_000, wait_ms=500)
    # A host writes a lease later: until then the snapshot shows the item as ready.
    _until_written(spark, urls, namespace, {item.id for item in held})
    move(**given(namespace, endpoints, urls))
    assert len(payloads(client, "again")) == 50
    assert [error for error in client.ack_many(held) if error] == []
    assert payloads(client, "mail") == []


def test_without_an_answer_nothing_is_moved(spark, client, endpoints, namespace, urls):
    fill(client, count=3)
    arguments = given(namespace, endpoints, urls, yes=False)
    with pytest.raises(Invalid, match="--yes"):
        move(**arguments)
    assert payloads(client, "again") == []


def test_a_job_under_spark_submit(client, urls, namespace, tmp_path):
    """A file given to spark-submit, with its own session."""
    fill(client, count=3)
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", "local[1]", "--conf", "spark.ui.enabled=false", "--driver-memory", "512m"),
            str(ROOT / "foqs/spark/jobs/report.py"),
            *("--page", str(tmp_path / "page.html"), "--namespace", namespace),
            *(word for url in urls for word in ("--shards", url)),
        ],
        capture_output=True,
        text=True,
        env=environment(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable),
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "3 items of 1 topic:" in done.stdout
    assert (tmp_path / "page.html").exists()


def _until_written(spark, urls, namespace, ids):
    """Wait until the snapshot has exactly these items. If a host fetched an item from another host for a consumer that
    had its answer by then, the item returns later, and a move would skip it until then."""
    read = spark.read.format("foqs").options(shards=",".join(urls), namespace=namespace, state="leased")
    until(lambda: {row.id for row in read.load().collect()} == ids, "the leases in the snapshot")
