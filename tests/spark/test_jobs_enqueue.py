"""Rows of files as items: columns, payloads, and refused rows."""

import json

import pytest

from foqs.errors import Invalid
from foqs.spark.jobs import enqueue
from foqs.spark.jobs.enqueue import Plan, items, pairs, read, show

pytestmark = pytest.mark.spark


@pytest.fixture
def rows(spark):
    return spark.createDataFrame(
        [("a", "x", 3, None), ("b", "y", 4, "z")], "body string, `odd.name` string, priority int, topic string"
    )


def taken(frame):
    return [row.asDict() for row in frame.collect()]


def test_columns_by_name(rows):
    found = items(rows, Plan(topic="t", payload_column="body"))
    assert found.columns == ["payload", "priority"]
    assert taken(found)[0] == {"payload": "a", "priority": 3}
    assert items(rows, Plan(payload_column="body")).columns == ["topic", "payload", "priority"]


def test_columns_in_any_case(spark):
    given = spark.createDataFrame([("t", "x", 3, "k")], "TOPIC string, Payload string, Priority int, more string")
    found = items(given, Plan())
    assert [name.lower() for name in found.columns] == ["topic", "payload", "priority"]
    assert items(given, Plan(topic="u")).columns == ["Payload", "Priority"]
    assert set(items(given, Plan(topic="u", select=("more as PAYLOAD", "1 as Priority"))).columns) == {
        "PAYLOAD",
        "Priority",
    }
    assert Plan().unused(given.columns, found.columns) == ["more"]


def test_the_whole_row_as_json(rows):
    found = items(rows, Plan(topic="t", payload_json=True))
    assert found.columns == ["payload"]
    assert json.loads(taken(found)[0]["payload"]) == {"body": "a", "odd.name": "x", "priority": 3, "topic": None}


def test_columns_of_any_name(rows):
    found = items(rows, Plan(topic_column="odd.name", payload_json=True))
    assert [row["topic"] for row in taken(found)] == ["x", "y"]
    assert [row["payload"] for row in taken(items(rows, Plan(topic="t", payload_column="odd.name")))] == ["x", "y"]


def test_select(rows):
    select = ("-priority as priority", "concat('job:', body) as dedup_key")
    found = items(rows, Plan(topic="t", payload_json=True, select=select))
    assert set(found.columns) == {"priority", "dedup_key", "payload"}
    row = taken(found)[0]
    assert (row["priority"], row["dedup_key"], json.loads(row["payload"])["body"]) == (-3, "job:a", "a")
    alone = items(rows, Plan(select=("upper(body) as payload", "'u' as topic")))
    assert taken(alone)[0] == {"payload": "A", "topic": "u"}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(topic="t"), "--payload-column"),
        (Plan(topic="t", select=("body as payload", "1 as urgency")), "urgency"),
        (Plan(topic="t", select=("priority",)), "payload"),
        (Plan(payload_column="body", select=("priority",)), "--topic"),
    ],
)
def test_refused(rows, plan, words):
    with pytest.raises(Invalid, match=words):
        items(rows, plan)


def test_unused_columns_are_reported():
    plan = Plan(topic="t", payload_column="body")
    assert plan.unused(["body", "x", "priority"], ["payload", "priority"]) == ["x"]
    assert Plan(topic="t", payload_json=True).unused(["body"], ["payload"]) == []


@pytest.mark.parametrize(
    ("format", "content", "options", "column"),
    [
        ("json", '{"body": "a"}\n{"body": "b"}\n', [], "body"),
        ("csv", "body;n\na;1\nb;2\n", ["header=true", "sep=;"], "body"),
        ("text", "a\nb\n", [], "value"),
    ],
)
def test_files(spark, tmp_path, format, content, options, column):
    (tmp_path / "in").write_text(content)
    found = items(read(spark, [str(tmp_path / "in")], format, pairs(options)), Plan("t", payload_column=column))
    assert sorted(row["payload"] for row in taken(found)) == ["a", "b"]


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_files_of_columns(spark, tmp_path, rows, format):
    rows.write.format(format).save(str(tmp_path / "in"))
    found = items(read(spark, [str(tmp_path / "in")], format, {}), Plan(payload_json=True, topic="t"))
    assert found.count() == 2


def test_dry_run_shows(rows, capsys):
    show(items(rows, Plan(topic="t", payload_column="body")))
    said = capsys.readouterr().out
    assert "2 rows would be enqueued" in said
    assert "payload: string" in said
    assert "a|       3|" in said


def test_the_command_shows_and_refuses(spark, tmp_path, capsys):
    """The command uses the existing session; a missing path is an error of one line."""
    (tmp_path / "in").write_text('{"body": "a", "user": 1}\n')
    given = {"namespace": "n", "endpoints": "h:1", "dry_run": True, "topic": "t", "payload_column": "body"}
    enqueue.enqueue([str(tmp_path / "in")], **given)
    said = capsys.readouterr()
    assert "1 row would be enqueued" in said.out
    assert said.err == "unused columns: user\n"
    with pytest.raises(Invalid, match="does not exist") as refused:
        enqueue.enqueue([str(tmp_path / "none")], **given)
    assert "\n" not in str(refused.value)
    with pytest.raises(Invalid, match="nobody"):
        enqueue.enqueue([str(tmp_path / "in")], **{**given, "payload_column": "nobody"})


def test_options_of_a_format():
    assert pairs(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    with pytest.raises(Invalid, match="header"):
        pairs(["header"])
