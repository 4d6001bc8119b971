"""Rows of Arrow batches as items, with a deduplication key if the frame has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from hashlib import blake2b
from itertools import repeat
from typing import Any

import pyarrow as pa

from foqs.checks import FIRST_TIME_MS, SMALL_TIME_MS
from foqs.client import Delivery, ItemSpec
from foqs.errors import Invalid
from foqs.spark.write_columns import COLUMNS
from foqs.spark.write_counts import RowCounts
from foqs.spark.write_known import short_hash


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
        )  # fmt: skip
        if fields != self._fields:
            self._fields = fields
            self._start = blake2b(repr(fields).encode("utf-8", "surrogatepass"), digest_size=16)
        made = self._start.copy()
        made.update(b"%d\0%b" % (spec.priority, spec.payload))
        digest = made.digest()
        number = self.counts.add(short_hash(digest))
        return f"{self._scope}:{digest.hex()}:{number}"


_DEFAULTS = {field.name: None if field.default is MISSING else field.default for field in fields(ItemSpec)}
_FIELDS = {"deliver_after": "deliver_after_ms", "expires_at": "expires_at_ms"}
"""Fields whose names differ from their columns."""


def specs_of(batch: Any, topic: str | None, keys: KeyMaker | None) -> Iterator[ItemSpec | Invalid]:
    """Yield an item for each row of a RecordBatch, or the reason why it has none. `topic` is used for rows that name
    none; `keys` makes keys for rows without one. A column without a name of ours is a header."""
    defaults = {**_DEFAULTS, "topic": topic}
    columns: dict[str, Iterable[Any]] = {name: repeat(default) for name, default in defaults.items()}
    extra: dict[str, list[str | None]] = {}
    for at, name in enumerate(batch.schema.names):
        our = name.lower()
        if our not in COLUMNS:
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
        elif isinstance(spec.delivery, Invalid):
            yield spec.delivery
        elif isinstance(spec.throttle_keys, Invalid):
            yield spec.throttle_keys
        elif isinstance(spec.headers, Invalid):
            yield spec.headers
        else:
            if keys is not None and spec.dedup_key is None:
                spec.dedup_key = keys.key(spec)
            yield spec


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
    if name == "delivery":
        return [default if text is None else _delivery(text) for text in values]
    return values if default is None else [default if value is None else value for value in values]


def _time_ms(at_ms: int) -> int:
    """Return a column's time in milliseconds, 0 for one of the first years: a number so small looks like another unit.
    Both are in the past."""
    return at_ms if at_ms < SMALL_TIME_MS or at_ms >= FIRST_TIME_MS else 0


def _delivery(text: str) -> Delivery | Invalid:
    try:
        return Delivery[text.upper()]
    except KeyError:
        return Invalid(f"delivery is {text!r}, not one of {', '.join(Delivery.__members__)}")
