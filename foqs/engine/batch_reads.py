"""Pages and bodies of ready items: which of them a batch reads, and how the rows enter memory.

A batch reads a bounded number of rows with a bounded number of statements, since commits wait behind it. Topics with
waiting consumers are read first, in the order of the requests; then topics that dequeues will probably ask for next.

Applies the rows that the time-ordered scans found: delays, leases and TTLs that are over.
"""

from __future__ import annotations

from itertools import islice

from foqs.buffers.checkpoint import Checkpoint
from foqs.buffers.shard_batch import BatchResult, LanesRead, PageRead, ShardBatch
from foqs.engine import ack, item_ops
from foqs.engine.shard import Shard
from foqs.hooks.protocol import FailureResult
from foqs.item import Cause, Change, Item, Phase, Place, To, from_due, from_found, from_ready
from foqs.prefetch.lane import Entry, Lane
from foqs.rows import Body, DueRow, ExpiringRow, FailureCause, ReadyRow, Scan

_BODY_READ_BYTES = 4 << 20
"""Bodies fetched in one batch: enough for a full answer of small items, little enough not to hold up commits."""
_BATCH_PAGES = 4
"""Full pages in one batch, or the same number of rows in smaller pages."""
_BATCH_STATEMENTS = 32
_LANES = 1_000
"""Lanes in one statement."""


# ------------------------------------------------------------------------------------------ before the read


def add_pages(shard: Shard, batch: ShardBatch, now_ms: int) -> None:
    """Add the wanted pages and bodies; those that do not fit wait for the next batch."""
    room_bytes = shard.residents.room_bytes(_BODY_READ_BYTES)
    room_bytes -= _add_bodies(shard, batch, room_bytes)
    if shard.pages_wanted:
        _add_pages(shard, batch, max(room_bytes, 0), now_ms)


def _add_bodies(shard: Shard, batch: ShardBatch, room_bytes: int) -> int:
    """Returns the bytes of the bodies."""
    wanted, shard.bodies_wanted = shard.bodies_wanted, {}
    demanded, left_bytes = shard.residents.demanded, room_bytes
    for item in wanted.values():
        if item.phase is not Phase.WINDOW or item.body is not None:
            continue
        # The first body is always fetched: an item that waits for its lease must not starve by the budget.
        if batch.bodies and item.bytes > left_bytes:
            left_bytes = 0
            if item.lane.topic.key in demanded:
                shard.bodies_wanted[item.id] = item
            continue
        batch.bodies.append(item.id)
        left_bytes -= item.bytes
    return room_bytes - left_bytes


def _add_pages(shard: Shard, batch: ShardBatch, room_bytes: int, now_ms: int) -> None:
    config = shard.config
    lanes = _next_lanes(shard)
    room_rows, room_statements = _BATCH_PAGES * config.page_rows, _BATCH_STATEMENTS
    together: list[PageRead] = []
    left: list[Lane[Item]] = []
    for lane in lanes:
        window = lane.window
        if window is None or not window.wants_page(config.window_rows):
            continue
        if window.entries and shard.residents.full:
            continue  # rows behind its items would be dropped at once
        if room_rows <= 0 or not room_statements:
            left.append(lane)
            continue
        limit = min(window.page_rows, config.page_rows, config.window_rows)
        page = PageRead(lane, window, window.generation, window.end, limit, 0)
        room_rows -= min(limit, _rows(page))
        window.asked_ms = now_ms
        # A short lane is read from its start on, also where the window knows its first rows.
        if len(lanes) > 1 and _rows(page) <= limit:
            together.append(page)
        else:
            batch.pages.append(page)
            room_statements -= 1
    if left:  # they stay the first
        demanded = shard.residents.demanded
        shard.pages_wanted = {lane: None for lane in left if lane.topic.key in demanded} | shard.pages_wanted
    _add_together(batch, together, config.page_rows)
    parts = len(batch.pages) + len(batch.lanes_pages)
    for page in batch.pages:
        page.body_bytes = room_bytes // parts
    for read in batch.lanes_pages:
        read.body_bytes = room_bytes // parts


def _next_lanes(shard: Shard) -> list[Lane[Item]]:
    """Take lanes out of `pages_wanted`: those with a waiting consumer first, in the order in which they were wanted.

    Beyond `_LANES` wanted lanes, those without a waiting consumer are dropped; the next dequeue wants them again."""
    wanted, demanded = shard.pages_wanted, shard.residents.demanded
    if len(wanted) <= _LANES:
        shard.pages_wanted = {}
        if len(wanted) == 1:
            return list(wanted)
        first = [lane for lane in wanted if lane.topic.key in demanded]
        return first + [lane for lane in wanted if lane.topic.key not in demanded]
    lanes = list(islice(wanted, _BATCH_PAGES * _LANES))
    for lane in lanes:
        del wanted[lane]
    return [lane for lane in lanes if lane.topic.key in demanded]


