"""A `ShardStore` on a database in memory: the SQL store's rules, checked harder, with failures on demand."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable

from foqs.ids import Marks
from foqs.item_batch import BatchPart, BatchRow, ShardCounts
from foqs.item_filter import ItemFacts
from foqs.opened import Backlog, Opened
from foqs.order import InOrder, Order, OrderHome, OrderRow, Standing
from foqs.policies.failures import FailureFilter
from foqs.policies.settings import Change, Settings, decode
from foqs.rows import (
    BACKLOG_SHIFT,
    Batch,
    Body,
    DeadPage,
    DeadRow,
    DedupRow,
    DedupScan,
    DueRow,
    EndedRow,
    EndedState,
    ExpiringRow,
    FailureGroup,
    FailureGroups,
    FailurePosition,
    FailureRow,
    Found,
    HeldKey,
    Key,
    LastFailure,
    ProgressRow,
    ReadyRow,
    Scan,
    SettingRow,
    TimerRow,
)
from foqs.store.protocol import (
    CommitUnknown,
    Confirmation,
    Fenced,
    RowRejected,
    ShardRefused,
    StoreBusy,
    StoreDown,
    StoreFull,
)
from tests.sim.faults import Faults
from tests.sim.memory_database import MemoryDatabase, Packet


class MemoryStore:
    """A `ShardStore` on a `MemoryDatabase`."""

    def __init__(self, database: MemoryDatabase, faults: Faults | None = None) -> None:
        self._db = database
        self._faults = faults or Faults()
        self._epoch = 0
        self._seq = 0
        self._connection = 0
        self._connected = False
        self._unknown = False
        self._over = False  # it was fenced

    @property
    def max_batch_bytes(self) -> int:
        return self._db.max_batch_bytes

    def open(self, owner: str, *, take_over: bool, epoch_above: int = 0, marks: Marks | None = None) -> Opened:
        db = self._db
        self._faults.connecting()
        self._begin_late()
        if db.holder is not None and db.holder is not self:
            if not take_over:
                raise ShardRefused("another connection holds the shard", held=True)
            if self._faults.killing():
                db.holder.cut()
        replaced = bool(db.owner)
        db.holder, db.owner = self, owner
        db.epoch = self._epoch = max(db.epoch, epoch_above) + 1
        db.connection = self._connection = db.connect()
        self._seq = db.seq
        self._connected, self._unknown = True, False
        tail = db.tail()
        if not tail or not self._faults.lacks_room_for_tail():
            db.index_tail()
            db.indexed_to, tail = max(db.items, default=0), []
        leased = Counter(row.lane for row in db.timer.values() if row.lease)
        buckets = Counter((row.lane, row.deliver_after_ms >> BACKLOG_SHIFT) for row in db.ready.values())
        return Opened(
            epoch=db.epoch,
            next_number=db.next_number,
            due_from_ms=db.due_from_ms,
            expiry_from_ms=db.expiry_from_ms,
            lanes=sorted(db.lanes.values()),
            backlog=[Backlog(lane, bucket, items) for (lane, bucket), items in buckets.items()],
            timers={
                lane: (rows, leased[lane]) for lane, rows in Counter(row.lane for row in db.timer.values()).items()
            },
            db_now_ms=db.now_ms(),
            warnings=[],
            replaced=replaced,
            dedup_from_ms=db.dedup_from_ms,
            slots=db.slots,
            dead=sorted({row.lane for row in db.failures.values()}),
            settings=[SettingRow(ns.encode(), doc) for ns, doc in db.settings.items()],
            ended=counts_of_ends(db.ended.values()),
            ended_from_ms=db.ended_from_ms,
            noted={item_id: len(row.checkpoint or b"") for item_id, row in db.progress.items()},
            holding=bool(db.held),
            tail=tail,
            ordered=counts_of_orders(db.ordered.values()),
            homes=list(db.homes.values()),
            batches=bool(db.batches),
            order_leases=[
                (Order(row.digest, row.place, row.standing), row.id, row.lane)
                for row in db.ordered.values()
                if row.id in db.timer and db.timer[row.id].lease
            ],
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

    def _fence(self, packet: Packet) -> None:
        if self._db.stops(packet):
            self._over = True
            raise Fenced(f"epoch {self._epoch} is over")

    def _packet(self, batch: Batch) -> Packet:
        return Packet(self._epoch, self._connection, self._seq, batch)

    def _begin_late(self) -> None:
        if self._db.late and self._faults.waking():
            self._db.begin_late()

    def commit(self, batch: Batch) -> None:
        self._alive()
        self._begin_late()
        fault = self._faults.committing()
        if fault == "down":
            self.cut()
            raise StoreDown("the connection was lost before the commit")
        if fault == "busy":
            raise StoreBusy("lock wait")
        if fault == "full" or (not fault and self._faults.lacks_room(batch)):
            raise StoreFull("the disk is full")
        packet = self._packet(batch)
        if fault == "late":
            self._db.late.append(packet)
        else:
            self._fence(packet)
            if self._db.refuses(batch):
                raise RowRejected("a row cannot be stored")
            if fault != "not applied":
                self._db.run(packet)
        if fault:
            self.cut()
            self._unknown = True
            raise CommitUnknown("the connection was lost while committing")
        self._seq = self._db.seq

    def waits_in_vain(self) -> bool:
        return False

    def reconnect(self) -> bool:
        self._faults.connecting()
        self._begin_late()
        db = self._db
        if db.epoch != self._epoch:
            self._over = True
            raise Fenced(f"epoch {self._epoch} is over")
        db.holder, self._connected = self, True
        db.connection = self._connection = db.connect()
        committed = self._unknown and db.seq == self._seq + 1
        self._seq, self._unknown = db.seq, False
        return committed

    def confirm(self) -> Confirmation:
        self._read()
        self._fence(self._packet(Batch()))
        return Confirmation(self._db.now_ms())

    def _read(self) -> None:
        self._alive()
        self._begin_late()
        try:
            self._faults.reading()
        except StoreDown:
            self.cut()
            raise

    def page(
        self, lane: int, after: Key | None, limit: int, priorities: tuple[int, int] | None = None
    ) -> list[ReadyRow]:
        self._read()
        keys = self._db.order.get(lane, [])
        keys = keys[bisect_right(keys, after) if after is not None else 0 :]
        if priorities is not None:
            keys = [key for key in keys if priorities[0] <= key[0] <= priorities[1]]
        return [self._db.ready[key[2]] for key in keys[:limit]]

    def page_of_lanes(self, lanes: list[int], limit: int, priorities: tuple[int, int] | None = None) -> list[ReadyRow]:
        self._read()
        keys = [key for lane in sorted(lanes) for key in self._db.order.get(lane, ())]
        if priorities is not None:
            keys = [key for key in keys if priorities[0] <= key[0] <= priorities[1]]
        return [self._db.ready[key[2]] for key in keys[:limit]]

    def facts(self, ids: list[int], headers: bool) -> list[ItemFacts]:
        self._read()
        bodies = [self._db.items[item_id] for item_id in ids if item_id in self._db.items]
        return [
            ItemFacts(
                one.id,
                one.priority,
                one.enqueued_at_ms,
                one.headers if headers else None,
                one.order_key,
                one.batch or None,
            )
            for one in bodies
        ]

    def bodies(self, ids: list[int]) -> list[Body]:
        self._read()
        return [self._db.items[item_id] for item_id in ids if item_id in self._db.items]

    def _scan(
        self, order: list[tuple[int, int]], from_ms: int, now_ms: int, limit: int, after_id: int = 0
    ) -> tuple[list[int], bool, int]:
        start, end = bisect_left(order, (from_ms, after_id + 1)), bisect_left(order, (now_ms + 1, 0))
        ids = [item_id for _, item_id in order[start:end][:limit]]
        return ids, end - start <= limit, order[end][0] if end < len(order) else 0

    def due(self, from_ms: int, now_ms: int, limit: int, after_id: int = 0) -> Scan[DueRow]:
        self._read()
        db = self._db
        ids, complete, next_ms = self._scan(db.due_order, from_ms, now_ms, limit, after_id)
        rows = []
        for item_id in ids:
            body = db.items[item_id]
            rows.append(
                DueRow(
                    db.timer[item_id],
                    body.priority,
                    body.deliver_after_ms,
                    body.expires_at_ms,
                    body.delivery,
                    db.since_ms(item_id),
                    body.order_at,
                )
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
        rows = db.ready.get(item_id), db.timer.get(item_id), db.since_ms(item_id)
        last = db.last_failures.get(item_id)
        return Found(db.items[item_id], *rows, ended=db.ended.get(item_id), last_failure=last)

    def look(self, ids: list[int]) -> list[Found]:
        self._read()
        return [self._found(item_id) for item_id in ids if item_id in self._db.items]

    def failures(self, ids: list[int]) -> list[FailureRow]:
        self._read()
        return [self._db.failures[item_id] for item_id in ids if item_id in self._db.failures]

    def last_failures(self, ids: list[int]) -> list[tuple[int, LastFailure]]:
        self._read()
        return [(item_id, self._db.last_failures[item_id]) for item_id in ids if item_id in self._db.last_failures]

    def failure_groups(
        self, lane: int, after: FailurePosition | None, wanted: FailureFilter, limit: int, rows: int
    ) -> FailureGroups:
        self._read()
        found, end = self._db.failures_of(lane, after, wanted, rows)
        groups: dict[tuple[int, int], list[FailureRow]] = {}
        for row in found:
            groups.setdefault((row.fingerprint, row.cause), []).append(row)
        made = [_group(groups[key]) for key in sorted(groups)]
        if len(made) > limit:
            last = (made[limit - 1].fingerprint, (1 << 63) - 1)
            made = [group for group in made if group.fingerprint <= last[0]]
            end = last if end is None else min(end, last)
        return FailureGroups(made, end)

    def dead_page(
        self, lane: int, after: FailurePosition | None, wanted: FailureFilter, limit: int, rows: int
    ) -> DeadPage:
        self._read()
        db = self._db
        found, end = db.failures_of(lane, after, wanted, rows)
        if len(found) >= limit:
            end = (found[limit - 1].fingerprint, found[limit - 1].id)
        page = []
        for row in found[:limit]:
            body = db.items[row.id]
            about = (body.priority, body.deliver_after_ms, body.expires_at_ms, body.headers)
            rows_of = (db.ready.get(row.id), db.timer.get(row.id))
            page.append(DeadRow(row, *about, *rows_of, body.order_key, body.order_at))
        return DeadPage(page, end)

    def orders_behind(self, digest: bytes, limit: int) -> list[InOrder]:
        self._read()
        return self._db.in_order(digest, 0, limit, of_one=False)

    def orders_of(self, keys: list[tuple[bytes, int]], limit: int) -> list[InOrder]:
        self._read()
        return sorted(row for key in keys for row in self._db.in_order(*key, limit, of_one=True))

    def list_behind(self, lanes: list[int], after: tuple[bytes, int] | None, limit: int) -> list[InOrder]:
        self._read()
        digest, place = after or (b"", 0)
        rows = [
            *(self._db.in_order(digest, place, 1 << 30, of_one=True)),
            *self._db.in_order(digest, 0, 1 << 30, of_one=False),
        ]
        return [row for row in rows if row.lane in lanes and not row.timer][:limit]

    def orders_in(self, digests: list[bytes]) -> set[bytes]:
        self._read()
        return {row.digest for row in self._db.ordered.values()} & set(digests)

    def orders_between(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        self._read()
        return sorted({row.digest for row in self._db.ordered.values() if low <= row.digest <= high})[:limit]

    def order_homes(self, low: bytes, high: bytes, limit: int) -> list[OrderHome]:
        self._read()
        return sorted(home for home in self._db.homes.values() if low <= home.digest <= high)[:limit]

    def dead_orders(self, after_id: int, limit: int) -> list[tuple[int, bytes | None]]:
        self._read()
        ids = sorted(item_id for item_id in self._db.failures if item_id > after_id)
        return [(item_id, self._db.items[item_id].order_at) for item_id in ids[:limit]]

    def member_counts(self, batches: list[int]) -> list[ShardCounts]:
        self._read()
        return self._db.batches.shard_counts(batches)

    def unsent_counts(self, after: int, limit: int) -> list[ShardCounts]:
        self._read()
        counts = self._db.batches.counts
        return self._db.batches.shard_counts(
            sorted(batch for batch in counts if batch > after and counts[batch].unsent)[:limit]
        )

    def members_of(self, batch: int, after: tuple[bool, int], limit: int) -> list[tuple[bool, int]]:
        self._read()
        return self._db.batches.members_of(batch, after, limit)

    def batch_rows(self, batches: list[int]) -> list[BatchRow]:
        self._read()
        return [self._db.batches.rows[batch] for batch in batches if batch in self._db.batches.rows]

    def live_batches(self, after: int, limit: int) -> list[BatchRow]:
        self._read()
        rows = sorted(row for row in self._db.batches.rows.values() if row.id > after and not row.ended_at_ms)
        return [row._replace(on_success=None, on_end=None) for row in rows[:limit]]

    def batch_parts(self, batches: list[int]) -> list[BatchPart]:
        self._read()
        return [part for part in self._db.batches.parts.values() if part.batch in batches]

    def ended_batches(self, before_ms: int, limit: int) -> list[int]:
        self._read()
        ended = sorted((row.ended_at_ms, row.id) for row in self._db.batches.rows.values() if row.ended_at_ms)
        return [batch for at_ms, batch in ended if at_ms < before_ms][:limit]

    def dedup(self, digests: list[bytes]) -> list[DedupRow]:
        self._read()
        return [self._db.dedup[digest] for digest in digests if digest in self._db.dedup]

    def dedup_between(self, low: bytes, high: bytes, limit: int) -> list[DedupRow]:
        self._read()
        return sorted(row for digest, row in self._db.dedup.items() if low <= digest <= high)[:limit]

    def held_keys(self, ids: list[int]) -> list[HeldKey]:
        self._read()
        return [self._db.held[item_id] for item_id in ids if item_id in self._db.held]

    def keys_to_free(self, after: tuple[int, int], now_ms: int, limit: int) -> tuple[list[HeldKey], int]:
        self._read()
        waiting = sorted((key.free_at_ms, key.id, key) for key in self._db.held.values() if key.free_at_ms)
        due = [key for at_ms, item_id, key in waiting if after < (at_ms, item_id) and at_ms <= now_ms]
        return due[:limit], next((at_ms for at_ms, _, _ in waiting if at_ms > now_ms), 0)

    def dedup_expired(self, from_ms: int, now_ms: int, limit: int) -> DedupScan:
        self._read()
        times = sorted(row.expires_at_ms for row in self._db.dedup.values())
        start, end = bisect_left(times, from_ms), bisect_right(times, now_ms)
        cut = end - start >= limit
        bound_ms = times[start + limit - 1] if cut else now_ms
        first_ms, next_ms = times[start] if end > start else 0, times[end] if end < len(times) else 0
        return DedupScan(first_ms, bound_ms, not cut, next_ms, self._db.now_ms())

    def ended_due(self, from_ms: int, now_ms: int, limit: int) -> Scan[EndedRow]:
        self._read()
        db = self._db
        ids, complete, next_ms = self._scan(db.ended_order, from_ms, now_ms, limit)
        return Scan([db.ended[item_id] for item_id in ids], complete, next_ms, db.now_ms())

    def list_ended(self, lanes: list[int], state: int, after: tuple[int, int] | None, limit: int) -> list[EndedRow]:
        self._read()
        order = self._db.ended_order
        start = bisect_right(order, after) if after is not None else 0
        rows = (self._db.ended[item_id] for _, item_id in order[start:])
        return [row for row in rows if row.lane in lanes and state in (0, row.state)][:limit]

    def results(self, ids: list[int]) -> list[tuple[int, bytes]]:
        self._read()
        return [(item_id, self._db.results[item_id]) for item_id in ids if item_id in self._db.results]

    def progress(self, ids: list[int]) -> list[ProgressRow]:
        self._read()
        return [self._db.progress[item_id] for item_id in ids if item_id in self._db.progress]

    def list_timer(self, lanes: list[int], leased: bool, after: tuple[int, int] | None, limit: int) -> list[TimerRow]:
        self._read()
        order = self._db.due_order
        start = bisect_right(order, after) if after is not None else 0
        rows = (self._db.timer[item_id] for _, item_id in order[start:])
        return [row for row in rows if row.lane in lanes and bool(row.lease) == leased][:limit]

    def change_settings(self, ns: str, change: Change) -> Settings:
        self._alive()
        if self._epoch != self._db.epoch:
            raise Fenced(f"epoch {self._epoch} is over")
        before = decode(ns, self._db.settings[ns]) if ns in self._db.settings else Settings(ns)
        made = change(before)
        if made is not before:
            self._db.settings[ns] = made.encoded()
        return made

    def close(self, *, clean: bool = False) -> None:
        if clean and self._connected and self._epoch == self._db.epoch:
            self._db.owner = ""
            if not (self._db.tail() and self._faults.lacks_room_for_tail()):
                self._db.index_tail()
                self._db.indexed_to = 0
        self.cut()


def counts_of_ends(rows: Iterable[EndedRow]) -> dict[int, tuple[int, int]]:
    """By lane: COMPLETED and FAILED rows."""
    made: dict[int, tuple[int, int]] = {}
    for row in rows:
        completed, failed = made.get(row.lane, (0, 0))
        one = row.state == EndedState.COMPLETED
        made[row.lane] = completed + one, failed + (not one)
    return made


def counts_of_orders(rows: Iterable[OrderRow]) -> dict[int, tuple[int, int]]:
    """By lane: rows, and IN_ORDER ones."""
    made: dict[int, tuple[int, int]] = {}
    for row in rows:
        count, in_order = made.get(row.lane, (0, 0))
        made[row.lane] = count + 1, in_order + (row.standing == Standing.IN_ORDER)
    return made


def _group(rows: list[FailureRow]) -> FailureGroup:
    first, times = rows[0], [row.died_at_ms for row in rows]
    sample = min(rows, key=lambda row: row.id)
    return FailureGroup(first.fingerprint, first.cause, len(rows), min(times), max(times), sample.id, sample.reason)
