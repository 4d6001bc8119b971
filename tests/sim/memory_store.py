"""A shard's database in memory, and the store on it: the SQL store's rules, checked harder, with failures on demand.

Every transaction is checked whole: an item is in exactly one of `ready` and `timer`, rows say what the body says,
a delete matches a row, no id is inserted twice ever, no checkpoint passes a row, only the owner changes a row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable
from typing import Any

from foqs.rows import (
    BACKLOG_SHIFT,
    Backlog,
    Batch,
    Body,
    DedupRow,
    DedupScan,
    DueRow,
    ExpiringRow,
    Found,
    Holding,
    Key,
    LaneRow,
    NewItem,
    Opened,
    ReadyRow,
    Scan,
    TimerRow,
)
from foqs.store.protocol import CommitUnknown, Confirmation, Fenced, RowRejected, ShardRefused, StoreBusy, StoreDown
from tests.sim.faults import Faults

POISON = b"\xffpoison"
"""A payload or metadata that begins with it is refused by the database."""


class DatabaseRuleBroken(AssertionError):
    """A transaction that no correct owner sends."""


def _rule(holds: bool, message: str, *about: Any) -> None:
    if not holds:
        raise DatabaseRuleBroken(message.format(*about))


class MemoryDatabase:
    """The tables of one shard. `now_ms` is the database's clock; `observers` see every committed batch.

    An observer is called with (epoch, batch) before the rows change. Not `strict`: ids may be used again, and lanes
    need no row, as the tables of a SQL shard have it.
    """

    def __init__(self, now_ms: Callable[[], int], *, max_batch_bytes: int = 1 << 20, strict: bool = True) -> None:
        self.now_ms = now_ms
        self.strict = strict
        self.max_batch_bytes = max_batch_bytes
        self.items: dict[int, Body] = {}
        self.ready: dict[int, ReadyRow] = {}
        self.order: dict[int, list[Key]] = {}  # lane -> keys of `ready`, sorted
        self.timer: dict[int, TimerRow] = {}
        self.due_order: list[tuple[int, int]] = []
        self.expiry: dict[int, int] = {}
        self.expiry_order: list[tuple[int, int]] = []
        self.lanes: dict[int, LaneRow] = {}
        self.ever: set[int] = set()
        self.epoch = 0
        self.seq = 0
        self.owner = ""
        self.next_number = 1
        self.due_from_ms = 0
        self.expiry_from_ms = 0
        self.dedup: dict[bytes, DedupRow] = {}
        self.dedup_from_ms = 0
        self.slots = Holding()
        self.holder: MemoryStore | None = None
        self.observers: list[Callable[[int, Batch], None]] = []
        self.commits = 0

    def apply(self, epoch: int, batch: Batch) -> None:
        """Carries out `batch` for the owner of `epoch`, checking everything."""
        for observer in self.observers:
            observer(epoch, batch)
        _rule(epoch == self.epoch, "epoch {} changed rows of epoch {}", epoch, self.epoch)
        for lane in batch.lanes_new:
            names = [other[1:] for other in self.lanes.values()]
            _rule(lane.lane not in self.lanes and lane[1:] not in names, "lane {} exists", lane)
            self.lanes[lane.lane] = lane
        for item in batch.inserts:
            self._insert(item)
        for _, priority, deliver_after_ms, item_id in batch.ready_gone:
            self._ready_gone((priority, deliver_after_ms, item_id))
        for item_id in batch.timer_gone:
            self._timer_gone(item_id)
        for item_id, metadata in batch.metadata_new:
            self.items[item_id] = self.items[item_id]._replace(metadata=metadata)
        for item_id, at_ms in batch.deliver_after_new:
            self.items[item_id] = self.items[item_id]._replace(deliver_after_ms=at_ms)
        for row in batch.ready_new:
            self._ready_new(row)
        for timer in batch.timer_new:
            self._timer_new(timer)
        for item_id in batch.expiry_gone:
            at = self.expiry.pop(item_id, None)  # the owner of a row read without its body may ask in vain
            if at is not None:
                del self.expiry_order[bisect_left(self.expiry_order, (at, item_id))]
        for at_ms, item_id in batch.expiry_new:
            self._expiry_new(at_ms, item_id)
        for item_id in batch.item_gone:
            _rule(item_id in self.items, "item {:#x} is removed but is not there", item_id)
            del self.items[item_id]
        for number in batch.lanes_gone:
            _rule(number in self.lanes, "lane {} is removed but is not there", number)
            _rule(not any(b.lane == number for b in self.items.values()), "lane {} has items", number)
            del self.lanes[number]
        if batch.dedup_gone is not None:
            low, high = batch.dedup_gone
            self.dedup = {d: row for d, row in self.dedup.items() if not low <= row.expires_at_ms <= high}
        for dedup in batch.dedup_again:
            old = self.dedup.get(dedup.digest)
            _rule(old is None or old.expires_at_ms <= self.now_ms() + 1, "key {} is stored twice", dedup)
        self.dedup.update((row.digest, row) for row in (*batch.dedup_copied, *batch.dedup_new, *batch.dedup_again))
        self._check(batch)
        self.slots = self.slots if batch.slots is None else batch.slots
        self.dedup_from_ms = batch.dedup_from_ms
        self.next_number = batch.next_number
        self.due_from_ms, self.expiry_from_ms = batch.due_from_ms, batch.expiry_from_ms
        self.commits += 1

    def has_keys(self, batch: Batch) -> bool:
        """Whether a new key of `batch` is there, or comes twice."""
        low, high = batch.dedup_gone or (1, 0)
        new = {dedup.digest for dedup in batch.dedup_new}
        there = [row for digest in new if (row := self.dedup.get(digest))]
        return len(new) < len(batch.dedup_new) or any(not low <= row.expires_at_ms <= high for row in there)

    def _insert(self, item: NewItem) -> None:
        _rule(item.id not in (self.ever if self.strict else self.items), "id {:#x} is inserted twice", item.id)
        self.ever.add(item.id)
        self.items[item.id] = Body(
            item.id, item.lane, item.priority, item.deliver_after_ms, item.enqueued_at_ms, item.expires_at_ms,
            item.lease_ms, item.delivery, item.payload, item.metadata, item.headers,
        )  # fmt: skip
        size = len(item.payload) + len(item.metadata or b"") + len(item.headers or b"")
        if item.due_ms:
            self._timer_new(TimerRow(item.due_ms, item.id, item.lane, 0, 0, 0, size))
        else:
            self._ready_new(ReadyRow(item.lane, item.priority, item.deliver_after_ms, item.id, 0, 0, size))
        if item.expires_at_ms:
            self._expiry_new(item.expires_at_ms, item.id)

    def _ready_new(self, row: ReadyRow) -> None:
        body = self.items.get(row.id)
        _rule(body is not None, "ready row {} without item", row)
        assert body is not None
        same = (body.lane, body.priority, body.deliver_after_ms) == (row.lane, row.priority, row.deliver_after_ms)
        _rule(same and self._is_lane(row.lane), "ready row {} is not what its item says: {}", row, body)
        _rule(row.id not in self.ready, "ready row {} exists", row)
        self.ready[row.id] = row
        insort(self.order.setdefault(row.lane, []), (row.priority, row.deliver_after_ms, row.id))

    def _is_lane(self, number: int) -> bool:
        return number in self.lanes or not self.strict

    def _ready_gone(self, key: Key) -> None:
        row = self.ready.pop(key[2], None)
        _rule(row is not None, "ready row {} is deleted but is not there", key)
        assert row is not None
        keys = self.order[row.lane]
        at = bisect_left(keys, key)
        _rule(at < len(keys) and keys[at] == key, "ready row {} is deleted as {}", row, key)
        del keys[at]

    def _timer_new(self, row: TimerRow) -> None:
        body = self.items.get(row.id)
        _rule(body is not None, "timer row {} without item", row)
        assert body is not None
        _rule(body.lane == row.lane and self._is_lane(row.lane), "timer row {} of another lane", row)
        _rule(bool(row.lease) or body.deliver_after_ms == row.due_ms, "delayed row {} is not due then", row)
        _rule(row.id not in self.timer, "timer row {} exists", row)
        self.timer[row.id] = row
        insort(self.due_order, (row.due_ms, row.id))

    def _timer_gone(self, item_id: int) -> None:
        row = self.timer.pop(item_id, None)
        _rule(row is not None, "timer row of {:#x} is deleted but is not there", item_id)
        assert row is not None
        del self.due_order[bisect_left(self.due_order, (row.due_ms, item_id))]

    def _expiry_new(self, at_ms: int, item_id: int) -> None:
        _rule(item_id in self.items and item_id not in self.expiry, "expiry row of {:#x} cannot be", item_id)
        self.expiry[item_id] = at_ms
        insort(self.expiry_order, (at_ms, item_id))

    def _check(self, batch: Batch) -> None:
        for item_id in batch.ids():
            tables = (item_id in self.ready) + (item_id in self.timer)
            _rule(tables == (item_id in self.items), "item {:#x} is in {} of ready and timer", item_id, tables)
            body = self.items.get(item_id)
            has_ttl = body is not None and body.expires_at_ms > 0
            _rule((item_id in self.expiry) == has_ttl, "item {:#x} has the wrong expiry row", item_id)
        for order, from_ms, what in (
            (self.due_order, batch.due_from_ms, "timer"),
            (self.expiry_order, batch.expiry_from_ms, "expiry"),
            (sorted((row.expires_at_ms, 0) for row in self.dedup.values()), batch.dedup_from_ms, "dedup"),
        ):
            _rule(not order or order[0][0] >= from_ms, "the {} checkpoint {} passed a row", what, from_ms)


class MemoryStore:
    """A `ShardStore` on a `MemoryDatabase`."""

    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._db = database
        self._faults = faults or Faults()
        self._epoch = 0
        self._seq = 0
        self._connected = False
        self._unknown = False
        self._over = False  # it was fenced

    @property
    def max_batch_bytes(self) -> int:
        return self._db.max_batch_bytes

    def open(self, owner: str, *, take_over: bool, epoch_above: int = 0) -> Opened:
        db = self._db
        self._faults.connecting()
        if db.holder is not None and db.holder is not self:
            if not take_over:
                raise ShardRefused("another connection holds the shard", held=True)
            if self._faults.killing():
                db.holder.cut()
        replaced = bool(db.owner)
        db.holder, db.owner = self, owner
        db.epoch = self._epoch = max(db.epoch, epoch_above) + 1
        self._seq = db.seq
        self._connected, self._unknown = True, False
        leased = Counter(row.lane for row in db.timer.values() if row.lease)
        buckets = Counter((row.lane, row.deliver_after_ms >> BACKLOG_SHIFT) for row in db.ready.values())
        return Opened(
            epoch=db.epoch,
            next_number=db.next_number,
            due_from_ms=db.due_from_ms,
            expiry_from_ms=db.expiry_from_ms,
            lanes=list(db.lanes.values()),
            backlog=[Backlog(lane, bucket, items) for (lane, bucket), items in buckets.items()],
            timers={
                lane: (rows, leased[lane]) for lane, rows in Counter(row.lane for row in db.timer.values()).items()
            },
            db_now_ms=db.now_ms(),
            warnings=[],
            replaced=replaced,
            dedup_from_ms=db.dedup_from_ms,
            slots=db.slots,
        )

    def cut(self) -> None:
        """The connection breaks: by a fault, a crash of the owner, or KILL."""
        self._connected = False
        if self._db.holder is self:
            self._db.holder = None

    def _alive(self) -> None:
        if self._over:
            raise Fenced(f"epoch {self._epoch} is over")
        if not self._connected:
            raise StoreDown("no connection")

    def _fence(self) -> None:
        """What `UPDATE shard ... WHERE epoch = :e AND seq = :n - 1` checks."""
        if self._db.epoch != self._epoch or self._db.seq != self._seq:
            self._over = True
            raise Fenced(f"epoch {self._epoch} is over")

    def commit(self, batch: Batch) -> None:
        self._alive()
        fault = self._faults.committing()
        if fault == "down":
            self.cut()
            raise StoreDown("the connection was lost before the commit")
        if fault == "busy":
            raise StoreBusy("lock wait")
        self._fence()
        bad = [item.payload for item in batch.inserts] + [metadata for _, metadata in batch.metadata_new]
        if any(data.startswith(POISON) for data in bad) or self._db.has_keys(batch):
            raise RowRejected("a row cannot be stored")
        if fault != "not applied":
            self._db.apply(self._epoch, batch)
            self._db.seq += 1
        if fault:
            self.cut()
            self._unknown = True
            raise CommitUnknown("the connection was lost while committing")
        self._seq = self._db.seq

    def reconnect(self) -> bool:
        self._faults.connecting()
        db = self._db
        if db.epoch != self._epoch:
            self._over = True
            raise Fenced(f"epoch {self._epoch} is over")
        db.holder, self._connected = self, True
        committed = self._unknown and db.seq == self._seq + 1
        self._seq, self._unknown = db.seq, False
        return committed

    def confirm(self) -> Confirmation:
        self._read()
        self._fence()
        return Confirmation(self._db.now_ms())

    def _read(self) -> None:
        self._alive()
        try:
            self._faults.reading()
        except StoreDown:
            self.cut()
            raise

    def page(self, lane: int, after: Key | None, limit: int) -> list[ReadyRow]:
        self._read()
        keys = self._db.order.get(lane, [])
        start = bisect_right(keys, after) if after is not None else 0
        return [self._db.ready[key[2]] for key in keys[start : start + limit]]

    def bodies(self, ids: list[int]) -> list[Body]:
        self._read()
        return [self._db.items[item_id] for item_id in ids if item_id in self._db.items]

    def _scan(self, order: list[tuple[int, int]], from_ms: int, now_ms: int, limit: int) -> tuple[list[int], bool, int]:
        start, end = bisect_left(order, (from_ms, 0)), bisect_left(order, (now_ms + 1, 0))
        ids = [item_id for _, item_id in order[start:end][:limit]]
        return ids, end - start <= limit, order[end][0] if end < len(order) else 0

    def due(self, from_ms: int, now_ms: int, limit: int) -> Scan[DueRow]:
        self._read()
        db = self._db
        ids, complete, next_ms = self._scan(db.due_order, from_ms, now_ms, limit)
        rows = []
        for item_id in ids:
            body = db.items[item_id]
            rows.append(
                DueRow(db.timer[item_id], body.priority, body.deliver_after_ms, body.expires_at_ms, body.delivery)
            )
        return Scan(rows, complete, next_ms, db.now_ms())

    def expiring(self, from_ms: int, now_ms: int, limit: int) -> Scan[ExpiringRow]:
        self._read()
        db = self._db
        ids, complete, next_ms = self._scan(db.expiry_order, from_ms, now_ms, limit)
        rows = [ExpiringRow(db.expiry[item_id], self._found(item_id)) for item_id in ids]
        return Scan(rows, complete, next_ms, db.now_ms())

    def _found(self, item_id: int) -> Found:
        db = self._db
        return Found(db.items[item_id], db.ready.get(item_id), db.timer.get(item_id))

    def look(self, ids: list[int]) -> list[Found]:
        self._read()
        return [self._found(item_id) for item_id in ids if item_id in self._db.items]

    def dedup(self, digests: list[bytes]) -> list[DedupRow]:
        self._read()
        return [self._db.dedup[digest] for digest in digests if digest in self._db.dedup]

    def dedup_between(self, low: bytes, high: bytes, limit: int) -> list[DedupRow]:
        self._read()
        return sorted(row for digest, row in self._db.dedup.items() if low <= digest <= high)[:limit]

    def dedup_expired(self, from_ms: int, now_ms: int, limit: int) -> DedupScan:
        self._read()
        times = sorted(row.expires_at_ms for row in self._db.dedup.values())
        start, end = bisect_left(times, from_ms), bisect_right(times, now_ms)
        cut = end - start >= limit
        bound_ms = times[start + limit - 1] if cut else now_ms
        first_ms, next_ms = times[start] if end > start else 0, times[end] if end < len(times) else 0
        return DedupScan(first_ms, bound_ms, not cut, next_ms, self._db.now_ms())

    def list_timer(self, lane: int, leased: bool, after: tuple[int, int] | None, limit: int) -> list[TimerRow]:
        self._read()
        order = self._db.due_order
        start = bisect_right(order, after) if after is not None else 0
        rows = (self._db.timer[item_id] for _, item_id in order[start:])
        return [row for row in rows if row.lane == lane and bool(row.lease) == leased][:limit]

    def close(self, *, clean: bool = False) -> None:
        if clean and self._connected and self._epoch == self._db.epoch:
            self._db.owner = ""
        self.cut()