def _add_together(batch: ShardBatch, pages: list[PageRead], page_rows: int) -> None:
    """Cut `pages` of lanes with few rows into statements of about a page of rows each.

    One row more than a page tells that the lanes have no further rows."""
    start = rows = 0
    for at, page in enumerate(pages):
        rows += _rows(page)
        last = at + 1 == len(pages)
        if last or at + 1 - start == _LANES or rows + _rows(pages[at + 1]) > page_rows:
            part = sorted(pages[start : at + 1], key=lambda one: one.lane.number or 0)
            if len(part) == 1:
                batch.pages += part
            else:
                batch.lanes_pages.append(LanesRead(part, page_rows + 1, 0))
            start, rows = at + 1, 0


def _rows(page: PageRead) -> int:
    """How many rows of `ready` the page has to pass, read from the start of its lane on."""
    return page.lane.ready if page.after is None else page.lane.total


# ------------------------------------------------------------------------------------------ after the read


def apply_pages(shard: Shard, batch: ShardBatch, result: BatchResult) -> None:
    """Apply pages and bodies; those that were not read stay wanted."""
    for at, read in enumerate(batch.pages):
        if at < len(result.pages):
            rows, bodies = result.pages[at]
            _apply_page(shard, read, rows, bodies, full=len(rows) >= read.limit)
        else:
            _not_read(shard, read)
    for at, lanes in enumerate(batch.lanes_pages):
        if at < len(result.lanes_pages):
            _apply_lanes(shard, lanes, *result.lanes_pages[at])
        else:
            for read in lanes.pages:
                _not_read(shard, read)
    if result.bodies is not None:
        for body in result.bodies:
            _apply_body(shard, body)
        return
    for item_id in batch.bodies:
        if (item := shard.known.get(item_id)) is not None:
            shard.bodies_wanted[item_id] = item


def _not_read(shard: Shard, read: PageRead) -> None:
    if read.window.generation == read.generation:
        read.window.asked_ms = 0
        shard.pages_wanted[read.lane] = None
    else:
        shard.wake_lane(read.lane)


def _apply_lanes(shard: Shard, lanes: LanesRead, rows: list[ReadyRow], bodies: dict[int, Body]) -> None:
    """Apply the pages of several lanes.

    A result of `limit` rows may be cut: rows of its last lane may be missing, and later lanes were not read.
    (Rows that are leased in memory count in the database, and not in `Lane.ready`.) A window that knows its first rows
    needs all of its lane: a part may end before them."""
    cut_at = rows[-1].lane if len(rows) >= lanes.limit else None
    rows_of: dict[int, list[ReadyRow]] = {}
    for row in rows:
        rows_of.setdefault(row.lane, []).append(row)
    for read in lanes.pages:
        number = read.lane.number or 0
        if cut_at is None or number < cut_at or (number == cut_at and read.after is None):
            _apply_page(shard, read, rows_of.get(number, []), bodies, full=number == cut_at)
        else:
            _not_read(shard, read)


def _apply_page(shard: Shard, read: PageRead, rows: list[ReadyRow], bodies: dict[int, Body], *, full: bool) -> None:
    """`full`: there may be more rows behind these."""
    shard.counters.page_reads += 1
    shard.counters.page_rows += len(rows)
    window, lane = read.window, read.lane
    shard.wake_lane(lane)
    if lane.window is not window or window.generation != read.generation:
        return
    entries: list[Entry[Item]] = []
    for row in rows:
        if row.id in shard.known:
            continue  # in the window, leased, or being changed: memory is newer than the page
        item = from_ready(row, lane, bodies.get(row.id), Phase.WINDOW)
        shard.learn(item)
        entries.append((row.priority, row.deliver_after_ms, row.id, item))
    end = (rows[-1].priority, rows[-1].deliver_after_ms, rows[-1].id) if rows else None
    window.extend(entries, end, more=full)
    if full:
        window.page_rows = min(2 * window.page_rows, shard.config.page_rows)
    shard.bound_window(window)


