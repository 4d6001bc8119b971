"""What a new owner of a shard reads: lanes, counts of ready, delayed and leased items, and settings."""

from __future__ import annotations

import time
from collections import Counter

from foqs.rows import Backlog, Holding, LaneRow, Opened, SettingRow
from foqs.store import queries, settings
from foqs.store.dialect import Dialect
from foqs.store.lanes import refuse_orphans
from foqs.store.link import Database, Link
from foqs.store.ownership import ShardRow, Start


def read_opened(
    database: Database, dialect: Dialect, row: ShardRow, start: Start, warnings: list[str], *, replaced: bool
) -> Opened:
    """Read the shard over a connection of its own. `row` is the shard's as the owner before left it.

    Raises ShardRefused for items without a lane, and the driver's errors.
    """
    link = Link(database)
    try:
        (now,), read_ns = link.fetch(queries.clock(dialect)), time.monotonic_ns()
        lanes = [LaneRow(*one) for one in link.fetch(queries.LANES if row.has_tail else queries.LANES_BEFORE)]
        backlog = [Backlog(*one) for one in link.fetch(queries.BACKLOG)]
        timers = {lane: (rows, leased) for lane, rows, leased in link.fetch(queries.TIMERS)}
        rows = Counter({lane: count for lane, (count, _) in timers.items()})
        for found in backlog:
            rows[found.lane] += found.items
        stored = link.fetch(settings.ALL) if row.version >= settings.VERSION else ()
        refuse_orphans((lane.lane for lane in lanes), rows)
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
