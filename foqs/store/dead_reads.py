"""Reads of dead letters. They raise the driver's errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.policies.failures import FailureFilter
from foqs.rows import (
    DeadPage,
    DeadRow,
    FailureGroup,
    FailureGroups,
    FailurePosition,
    FailureRow,
    ReadyRow,
    TimerRow,
)
from foqs.store.reads import LAST_ID, Reads, with_rows
from foqs.store.tables import FAILURE_OF_ITEM

_ORDER = ("f.fingerprint", "f.id")
_FAILURE = (
    "f.lane, f.fingerprint, f.id, f.cause, f.attempts, f.died_at, f.topic, f.fairness, f.reason, f.throttles, f.rules, "
    "f.worker"
)
_FAILURE_COLUMNS = 12
_FAILURE_TEXTS = 6


class DeadReads(Reads):
    def failure_groups(
        self, lane: int, after: FailurePosition | None, wanted: FailureFilter, limit: int, rows: int
    ) -> FailureGroups:
        end = self._end(lane, after, wanted, rows)
        found = self._link.fetch(
            "SELECT f.fingerprint, f.cause, COUNT(*), MIN(f.died_at), MAX(f.died_at), MIN(f.id) "
            f"FROM {self._failure()} WHERE {self._range(lane, after, end, wanted)} "
            "GROUP BY f.fingerprint, f.cause ORDER BY f.fingerprint, f.cause"
        )
        if len(found) > limit:
            last = found[limit - 1][0]
            found = [row for row in found if row[0] <= last]
            if end is None or end[0] > last:
                end = (last, LAST_ID)
        reasons = self._reasons([row[5] for row in found])
        return FailureGroups([FailureGroup._make((*row, reasons.get(row[5], b""))) for row in found], end)

    def dead_page(
        self, lane: int, after: FailurePosition | None, wanted: FailureFilter, limit: int, rows: int
    ) -> DeadPage:
        end = self._end(lane, after, wanted, rows)
        found = self._link.fetch(
            f"SELECT {_FAILURE}, i.priority, i.deliver_after, i.expires_at, i.headers, i.order_key, i.order_at, "
            "r.attempt, r.lease, r.bytes, t.due, t.lease, t.attempt, t.lease_ms, t.bytes "
            f"FROM {self._failure()} {self._dialect.ordered_join} {self._dialect.forced('item', 'i')} ON i.id = f.id "
            f"{with_rows(self._dialect)} "
            f"WHERE {self._range(lane, after, end, wanted)} ORDER BY f.fingerprint, f.id LIMIT {limit:d}"
        )
        page = [_dead_row(row) for row in found]
        if len(page) == limit:
            end = (page[-1].failure.fingerprint, page[-1].failure.id)
        return DeadPage(page, end)

    def _failure(self) -> str:
        return self._dialect.forced("failure", "f")

    def _end(
        self, lane: int, after: FailurePosition | None, wanted: FailureFilter, rows: int
    ) -> FailurePosition | None:
        """Return the position of the last row to look at; None: all rows behind `after`."""
        only = wanted.in_index()
        found = self._link.fetch(
            f"SELECT f.fingerprint, f.id FROM {self._failure()} WHERE {self._range(lane, after, None, only)} "
            f"ORDER BY f.fingerprint, f.id LIMIT 1 OFFSET {rows - 1:d}"
        )
        return (found[0][0], found[0][1]) if found else None

    def _range(
        self, lane: int, after: FailurePosition | None, end: FailurePosition | None, wanted: FailureFilter
    ) -> str:
        made = [f"f.lane = {lane:d}", *wanted.in_sql("f")]
        if after is not None:
            made.append(self._dialect.behind(_ORDER, after))
        if end is not None:
            made.append(self._dialect.up_to(_ORDER, end))
        return " AND ".join(made)

    def _reasons(self, ids: list[int]) -> dict[int, bytes]:
        if not ids:
            return {}
        source = self._dialect.forced("failure", index=FAILURE_OF_ITEM)
        found = self._link.fetch(f"SELECT id, reason FROM {source} WHERE id IN ({','.join(map(str, ids))})")
        return {item_id: bytes(reason) for item_id, reason in found}


def _dead_row(row: Sequence[Any]) -> DeadRow:
    numbers, texts = row[: _FAILURE_COLUMNS - _FAILURE_TEXTS], row[_FAILURE_COLUMNS - _FAILURE_TEXTS : _FAILURE_COLUMNS]
    failure = FailureRow(*numbers, *map(bytes, texts))
    priority, deliver_after_ms, expires_at_ms, headers, order_key, order_at, *rest = row[_FAILURE_COLUMNS:]
    ready, timer = None, None
    if rest[0] is not None:
        ready = ReadyRow(failure.lane, priority, deliver_after_ms, failure.id, *rest[:3])
    if rest[3] is not None:
        due_ms, lease, attempt, lease_ms, size_bytes = rest[3:]
        timer = TimerRow(due_ms, failure.id, failure.lane, lease, attempt, lease_ms, size_bytes)
    stored = None if headers is None else bytes(headers)
    return DeadRow(failure, priority, deliver_after_ms, expires_at_ms, stored, ready, timer, order_key, order_at)
