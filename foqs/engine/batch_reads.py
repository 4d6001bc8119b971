"""What a batch reads for a shard, and how the rows enter memory: pages and bodies, look-ups, and time-ordered scans.

A batch reads a bounded number of rows with a bounded number of statements, since commits wait behind it. Topics with
waiting consumers are read first, in the order of the requests; then topics that dequeues will probably ask for next.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from foqs.buffers.checkpoint import Checkpoint
from foqs.buffers.reads import Read, ScanRead, StoreReads, bodies_of, ids_within
from foqs.buffers.shard_batch import ShardBatch
from foqs.engine import ack, item_ops, kept_items
from foqs.engine.shard import Shard
from foqs.engine.shard_memory import ShardMemory
from foqs.errors import NotServed
from foqs.fairness.keys import ORDERED
from foqs.hooks.protocol import FailureResult
from foqs.item import Cause, Change, Item, Phase, Place, To, from_due, from_found, from_ready
from foqs.prefetch.lane import Entry, Lane, Window
from foqs.rows import Body, FailureCause, Found, Key, ReadyRow

_BODY_READ_BYTES = 4 << 20
"""Bodies fetched in one batch: enough for a full answer of small items, little enough not to hold up commits."""
_BATCH_PAGES = 4
"""Full pages in one batch, or the same number of rows in smaller pages."""
_BATCH_STATEMENTS = 32
_LANES = 1_000
"""Lanes in one statement."""
_LOOK_ROWS = 32


# ------------------------------------------------------------------------------------------ pages and bodies


def add_pages(shard: Shard, batch: ShardBatch, now_ms: int) -> bool:
    """Add the wanted pages and bodies. What does not fit waits for the next batch. Return True if any is read."""
    ids, room_bytes = _wanted_bodies(shard, shard.memory.residents.room_bytes(_BODY_READ_BYTES))
    reads: list[Read] = []
    if shard.queue.pages_wanted:
        reads += _wanted_pages(shard, max(room_bytes, 0), now_ms)
    if ids:
        reads.append(BodiesRead(ids, noted=bool(shard.memory.noted)))
    batch.reads = [*batch.reads, *reads]
    return bool(reads)


def _wanted_bodies(shard: Shard, room_bytes: int) -> tuple[list[int], int]:
    """Return the ids of the items whose bodies are read, and the bytes left of `room_bytes`."""
    ids: list[int] = []
    for item in shard.queue.take_bodies_wanted().values():
        if item.phase is not Phase.WINDOW or item.body is not None:
            continue
        # The first body is always fetched: an item that waits for its lease must not starve by the budget.
        if ids and item.bytes > room_bytes:
            room_bytes = 0
            if item.lane.topic.key in shard.memory.residents.demanded:
                shard.queue.bodies_wanted[item.id] = item
            continue
        ids.append(item.id)
        room_bytes -= item.bytes
    return ids, room_bytes


def _wanted_pages(shard: Shard, room_bytes: int, now_ms: int) -> list[PageRead | LanesRead]:
    config = shard.config
    lanes = _next_lanes(shard)
    room_rows, room_statements = _BATCH_PAGES * config.page_rows, _BATCH_STATEMENTS
    alone: list[PageRead] = []
    together: list[PageRead] = []
    left: list[Lane[Item]] = []
    for lane in lanes:
        window = lane.window
        if window is None or not window.wants_page(config.window_rows):
            continue
        if window.entries and shard.memory.residents.full:
            continue  # rows behind its items would be dropped at once
        if room_rows <= 0 or not room_statements:
            left.append(lane)
            continue
        limit = min(window.page_rows, config.page_rows, config.window_rows)
        page = PageRead(lane, window, window.generation, window.end, limit)
        room_rows -= min(limit, page.rows_passed)
        window.asked_ms = now_ms
        # A short lane is read from its start on, also where the window knows its first rows.
        if len(lanes) > 1 and page.rows_passed <= limit:
            together.append(page)
        else:
            alone.append(page)
            room_statements -= 1
    if left:  # they stay the first
        demanded = shard.memory.residents.demanded
        shard.queue.want_pages_first({lane: None for lane in left if lane.topic.key in demanded})
    parts = _parts(together, config.page_rows)
    alone += [part[0] for part in parts if len(part) == 1]
    reads: list[PageRead | LanesRead] = [*alone]
    reads += [LanesRead(part, config.page_rows + 1) for part in parts if len(part) > 1]
    for read in reads:
        read.body_bytes = room_bytes // len(reads)
        read.noted = bool(shard.memory.noted)
    return reads


def _next_lanes(shard: Shard) -> list[Lane[Item]]:
    """Take lanes out of `pages_wanted`: lanes with a waiting consumer first, in the order in which they were wanted.

    Beyond `_LANES` wanted lanes, those without a waiting consumer are dropped; the next dequeue wants them again."""
    wanted, demanded = shard.queue.pages_wanted, shard.memory.residents.demanded
    if len(wanted) <= _LANES:
        shard.queue.take_pages_wanted()
        if len(wanted) == 1:
            return list(wanted)
        first = [lane for lane in wanted if lane.topic.key in demanded]
        return first + [lane for lane in wanted if lane.topic.key not in demanded]
    lanes = list(islice(wanted, _BATCH_PAGES * _LANES))
    for lane in lanes:
        del wanted[lane]
    return [lane for lane in lanes if lane.topic.key in demanded]


def _parts(pages: list[PageRead], page_rows: int) -> list[list[PageRead]]:
    """Cut `pages` of lanes with few rows into statements of about a page of rows each."""
    parts: list[list[PageRead]] = []
    start = rows = 0
    for at, page in enumerate(pages):
        rows += page.rows_passed
        last = at + 1 == len(pages)
        if last or at + 1 - start == _LANES or rows + pages[at + 1].rows_passed > page_rows:
            parts.append(sorted(pages[start : at + 1], key=lambda one: one.lane.number or 0))
            start, rows = at + 1, 0
    return parts


def _first_bodies(store: StoreReads, rows: list[ReadyRow], room_bytes: int, *, noted: bool) -> dict[int, Body]:
    ids = ids_within(rows, room_bytes)
    return {body.id: body for body in bodies_of(store, ids, noted=noted)} if ids else {}


@dataclass(slots=True, eq=False)
class PageRead(Read):
    """A page of `window` behind `after`, with the bodies of its first rows up to `body_bytes`. `noted`: some items of
    the shard may have a checkpoint."""

    lane: Lane[Item]
    window: Window[Item]
    generation: int
    after: Key | None
    limit: int
    body_bytes: int = 0
    noted: bool = False
    rows: list[ReadyRow] = field(default_factory=list)
    bodies: dict[int, Body] = field(default_factory=dict)

    @property
    def rows_passed(self) -> int:
        """Number of rows of `ready` that the page passes, read from the start of its lane on."""
        lane = self.lane  # items that wait for earlier ones of their keys may have rows, too
        return lane.ready if self.after is None and lane.until != ORDERED else lane.total

    def run(self, store: StoreReads) -> int:
        self.rows = store.page(self.lane.number or 0, self.after, self.limit)
        self.bodies = _first_bodies(store, self.rows, self.body_bytes, noted=self.noted)
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        self.fill(shard.memory, self.rows, self.bodies, full=len(self.rows) >= self.limit)

    def missed(self, shard: Shard, now_ms: int) -> None:
        if self.window.generation == self.generation:
            self.window.asked_ms = 0
            shard.queue.pages_wanted[self.lane] = None
        else:
            shard.memory.wake_lane(self.lane)

    def fill(self, memory: ShardMemory, rows: list[ReadyRow], bodies: dict[int, Body], *, full: bool) -> None:
        """Bring rows of the lane into its window. `full`: there may be more rows behind these."""
        memory.counters.page_reads += 1
        memory.counters.page_rows += len(rows)
        window, lane = self.window, self.lane
        memory.wake_lane(lane)
        if lane.window is not window or window.generation != self.generation:
            return
        entries: list[Entry[Item]] = []
        for row in rows:
            if row.id in memory.known:
                continue  # in the window, leased, or being changed: memory is newer than the page
            if lane.until == ORDERED:
                away = memory.orders.comes(row.id)
                if away is None:
                    continue  # it is behind another one of its key
                item, body = away, bodies.get(row.id)
                item.enter_window()
                if body is not None:
                    item.set_body(body)
            else:
                item = from_ready(row, lane, bodies.get(row.id), Phase.WINDOW)
            memory.learn(item)
            entries.append((row.priority, row.deliver_after_ms, row.id, item))
        end = (rows[-1].priority, rows[-1].deliver_after_ms, rows[-1].id) if rows else None
        window.extend(entries, end, more=full)
        if full:
            window.page_rows = min(2 * window.page_rows, memory.config.page_rows)
        memory.bound_window(window)


@dataclass(slots=True, eq=False)
class LanesRead(Read):
    """All rows of several short lanes, whatever their `PageRead.after`: up to `limit` rows in the order of `pages`,
    which is that of the lanes' numbers. One row more than a page tells that the lanes have no further rows."""

    pages: list[PageRead]
    limit: int
    body_bytes: int = 0
    noted: bool = False
    rows: list[ReadyRow] = field(default_factory=list)
    bodies: dict[int, Body] = field(default_factory=dict)

    def run(self, store: StoreReads) -> int:
        self.rows = store.page_of_lanes([page.lane.number or 0 for page in self.pages], self.limit)
        self.bodies = _first_bodies(store, self.rows, self.body_bytes, noted=self.noted)
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        """Fill the windows.

        A result of `limit` rows may be cut: rows of its last lane may be missing, and later lanes were not read.
        (Rows that are leased in memory count in the database, and not in `Lane.ready`.) A window that knows its first
        rows needs all of its lane: a part may end before them."""
        cut_at = self.rows[-1].lane if len(self.rows) >= self.limit else None
        rows_of: dict[int, list[ReadyRow]] = {}
        for row in self.rows:
            rows_of.setdefault(row.lane, []).append(row)
        for page in self.pages:
            number = page.lane.number or 0
            if cut_at is None or number < cut_at or (number == cut_at and page.after is None):
                page.fill(shard.memory, rows_of.get(number, []), self.bodies, full=number == cut_at)
            else:
                page.missed(shard, now_ms)

    def missed(self, shard: Shard, now_ms: int) -> None:
        for page in self.pages:
            page.missed(shard, now_ms)


