"""Reads as SQL text. Each one reads a range of an index in its order, and returns every row that it reads.

The exceptions: `look` finds rows one by one, and `timer_of_lanes` reads the timers of other lanes too.
"""

from __future__ import annotations

from collections.abc import Sequence

from foqs.rows import BACKLOG_SHIFT, Key
from foqs.store.dialect import Dialect
from foqs.store.tables import DEDUP_BY_EXPIRY, FAILURE_OF_ITEM, TIMER_OF_ITEM

_BODY = (
    "i.id, i.lane, i.priority, i.deliver_after, i.enqueued_at, i.expires_at, i.lease_ms, i.delivery, i.payload, "
    "i.metadata, i.headers"
)
BODY_COLUMNS = 11
_TIMER = "t.due, t.id, t.lane, t.lease, t.attempt, t.lease_ms, t.bytes"
TIMER_COLUMNS = 7
TIMERS = "SELECT lane, COUNT(*), COUNT(NULLIF(lease, 0)) FROM timer GROUP BY lane"
LANE_NUMBERS = "SELECT lane FROM lane"
READY_LANES = "SELECT DISTINCT lane FROM ready"
DEAD_LANES = "SELECT DISTINCT lane FROM failure"
MAX_ID = "SELECT MAX(id) FROM item"
SHARD = "SELECT epoch, seq FROM shard WHERE one = 1"
INDEXED_TO = "SELECT indexed_to FROM shard WHERE one = 1"
IDENTITY = "SELECT identity FROM shard WHERE one = 1"
_ENDED_MS = 1
# When the item `i` could be delivered first, since its enqueue or its last redrive.
_SINCE = "COALESCE(i.first_at, i.deliver_after)"
"""The time of leases that are ended before they are over."""


def with_rows(dialect: Dialect) -> str:
    """Joins what an item `i` has in `ready` and in `timer`."""
    return (
        f"LEFT JOIN {dialect.forced('ready', 'r')} ON r.lane = i.lane AND r.priority = i.priority "
        "AND r.deliver_after = i.deliver_after AND r.id = i.id "
        f"LEFT JOIN {dialect.forced('timer', 't', TIMER_OF_ITEM)} ON t.id = i.id"
    )


def lanes(above: int, limit: int) -> str:
    columns = "lane, ns, topic, fairness, throttles, weight"
    return f"SELECT {columns} FROM lane WHERE lane > {above:d} ORDER BY lane LIMIT {limit:d}"


def backlog(dialect: Dialect, above: int, end: int | None) -> str:
    """Counts the ready items of the lanes from above a number up to another one, or to the last."""
    bound = "" if end is None else f" AND lane <= {end:d}"
    return (
        f"SELECT lane, deliver_after >> {BACKLOG_SHIFT}, COUNT(*) FROM {dialect.forced('ready')} "
        f"WHERE lane > {above:d}{bound} GROUP BY 1, 2"
    )


def index_tail(dialect: Dialect, above: int) -> str:
    """Writes the missing rows of unindexed items, whose ids are greater than `above`. It reads every item behind it."""
    size = "LENGTH(i.payload) + COALESCE(LENGTH(i.metadata), 0) + COALESCE(LENGTH(i.headers), 0)"
    return (
        "INSERT INTO ready (lane, priority, deliver_after, id, attempt, lease, bytes) "
        f"SELECT i.lane, i.priority, i.deliver_after, i.id, 0, 0, {size} "
        f"FROM {dialect.forced('item', 'i')} {with_rows(dialect)} "
        f"WHERE i.id > {above:d} AND r.id IS NULL AND t.id IS NULL"
    )


def last_lease(limit: int) -> str:
    """The last time of the first `limit` leases, NULL if there is none."""
    first = f"SELECT due FROM timer WHERE lease <> 0 AND due > {_ENDED_MS} ORDER BY due LIMIT {limit:d}"
    return f"SELECT MAX(due) FROM ({first}) AS f"


def end_leases(until_ms: int) -> str:
    """Makes the leases up to that time end at once."""
    return f"UPDATE timer SET due = {_ENDED_MS} WHERE lease <> 0 AND due > {_ENDED_MS} AND due <= {until_ms:d}"


def clock(dialect: Dialect) -> str:
    return f"SELECT {dialect.clock_ms}"


def page(dialect: Dialect, lane: int, after: Key | None, limit: int) -> str:
    bound = "" if after is None else f" AND {dialect.behind(('priority', 'deliver_after', 'id'), after)}"
    return (
        "SELECT lane, priority, deliver_after, id, attempt, lease, bytes "
        f"FROM {dialect.forced('ready')} WHERE lane = {lane:d}{bound} "
        f"ORDER BY priority, deliver_after, id LIMIT {limit:d}"
    )


def page_of_lanes(dialect: Dialect, lanes: Sequence[int], limit: int) -> str:
    return (
        "SELECT lane, priority, deliver_after, id, attempt, lease, bytes "
        f"FROM {dialect.forced('ready')} WHERE lane IN ({','.join(map(str, lanes))}) "
        f"ORDER BY lane, priority, deliver_after, id LIMIT {limit:d}"
    )


