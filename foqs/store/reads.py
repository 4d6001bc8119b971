"""Reads of a shard: their SQL, and the rows that a host knows. They raise the driver's errors.

Each statement reads a bounded range of an index in its order, and returns every row that it reads. The exceptions:
`look` finds rows one by one, and `list_timer` reads the timers of other lanes too. A shard with millions of dead
letters does not stop for a statement.

A driver in Python gets many rows in one string, made by the server. PyMySQL takes 7 to 13 us of CPU for each row of a
page or of bodies; packed it takes 2 and 4. mysqlclient reads rows in C and is faster without. The server cuts a result
that does not fit its bound on such strings, without an error. So a result near that bound is read again, plainly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.item_filter import ItemFacts
from foqs.rows import (
    BACKLOG_SHIFT,
    Body,
    DedupRow,
    DedupScan,
    DueRow,
    EndedRow,
    EndedState,
    ExpiringRow,
    FailureRow,
    Found,
    HeldKey,
    Key,
    LastFailure,
    ProgressRow,
    ReadyRow,
    Scan,
    TimerRow,
)
from foqs.store.dialect import ROWS, Dialect
from foqs.store.link import Link
from foqs.store.tables import (
    DEDUP_BY_EXPIRY,
    ENDED_BY_LANE,
    ENDED_OF_ITEM,
    FAILURE_OF_ITEM,
    HELD_KEY_BY_TIME,
    TIMER_OF_ITEM,
)

_BODY = (
    "i.id, i.lane, i.priority, i.deliver_after, i.enqueued_at, i.expires_at, i.lease_ms, i.delivery, i.payload, "
    "i.metadata, i.headers, i.order_key, i.order_at, NULL, COALESCE(i.batch, 0)"
)
BODY_COLUMNS = 15
_TIMER = "t.due, t.id, t.lane, t.lease, t.attempt, t.lease_ms, t.bytes"
TIMER_COLUMNS = 7
_ENDED = "d.until_ms, d.id, d.lane, d.state, d.attempt, d.ended_at, d.bytes"
ENDED_COLUMNS = 7
ENDED_SQL = (
    f"SELECT lane, COUNT(NULLIF(state, {EndedState.FAILED:d})), COUNT(NULLIF(state, {EndedState.COMPLETED:d})) "
    "FROM done GROUP BY lane"
)
TIMERS_SQL = "SELECT lane, COUNT(*), COUNT(NULLIF(lease, 0)) FROM timer GROUP BY lane"
LANE_NUMBERS = "SELECT lane FROM lane"
NOTED_SQL = "SELECT id, COALESCE(LENGTH(checkpoint), 0) FROM progress"
HOLDING_SQL = "SELECT id FROM held_key LIMIT 1"
READY_LANES = "SELECT DISTINCT lane FROM ready"
DEAD_LANES = "SELECT DISTINCT lane FROM failure"
MAX_ID = "SELECT MAX(id) FROM item"
SHARD_SQL = "SELECT epoch, seq FROM shard WHERE one = 1"
INDEXED_TO = "SELECT indexed_to FROM shard WHERE one = 1"
IDENTITY_SQL = "SELECT identity FROM shard WHERE one = 1"
RESTORED_SQL = "SELECT restored_ms, leases_ended FROM shard WHERE one = 1"
# When the item `i` could be delivered first, since its enqueue or its last redrive.
_SINCE = "COALESCE(i.first_at, i.deliver_after)"
_ENDED_MS = 1
"""The time of leases that are ended early."""
PACKED_BYTES = 8 << 20
_SLACK_BYTES = 16
_READY = "lane, priority, deliver_after, id, attempt, lease, bytes"
_HEAD = (
    "i.id, i.lane, i.priority, i.deliver_after, i.enqueued_at, i.expires_at, i.lease_ms, i.delivery, "
    "LENGTH(i.payload), IFNULL(LENGTH(i.metadata), -1), IFNULL(LENGTH(i.headers), -1)"
)
_HEAD_COLUMNS = 11
# NULL, which GROUP_CONCAT leaves out, for an item without an order key and a batch.
_PACKED_LINKS = (
    "GROUP_CONCAT(CASE WHEN i.order_at IS NOT NULL OR i.batch IS NOT NULL THEN CONCAT_WS(',', i.id, "
    "IFNULL(HEX(i.order_key), ''), IFNULL(HEX(i.order_at), ''), IFNULL(i.batch, 0)) END)"
)
SIZE = "LENGTH(i.payload) + COALESCE(LENGTH(i.metadata), 0) + COALESCE(LENGTH(i.headers), 0)"
_EXPIRING_BYTES = 4 << 20
"""Bodies in the result of a scan of TTLs."""
_UNION_LANES = 100
"""SQLite takes 500 parts of a UNION."""
LAST_ID = (1 << 63) - 1


def with_rows(dialect: Dialect) -> str:
    """Joins what an item `i` has in `ready` and in `timer`."""
    return (
        f"LEFT JOIN {dialect.forced('ready', 'r')} ON r.lane = i.lane AND r.priority = i.priority "
        "AND r.deliver_after = i.deliver_after AND r.id = i.id "
        f"LEFT JOIN {dialect.forced('timer', 't', TIMER_OF_ITEM)} ON t.id = i.id"
    )


def with_end(dialect: Dialect) -> str:
    """Joins what an item `i` has in `done`."""
    return f"LEFT JOIN {dialect.forced('done', 'd', ENDED_OF_ITEM)} ON d.id = i.id"


def lanes(above: int, limit: int) -> str:
    columns = "lane, ns, topic, fairness, throttles, weight, rules"
    return f"SELECT {columns} FROM lane WHERE lane > {above:d} ORDER BY lane LIMIT {limit:d}"


def backlog_sql(dialect: Dialect, above: int, end: int | None) -> str:
    """Counts the ready items of the lanes from above a number up to another one, or to the last."""
    bound = "" if end is None else f" AND lane <= {end:d}"
    return (
        f"SELECT lane, deliver_after >> {BACKLOG_SHIFT}, COUNT(*) FROM {dialect.forced('ready')} "
        f"WHERE lane > {above:d}{bound} GROUP BY 1, 2"
    )


def tail_sql(dialect: Dialect, above: int) -> str:
    """Reads the missing rows of unindexed items, whose ids are greater than `above`: all items behind it are read.
    An item with an order key lacks none."""
    return (
        f"SELECT i.lane, i.priority, i.deliver_after, i.id, 0, 0, {SIZE} "
        f"FROM {dialect.forced('item', 'i')} {with_rows(dialect)} {with_end(dialect)} "
        f"WHERE i.id > {above:d} AND r.id IS NULL AND t.id IS NULL AND d.id IS NULL AND i.order_at IS NULL"
    )


def index_tail(dialect: Dialect, above: int) -> str:
    """Writes these rows."""
    return f"INSERT INTO ready (lane, priority, deliver_after, id, attempt, lease, bytes) {tail_sql(dialect, above)}"


def last_lease_sql(limit: int) -> str:
    """The last time of the first `limit` leases, NULL if there is none."""
    first = f"SELECT due FROM timer WHERE lease <> 0 AND due > {_ENDED_MS} ORDER BY due LIMIT {limit:d}"
    return f"SELECT MAX(due) FROM ({first}) AS f"


def end_leases_sql(until_ms: int) -> str:
    """Makes the leases up to that time end at once."""
    return f"UPDATE timer SET due = {_ENDED_MS} WHERE lease <> 0 AND due > {_ENDED_MS} AND due <= {until_ms:d}"


def clock_sql(dialect: Dialect) -> str:
    return f"SELECT {dialect.clock_ms}"


def _within(priorities: tuple[int, int] | None) -> str:
    return "" if priorities is None else f" AND priority >= {priorities[0]:d} AND priority <= {priorities[1]:d}"


def page_sql(
    dialect: Dialect, lane: int, after: Key | None, limit: int, priorities: tuple[int, int] | None = None
) -> str:
    bound = _within(priorities)
    if after is not None and (priorities is None or priorities[0] <= after[0]):
        # One lower bound: of two, a server may begin at the one that leaves more rows.
        bound = f" AND {dialect.behind(('priority', 'deliver_after', 'id'), after)}"
        bound += "" if priorities is None else f" AND priority <= {priorities[1]:d}"
    return (
        f"SELECT {_READY} "
        f"FROM {dialect.forced('ready')} WHERE lane = {lane:d}{bound} "
        f"ORDER BY priority, deliver_after, id LIMIT {limit:d}"
    )


def page_of_lanes_sql(
    dialect: Dialect, lanes: Sequence[int], limit: int, priorities: tuple[int, int] | None = None
) -> str:
    return (
        f"SELECT {_READY} "
        f"FROM {dialect.forced('ready')} WHERE lane IN ({','.join(map(str, lanes))}){_within(priorities)} "
        f"ORDER BY lane, priority, deliver_after, id LIMIT {limit:d}"
    )


def bodies_sql(dialect: Dialect, ids: Sequence[int]) -> str:
    return f"SELECT {_BODY} FROM {dialect.forced('item', 'i')} WHERE i.id IN ({','.join(map(str, ids))})"


def look_sql(dialect: Dialect, ids: Sequence[int]) -> str:
    """Bodies, then since when and the last failure, then attempt, lease and bytes of `ready`, then the rows of `timer`
    and `done`."""
    return (
        f"SELECT {_BODY}, {_SINCE}, i.last_failure, r.attempt, r.lease, r.bytes, {_TIMER}, {_ENDED} "
        f"FROM {dialect.forced('item', 'i')} {with_rows(dialect)} {with_end(dialect)} "
        f"WHERE i.id IN ({','.join(map(str, ids))})"
    )


def due_sql(dialect: Dialect, from_ms: int, now_ms: int, limit: int, after_id: int = 0) -> list[str]:
    """Select the rows; then the next time and the clock."""
    begin = f"t.due >= {from_ms:d}" if not after_id else dialect.behind(("t.due", "t.id"), (from_ms, after_id))
    rows = (
        f"SELECT {_TIMER}, i.priority, i.deliver_after, i.expires_at, i.delivery, {_SINCE}, i.order_at "
        f"FROM {dialect.forced('timer', 't')} {dialect.ordered_join} {dialect.forced('item', 'i')} "
        f"ON i.id = t.id "
        f"WHERE {begin} AND t.due <= {now_ms:d} ORDER BY t.due, t.id LIMIT {limit:d}"
    )
    return [rows, f"SELECT MIN(due), {dialect.clock_ms} FROM timer WHERE due > {now_ms:d}"]


def expiring_sql(dialect: Dialect, from_ms: int, now_ms: int, after: tuple[int, int] | None, limit: int) -> list[str]:
    """Select times and ids; then the next time and the clock. Joined with `item`, MySQL would begin at the first
    row of the table, below `from_ms`."""
    bound = "" if after is None else f" AND {dialect.behind(('at_ms', 'id'), after)}"
    rows = (
        f"SELECT at_ms, id FROM {dialect.forced('expiry')} "
        f"WHERE at_ms >= {from_ms:d} AND at_ms <= {now_ms:d}{bound} ORDER BY at_ms, id LIMIT {limit:d}"
    )
    return [rows, f"SELECT MIN(at_ms), {dialect.clock_ms} FROM expiry WHERE at_ms > {now_ms:d}"]


def ended_due_sql(dialect: Dialect, from_ms: int, now_ms: int, limit: int) -> list[str]:
    """Select the rows; then the next time and the clock."""
    rows = (
        f"SELECT {_ENDED} FROM {dialect.forced('done', 'd')} "
        f"WHERE d.until_ms >= {from_ms:d} AND d.until_ms <= {now_ms:d} ORDER BY d.until_ms, d.id LIMIT {limit:d}"
    )
    return [rows, f"SELECT MIN(until_ms), {dialect.clock_ms} FROM done WHERE until_ms > {now_ms:d}"]


def ended_sql(dialect: Dialect, lane: int, state: int, after: tuple[int, int] | None, limit: int) -> str:
    """`state` 0 means both."""
    bound = "" if after is None else f" AND {dialect.behind(('d.until_ms', 'd.id'), after)}"
    of_state = f" AND d.state = {state:d}" if state else ""
    return (
        f"SELECT {_ENDED} FROM {dialect.forced('done', 'd', ENDED_BY_LANE)} WHERE d.lane = {lane:d}{of_state}{bound} "
        f"ORDER BY d.until_ms, d.id LIMIT {limit:d}"
    )


def sizes_sql(dialect: Dialect, ids: Sequence[int]) -> str:
    """An unindexed item counts as nothing: to measure its body is to read it, and the bytes of the tail are bounded.
    NULL: an item with an order key, whose body is measured."""
    return (
        "SELECT i.id, COALESCE(r.bytes, t.bytes, CASE WHEN i.order_at IS NULL THEN 0 END) "
        f"FROM {dialect.forced('item', 'i')} {with_rows(dialect)} WHERE i.id IN ({','.join(map(str, ids))})"
    )


def failures_sql(dialect: Dialect, ids: Sequence[int]) -> str:
    return (
        "SELECT lane, fingerprint, id, cause, attempts, died_at, topic, fairness, reason, throttles, rules, worker "
        f"FROM {dialect.forced('failure', index=FAILURE_OF_ITEM)} WHERE id IN ({','.join(map(str, ids))})"
    )


def packed_set_up(max_packet_bytes: int) -> tuple[str, int]:
    """The statement that raises the session's bound, and the bound."""
    bound = min(PACKED_BYTES, max_packet_bytes // 2)
    return f"SET SESSION group_concat_max_len = {bound:d}", bound - _SLACK_BYTES


class Reads:
    """Reads on one connection. `packed_bytes` is the server's bound on packed rows, 0 for reading them plainly."""

    def __init__(self, link: Link, dialect: Dialect, packed_bytes: int = 0) -> None:
        self._link = link
        self._dialect = dialect
        self.packed_bytes = packed_bytes

    def confirm(self) -> Sequence[Any]:
        """Return epoch, `seq`, the clock, and whether the server takes no writes; no row if there is none."""
        columns = f"epoch, seq, {self._dialect.clock_ms}, {self._dialect.read_only}"
        return self._link.fetch(f"SELECT {columns} FROM shard WHERE one = 1")

    def page(
        self, lane: int, after: Key | None, limit: int, priorities: tuple[int, int] | None = None
    ) -> list[ReadyRow]:
        return self._ready(page_sql(self._dialect, lane, after, limit, priorities))

    def page_of_lanes(self, lanes: list[int], limit: int, priorities: tuple[int, int] | None = None) -> list[ReadyRow]:
        return self._ready(page_of_lanes_sql(self._dialect, lanes, limit, priorities))

    def facts(self, ids: list[int], headers: bool) -> list[ItemFacts]:
        found: list[ItemFacts] = []
        columns = f"id, priority, enqueued_at, {'headers' if headers else 'NULL'}, order_key, batch"
        for at in range(0, len(ids), ROWS):
            listed = ",".join(map(str, ids[at : at + ROWS]))
            rows = self._link.fetch(f"SELECT {columns} FROM {self._dialect.forced('item')} WHERE id IN ({listed})")
            found += map(ItemFacts._make, rows)
        return found

    def _ready(self, query: str) -> list[ReadyRow]:
        if self.packed_bytes:
            ((text,),) = self._link.fetch(f"SELECT GROUP_CONCAT(CONCAT_WS(',', {_READY})) FROM ({query}) AS page")
            if text is None:
                return []
            if len(text) <= self.packed_bytes:
                numbers = iter(map(int, text.split(",")))
                # The order of a string of rows is not promised. They come in order, and sorting them costs nothing.
                return sorted(map(ReadyRow._make, zip(*[numbers] * 7, strict=True)))
        return list(map(ReadyRow._make, self._link.fetch(query)))

    def bodies(self, ids: list[int]) -> list[Body]:
        found: list[Body] = []
        for at in range(0, len(ids), ROWS):
            found += self._some_bodies(ids[at : at + ROWS])
        return found

    def _some_bodies(self, ids: list[int]) -> list[Body]:
        if self.packed_bytes and (bodies := self._packed_bodies(ids)) is not None:
            return bodies
        return list(map(Body._make, self._link.fetch(bodies_sql(self._dialect, ids))))

    def _packed_bodies(self, ids: list[int]) -> list[Body] | None:
        """All numbers and lengths are in one string, all bytes in another."""
        ((heads, data, links),) = self._link.fetch(
            f"SELECT GROUP_CONCAT(CONCAT_WS(',', {_HEAD})), "
            f"GROUP_CONCAT(i.payload, IFNULL(i.metadata, ''), IFNULL(i.headers, '') SEPARATOR ''), {_PACKED_LINKS} "
            f"FROM {self._dialect.forced('item', 'i')} WHERE i.id IN ({','.join(map(str, ids))})"
        )
        if heads is None:
            return []
        if len(heads) > self.packed_bytes or len(data) > self.packed_bytes or len(links or "") > self.packed_bytes:
            return None
        found: list[Body] = []
        numbers = iter(map(int, heads.split(",")))
        at = 0
        for head in zip(*[numbers] * _HEAD_COLUMNS, strict=True):
            payload_bytes, metadata_bytes, headers_bytes = head[8:]
            payload = data[at : at + payload_bytes]
            at += payload_bytes
            metadata = None if metadata_bytes < 0 else data[at : at + metadata_bytes]
            at += max(metadata_bytes, 0)
            headers = None if headers_bytes < 0 else data[at : at + headers_bytes]
            at += max(headers_bytes, 0)
            found.append(Body._make((*head[:8], payload, metadata, headers, None, None, None, 0)))
        return found if links is None else _with_links(found, links)

    def due(self, from_ms: int, now_ms: int, limit: int, after_id: int) -> Scan[DueRow]:
        texts = due_sql(self._dialect, from_ms, now_ms, limit + 1, after_id)
        rows, ((next_ms, db_now_ms),) = self._link.fetch_all(texts)
        columns = TIMER_COLUMNS
        found = [DueRow(TimerRow._make(row[:columns]), *row[columns:]) for row in rows[:limit]]
        return Scan(found, len(rows) <= limit, next_ms or 0, db_now_ms)

    def expiring(self, from_ms: int, now_ms: int, limit: int) -> Scan[ExpiringRow]:
        after: tuple[int, int] | None = None
        while True:
            texts = expiring_sql(self._dialect, from_ms, now_ms, after, limit + 1)
            rows, ((next_ms, db_now_ms),) = self._link.fetch_all(texts)
            sized = self._sized(rows[:limit])
            complete = len(rows) <= limit
            if sized or complete:
                break
            after = rows[limit - 1]  # nothing but rows whose item is gone
        fitting = _fitting(sized, _EXPIRING_BYTES)
        found = {row.body.id: row for row in self.look([row[1] for row in fitting])}
        expiring = [ExpiringRow(row[0], found[row[1]]) for row in fitting]
        return Scan(expiring, complete and len(fitting) == len(sized), next_ms or 0, db_now_ms)

    def _sized(self, rows: Sequence[Any]) -> list[tuple[int, int, int]]:
        """Time, id and size of entries with an item."""
        sizes: dict[int, Any] = {}
        for at in range(0, len(rows), ROWS):
            sizes.update(self._link.fetch(sizes_sql(self._dialect, [row[1] for row in rows[at : at + ROWS]])))
        unknown = [item_id for item_id, size in sizes.items() if size is None]
        for at in range(0, len(unknown), ROWS):
            listed = ",".join(map(str, unknown[at : at + ROWS]))
            source = self._dialect.forced("item", "i")
            sizes.update(self._link.fetch(f"SELECT i.id, {SIZE} FROM {source} WHERE i.id IN ({listed})"))
        return [(at_ms, item_id, sizes[item_id]) for at_ms, item_id in rows if item_id in sizes]

    def look(self, ids: list[int]) -> list[Found]:
        found: list[Found] = []
        for at in range(0, len(ids), ROWS):
            found += map(_found, self._link.fetch(look_sql(self._dialect, ids[at : at + ROWS])))
        return found

    def failures(self, ids: list[int]) -> list[FailureRow]:
        found: list[FailureRow] = []
        for at in range(0, len(ids), ROWS):
            rows = self._link.fetch(failures_sql(self._dialect, ids[at : at + ROWS]))
            found += [FailureRow(*row[:6], *map(bytes, row[6:])) for row in rows]
        return found

    def last_failures(self, ids: list[int]) -> list[tuple[int, LastFailure]]:
        found: list[tuple[int, LastFailure]] = []
        for at in range(0, len(ids), ROWS):
            listed = ",".join(map(str, ids[at : at + ROWS]))
            wanted = f"id IN ({listed}) AND last_failure IS NOT NULL"
            rows = self._link.fetch(f"SELECT id, last_failure FROM {self._dialect.forced('item')} WHERE {wanted}")
            found += [(item_id, LastFailure.unpack(bytes(stored))) for item_id, stored in rows]
        return found

    def dedup(self, digests: list[bytes]) -> list[DedupRow]:
        found: list[DedupRow] = []
        for at in range(0, len(digests), ROWS):
            listed = ",".join([f"x'{digest.hex()}'" for digest in digests[at : at + ROWS]])
            found += self._keys(f"digest IN ({listed})")
        return found

    def dedup_between(self, low: bytes, high: bytes, limit: int) -> list[DedupRow]:
        return self._keys(f"digest >= x'{low.hex()}' AND digest <= x'{high.hex()}' ORDER BY digest LIMIT {limit:d}")

    def _keys(self, wanted: str) -> list[DedupRow]:
        source = self._dialect.forced("dedup")
        rows = self._link.fetch(f"SELECT digest, content, id, expires_at FROM {source} WHERE {wanted}")
        return [DedupRow(bytes(digest), *rest) for digest, *rest in rows]

    def held_keys(self, ids: list[int]) -> list[HeldKey]:
        found: list[HeldKey] = []
        for at in range(0, len(ids), ROWS):
            listed = ",".join(map(str, ids[at : at + ROWS]))
            found += self._held_keys(self._dialect.forced("held_key"), f"id IN ({listed})")
        return found

    def keys_to_free(self, after: tuple[int, int], now_ms: int, limit: int) -> tuple[list[HeldKey], int]:
        source = self._dialect.forced("held_key", index=HELD_KEY_BY_TIME)
        behind = self._dialect.behind(("free_at", "id"), after if any(after) else (0, LAST_ID))
        due = f"{behind} AND free_at <= {now_ms:d} ORDER BY free_at, id LIMIT {limit:d}"
        ((next_ms,),) = self._link.fetch(f"SELECT MIN(free_at) FROM {source} WHERE free_at > {now_ms:d}")
        return self._held_keys(source, due), next_ms or 0

    def _held_keys(self, source: str, wanted: str) -> list[HeldKey]:
        rows = self._link.fetch(f"SELECT id, digest, number, free_at FROM {source} WHERE {wanted}")
        return [HeldKey(item_id, bytes(digest), *rest) for item_id, digest, *rest in rows]

    def dedup_expired(self, from_ms: int, now_ms: int, limit: int) -> DedupScan:
        source = self._dialect.forced("dedup", index=DEDUP_BY_EXPIRY)
        ended = f"FROM {source} WHERE expires_at >= {from_ms:d} AND expires_at <= {now_ms:d}"
        ((first_ms,),), last, ((next_ms, db_now_ms),) = self._link.fetch_all(
            [
                f"SELECT MIN(expires_at) {ended}",
                f"SELECT expires_at {ended} ORDER BY expires_at LIMIT 1 OFFSET {limit - 1:d}",
                f"SELECT MIN(expires_at), {self._dialect.clock_ms} FROM dedup WHERE expires_at > {now_ms:d}",
            ]
        )
        return DedupScan(first_ms or 0, last[0][0] if last else now_ms, not last, next_ms or 0, db_now_ms)

    def ended_due(self, from_ms: int, now_ms: int, limit: int) -> Scan[EndedRow]:
        texts = ended_due_sql(self._dialect, from_ms, now_ms, limit + 1)
        rows, ((next_ms, db_now_ms),) = self._link.fetch_all(texts)
        return Scan(list(map(EndedRow._make, rows[:limit])), len(rows) <= limit, next_ms or 0, db_now_ms)

    def list_ended(self, lanes: list[int], state: int, after: tuple[int, int] | None, limit: int) -> list[EndedRow]:
        found: list[EndedRow] = []
        for at in range(0, len(lanes), _UNION_LANES):
            parts = [ended_sql(self._dialect, lane, state, after, limit) for lane in lanes[at : at + _UNION_LANES]]
            union = " UNION ALL ".join([f"SELECT * FROM ({part}) AS one" for part in parts])
            found += map(EndedRow._make, self._link.fetch(f"{union} ORDER BY until_ms, id LIMIT {limit:d}"))
        return sorted(found)[:limit]

    def results(self, ids: list[int]) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        for at in range(0, len(ids), ROWS):
            listed = ",".join(map(str, ids[at : at + ROWS]))
            rows = self._link.fetch(f"SELECT id, data FROM {self._dialect.forced('result')} WHERE id IN ({listed})")
            found += [(item_id, bytes(data)) for item_id, data in rows]
        return found

    def progress(self, ids: list[int]) -> list[ProgressRow]:
        found: list[ProgressRow] = []
        for at in range(0, len(ids), ROWS):
            listed = ",".join(map(str, ids[at : at + ROWS]))
            source = self._dialect.forced("progress")
            rows = self._link.fetch(
                f"SELECT id, checkpoint, done, total, said, log FROM {source} WHERE id IN ({listed})"
            )
            found += map(ProgressRow._make, rows)
        return found

    def list_timer(self, lanes: list[int], leased: bool, after: tuple[int, int] | None, limit: int) -> list[TimerRow]:
        bound = "" if after is None else f" AND {self._dialect.behind(('due', 'id'), after)}"
        rows = self._link.fetch(
            "SELECT due, id, lane, lease, attempt, lease_ms, bytes "
            f"FROM {self._dialect.forced('timer')} WHERE lane IN ({','.join(map(str, lanes))}) "
            f"AND lease {'<>' if leased else '='} 0{bound} ORDER BY due, id LIMIT {limit:d}"
        )
        return list(map(TimerRow._make, rows))


def _found(row: Sequence[Any]) -> Found:
    body = Body._make(row[:BODY_COLUMNS])
    since_ms, failed, attempt, lease, size_bytes, *rest = row[BODY_COLUMNS:]
    ready = None
    if attempt is not None:
        ready = ReadyRow(body.lane, body.priority, body.deliver_after_ms, body.id, attempt, lease, size_bytes)
    timer = TimerRow._make(rest[:TIMER_COLUMNS]) if rest[0] is not None else None
    ended = EndedRow._make(rest[TIMER_COLUMNS:]) if rest[TIMER_COLUMNS] is not None else None
    last_failure = None if failed is None else LastFailure.unpack(bytes(failed))
    return Found(body, ready, timer, since_ms, ended=ended, last_failure=last_failure)


def _with_links(bodies: list[Body], packed: str) -> list[Body]:
    found = {body.id: body for body in bodies}
    texts = iter(packed.split(","))
    for item_id, key, order_at, batch in zip(*[texts] * 4, strict=True):
        orders = [bytes.fromhex(text) if order_at else None for text in (key, order_at)]
        body = found[int(item_id)]
        found[body.id] = body._replace(order_key=orders[0], order_at=orders[1], batch=int(batch))
    return list(found.values())


def _fitting(rows: Sequence[Any], max_bytes: int) -> Sequence[Any]:
    """The first rows whose sizes (their last column) sum up to no more than `max_bytes`, and at least one."""
    left = max_bytes
    for at, row in enumerate(rows):
        left -= row[-1]
        if left < 0 and at:
            return rows[:at]
    return rows
