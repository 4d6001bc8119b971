"""The user's schema for a reader, and the columns of a SQL table without one. Needs no JVM."""

from typing import Any

import pytest

types = pytest.importorskip("pyspark.sql.types", reason="PySpark is not installed (pip install 'foqs[spark]')")

from foqs.client import Delivery, Item  # noqa: E402
from foqs.errors import Invalid  # noqa: E402
from foqs.spark.consume import COLUMNS, ConsumeReader  # noqa: E402
from foqs.spark.consume_state import table_of  # noqa: E402
from foqs.spark.options import (  # noqa: E402
    WRITE_COLUMNS,
    Reading,
    check_columns,
    read_as,
)
from foqs.spark.snapshot import SnapshotReader  # noqa: E402
from foqs.spark.source import FoqsSource  # noqa: E402

STREAM = {"endpoints": "h:1", "namespace": "n", "topic": "t", "stateDir": "/x"}
KINDS = {
    "bigint": types.LongType(), "string": types.StringType(), "int": types.IntegerType(),
    "binary": types.BinaryType(), "timestamp": types.TimestampType(),
    "array<string>": types.ArrayType(types.StringType()),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
}  # fmt: skip


def struct(**columns: str) -> Any:
    return types.StructType([types.StructField(name, KINDS[kind]) for name, kind in columns.items()])


class Taken:
    """A consumer with one item."""

    def batch(self, start: int, end: int) -> Any:
        item = Item(id=7, ns="n", topic="t", priority=-3, payload=b"p", attempt=2, delivery=Delivery.AT_LEAST_ONCE)
        item.fairness_key, item._throttle_keys = "acme", ["db"]
        return table_of([item])


def test_a_stream_has_the_columns_of_its_schema() -> None:
    """Columns by name, in the order and case of the schema."""

    def rows(schema: Any) -> list[Any]:
        reader = ConsumeReader(STREAM, schema)
        reader._consumer = Taken()  # type: ignore[assignment]
        parts = reader.partitions({"seq": 0}, {"seq": 1})  # type: ignore[arg-type]
        batches = [batch for part in parts for batch in reader.read(part)]  # type: ignore[arg-type]
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    assert rows(struct(payload="binary", Topic="string", ID="bigint")) == [(b"p", "t", 7)]
    assert rows(struct(attempt="int")) == [(2,)]
    (whole,) = rows(struct(**COLUMNS))
    assert whole[:5] == (7, "n", "t", -3, b"p")
    assert whole[-2:] == ("acme", ["db"])


class Headed:
    """A consumer with three items, one of which has the headers that a schema names."""

    def batch(self, start: int, end: int) -> Any:
        items = [Item(id=number, ns="n", topic="t", delivery=Delivery.AT_LEAST_ONCE) for number in range(3)]
        items[0].headers = {"region": "eu", "Customer": "acme", "more": "x"}
        items[1].headers = {"customer": "another case"}
        return table_of(items)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"payload": "string"}, r"column payload is string, not binary; cast it in the query"),
        ({"body": "binary"}, r"column body is unknown: the columns are id, namespace, .*throttle_keys \(with the"),
        ({"id": "bigint", "Id": "bigint"}, "column id is there twice"),
        ({"x": "int", "priority": "string"}, "column x is unknown.*; column priority is string, not int"),
    ],
)  # fmt: skip
def test_a_wrong_schema_is_refused(columns: dict[str, str], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        ConsumeReader(STREAM, struct(**columns))
    with pytest.raises(Invalid, match="the schema is wrong: column "):
        SnapshotReader({"shards": "sqlite:////x"}, struct(**columns))


def test_names_are_mapped_to_those_of_foqs() -> None:
    assert read_as(struct(B="int", a="string"), {"a": "string", "b": "int", "c": "int"}) == Reading(["b", "a"], (0, 1))


def test_other_columns_are_headers() -> None:
    """With extraColumns=headers, readers take the other columns of a schema from the headers, in their case."""
    options = STREAM | {"extraColumns": "headers"}
    for schema in (struct(Customer="string", id="bigint", region="string"), struct(Customer="string", region="string")):
        reader = ConsumeReader(options, schema)
        reader._consumer = Headed()  # type: ignore[assignment]
        parts = reader.partitions({"seq": 0}, {"seq": 1})  # type: ignore[arg-type]
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]  # type: ignore[arg-type]
        assert [(row["Customer"], row["region"]) for row in rows] == [("acme", "eu"), (None, None), (None, None)]
        assert [*rows[0]] == schema.names
    for schema, says in (
        (struct(customer="int"), "column customer is int, and a header is string: cast it in the query"),
        (struct(x="string", X="string", payload="string"), "column payload is string, not binary"),
    ):
        with pytest.raises(Invalid, match=says):
            ConsumeReader(options, schema)
        with pytest.raises(Invalid, match=says):
            SnapshotReader({"shards": "sqlite:////x", "extraColumns": "headers"}, schema)
    with pytest.raises(Invalid, match="column x is there twice"):
        read_as(types.StructType(struct(x="string").fields * 2), COLUMNS, "headers")
    with pytest.raises(Invalid, match=r"column customer is unknown: .*extraColumns=headers"):
        ConsumeReader(STREAM, struct(customer="string"))
    with pytest.raises(Invalid, match="option extraColumns"):
        ConsumeReader(STREAM | {"extraColumns": "yes"}, struct(id="bigint"))


def test_a_snapshot_with_extra_columns_has_the_headers() -> None:
    given = {"shards": "sqlite:////x", "extraColumns": "headers"}
    assert "headers map<string,string>" in FoqsSource(given).schema()
    assert "payload binary" not in FoqsSource(given).schema()
    assert FoqsSource(given | {"payloads": "true"}).schema().count("headers") == 1


def test_a_table_without_columns_has_those_of_its_kind() -> None:
    """Spark requests them with the properties of the table's catalog among the options."""
    table = {f"option.{name}": text for name, text in STREAM.items()} | {"owner": "root", "provider": "foqs"}
    assert FoqsSource(table).schema().startswith("id bigint, namespace string, topic string, priority int")
    writes = {"option.endpoints": "h:1", "option.namespace": "n", "owner": "root"}
    for given, has_topic in ((writes, False), (writes | {"option.topic": "t"}, True)):
        columns = [tuple(column.split(" ", 1)) for column in FoqsSource(given).schema().split(", ")]
        check_columns(columns, has_topic=has_topic)  # type: ignore[arg-type]
        assert {name for name, _ in columns} == WRITE_COLUMNS.keys() - {"delay_ms"} - (
            {"topic"} if has_topic else set()
        )
    assert "lease_expires_at" in FoqsSource({"option.shards": "sqlite:////x", "owner": "root"}).schema()