def bodies(dialect: Dialect, ids: Sequence[int]) -> str:
    return f"SELECT {_BODY} FROM {dialect.forced('item', 'i')} WHERE i.id IN ({','.join(map(str, ids))})"


def look(dialect: Dialect, ids: Sequence[int]) -> str:
    """Bodies, then since when, then attempt, lease and bytes of `ready`, then the row of `timer`."""
    return (
        f"SELECT {_BODY}, {_SINCE}, r.attempt, r.lease, r.bytes, {_TIMER} "
        f"FROM {dialect.forced('item', 'i')} {with_rows(dialect)} WHERE i.id IN ({','.join(map(str, ids))})"
    )


def due(dialect: Dialect, from_ms: int, now_ms: int, limit: int, after_id: int = 0) -> list[str]:
    """The rows, and beside them the next time and the clock."""
    begin = f"t.due >= {from_ms:d}" if not after_id else dialect.behind(("t.due", "t.id"), (from_ms, after_id))
    rows = (
        f"SELECT {_TIMER}, i.priority, i.deliver_after, i.expires_at, i.delivery, {_SINCE} "
        f"FROM {dialect.forced('timer', 't')} {dialect.ordered_join} {dialect.forced('item', 'i')} "
        f"ON i.id = t.id "
        f"WHERE {begin} AND t.due <= {now_ms:d} ORDER BY t.due, t.id LIMIT {limit:d}"
    )
    return [rows, f"SELECT MIN(due), {dialect.clock_ms} FROM timer WHERE due > {now_ms:d}"]


def expiring(dialect: Dialect, from_ms: int, now_ms: int, after: tuple[int, int] | None, limit: int) -> list[str]:
    """Times and ids, and beside them the next time and the clock. Joined with `item`, MySQL would begin at the first
    row of the table, below `from_ms`."""
    bound = "" if after is None else f" AND {dialect.behind(('at_ms', 'id'), after)}"
    rows = (
        f"SELECT at_ms, id FROM {dialect.forced('expiry')} "
        f"WHERE at_ms >= {from_ms:d} AND at_ms <= {now_ms:d}{bound} ORDER BY at_ms, id LIMIT {limit:d}"
    )
    return [rows, f"SELECT MIN(at_ms), {dialect.clock_ms} FROM expiry WHERE at_ms > {now_ms:d}"]


def sizes(dialect: Dialect, ids: Sequence[int]) -> str:
    """An unindexed item counts as nothing: to measure its body is to read it, and the bytes of the tail are bounded."""
    return (
        f"SELECT i.id, COALESCE(r.bytes, t.bytes, 0) FROM {dialect.forced('item', 'i')} {with_rows(dialect)} "
        f"WHERE i.id IN ({','.join(map(str, ids))})"
    )


def timer_of_lanes(
    dialect: Dialect, lanes: Sequence[int], leased: bool, after: tuple[int, int] | None, limit: int
) -> str:
    bound = "" if after is None else f" AND {dialect.behind(('due', 'id'), after)}"
    return (
        "SELECT due, id, lane, lease, attempt, lease_ms, bytes "
        f"FROM {dialect.forced('timer')} WHERE lane IN ({','.join(map(str, lanes))}) "
        f"AND lease {'<>' if leased else '='} 0{bound} "
        f"ORDER BY due, id LIMIT {limit:d}"
    )


def failures(dialect: Dialect, ids: Sequence[int]) -> str:
    return (
        "SELECT lane, fingerprint, id, cause, attempts, died_at, topic, fairness, reason, throttles "
        f"FROM {dialect.forced('failure', index=FAILURE_OF_ITEM)} WHERE id IN ({','.join(map(str, ids))})"
    )


def dedup(dialect: Dialect, digests: Sequence[bytes]) -> str:
    listed = ",".join([f"x'{digest.hex()}'" for digest in digests])
    return f"SELECT digest, content, id, expires_at FROM {dialect.forced('dedup')} WHERE digest IN ({listed})"


def dedup_between(dialect: Dialect, low: bytes, high: bytes, limit: int) -> str:
    return (
        f"SELECT digest, content, id, expires_at FROM {dialect.forced('dedup')} "
        f"WHERE digest >= x'{low.hex()}' AND digest <= x'{high.hex()}' ORDER BY digest LIMIT {limit:d}"
    )


def dedup_expired(dialect: Dialect, from_ms: int, now_ms: int, limit: int) -> list[str]:
    """The first time; the last of `limit` rows, where there are so many; and beside it the next time and the clock."""
    source = dialect.forced("dedup", index=DEDUP_BY_EXPIRY)
    last = (
        f"SELECT expires_at FROM {source} WHERE expires_at >= {from_ms:d} AND expires_at <= {now_ms:d} "
        f"ORDER BY expires_at LIMIT 1 OFFSET {limit - 1:d}"
    )
    first = f"SELECT MIN(expires_at) FROM {source} WHERE expires_at >= {from_ms:d} AND expires_at <= {now_ms:d}"
    return [first, last, f"SELECT MIN(expires_at), {dialect.clock_ms} FROM dedup WHERE expires_at > {now_ms:d}"]


def confirm(dialect: Dialect) -> str:
    return f"SELECT epoch, seq, {dialect.clock_ms}, {dialect.read_only} FROM shard WHERE one = 1"
