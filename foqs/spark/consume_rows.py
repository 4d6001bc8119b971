"""The rows of a batch as an Arrow table: in the folder, in the partitions, and as Spark gets them.

The driver builds the columns of a batch once. After that it moves bytes: a task makes rows of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from foqs.client.items import Delivery, Item
from foqs.errors import Invalid
from foqs.spark.consume_state import opened, sealed, split

COLUMNS = {
    "id": "bigint", "namespace": "string", "topic": "string", "priority": "int", "payload": "binary",
    "metadata": "binary", "headers": "map<string,string>", "attempt": "int", "deliver_after": "timestamp",
    "enqueued_at": "timestamp", "delivery": "string", "fairness_key": "string", "throttle_keys": "array<string>",
}  # fmt: skip
"""Names and types in Spark's spelling. `metadata` and `headers` may be null; `delivery` is AT_LEAST_ONCE or
AT_MOST_ONCE. `fairness_key` is "" and `throttle_keys` is empty where an item has none."""

_FORMAT = 1
_NAMES = {int(delivery): delivery.name for delivery in Delivery}
_TIME = pa.timestamp("us", "UTC")
_SCHEMA = pa.schema([
    ("lease", pa.int64()), ("id", pa.int64()), ("namespace", pa.string()), ("topic", pa.string()),
    ("priority", pa.int32()), ("payload", pa.binary()), ("metadata", pa.binary()),
    ("headers", pa.map_(pa.string(), pa.string())), ("attempt", pa.int32()), ("deliver_after", _TIME),
    ("enqueued_at", _TIME), ("delivery", pa.string()), ("fairness_key", pa.string()),
    ("throttle_keys", pa.list_(pa.string())),
])  # fmt: skip


def table_of(items: Sequence[Item]) -> Any:
    """Return the table of the items with their leases."""
    columns = [
        [item.lease for item in items],
        [item.id for item in items],
        [item.ns for item in items],
        [item.topic for item in items],
        [item.priority for item in items],
        [item.payload for item in items],
        [item.metadata for item in items],
        [None if item.headers is None else list(item.headers.items()) for item in items],
        [item.attempt for item in items],
        [item.deliver_after_ms * 1_000 for item in items],
        [item.enqueued_at_ms * 1_000 for item in items],
        [_NAMES[item.delivery] for item in items],
        [item.fairness_key for item in items],
        [item.throttle_keys for item in items],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def without_body(item: Item) -> Item:
    """Return the part of a leased item that stays in memory."""
    return Item(item.id, item.lease, item.attempt, item.ns, item.topic, item.priority)


def leases_of(table: Any) -> list[Item]:
    """Return the items of a table without their bodies."""
    names = ("id", "lease", "attempt", "namespace", "topic", "priority")
    return list(map(Item, *[table[name].to_pylist() for name in names]))


def parts_of(table: Any, columns: Sequence[str], parts: int) -> list[bytes]:
    """Return the rows in at most `parts` runs of nearly the same length, each packed on its own."""
    chosen = table.select(columns)
    return [_packed(chosen.slice(run[0], len(run))) for run in split(range(len(table)), parts)]


def unpacked(part: bytes) -> Any:
    """Return the RecordBatches of a part."""
    return pa.ipc.open_stream(part)


def batch_text(seq: int, items: Sequence[Item]) -> bytes:
    head = json.dumps({"format": _FORMAT, "seq": seq}).encode()
    return sealed(head + b"\n" + _packed(table_of(items)))


def read_batch(text: bytes, seq: int) -> Any:
    """Return the table of the items with their leases. Raises Invalid if the text is damaged, belongs to another batch
    or has an unknown format."""
    head, _, packed = opened(text).partition(b"\n")
    batch = json.loads(head)
    if batch["seq"] != seq:
        raise Invalid(f"it holds batch {batch['seq']}")
    if batch["format"] != _FORMAT:
        raise Invalid(f"its format {batch['format']} is not known to this version")
    return unpacked(packed).read_all()


def joined(tables: Sequence[Any]) -> Any:
    return pa.concat_tables([_SCHEMA.empty_table(), *tables])


def _packed(table: Any) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return bytes(out.getvalue())
