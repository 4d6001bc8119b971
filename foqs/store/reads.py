"""Reads on a connection, as the rows that a host knows. They raise the driver's errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.rows import Body, DedupRow, DedupScan, DueRow, ExpiringRow, FailureRow, Found, Key, ReadyRow, Scan, TimerRow
from foqs.store import packed, queries
from foqs.store.dialect import Dialect
from foqs.store.link import Link
from foqs.store.statements import ROWS

_EXPIRING_BYTES = 4 << 20
"""Bodies that one scan of TTLs brings along."""


class Reads:
    """`packed_bytes` is the server's bound on packed rows (foqs/store/packed.py), 0 for reading them plainly."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.packed_bytes = 0

    def page(self, link: Link, lane: int, after: Key | None, limit: int) -> list[ReadyRow]:
        if self.packed_bytes:
            rows = packed.page(link, self._dialect, lane, after, limit, self.packed_bytes)
            if rows is not None:
                return rows
        return list(map(ReadyRow._make, link.fetch(queries.page(self._dialect, lane, after, limit))))

    def page_of_lanes(self, link: Link, lanes: list[int], limit: int) -> list[ReadyRow]:
        if self.packed_bytes:
            rows = packed.page_of_lanes(link, self._dialect, lanes, limit, self.packed_bytes)
            if rows is not None:
                return rows
        return list(map(ReadyRow._make, link.fetch(queries.page_of_lanes(self._dialect, lanes, limit))))

    def bodies(self, link: Link, ids: list[int]) -> list[Body]:
        found: list[Body] = []
        for at in range(0, len(ids), ROWS):
            found += self._some_bodies(link, ids[at : at + ROWS])
        return found

    def _some_bodies(self, link: Link, ids: list[int]) -> list[Body]:
        if self.packed_bytes:
            bodies = packed.bodies(link, self._dialect, ids, self.packed_bytes)
            if bodies is not None:
                return bodies
        return list(map(Body._make, link.fetch(queries.bodies(self._dialect, ids))))

    def due(self, link: Link, from_ms: int, now_ms: int, limit: int, after_id: int) -> Scan[DueRow]:
        texts = queries.due(self._dialect, from_ms, now_ms, limit + 1, after_id)
        rows, ((next_ms, db_now_ms),) = link.fetch_all(texts)
        columns = queries.TIMER_COLUMNS
        found = [DueRow(TimerRow._make(row[:columns]), *row[columns:]) for row in rows[:limit]]
        return Scan(found, len(rows) <= limit, next_ms or 0, db_now_ms)

    def expiring(self, link: Link, from_ms: int, now_ms: int, limit: int) -> Scan[ExpiringRow]:
        after: tuple[int, int] | None = None
        while True:
            texts = queries.expiring(self._dialect, from_ms, now_ms, after, limit + 1)
            rows, ((next_ms, db_now_ms),) = link.fetch_all(texts)
            sized = self._sized(link, rows[:limit])
            complete = len(rows) <= limit
            if sized or complete:
                break
            after = rows[limit - 1]  # nothing but rows whose item is gone
        fitting = _fitting(sized, _EXPIRING_BYTES)
        found = {row.body.id: row for row in self.look(link, [row[1] for row in fitting])}
        expiring = [ExpiringRow(row[0], found[row[1]]) for row in fitting]
        return Scan(expiring, complete and len(fitting) == len(sized), next_ms or 0, db_now_ms)

    def _sized(self, link: Link, rows: Sequence[Any]) -> list[tuple[int, int, int]]:
        """Time, id and size of those whose item is there."""
        sizes: dict[int, int] = {}
        for at in range(0, len(rows), ROWS):
            sizes.update(link.fetch(queries.sizes(self._dialect, [row[1] for row in rows[at : at + ROWS]])))
        return [(at_ms, item_id, sizes[item_id]) for at_ms, item_id in rows if item_id in sizes]

    def look(self, link: Link, ids: list[int]) -> list[Found]:
        found: list[Found] = []
        for at in range(0, len(ids), ROWS):
            found += map(_found, link.fetch(queries.look(self._dialect, ids[at : at + ROWS])))
        return found

    def failures(self, link: Link, ids: list[int]) -> list[FailureRow]:
        found: list[FailureRow] = []
        for at in range(0, len(ids), ROWS):
            rows = link.fetch(queries.failures(self._dialect, ids[at : at + ROWS]))
            found += [FailureRow(*row[:6], *map(bytes, row[6:])) for row in rows]
        return found

    def dedup(self, link: Link, digests: list[bytes]) -> list[DedupRow]:
        found: list[DedupRow] = []
        for at in range(0, len(digests), ROWS):
            rows = link.fetch(queries.dedup(self._dialect, digests[at : at + ROWS]))
            found += [DedupRow(bytes(digest), *rest) for digest, *rest in rows]
        return found

    def dedup_between(self, link: Link, low: bytes, high: bytes, limit: int) -> list[DedupRow]:
        rows = link.fetch(queries.dedup_between(self._dialect, low, high, limit))
        return [DedupRow(bytes(digest), *rest) for digest, *rest in rows]

    def dedup_expired(self, link: Link, from_ms: int, now_ms: int, limit: int) -> DedupScan:
        texts = queries.dedup_expired(self._dialect, from_ms, now_ms, limit)
        ((first_ms,),), last, ((next_ms, db_now_ms),) = link.fetch_all(texts)
        return DedupScan(first_ms or 0, last[0][0] if last else now_ms, not last, next_ms or 0, db_now_ms)

    def list_timer(
        self, link: Link, lanes: list[int], leased: bool, after: tuple[int, int] | None, limit: int
    ) -> list[TimerRow]:
        query = queries.timer_of_lanes(self._dialect, lanes, leased, after, limit)
        return list(map(TimerRow._make, link.fetch(query)))


def _found(row: Sequence[Any]) -> Found:
    body = Body._make(row[: queries.BODY_COLUMNS])
    since_ms, attempt, lease, size_bytes, *timer = row[queries.BODY_COLUMNS :]
    ready = None
    if attempt is not None:
        ready = ReadyRow(body.lane, body.priority, body.deliver_after_ms, body.id, attempt, lease, size_bytes)
    return Found(body, ready, TimerRow._make(timer) if timer[0] is not None else None, since_ms)


def _fitting(rows: Sequence[Any], max_bytes: int) -> Sequence[Any]:
    """The first rows whose sizes (their last column) sum up to no more than `max_bytes`, and at least one."""
    left = max_bytes
    for at, row in enumerate(rows):
        left -= row[-1]
        if left < 0 and at:
            return rows[:at]
    return rows
