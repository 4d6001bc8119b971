"""What a new owner of a shard reads: lanes, counts of ready, delayed and leased items, and settings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from foqs.ids import HASH_SLOTS
from foqs.rows import Backlog, Holding, LaneRow, Opened, RowPages, SettingRow
from foqs.store import queries, settings
from foqs.store.dialect import Dialect
from foqs.store.lanes import refuse_dead_orphans, refuse_names, refuse_orphans
from foqs.store.link import Link
from foqs.store.ownership import ShardRow, Start
from foqs.store.protocol import ShardRefused

_RESTORE = "restore the row of table shard from a backup"
_PAGE_LANES = 2_000
"""Lanes that are read with one statement: what the driver makes of the rows is dropped before the next."""


def read_opened(
    link: Link, dialect: Dialect, row: ShardRow, start: Start, warnings: list[str], *, replaced: bool
) -> Opened:
    """Read the shard over `link`. `row` is the shard's as the owner before left it.

    Raises ShardRefused for items without a lane and for names and values that no foqs writes, and the driver's errors.
    """
    (now,), read_ns = link.fetch(queries.clock(dialect)), time.monotonic_ns()
    timers = {lane: (rows, leased) for lane, rows, leased in link.fetch(queries.TIMERS)}
    lanes, backlog = _read_lanes(link, dialect, timers)
    stored = link.fetch(settings.ALL)
    _refuse_settings([bytes(ns) for ns, _ in stored])
    dead = [lane for (lane,) in link.fetch(queries.DEAD_LANES)]
    refuse_dead_orphans(set(dead).difference(_numbers(link, dead)))
    if len(row.slots) > HASH_SLOTS // 8:
        raise ShardRefused(f"shard.slots has {len(row.slots)} bytes, not {HASH_SLOTS // 8}", mend=_RESTORE)
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
        dead=dead,
        settings=[SettingRow(bytes(ns), bytes(doc)) for ns, doc in stored],
    )


def _read_lanes(
    link: Link, dialect: Dialect, timers: Mapping[int, tuple[int, int]]
) -> tuple[RowPages[LaneRow], RowPages[Backlog]]:
    """Read the lanes and their ready items, some lanes at a time. Raises ShardRefused."""
    lanes, backlog = RowPages(LaneRow), RowPages(Backlog)
    missing: Counter[int] = Counter()
    throttles: set[bytes] = set()
    timed, above, last = set(timers), 0, False
    while not last:
        page = link.fetch(queries.lanes(above, _PAGE_LANES))
        last = len(page) < _PAGE_LANES
        end = None if last else page[-1][0]
        counts = link.fetch(queries.backlog(dialect, above, end))
        refuse_names(page, throttles)
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


def _numbers(link: Link, lanes: Sequence[int]) -> set[int]:
    """Return those of `lanes` that table `lane` has."""
    if not lanes:
        return set()
    return {lane for (lane,) in link.fetch(f"SELECT lane FROM lane WHERE lane IN ({','.join(map(str, lanes))})")}


def _refuse_settings(namespaces: Sequence[bytes]) -> None:
    for ns in namespaces:
        try:
            ns.decode()
        except UnicodeDecodeError:
            why = f"table setting has a namespace that is not UTF-8: {ns[:40]!r}"
            raise ShardRefused(why, mend=f"DELETE FROM setting WHERE ns = x'{ns.hex()}'") from None