def _apply_body(shard: Shard, body: Body) -> None:
    item = shard.known.get(body.id)
    if item is not None and item.phase is Phase.WINDOW:
        shard.got_body(item, body)
        shard.wake_lane(item.lane)
        shard.counters.body_reads += 1


def apply_due(shard: Shard, scan: Scan[DueRow] | None, now_ms: int) -> None:
    timers = shard.timers
    if scan is None:
        timers.failed(now_ms)
        return
    # The host's clock may be ahead of the database's: nothing ends before it ends there.
    until_ms = min(now_ms, scan.db_now_ms + shard.config.clock_jump_ms)
    shard.asked.drop_old(now_ms)
    timers.outstanding = 1  # held by this loop: the scan must not finish before all its changes are queued
    for row in scan.rows:
        timer = row.timer
        item = shard.known.get(timer.id)
        if (item is not None and item.busy) or timer.due_ms > until_ms:
            timers.left(timer.due_ms)
            continue
        if item is None:
            lane = shard.lane_numbers.get(timer.lane)
            if lane is None:
                shard.confirm_wanted = (
                    True  # another owner added the lane: confirm whether this host still owns the shard
                )
                timers.left(timer.due_ms)
                continue
            item = from_due(row, lane)
        answer = None
        if shard.ask_script is not None and item.phase is Phase.LEASED and not _ttl_over(item, until_ms):
            answer = ack.answer_at_expiry(shard, item, now_ms)
            if answer is None:
                timers.left(timer.due_ms)
                continue
        decision = answer.result if answer is not None else None
        _scanned(shard, timers, when_due(shard, item, row.since_ms, until_ms, decision), timer.due_ms, now_ms)
    last = scan.rows[-1].timer if scan.rows else None
    timers.read(0 if last is None else last.due_ms, scan.complete, scan.next_ms, 0 if last is None else last.id)
    timers.outstanding -= 1
    if not timers.outstanding:
        timers.finish(now_ms)


def _scanned(shard: Shard, scan: Checkpoint, change: Change, at_ms: int, now_ms: int) -> None:
    change.scan, change.scan_ms = scan, at_ms
    scan.outstanding += 1
    shard.put(change, now_ms)


def _ttl_over(item: Item, until_ms: int) -> bool:
    return 0 != item.expires_at_ms <= until_ms


def when_due(shard: Shard, item: Item, since_ms: int, until_ms: int, decision: FailureResult | None = None) -> Change:
    """Return the change of an item whose delay or lease is over. `decision`: of the topic's script, about a lease."""
    if _ttl_over(item, until_ms):
        return Change(item, To.GONE, Cause.TTL)
    if item.phase is not Phase.LEASED:
        over = item_ops.change_at_limit(shard, item, until_ms) if item.attempt else None
        return over or Change(item, To.READY, Cause.DUE)
    if item.at_most_once:
        return Change(item, To.GONE, Cause.DROPPED)
    ended = item_ops.Ended(FailureCause.EXPIRED, age_ms=until_ms - since_ms, decision=decision)
    return item_ops.change_at_end(shard, item, ended, until_ms)


def apply_expiring(shard: Shard, scan: Scan[ExpiringRow] | None, now_ms: int) -> None:
    ttls = shard.ttls
    if scan is None:
        ttls.failed(now_ms)
        return
    until_ms = min(now_ms, scan.db_now_ms + shard.config.clock_jump_ms)
    ttls.outstanding = 1
    for row in scan.rows:
        item = shard.known.get(row.found.body.id)
        if (item is not None and item.busy) or row.at_ms > until_ms:
            ttls.left(row.at_ms)
            continue
        if item is None:
            lane = shard.lane_numbers.get(row.found.body.lane)
            if lane is None:
                shard.confirm_wanted = True
                ttls.left(row.at_ms)
                continue
            item = from_found(row.found, lane)
        if item.place is Place.READY and shard.in_takeover_grace(now_ms):
            # The previous owner may still have the item in memory, and could lease it after it was removed here.
            ttls.left(row.at_ms)
            continue
        if item.phase is Phase.LEASED and item.lease_expires_at_ms > until_ms:
            # Never under a live lease: look again when it ends.
            change = Change(item, To.KEPT, Cause.TTL, due_ms=item.lease_expires_at_ms)
        else:
            change = Change(item, To.GONE, Cause.TTL)
        _scanned(shard, ttls, change, row.at_ms, now_ms)
    ttls.read(scan.rows[-1].at_ms if scan.rows else 0, scan.complete, scan.next_ms)
    ttls.outstanding -= 1
    if not ttls.outstanding:
        ttls.finish(now_ms)
