"""A snapshot of all stored items: planned on the driver, read from the databases by the tasks, a page at a time.

Tables `timer` and `done` alone determine the state: an item without a row there is ready, and may have no row in
`ready` yet.

PyMySQL builds rows in Python, at 7 us and more each. So the server packs a page into one row: its numbers are lines of
text, which Arrow parses, and a blob of all items is one string, which becomes an Arrow column without a copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from foqs.fairness.keys import unpack_throttles
from foqs.rows import AT_MOST_ONCE
from foqs.rules import pack_rules, unpack_rules
from foqs.spark.options import HEADERS, read_as
from foqs.spark.snapshot_shards import STATES, Piece, SnapshotOptions, Wanted, open_snapshot, pieces
from foqs.store.dialect import Dialect
from foqs.store.link import Link
from foqs.store.reads import packed_set_up, with_end
from foqs.store.tables import ENDED_OF_ITEM, LANE_OF_NAMES, TIMER_OF_ITEM

COLUMNS = {
    "id": "bigint", "shard": "int", "namespace": "string", "topic": "string", "state": "string", "priority": "int",
    "deliver_after": "timestamp", "enqueued_at": "timestamp", "expires_at": "timestamp",
    "lease_expires_at": "timestamp", "attempt": "int", "delivery": "string", "lease_ms": "bigint", "bytes": "int",
    "payload_bytes": "int", "fairness_key": "string", "throttle_keys": "array<string>", "ended_at": "timestamp",
    "rules": "string",
}  # fmt: skip
"""Names and types in Spark's spelling, in order."""
BODY_COLUMNS = {"payload": "binary", "metadata": "binary", "headers": "map<string,string>"}
PROGRESS_COLUMNS = {"progress_done": "bigint", "progress_total": "bigint"}
"""Only where the schema names them: each item costs a look into one more table."""
LANE_COLUMNS = ("namespace", "topic", "fairness_key", "throttle_keys", "rules")
"""The names of an item's lane."""
NULLABLE = frozenset({"expires_at", "lease_expires_at", "ended_at", "lease_ms", "metadata", "headers", "rules"})

_STATE = "CASE WHEN d.id IS NOT NULL THEN d.state - 1 WHEN t.id IS NULL THEN 0 WHEN t.lease = 0 THEN 1 ELSE 2 END"
"""An index of STATES; `done.state` is an EndedState."""
_NUMBERS = {
    "id": "i.id",
    "lane": "i.lane",
    "state": _STATE,
    "priority": "i.priority",
    "deliver_after": "i.deliver_after",
    "enqueued_at": "i.enqueued_at",
    "expires_at": "i.expires_at",
    "lease_expires_at": "CASE WHEN t.lease <> 0 THEN t.due ELSE 0 END",
    "attempt": "COALESCE(r.attempt, t.attempt, d.attempt, 0)",
    "delivery": "i.delivery",
    "lease_ms": "i.lease_ms",
    "payload_bytes": "LENGTH(i.payload)",
    "metadata_bytes": "IFNULL(LENGTH(i.metadata), -1)",
    "headers_bytes": "IFNULL(LENGTH(i.headers), -1)",
    "ended_at": "COALESCE(d.ended_at, 0)",
    "progress_done": "COALESCE(p.done, -1)",
    "progress_total": "COALESCE(p.total, -1)",
}
_OF_KEY = {
    "i.id": {},
    "t.id": {"state": "CASE WHEN t.lease = 0 THEN 1 ELSE 2 END", "attempt": "t.attempt", "ended_at": "0"},
    "d.id": {"state": "d.state - 1", "lease_expires_at": "0", "attempt": "d.attempt", "ended_at": "d.ended_at"},
}
"""Numbers that are known from the table whose ids the pages follow."""
_STATE_NUMBERS = {"state", "lease_expires_at", "attempt", "ended_at"}
_NEEDS = {
    "shard": (), **dict.fromkeys(LANE_COLUMNS, ("lane",)), "payload": ("payload_bytes",),
    "metadata": ("metadata_bytes",), "headers": ("headers_bytes",),
    # The column `bytes` of a row is older than metadata that a nack has replaced.
    "bytes": ("payload_bytes", "metadata_bytes", "headers_bytes"),
}  # fmt: skip
NUMBER_CHARACTERS = 21
"""Bytes of the longest number with its separator."""
_PAGE_BYTES = 8 << 20
_FIRST_ROWS = 64
_LANES_IN_SQL = 1_000
_STATES = pa.array(STATES)
_DELIVERIES = pa.array(("AT_LEAST_ONCE", "AT_MOST_ONCE"))


