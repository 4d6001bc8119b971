"""A range of a shard as Arrow batches, one for each page.

PyMySQL builds rows in Python, at 7 us and more each. So the server packs a page into one row: its numbers are lines of
text, which Arrow parses, and a blob of all items is one string, which becomes an Arrow column without a copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from foqs.fairness.keys import unpack_throttles
from foqs.rows import AT_MOST_ONCE
from foqs.spark import snapshot_columns as columns
from foqs.spark.snapshot_shards import Piece, snapshot
from foqs.spark.snapshot_wanted import STATES, Wanted
from foqs.store import reads as packed
from foqs.store.dialect import MYSQL, SQLITE, Dialect
from foqs.store.link import Link

_PAGE_BYTES = 8 << 20
_FIRST_ROWS = 64
_LANES_IN_SQL = 1_000
_STATES = pa.array(STATES)
_DELIVERIES = pa.array(("AT_LEAST_ONCE", "AT_MOST_ONCE"))


def read(piece: Piece, schema: Any, wanted: Wanted, page_rows: int) -> Iterator[Any]:
    """Yield RecordBatches of `schema`, an Arrow schema of foqs columns. Each has at most `page_rows` items and at most
    8 MiB of bodies, unless one item is larger. Raises Unavailable and Invalid."""
    with snapshot(piece.shard, piece.url) as (_, database, link):
        dialect = SQLITE if database.is_file else MYSQL
        lanes = None
        if not wanted.all_lanes or set(columns.LANE_COLUMNS) & set(schema.names):
            lanes = _Lanes(link, dialect, wanted)
            if not lanes.numbers:
                return
        packs = database.reads_in_python
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
        for number, *names, stored in link.fetch(columns.lanes(dialect, wanted)):
            self.numbers.append(number)
            texts.append([bytes(name).decode("utf-8", "replace") for name in names])
            throttles.append(unpack_throttles(bytes(stored)))
        self.all = wanted.all_lanes
        self.keys = pa.array(self.numbers, pa.int64())
        self.names = {
            name: pa.array([row[at] for row in texts], pa.string()) for at, name in enumerate(columns.LANE_COLUMNS[:-1])
        }
        self.names["throttle_keys"] = pa.array(throttles, pa.list_(pa.string()))

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
        self._numbers = columns.numbers_of(names)
        if lanes is not None and "lane" not in self._numbers:
            self._numbers.append("lane")
        self._blobs = columns.blobs_of(names)
        for blob in self._blobs:
            if f"{blob}_bytes" not in self._numbers:
                self._numbers.append(f"{blob}_bytes")
        if packs:
            # A page is one packet: about half of it for the blobs, half for the numbers.
            ((packet,),) = link.fetch("SELECT @@max_allowed_packet")
            statement, self._bound = packed.packed_set_up(packet * 9 // 10)
            link.execute(statement)
            self._page_bytes = min(_PAGE_BYTES, self._bound)
            self._rows = min(page_rows, max(1, self._bound // (columns.NUMBER_CHARACTERS * len(self._numbers))))
        self._more = "" if lanes is None else lanes.sql
        self._packed, self._plain = (
            columns.page(self._dialect, self._numbers, self._blobs, wanted, packed=packed) for packed in (True, False)
        )

    def __iter__(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        after, high = self._piece.low, self._piece.high
        # The server must read a page to find its size, so a first page must not be a thousand times too large.
        rows = min(self._rows, _FIRST_ROWS) if self._blobs else self._rows
        while after < high:
            query = columns.page_end(self._dialect, after, high, rows, self._blobs, self._wanted)
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
        case "namespace" | "topic" | "fairness_key" | "throttle_keys":
            assert lanes is not None
            return lanes.names[name].take(place)
        case "state":
            return _STATES.take(numbers["state"])
        case "delivery":
            return _DELIVERIES.take(pc.equal(numbers["delivery"], AT_MOST_ONCE).cast(pa.int8()))
        case "deliver_after" | "enqueued_at":
            return _time(numbers[name])
        case "expires_at" | "lease_expires_at":
            return _time(_some(numbers[name]))
        case "lease_ms":
            return _some(numbers[name])
        case "bytes":
            parts = (pc.max_element_wise(numbers[f"{blob}_bytes"], 0) for blob in columns.BODY_COLUMNS)
            first, second, third = parts
            return pc.add(pc.add(first, second), third)
        case "payload" | "metadata":
            return blobs[name]
        case "headers":
            found = [None if one is None else _pairs(one) for one in blobs[name].to_pylist()]
            return pa.array(found, pa.map_(pa.string(), pa.string()))
        case _:
            return numbers[name]


def _some(values: Any) -> Any:
    """Convert numbers; 0 means null."""
    return pc.if_else(pc.equal(values, 0), pa.scalar(None, pa.int64()), values)


def _time(values_ms: Any) -> Any:
    return values_ms.cast(pa.timestamp("ms", "UTC"))


def _pairs(headers: bytes) -> list[tuple[str, str]]:
    """Decode text. Half a surrogate pair, which Java's strings may contain, is not valid UTF-8."""
    return list(json.loads(headers.decode("utf-8", "replace")).items())
