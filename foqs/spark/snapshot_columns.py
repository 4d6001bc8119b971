"""The columns of a snapshot, and the SQL that reads them. Pure.

Table `timer` alone determines the state: an item without a row there is ready, and may have no row in `ready` yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foqs.spark.snapshot_wanted import STATES, Wanted
from foqs.store.dialect import Dialect
from foqs.store.tables import LANE_OF_NAMES, TIMER_OF_ITEM

COLUMNS = {
    "id": "bigint", "shard": "int", "namespace": "string", "topic": "string", "state": "string", "priority": "int",
    "deliver_after": "timestamp", "enqueued_at": "timestamp", "expires_at": "timestamp",
    "lease_expires_at": "timestamp", "attempt": "int", "delivery": "string", "lease_ms": "bigint", "bytes": "int",
    "payload_bytes": "int", "fairness_key": "string", "throttle_keys": "array<string>",
}  # fmt: skip
"""Names and types in Spark's spelling, in order."""
BODY_COLUMNS = {"payload": "binary", "metadata": "binary", "headers": "map<string,string>"}
LANE_COLUMNS = ("namespace", "topic", "fairness_key", "throttle_keys")
"""The names of an item's lane."""
NULLABLE = frozenset({"expires_at", "lease_expires_at", "lease_ms", "metadata", "headers"})

_STATE = "CASE WHEN t.id IS NULL THEN 0 WHEN t.lease = 0 THEN 1 ELSE 2 END"
_NUMBERS = {
    "id": "i.id",
    "lane": "i.lane",
    "state": _STATE,
    "priority": "i.priority",
    "deliver_after": "i.deliver_after",
    "enqueued_at": "i.enqueued_at",
    "expires_at": "i.expires_at",
    "lease_expires_at": "CASE WHEN t.lease <> 0 THEN t.due ELSE 0 END",
    "attempt": "COALESCE(r.attempt, t.attempt, 0)",
    "delivery": "i.delivery",
    "lease_ms": "i.lease_ms",
    "payload_bytes": "LENGTH(i.payload)",
    "metadata_bytes": "IFNULL(LENGTH(i.metadata), -1)",
    "headers_bytes": "IFNULL(LENGTH(i.headers), -1)",
}
_NEEDS = {
    "shard": (), **dict.fromkeys(LANE_COLUMNS, ("lane",)), "payload": ("payload_bytes",),
    "metadata": ("metadata_bytes",), "headers": ("headers_bytes",),
    # The column `bytes` of a row is older than metadata that a nack has replaced.
    "bytes": ("payload_bytes", "metadata_bytes", "headers_bytes"),
}  # fmt: skip
NUMBER_CHARACTERS = 21
"""Bytes of the longest number with its separator."""


def numbers_of(columns: Iterable[str]) -> list[str]:
    """Return the numbers to read for `columns`; never none."""
    needed = {number for column in columns for number in _NEEDS.get(column, (column,))} | {"id"}
    return [name for name in _NUMBERS if name in needed]


def blobs_of(columns: Iterable[str]) -> list[str]:
    return [name for name in BODY_COLUMNS if name in set(columns)]


def lanes(dialect: Dialect, wanted: Wanted) -> str:
    """Return the SQL for number, namespace, topic, fairness key and stored throttle keys of each wanted lane."""
    names = (("ns", wanted.namespace), ("topic", wanted.topic))
    given = " AND ".join(f"{column} = x'{_utf8(name).hex()}'" for column, name in names if name is not None)
    table = dialect.forced("lane", index=LANE_OF_NAMES) if wanted.namespace is not None else "lane"
    return f"SELECT lane, ns, topic, fairness, throttles FROM {table}{f' WHERE {given}' if given else ''}"


def page_end(dialect: Dialect, after: int, high: int, rows: int, blobs: Sequence[str], wanted: Wanted) -> str:
    """Return the SQL for the end of the next page: its last id, its number of items, and the bytes of their `blobs`.
    The page is of all items, or of all rows of `timer` if only those are wanted. The answer has one row; without blobs
    it has none for the last page if that is shorter."""
    key, tables = _from(dialect, wanted, bodies=bool(blobs))
    ids = f"FROM {tables} WHERE {key} > {after:d} AND {key} <= {high:d} ORDER BY {key} LIMIT"
    if not blobs:
        return f"SELECT {key}, {rows:d}, 0 {ids} 1 OFFSET {rows - 1:d}"
    size = " + ".join(f"IFNULL(LENGTH(i.{blob}), 0)" for blob in blobs)
    return (
        f"SELECT MAX(id), COUNT(*), CAST(SUM(size) AS {'SIGNED' if dialect.one_packet else 'INTEGER'}) "
        f"FROM (SELECT {key}, {size} AS size {ids} {rows:d}) AS page"
    )


def page(dialect: Dialect, numbers: Sequence[str], blobs: Sequence[str], wanted: Wanted, *, packed: bool) -> str:
    """Return the SQL for a page: one row for each item, numbers first. Packed, it is one row for all items: the numbers
    as lines of text, each blob as one string.

    Fill `{0}`, `{1}` and `{2}` with the id before the page, its last id, and further conditions.
    """
    expressions = [_NUMBERS[number] for number in numbers]
    if packed:
        lines = f"GROUP_CONCAT(CONCAT_WS(',', {', '.join(expressions)}) SEPARATOR '\\n')"
        selected = [lines, *(f"GROUP_CONCAT(IFNULL(i.{blob}, '') SEPARATOR '')" for blob in blobs)]
    else:
        selected = [*expressions, *(f"i.{blob}" for blob in blobs)]
    key, tables = _from(dialect, wanted, bodies=True)
    if "attempt" in numbers:
        tables += (
            f" LEFT JOIN {dialect.forced('ready', 'r')} ON r.lane = i.lane AND r.priority = i.priority "
            "AND r.deliver_after = i.deliver_after AND r.id = i.id"
        )
    if key == "i.id" and (wanted.state or {"state", "lease_expires_at", "attempt"} & set(numbers)):
        tables += f" LEFT JOIN {dialect.forced('timer', 't', TIMER_OF_ITEM)} ON t.id = i.id"
    state = f" AND {_STATE} = {STATES.index(wanted.state)}" if wanted.state is not None else ""
    # MySQL would start with `timer` if a condition needs a row there, and read all of it.
    order = f"{dialect.ordered_join} " if dialect.one_packet else ""
    return f"SELECT {order}{', '.join(selected)} FROM {tables} WHERE {key} > {{0:d}} AND {key} <= {{1:d}}{state}{{2}}"


def _from(dialect: Dialect, wanted: Wanted, *, bodies: bool) -> tuple[str, str]:
    """Return the column that pages follow, and the tables that it needs: `timer` is the much shorter table in most
    queues."""
    item = dialect.forced("item", "i")
    if wanted.state in (None, "ready"):
        return "i.id", item
    timer = dialect.forced("timer", "t", TIMER_OF_ITEM)
    return "t.id", f"{timer} {dialect.ordered_join} {item} ON i.id = t.id" if bodies else timer


def _utf8(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