@dataclass(slots=True, eq=False)
class BodiesRead(Read):
    ids: list[int]
    noted: bool
    bodies: list[Body] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.bodies = bodies_of(store, self.ids, noted=self.noted)
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        memory = shard.memory
        for body in self.bodies:
            item = memory.known.get(body.id)
            if item is not None and item.phase is Phase.WINDOW:
                memory.got_body(item, body)
                memory.wake_lane(item.lane)
                shard.counters.body_reads += 1

    def missed(self, shard: Shard, now_ms: int) -> None:
        for item_id in self.ids:
            if (item := shard.memory.known.get(item_id)) is not None:
                shard.queue.bodies_wanted[item_id] = item


# ------------------------------------------------------------------------------------------ requested reads


def add_looks(shard: Shard, batch: ShardBatch) -> None:
    ids, noted = list(islice(shard.queue.looks, _LOOK_ROWS)), bool(shard.memory.noted)
    look = LookRead(ids, _dead_lanes(shard.memory, batch), noted=noted)
    batch.reads = [*batch.reads, look]


def add_lists(shard: Shard, batch: ShardBatch) -> None:
    """Add one read of dead letters and one list."""
    queue = shard.queue
    if queue.dead_reads:
        batch.reads = [*batch.reads, queue.dead_reads.popleft()]
    if queue.lists:
        listing = queue.lists.pop(0)
        listing.noted = bool(shard.memory.noted)
        listing.dead = not _dead_lanes(shard.memory, batch).isdisjoint(listing.lanes)
        batch.reads = [*batch.reads, listing]


