"""Rows of Arrow batches as items, with a deduplication key if the frame has none.

With the keys of `dedupKeys=row`, each task numbers its equal rows 0, 1, 2 and so on. The service takes equal rows of
two tasks for two attempts at the same rows. If one task has 2 and another 3 of them, the service stores the numbers 0
to 2. The driver knows the rows that all tasks sent, and stores the missing numbers 3 and 4. So the keys depend on the
rows of a batch only, and a repetition with other partitions stores nothing again. The bodies of such rows come from the
tasks (`write_files.Known`).
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, repeat
from struct import Struct
from tempfile import TemporaryFile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from foqs.checks import FIRST_TIME_MS, SMALL_TIME_MS
from foqs.client import DedupUntil, Delivery, ItemSpec, OnDuplicate
from foqs.client.rules import ItemRules, rules_of_json
from foqs.errors import Invalid
from foqs.spark.options import WRITE_COLUMNS
from foqs.spark.write_files import KEPT_BYTES, Kept, read_kept, short_hash
from foqs.travel import bare

IN_MEMORY_ROWS = 1 << 19
"""Distinct rows up to which a task uses no file."""
_SLOT = Struct("=QQ")
"""The hash of a row, and its count plus one; an empty slot has a 0 there."""
_PROBE_BYTES = 4 * _SLOT.size
_RUN_BYTES = _SLOT.size << 12
_DEFAULTS = {field.name: None if field.default is MISSING else field.default for field in fields(ItemSpec)}
_FIELDS = {"deliver_after": "deliver_after_ms", "expires_at": "expires_at_ms"}
"""Fields whose names differ from their columns."""
_ENUMS: dict[str, type[IntEnum]] = {"delivery": Delivery, "dedup_until": DedupUntil, "on_duplicate": OnDuplicate}

Counted = Iterable[tuple[int, int]]
"""Pairs of a row and its count."""


class KeyMaker:
    """Make keys from rows, so a row that Spark computes again gets the same key. Equal rows are numbered from 0.

    Keep 8 bytes of the hash of each distinct row and its count: see `RowCounts`.
    """

    def __init__(self, scope: str) -> None:
        """Keys are unique within `scope`, such as "job:partition" or "query:batch"."""
        self._scope = scope
        self.counts = RowCounts()
        self._fields: tuple[Any, ...] = ()
        self._start = blake2b(digest_size=16)  # fields whose values are often the same in consecutive rows

    def key(self, spec: ItemSpec) -> str:
        fields: tuple[Any, ...] = (
            spec.topic, spec.deliver_after_ms, spec.delay_ms, spec.lease_ms, spec.ttl_ms, spec.metadata,
            spec.headers and sorted(spec.headers.items()), spec.delivery, spec.fairness_key,
            spec.throttle_keys and sorted(spec.throttle_keys), spec.weight, spec.expires_at_ms,
            *(() if spec.rules is None else (spec.rules,)),  # rows without keep the keys of earlier versions
        )  # fmt: skip
        if fields != self._fields:
            self._fields = fields
            self._start = blake2b(repr(fields).encode("utf-8", "surrogatepass"), digest_size=16)
        made = self._start.copy()
        made.update(b"%d\0%b" % (spec.priority, spec.payload))
        digest = made.digest()
        number = self.counts.add(short_hash(digest))
        return f"{self._scope}:{digest.hex()}:{number}"


def specs_of(batch: Any, topic: str | None, keys: KeyMaker | None) -> Iterator[ItemSpec | Invalid]:
    """Yield an item for each row of a RecordBatch, or the reason why it has none. `topic` is used for rows that name
    none; `keys` makes keys for rows without one. A column without a name of ours is a header."""
    defaults = {**_DEFAULTS, "topic": topic}
    columns: dict[str, Iterable[Any]] = {name: repeat(default) for name, default in defaults.items()}
    extra: dict[str, list[str | None]] = {}
    for at, name in enumerate(batch.schema.names):
        our = name.lower()
        if our not in WRITE_COLUMNS:
            extra[name] = batch.column(at).cast(pa.string()).to_pylist()
            continue
        field = _FIELDS.get(our, our)
        columns[field] = _values(our, batch.column(at), defaults[field])
    if extra:
        columns["headers"] = list(_with_extra(columns["headers"], extra))
    specs: Iterator[Any] = map(ItemSpec, *[columns[name] for name in defaults])  # not yet the types of an ItemSpec
    for spec in specs:
        if spec.payload is None:
            yield Invalid("payload is null")
        elif spec.topic is None:
            yield Invalid("topic is null")
        elif (wrong := _wrong(spec)) is not None:
            yield wrong
        else:
            own = spec.dedup_key is not None or spec.dedup_until is not None or spec.on_duplicate is not None
            if keys is not None and not own and not spec.order_key:
                spec.dedup_key = keys.key(spec)  # the service refuses such a row with dedup_until: it needs its own key
            yield spec


def _wrong(spec: Any) -> Invalid | None:
    for value in (spec.delivery, spec.dedup_until, spec.on_duplicate, spec.throttle_keys, spec.headers, spec.rules):
        if isinstance(value, Invalid):
            return value
    return None


def _with_extra(
    headers: Iterable[dict[str, str] | None], extra: dict[str, list[str | None]]
) -> Iterator[dict[str, str] | Invalid | None]:
    """Yield the headers of each row with the values of its extra columns. A null is no header."""
    for given, values in zip(headers, zip(*extra.values(), strict=True), strict=False):
        found = {name: value for name, value in zip(extra, values, strict=True) if value is not None}
        other = [name for name in found if given is not None and given.get(name, found[name]) != found[name]]
        if other:
            yield Invalid(f"the column {other[0]} and the column headers have two values of the header {other[0]!r}")
        else:
            yield {**(given or {}), **found} if found else given


def _values(name: str, column: Any, default: Any) -> list[Any]:
    """Return the values of an item field; `default` where the column is null."""
    if name in _FIELDS:
        # Spark's timestamps have microseconds, in UTC; round up, so that an item is never due or removed too early.
        return [None if at is None else _time_ms(-(-at // 1000)) for at in column.cast(pa.int64()).to_pylist()]
    if name in ("payload", "metadata") and column.type in (pa.string(), pa.large_string()):
        column = column.cast(pa.binary())
    values: list[Any] = column.to_pylist()
    if name == "headers":
        return [None if pairs is None else dict(pairs) for pairs in values]
    if name == "throttle_keys":
        return [Invalid("throttle_keys has a null") if keys and None in keys else keys for keys in values]
    if name == "rules":
        return [None if text is None else _rules(text) for text in values]
    if name in _ENUMS:
        return [default if text is None else _member(name, text) for text in values]
    return values if default is None else [default if value is None else value for value in values]


def _time_ms(at_ms: int) -> int:
    """Return a column's time in milliseconds, 0 for one of the first years: a number so small looks like another unit.
    Both are in the past."""
    return at_ms if at_ms < SMALL_TIME_MS or at_ms >= FIRST_TIME_MS else 0


@lru_cache(maxsize=1_000)
def _rules(text: str) -> ItemRules | Invalid:
    try:
        return rules_of_json(json.loads(text))
    except (ValueError, RecursionError):
        return Invalid(f"rules is not JSON: {text[:40]!r}")
    except Invalid as error:
        return bare(error)


def _member(name: str, text: str) -> IntEnum | Invalid:
    try:
        return _ENUMS[name][text.upper()]
    except KeyError:
        return Invalid(f"{name} is {text!r}, not one of {', '.join(_ENUMS[name].__members__)}")


# ------------------------------------------------------------------------------------------------ equal rows


@dataclass
class Sent:
    """What one task sent with keys made of rows.

    hashes   8 bytes for each distinct row
    repeats  how many rows are equal, where more than one is
    kept     the rows that the service knew before
    """

    hashes: bytes
    repeats: dict[int, int]
    kept: Kept = field(default_factory=Kept)

    @classmethod
    def of(cls, counts: RowCounts, kept: Kept) -> Sent:
        return cls(counts.hashes(), counts.repeats(), kept)


def missing_rows(
    tasks: Sequence[Sent], read: Callable[[str], Iterator[tuple[int, ItemSpec]]] = read_kept
) -> Iterator[ItemSpec]:
    """Yield the items that no task sent, because all tasks number equal rows alike. One row of each task's file is in
    memory at a time. Raises Invalid at the end if a needed row was not kept."""
    needed = _needed(tasks)
    for task in tasks:
        for row in needed.keys() & task.kept.rows.keys():
            yield from _numbered(task.kept.rows[row], *needed.pop(row))
    why = [task.kept.why for task in tasks if task.kept.why]
    for task in tasks:
        if not needed or task.kept.file is None:
            continue
        try:
            for row, spec in read(task.kept.file):
                if row in needed:
                    yield from _numbered(spec, *needed.pop(row))
        except OSError as error:
            why.append(f"the driver could not read what a task kept: {error}")
    if needed:
        lost = sum(total - most for most, total in needed.values())
        raise Invalid(
            f"{lost} rows are equal to rows of other partitions, and are not stored. A task reports {KEPT_BYTES >> 20} "
            f"MiB of such rows, and these are more{': ' if why else ''}{why[0] if why else ''}. Set the option "
            "equalRowsPath to a folder or URL that the driver and all tasks can use, or bring equal rows into one "
            "partition (frame.repartition('payload')). Then write the frame, or start the query, again: no row is "
            "stored twice"
        )


def _numbered(spec: ItemSpec, most: int, total: int) -> Iterator[ItemSpec]:
    prefix = str(spec.dedup_key).rpartition(":")[0]
    for number in range(most, total):
        yield replace(spec, dedup_key=f"{prefix}:{number}")


def _needed(tasks: Sequence[Sent]) -> dict[int, tuple[int, int]]:
    """Return the rows of several tasks: the most equal ones of a task, and of all tasks together."""
    needed: dict[int, tuple[int, int]] = {}
    shared = _in_several([task.hashes for task in tasks])
    if not len(shared):
        return needed
    for task in tasks:
        hashes = _column(task.hashes)
        for row in hashes.filter(pc.is_in(hashes, value_set=shared)).to_pylist():
            count = task.repeats.get(row, 1)
            most, total = needed.get(row, (0, 0))
            needed[row] = max(most, count), total + count
    return needed


def _in_several(parts: Iterable[bytes]) -> pa.Array:
    # Sorted: that takes a fifth of the memory of a counter.
    found = pa.concat_arrays([pa.array([], pa.uint64()), *map(_column, parts)])
    found = found.take(pc.sort_indices(found))
    return pc.unique(found[1:].filter(pc.equal(found[1:], found[:-1])))


def _column(hashes: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.uint64(), len(hashes) // 8, [None, pa.py_buffer(hashes)])


# ------------------------------------------------------------------------------------------------ counts


class RowCounts:
    """Counts of rows by their hashes of 8 bytes: in memory up to a number of rows, then on the task's disk."""

    def __init__(self, in_memory_rows: int = IN_MEMORY_ROWS) -> None:
        self._most = in_memory_rows
        self._few: dict[int, int] = {}
        self._table: _Table | None = None

    def add(self, row: int) -> int:
        """Count a row. Return how many equal ones were counted before. Raises OSError if the disk is full."""
        if self._table is not None:
            return self._table.add(row, 1)
        before = self._few.get(row, 0)
        self._few[row] = before + 1
        if len(self._few) > self._most:
            self._table = _Table()
            self._table.fill(2 * len(self._few), self._few.items())
            self._few = {}
        return before

    def forget(self, row: int) -> None:
        """Set the count of a row to 0."""
        if self._table is not None:
            self._table.forget(row)
        else:
            self._few.pop(row, None)

    def hashes(self) -> bytes:
        """Return the hashes of the counted rows, 8 bytes each, in no order."""
        if self._table is None:
            return array("Q", self._few).tobytes()
        runs = (array("Q", [row for row, count in run if count]) for run in self._table.runs())
        return b"".join(run.tobytes() for run in runs)

    def repeats(self) -> dict[int, int]:
        """Return the counts above 1."""
        found = self._few.items() if self._table is None else chain.from_iterable(self._table.runs())
        return {row: count for row, count in found if count > 1}

    def close(self) -> None:
        if self._table is not None:
            self._table.close()


