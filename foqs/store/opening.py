"""What a new owner of a shard reads: lanes, counts of ready, delayed, leased and ended items, and settings.

A database that was restored in part has rows that refer to a lane without a row: such items have no topic. A shard that
has any is not opened. No item of it is delivered under a wrong name, none is removed, and the other shards of the host
are not affected.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from foqs.fairness.keys import unpack_throttles
from foqs.ids import HASH_SLOTS
from foqs.opened import Backlog, Opened, RowPages
from foqs.order import Order, OrderHome
from foqs.rows import Holding, LaneRow, ReadyRow, SettingRow
from foqs.rules import unpack_rules, unpack_until
from foqs.store import batch_reads, order_reads, reads, settings
from foqs.store.dialect import Dialect
from foqs.store.link import Link
from foqs.store.ownership import ShardRow, Start
from foqs.store.protocol import ShardRefused

ORPHAN_REMEDY = (
    "restore all tables from the same backup, or delete the rows of these lanes in item, ready, timer, ordered, "
    "failure and done, and the rows of their items in expiry, result, progress and held_key"
)
_SHOWN = 5
_SHOWN_BYTES = 40
_RESTORE = "restore the row of table shard from a backup"
_LEASED_LANES = 20_000
"""Lanes whose leases are read with one statement, which reads all timers."""
_PAGE_LANES = 2_000
"""Lanes that are read with one statement: what the driver makes of the rows is dropped before the next."""


def read_opened(
    link: Link, dialect: Dialect, row: ShardRow, start: Start, warnings: list[str], *, replaced: bool,
    tail: Sequence[ReadyRow] = (),
) -> Opened:  # fmt: skip
    """Read the shard over `link`. `row` is the shard's as the owner before left it, and `tail` what its taking left.

    Raises ShardRefused for items without a lane and for names and values that no foqs writes, and the driver's errors.
    """
    (now,), read_ns = link.fetch(reads.clock_sql(dialect)), time.monotonic_ns()
    timers = {lane: (rows, leased) for lane, rows, leased in link.fetch(reads.TIMERS_SQL)}
    ended = {lane: (completed, failed) for lane, completed, failed in link.fetch(reads.ENDED_SQL)}
    ordered = {lane: (rows, in_order) for lane, rows, in_order in link.fetch(order_reads.ORDERED_SQL)}
    elsewhere = Counter(row.lane for row in tail)
    elsewhere.update({lane: rows for lane, (rows, _) in ordered.items()})
    elsewhere.update({lane: rows for lane, (rows, _) in timers.items()})
    elsewhere.update({lane: completed + failed for lane, (completed, failed) in ended.items()})
    lanes, backlog = _read_lanes(link, dialect, elsewhere)
    stored = link.fetch(settings.ALL)
    _refuse_settings([bytes(ns) for ns, _ in stored])
    dead = [lane for (lane,) in link.fetch(reads.DEAD_LANES)]
    if gone := orphans(_numbers(link, dead), dead):
        raise ShardRefused(orphan_words(gone, "failure"), mend=ORPHAN_REMEDY)
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
        ended=ended,
        ended_from_ms=row.ended_from_ms,
        noted=dict(link.fetch(reads.NOTED_SQL)),
        holding=bool(link.fetch(reads.HOLDING_SQL)),
        restored_ms=link.fetch(reads.RESTORED_SQL)[0][0],
        tail=tail,
        ordered=ordered,
        order_leases=_order_leases(link, dialect, [lane for lane in ordered if timers.get(lane, (0, 0))[1]]),
        homes=[OrderHome(bytes(digest), *rest) for digest, *rest in link.fetch(order_reads.HOMES_SQL)],
        batches=bool(link.fetch(batch_reads.BATCHES_SQL)),
    )


def _order_leases(link: Link, dialect: Dialect, lanes: Sequence[int]) -> list[tuple[Order, int, int]]:
    """Return order, id and lane of the leased items with order keys in `lanes`."""
    found: list[tuple[Order, int, int]] = []
    for at in range(0, len(lanes), _LEASED_LANES):
        rows = link.fetch(order_reads.order_leases_sql(dialect, lanes[at : at + _LEASED_LANES]))
        found += [(Order.unpack(bytes(order_at), item_id), item_id, lane) for order_at, item_id, lane in rows]
    return found


def _read_lanes(
    link: Link, dialect: Dialect, elsewhere: Mapping[int, int]
) -> tuple[RowPages[LaneRow], RowPages[Backlog]]:
    """Read the lanes and their ready items, some lanes at a time. `elsewhere` counts by lane the rows of other tables.

    Raises ShardRefused.
    """
    lanes, backlog = RowPages(LaneRow), RowPages(Backlog)
    missing: Counter[int] = Counter()
    checked: set[tuple[bytes, bytes]] = set()
    others, above, last = set(elsewhere), 0, False
    while not last:
        page = link.fetch(reads.lanes(above, _PAGE_LANES))
        last = len(page) < _PAGE_LANES
        end = None if last else page[-1][0]
        counts = link.fetch(reads.backlog_sql(dialect, above, end))
        _refuse_names(page, checked)
        known = {row[0] for row in page}
        others -= known
        for lane, _, items in counts:
            if lane not in known:
                missing[lane] += items
        lanes.add(page)
        backlog.add(counts)
        above = end or 0
    missing.update({lane: elsewhere[lane] for lane in others})
    if missing:
        words = orphan_words(sorted(missing), "ready, timer, ordered or done")
        raise ShardRefused(f"{sum(missing.values())} {words}", mend=ORPHAN_REMEDY)
    return lanes, backlog


def _numbers(link: Link, lanes: Sequence[int]) -> set[int]:
    """Return the numbers in `lanes` that table `lane` has."""
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


# ------------------------------------------------------------------------------------------------ lanes


def orphans(lanes: Iterable[int], referred: Iterable[int]) -> list[int]:
    """Numbers in `referred` that are not in `lanes`, in order."""
    return sorted(set(referred) - set(lanes))


def orphan_words(missing: list[int], tables: str) -> str:
    shown = ", ".join(map(str, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
    one = len(missing) == 1
    return f"rows in {tables} refer to {'lane' if one else f'{len(missing)} lanes'} {shown}, which table lane lacks"


def _refuse_names(page: Sequence[Sequence[Any]], known: set[tuple[bytes, bytes]]) -> None:
    """Raise ShardRefused for a name that is not UTF-8 in rows of `lane`, or for rules that no host wrote: number, three
    names, throttle set, weight, rules.

    `known` are throttle sets and rules that were read before.
    """
    try:
        for column in (1, 2, 3):
            b"\0".join([row[column] for row in page]).decode()
        new = {(row[4], row[6]) for row in page} - known
        for throttles, rules in new:
            unpack_throttles(throttles)
            unpack_rules(rules)
            unpack_until(rules)
        known |= new
    except (ValueError, TypeError):
        for lane, *names, _weight, rules in page:
            _refuse_rules(lane, rules)
            for name in names:
                _refuse_name(lane, name)


def _refuse_rules(lane: int, rules: bytes) -> None:
    try:
        unpack_rules(rules)
        unpack_until(rules)
    except (ValueError, TypeError):
        why = f"lane {lane} in table lane has rules that no host wrote: {rules[:_SHOWN_BYTES]!r}"
        raise ShardRefused(why, mend="restore table lane from a backup") from None


def _refuse_name(lane: int, name: bytes | str) -> None:
    if isinstance(name, str):  # SQLite stores any type
        why = f"lane {lane} in table lane has a name that is text and not bytes: {name[:_SHOWN_BYTES]!r}"
        columns = ("ns", "topic", "fairness", "throttles", "rules")
        mend = f"UPDATE lane SET {', '.join(f'{column} = CAST({column} AS BLOB)' for column in columns)}"
        raise ShardRefused(why, mend=mend)
    try:
        name.decode()
    except UnicodeDecodeError:
        why = f"lane {lane} in table lane has a name that is not UTF-8: {name[:_SHOWN_BYTES]!r}"
        raise ShardRefused(why, mend="restore table lane from a backup") from None