def _dead_lanes(memory: ShardMemory, batch: ShardBatch) -> Set[int]:
    """Return the numbers of the lanes whose items may have rows in `failure` when the transaction is committed."""
    new = batch.transaction.failure_new if batch.transaction is not None else ()
    return memory.dead_lanes.union([row.lane for row in new])


@dataclass(slots=True, eq=False)
class LookRead(Read):
    """Rows of items by id. The ids stay in `Shard.looks` until the rows are there."""

    ids: list[int]
    dead_lanes: Set[int]
    """Lanes whose items may have rows in `failure`."""
    noted: bool
    """Some items of the shard may have rows in `progress`."""
    rows: list[Found] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.rows = store.look(self.ids)
        if ended := [row.body.id for row in self.rows if row.ended is not None]:
            stored = dict(store.results(ended))
            self.rows = [row._replace(stored=stored.get(row.body.id)) for row in self.rows]
        if self.noted:
            progress = {row.id: row for row in store.progress(self.ids)}
            self.rows = [row.with_progress(progress.get(row.body.id)) for row in self.rows]
        if self.dead_lanes:
            dead = [row.body.id for row in self.rows if row.body.lane in self.dead_lanes]
            failures = {failure.id: failure for failure in store.failures(dead)}
            self.rows = [row._replace(failure=failures.get(row.body.id)) for row in self.rows]
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        found = {row.body.id: row for row in self.rows}
        for item_id in self.ids:
            waiting = shard.queue.looks.take(item_id) if item_id in shard.queue.looks else []
            row = found.get(item_id)
            if row is not None and not kept_items.visible(row, now_ms):
                row = None
            item = shard.memory.known.get(item_id)
            if item is None and row is not None and row.ended is None:
                lane = shard.owned_lane(row.body.lane)
                if lane is None:
                    for look in waiting:
                        look(None, None, NotServed("the shard moved to another host"))
                    continue
                item = from_found(row, lane)
            for look in waiting:
                look(item, row, None)


# ------------------------------------------------------------------------------------------ scans