class _Table:
    """Hash table with linear probing, in a file without a name. Read and written by slots, not mapped: pages of a
    mapped file count as memory of the process."""

    def __init__(self) -> None:
        self._open()

    def fill(self, slots: int, counts: Counted) -> None:
        """Make the empty table one of at least `slots`, with these counts."""
        self._slots = 1 << (slots - 1).bit_length()
        self._file.truncate(self._slots * _SLOT.size)
        for row, count in counts:
            self.add(row, count)

    def add(self, row: int, count: int) -> int:
        """Add to the count of a row, and return the count before."""
        at, kept = self._find(row)
        if not kept:
            if 2 * self._used >= self._slots:
                self._grow()
                at, _ = self._find(row)
            self._used += 1
            kept = 1
        os.pwrite(self._number, _SLOT.pack(row, kept + count), at)
        return kept - 1

    def forget(self, row: int) -> None:
        at, kept = self._find(row)
        if kept:
            os.pwrite(self._number, _SLOT.pack(row, 1), at)

    def runs(self) -> Iterator[Counted]:
        """Yield the rows with their counts, one run after the other."""
        return _runs(self._number)

    def close(self) -> None:
        self._file.close()

    def _open(self) -> None:
        self._file = TemporaryFile(dir=local_folder())  # noqa: SIM115 - open until `close`
        self._number = self._file.fileno()
        self._slots = self._used = 0

    def _find(self, row: int) -> tuple[int, int]:
        """Return where the row's slot is, or the empty one for it, with the count plus one."""
        at = (row & (self._slots - 1)) * _SLOT.size
        while True:
            for found, kept in _SLOT.iter_unpack(os.pread(self._number, _PROBE_BYTES, at)):
                if not kept or found == row:
                    return at, kept
                at += _SLOT.size
            at %= self._slots * _SLOT.size

    def _grow(self) -> None:
        slots = self._slots
        with self._file as old:
            self._open()
            self.fill(2 * slots, chain.from_iterable(_runs(old.fileno())))


def _runs(file: int) -> Iterator[Counted]:
    at = 0
    while run := os.pread(file, _RUN_BYTES, at):
        at += len(run)
        yield [(row, kept - 1) for row, kept in _SLOT.iter_unpack(run) if kept]


def local_folder() -> str | None:
    """Return Spark's folder for temporary files, if the process has one."""
    return next(filter(os.path.isdir, os.environ.get("SPARK_LOCAL_DIRS", "").split(",")), None)