@dataclass
class _Partition(InputPartition):
    value: Piece


def schema(options: Mapping[str, str]) -> str:
    """Return all columns, as DDL. Raises Invalid."""
    parsed = SnapshotOptions.parse(options)
    found = dict(COLUMNS)
    if parsed.payloads:
        found |= BODY_COLUMNS
    elif parsed.extra_columns == "headers":
        found[HEADERS] = BODY_COLUMNS[HEADERS]
    return ", ".join(f"{name} {kind}{'' if name in NULLABLE else ' NOT NULL'}" for name, kind in found.items())


class SnapshotReader(DataSourceReader):
    """Reader without pushed filters (`pushFilters`); the options replace them. Spark 4.3 uses the reader that accepted
    filters for the whole DataFrame, so its next query, with different filters, would get the rows of the first query
    only."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Plan the read. Raises Invalid for wrong options and columns."""
        self._options = SnapshotOptions.parse(options)
        self._reading = read_as(schema, COLUMNS | BODY_COLUMNS | PROGRESS_COLUMNS, self._options.extra_columns)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        kinds = {source: column.type for source, column in zip(self._reading.sources, self._schema, strict=True)}
        headers = pa.map_(pa.string(), pa.string())
        self._ours = pa.schema([(name, kinds.get(at, headers)) for at, name in enumerate(self._reading.names)])

    def partitions(self) -> list[InputPartition]:
        return [_Partition(piece) for piece in pieces(self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one partition. The partition without a value, which Spark makes if there is none, has no rows."""
        if partition.value is None:
            return iter(())
        batches = read_piece(partition.value, self._ours, self._options.wanted, self._options.page_rows)
        # Spark compares the names case-sensitively.
        return (
            pa.RecordBatch.from_arrays(self._reading.columns(batch.columns), schema=self._schema) for batch in batches
        )


# ------------------------------------------------------------------------------------------------ SQL


def numbers_of(columns: Iterable[str]) -> list[str]:
    """Return the numbers to read for `columns`; never none."""
    needed = {number for column in columns for number in _NEEDS.get(column, (column,))} | {"id"}
    return [name for name in _NUMBERS if name in needed]


def lanes_sql(dialect: Dialect, wanted: Wanted) -> str:
    """Return the SQL for number, namespace, topic, fairness key, stored throttle keys and rules of each wanted lane."""
    names = (("ns", wanted.namespace), ("topic", wanted.topic))
    given = " AND ".join(
        f"{column} = x'{name.encode('utf-8', 'surrogatepass').hex()}'" for column, name in names if name is not None
    )
    table = dialect.forced("lane", index=LANE_OF_NAMES) if wanted.namespace is not None else "lane"
    return f"SELECT lane, ns, topic, fairness, throttles, rules FROM {table}{f' WHERE {given}' if given else ''}"


def page_end_sql(dialect: Dialect, after: int, high: int, rows: int, blobs: Sequence[str], wanted: Wanted) -> str:
    """Return the SQL for the end of the next page: its last id, its number of items, and the bytes of their `blobs`.
    The page is of all items, or of all rows of `timer` or `done` if only those are wanted. The answer has one row;
    without blobs it has none for the last page if that is shorter."""
    key, tables = _from(dialect, wanted, bodies=bool(blobs))
    ids = f"FROM {tables} WHERE {key} > {after:d} AND {key} <= {high:d} ORDER BY {key} LIMIT"
    if not blobs:
        return f"SELECT {key}, {rows:d}, 0 {ids} 1 OFFSET {rows - 1:d}"
    size = " + ".join(f"IFNULL(LENGTH(i.{blob}), 0)" for blob in blobs)
    return (
        f"SELECT MAX(id), COUNT(*), CAST(SUM(size) AS {'SIGNED' if dialect.one_packet else 'INTEGER'}) "
        f"FROM (SELECT {key}, {size} AS size {ids} {rows:d}) AS page"
    )


def page_sql(dialect: Dialect, numbers: Sequence[str], blobs: Sequence[str], wanted: Wanted, *, packed: bool) -> str:
    """Return the SQL for a page: one row for each item, numbers first. Packed, it is one row for all items: the numbers
    as lines of text, each blob as one string.

    Fill `{0}`, `{1}` and `{2}` with the id before the page, its last id, and further conditions.
    """
    key, tables = _from(dialect, wanted, bodies=True)
    known = _NUMBERS | _OF_KEY[key]
    expressions = [known[number] for number in numbers]
    if packed:
        lines = f"GROUP_CONCAT(CONCAT_WS(',', {', '.join(expressions)}) SEPARATOR '\\n')"
        selected = [lines, *(f"GROUP_CONCAT(IFNULL(i.{blob}, '') SEPARATOR '')" for blob in blobs)]
    else:
        selected = [*expressions, *(f"i.{blob}" for blob in blobs)]
    if "attempt" in numbers and key == "i.id":
        tables += (
            f" LEFT JOIN {dialect.forced('ready', 'r')} ON r.lane = i.lane AND r.priority = i.priority "
            "AND r.deliver_after = i.deliver_after AND r.id = i.id"
        )
    if key == "i.id" and (wanted.state or _STATE_NUMBERS & set(numbers)):
        tables += f" LEFT JOIN {dialect.forced('timer', 't', TIMER_OF_ITEM)} ON t.id = i.id {with_end(dialect)}"
    if set(PROGRESS_COLUMNS) & set(numbers):
        tables += f" LEFT JOIN {dialect.forced('progress', 'p')} ON p.id = i.id"
    state = f" AND {known['state']} = {STATES.index(wanted.state)}" if wanted.state is not None else ""
    # MySQL would start with `timer` if a condition needs a row there, and read all of it.
    order = f"{dialect.ordered_join} " if dialect.one_packet else ""
    return f"SELECT {order}{', '.join(selected)} FROM {tables} WHERE {key} > {{0:d}} AND {key} <= {{1:d}}{state}{{2}}"


def _from(dialect: Dialect, wanted: Wanted, *, bodies: bool) -> tuple[str, str]:
    """Return the column that pages follow, and the tables that it needs: `timer` and `done` are much shorter tables
    than `item` in most queues."""
    item = dialect.forced("item", "i")
    if wanted.state in (None, "ready"):
        return "i.id", item
    key, table = "t.id", dialect.forced("timer", "t", TIMER_OF_ITEM)
    if wanted.state in ("completed", "failed"):
        key, table = "d.id", dialect.forced("done", "d", ENDED_OF_ITEM)
    return key, f"{table} {dialect.ordered_join} {item} ON i.id = {key}" if bodies else table


# ------------------------------------------------------------------------------------------------ pages


def read_piece(piece: Piece, schema: Any, wanted: Wanted, page_rows: int) -> Iterator[Any]:
    """Yield RecordBatches of `schema`, an Arrow schema of foqs columns. Each has at most `page_rows` items and at most
    8 MiB of bodies, unless one item is larger. Raises Unavailable and Invalid."""
    with open_snapshot(piece.shard, piece.url) as (_, link):
        dialect = link.database.dialect
        lanes = None
        if not wanted.all_lanes or set(LANE_COLUMNS) & set(schema.names):
            lanes = _Lanes(link, dialect, wanted)
            if not lanes.numbers:
                return
        packs = link.database.reads_in_python
        pages = _Pages(link, dialect, piece, schema.names, wanted, lanes, page_rows, packs=packs)
        for numbers, blobs in pages:
            batch = _batch(piece.shard, schema, numbers, blobs, lanes)
            if batch.num_rows:
                yield batch


class _Lanes:
    """Return the wanted lanes."""

    def __init__(self, link: Link, dialect: Dialect, wanted: Wanted) -> None:
        self.numbers: list[int] = []
        texts: list[list[str]] = []
        throttles: list[tuple[str, ...]] = []
        rules: list[str | None] = []
        for number, *names, stored, packed in link.fetch(lanes_sql(dialect, wanted)):
            self.numbers.append(number)
            texts.append([bytes(name).decode("utf-8", "replace") for name in names])
            throttles.append(unpack_throttles(bytes(stored)))
            rules.append(pack_rules(unpack_rules(bytes(packed))).decode() or None)
        self.all = wanted.all_lanes
        self.keys = pa.array(self.numbers, pa.int64())
        self.names = {
            name: pa.array([row[at] for row in texts], pa.string()) for at, name in enumerate(LANE_COLUMNS[:-2])
        }
        self.names["throttle_keys"] = pa.array(throttles, pa.list_(pa.string()))
        self.names["rules"] = pa.array(rules, pa.string())

    @property
    def sql(self) -> str:
        """SQL condition on lanes. Empty if all lanes are wanted, or more than a statement should list: `_batch` then
        drops the rest."""
        if self.all or len(self.numbers) > _LANES_IN_SQL:
            return ""
        return f" AND i.lane IN ({','.join(map(str, self.numbers))})"


class _Pages:
    """Yield numbers and blobs of each page, as Arrow columns by name, in the order of ids across pages."""

    def __init__(
        self,
        link: Link,
        dialect: Dialect,
        piece: Piece,
        names: Sequence[str],
        wanted: Wanted,
        lanes: _Lanes | None,
        page_rows: int,
        *,
        packs: bool,
    ) -> None:
        self._link = link
        self._piece = piece
        self._wanted = wanted
        self._dialect = dialect
        self._rows = page_rows
        self._bound = 0
        self._page_bytes = _PAGE_BYTES
        self._numbers = numbers_of(names)
        if lanes is not None and "lane" not in self._numbers:
            self._numbers.append("lane")
        self._blobs = [name for name in BODY_COLUMNS if name in names]
        for blob in self._blobs:
            if f"{blob}_bytes" not in self._numbers:
                self._numbers.append(f"{blob}_bytes")
        if packs:
            # A page is one packet: about half of it for the blobs, half for the numbers.
            ((packet,),) = link.fetch("SELECT @@max_allowed_packet")
            statement, self._bound = packed_set_up(packet * 9 // 10)
            link.execute(statement)
            self._page_bytes = min(_PAGE_BYTES, self._bound)
            self._rows = min(page_rows, max(1, self._bound // (NUMBER_CHARACTERS * len(self._numbers))))
        self._more = "" if lanes is None else lanes.sql
        self._packed, self._plain = (
            page_sql(self._dialect, self._numbers, self._blobs, wanted, packed=packed) for packed in (True, False)
        )

    def __iter__(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        after, high = self._piece.low, self._piece.high
        # The server must read a page to find its size, so a first page must not be a thousand times too large.
        rows = min(self._rows, _FIRST_ROWS) if self._blobs else self._rows
        while after < high:
            query = page_end_sql(self._dialect, after, high, rows, self._blobs, self._wanted)
            ends = self._link.fetch(query)
            last, count, size = ends[0] if ends else (high, rows, 0)
            if last is None:
                return
            if size > self._page_bytes and count > 1:
                rows = max(1, count * self._page_bytes // int(2 * size))
                continue
            found = self._fetch(after, last, int(size))
            if found is not None:
                yield found
            after = last
            if size < self._page_bytes // 4:
                rows = min(self._rows, rows * 2)

    def _fetch(self, after: int, last: int, size: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bounds = (after, last, self._more)
        if size <= self._bound and self._bound:
            ((lines, *blobs),) = self._link.fetch(self._packed.format(*bounds))
            if lines is None:
                return None
            numbers = _numbers(lines, self._numbers)
            return numbers, {
                name: _blob(data, numbers[f"{name}_bytes"]) for name, data in zip(self._blobs, blobs, strict=True)
            }
        rows = self._link.fetch(self._plain.format(*bounds))
        if not rows:
            return None
        found = dict(zip([*self._numbers, *self._blobs], zip(*rows, strict=True), strict=True))
        return (
            {name: pa.array(found[name], pa.int64()) for name in self._numbers},
            {name: pa.array(found[name], pa.binary()) for name in self._blobs},
        )


def _numbers(lines: str | bytes, names: Sequence[str]) -> dict[str, Any]:
    data = lines if isinstance(lines, bytes) else lines.encode()
    table = csv.read_csv(
        pa.BufferReader(data),
        read_options=csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(names)),
        convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, pa.int64())),
    )
    return {name: table[name].combine_chunks() for name in names}


def _blob(data: Any, lengths: Any) -> Any:
    """Return the values with `lengths`, which follow each other in `data`; the length -1 means null."""
    data = bytes(data)
    sizes = pc.max_element_wise(lengths, 0)
    ends = pc.cumulative_sum(sizes).cast(pa.int32())
    if len(data) != ends[-1].as_py():
        raise AssertionError("the server cut a string of values")
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    whole = pa.BinaryArray.from_buffers(pa.binary(), len(lengths), [None, offsets.buffers()[1], pa.py_buffer(data)])
    return pc.if_else(pc.less(lengths, 0), pa.scalar(None, pa.binary()), whole)


def _batch(shard: int, schema: Any, numbers: Mapping[str, Any], blobs: Mapping[str, Any], lanes: _Lanes | None) -> Any:
    made = []
    place = None if lanes is None else pc.index_in(numbers["lane"], lanes.keys)
    for field in schema:
        column = _column(field.name, shard, numbers, blobs, lanes, place)
        made.append(column if field.name == "headers" else column.cast(field.type))
    if place is None or place.null_count == 0:
        return pa.RecordBatch.from_arrays(made, schema=schema)
    kept = pc.is_valid(place)  # the remaining rows have unwanted lanes
    return pa.RecordBatch.from_arrays([column.filter(kept) for column in made], schema=schema)


def _column(  # noqa: PLR0911 - one for each kind of column
    name: str, shard: int, numbers: Mapping[str, Any], blobs: Mapping[str, Any], lanes: _Lanes | None, place: Any
) -> Any:
    match name:
        case "shard":
            return pa.repeat(pa.scalar(shard, pa.int32()), len(numbers["id"]))
        case "namespace" | "topic" | "fairness_key" | "throttle_keys" | "rules":
            assert lanes is not None
            return lanes.names[name].take(place)
        case "state":
            return _STATES.take(numbers["state"])
        case "delivery":
            return _DELIVERIES.take(pc.equal(numbers["delivery"], AT_MOST_ONCE).cast(pa.int8()))
        case "deliver_after" | "enqueued_at":
            return _time(numbers[name])
        case "expires_at" | "lease_expires_at" | "ended_at":
            return _time(_some(numbers[name]))
        case "lease_ms":
            return _some(numbers[name])
        case "progress_done" | "progress_total":
            return _some(numbers[name], none=-1)
        case "bytes":
            parts = (pc.max_element_wise(numbers[f"{blob}_bytes"], 0) for blob in BODY_COLUMNS)
            first, second, third = parts
            return pc.add(pc.add(first, second), third)
        case "payload" | "metadata":
            return blobs[name]
        case "headers":
            found = [None if one is None else _pairs(one) for one in blobs[name].to_pylist()]
            return pa.array(found, pa.map_(pa.string(), pa.string()))
        case _:
            return numbers[name]


def _some(values: Any, none: int = 0) -> Any:
    """Convert numbers; `none` means null."""
    return pc.if_else(pc.equal(values, none), pa.scalar(None, pa.int64()), values)


def _time(values_ms: Any) -> Any:
    return values_ms.cast(pa.timestamp("ms", "UTC"))


def _pairs(headers: bytes) -> list[tuple[str, str]]:
    """Decode text. Half a surrogate pair, which Java's strings may contain, is not valid UTF-8."""
    return list(json.loads(headers.decode("utf-8", "replace")).items())