@dataclass(slots=True, eq=False)
class DueRead(ScanRead):
    """Delays and leases whose time has come."""

    def run(self, store: StoreReads) -> int:
        wanted = self.wanted
        found = self.found = store.due(wanted.from_ms, wanted.to_ms, self.limit, wanted.after_id)
        return found.db_now_ms

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        timers, found = self.scan, self.found
        until_ms = _until_ms(shard, found.db_now_ms, now_ms)
        shard.queue.asked.drop_old(now_ms)
        timers.outstanding = 1  # held by this loop: the scan must not finish before all its changes are queued
        for row in found.rows:
            timer = row.timer
            item = _item_of(shard, timer.id, timer.lane, partial(from_due, row))
            if item is None or timer.due_ms > until_ms:
                timers.left(timer.due_ms)
                continue
            answer = None
            if shard.ask_script is not None and item.phase is Phase.LEASED and not _ttl_ended(item, until_ms):
                answer = ack.answer_at_expiry(shard, item, now_ms)
                if answer is None:
                    timers.left(timer.due_ms)
                    continue
            decision = answer.result if answer is not None else None
            _scanned(shard, timers, when_due(shard, item, row.since_ms, until_ms, decision), timer.due_ms, now_ms)
        last = found.rows[-1].timer if found.rows else None
        timers.read(0 if last is None else last.due_ms, found.complete, found.next_ms, 0 if last is None else last.id)
        _applied(timers, now_ms)


@dataclass(slots=True, eq=False)
class ExpiringRead(ScanRead):
    """TTLs whose time has come."""

    def run(self, store: StoreReads) -> int:
        self.found = store.expiring(self.wanted.from_ms, self.wanted.to_ms, self.limit)
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        ttls, found = self.scan, self.found
        until_ms, in_grace = _until_ms(shard, found.db_now_ms, now_ms), shard.owner.in_takeover_grace(now_ms)
        ttls.outstanding = 1  # as for delays
        for row in found.rows:
            body = row.found.body
            item = _item_of(shard, body.id, body.lane, partial(from_found, row.found))
            if item is None or row.at_ms > until_ms or (in_grace and item.place is Place.READY):
                # In the grace, the previous owner may still have the item in memory and lease it after its removal.
                ttls.left(row.at_ms)
                continue
            if item.phase is Phase.LEASED and item.lease_expires_at_ms > until_ms:
                # Never under a live lease: look again when it ends.
                change = Change(item, To.KEPT, Cause.TTL, due_ms=item.lease_expires_at_ms)
            else:
                change = Change(item, To.GONE, Cause.TTL)
            _scanned(shard, ttls, change, row.at_ms, now_ms)
        ttls.read(found.rows[-1].at_ms if found.rows else 0, found.complete, found.next_ms)
        _applied(ttls, now_ms)


def _until_ms(shard: Shard, db_now_ms: int, now_ms: int) -> int:
    """Return the time up to which rows are due. The host's clock may be ahead of the database's, and nothing ends
    before it ends there."""
    return min(now_ms, db_now_ms + shard.config.clock_jump_ms)


def _item_of(shard: Shard, item_id: int, number: int, made: Callable[[Lane[Item]], Item]) -> Item | None:
    """Return the item of a row in the lane `number`. None if a change of it is queued, or the lane is unknown."""
    item = shard.memory.known.get(item_id)
    if item is not None:
        return None if item.busy else item
    lane = shard.owned_lane(number)
    return None if lane is None else made(lane)


def _scanned(shard: Shard, scan: Checkpoint, change: Change, at_ms: int, now_ms: int) -> None:
    change.scan, change.scan_ms = scan, at_ms
    scan.outstanding += 1
    shard.put(change, now_ms)


def _applied(scan: Checkpoint, now_ms: int) -> None:
    scan.outstanding -= 1
    if not scan.outstanding:
        scan.finish(now_ms)


def _ttl_ended(item: Item, until_ms: int) -> bool:
    return 0 != item.expires_at_ms <= until_ms


def when_due(
    shard: Shard, item: Item, since_ms: int, until_ms: int, decision: FailureResult | None = None, reason: str = ""
) -> Change:
    """Return the change of an item whose delay or lease ended. `decision`: of the topic's script, about a lease.
    `reason`: why an operator ended the lease."""
    if _ttl_ended(item, until_ms):
        return Change(item, To.GONE, Cause.TTL)
    if item.phase is not Phase.LEASED:
        ended = item_ops.change_at_limit(shard, item, until_ms) if item.attempt else None
        return ended or Change(item, To.READY, Cause.DUE)
    if item.at_most_once:
        return item_ops.dropped_at_expiry(item, until_ms)
    attempt = item_ops.Ended(FailureCause.EXPIRED, reason, age_ms=until_ms - since_ms, decision=decision)
    return item_ops.change_at_end(shard, item, attempt, until_ms)
