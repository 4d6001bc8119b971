"""What a new owner of a shard reads: lanes, counts of ready, delayed and leased items, and settings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from foqs.row_pages import RowPages
from foqs.rows import Backlog, Holding, LaneRow, Opened, SettingRow
from foqs.store import queries, settings
from foqs.store.dialect import Dialect
from foqs.store.lanes import refuse_orphans
from foqs.store.link import Database, Link
from foqs.store.ownership import ShardRow, Start

_PAGE_LANES = 2_000
"""Lanes that are read with one statement: what the driver makes of the rows is dropped before the next."""


def read_opened(
    database: Database, dialect: Dialect, row: ShardRow, start: Start, warnings: list[str], *, replaced: bool
) -> Opened:
    """Read the shard over a connection of its own. `row` is the shard's as the owner before left it.

    Raises ShardRefused for items without a lane, and the driver's errors.
    """
    link = Link(database)
    try:
        (now,), read_ns = link.fetch(queries.clock(dialect)), time.monotonic_ns()
        timers = {lane: (rows, leased) for lane, rows, leased in link.fetch(queries.TIMERS)}
        lanes, backlog = _read_lanes(link, dialect, timers, tenancy=row.has_tail)
        stored = link.fetch(settings.ALL) if row.version >= settings.VERSION else ()
        return Opened(
            epoch=start.epoch,
            next_number=start.next_number,
            due_from_ms=row.due_from_ms,
            expiry_from_ms=row.expiry_from_ms,
            lanes=lanes,
            backlog=backlog,
            timers=timers,
            db_now_ms=now[0],
            warnings=warnings,
            replaced=replaced,
            dedup_from_ms=row.dedup_from_ms,
            slots=Holding(row.slots_stamp, bytes(row.slots)),
            read_ns=read_ns,
            tail=row.has_tail,
            dead=[lane for (lane,) in link.fetch(queries.DEAD_LANES)] if row.has_tail else [],
            settings=[SettingRow(bytes(ns), bytes(doc)) for ns, doc in stored],
        )
    finally:
        link.close()


def _read_lanes(
    link: Link, dialect: Dialect, timers: Mapping[int, tuple[int, int]], *, tenancy: bool
) -> tuple[RowPages[LaneRow], RowPages[Backlog]]:
    """Read the lanes and their ready items, some lanes at a time. Raises ShardRefused."""
    lanes, backlog = RowPages(LaneRow), RowPages(Backlog)
    missing: Counter[int] = Counter()
    timed, above, last = set(timers), 0, False
    while not last:
        page = link.fetch(queries.lanes(above, _PAGE_LANES, tenancy=tenancy))
        last = len(page) < _PAGE_LANES
        end = None if last else page[-1][0]
        counts = link.fetch(queries.backlog(dialect, above, end))
        known = {row[0] for row in page}
        timed -= known
        for lane, _, items in counts:
            if lane not in known:
                missing[lane] += items
        lanes.add(page)
        backlog.add(counts)
        above = end or 0
    missing.update({lane: timers[lane][0] for lane in timed})
    refuse_orphans(missing)
    return lanes, backlog
