"""A shard's database in memory, which checks every transaction whole.

An item is in exactly one of `ready`, `timer` and `ended`, or is unindexed, with an id above `indexed_to`, or stands in
the order of its order key. Rows say what the body says, a delete matches a row, no id is inserted twice ever, no
checkpoint passes a row, only the owner changes a row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from foqs.ids import FOREVER_MS, hash_slot_bounds, hash_slot_of
from foqs.item_batch import MemberRows
from foqs.order import InOrder, Order, OrderHome, OrderRow, Standing
from foqs.policies.failures import FailureFilter
from foqs.rows import (
    Batch,
    Body,
    DedupRow,
    EndedRow,
    FailurePosition,
    FailureRow,
    HeldKey,
    Holding,
    Key,
    KeyRows,
    LaneRow,
    LastFailure,
    NewItem,
    NewOrdered,
    ProgressRow,
    ReadyRow,
    TimerRow,
)
from foqs.shardmgr.routing import has
from tests.sim.memory_batches import MemoryBatches

POISON = b"\xffpoison"
"""A payload or metadata that begins with it is refused by the database."""
_POISONED_EVENT = b'0"}'
"""So is one that ends with it: the event of an ack with one of ten results."""


def size_of(item: NewItem | Body) -> int:
    """The size of the body, as rows have it."""
    return len(item.payload) + len(item.metadata or b"") + len(item.headers or b"")


def _order_of(row: OrderRow) -> tuple[bytes, int, int, int]:
    return row[:4]


class DatabaseRuleBroken(AssertionError):
    """A transaction that no correct owner sends."""


def _rule(holds: bool, message: str, *about: Any) -> None:
    if not holds:
        raise DatabaseRuleBroken(message.format(*about))


class Packet(NamedTuple):
    """A transaction with its COMMIT that a session has not begun, and what its fence says."""

    epoch: int
    connection: int
    seq: int
    batch: Batch


class Holder(Protocol):
    """The store whose connection holds the shard."""

    def cut(self) -> None: ...


class MemoryDatabase:
    """The tables of one shard. `now_ms` is the database's clock; `observers` see every committed batch.

    An observer is called with (epoch, batch) before the rows change. Not `strict`: ids may be used again, and lanes
    need no row, as the tables of a SQL shard have it.
    """

    def __init__(self, now_ms: Callable[[], int], *, max_batch_bytes: int = 1 << 20, strict: bool = True) -> None:
        self.now_ms = now_ms
        self.strict = strict
        self.indexed_to = 0
        self.unindexed: dict[int, ReadyRow] = {}  # the rows that are not there
        self.max_batch_bytes = max_batch_bytes
        self.items: dict[int, Body] = {}
        self.first: dict[int, int] = {}  # the first times of items that have another one now
        self.ready: dict[int, ReadyRow] = {}
        self.order: dict[int, list[Key]] = {}  # lane -> keys of `ready`, sorted
        self.timer: dict[int, TimerRow] = {}
        self.due_order: list[tuple[int, int]] = []
        self.ordered: dict[int, OrderRow] = {}
        self.orders: list[tuple[bytes, int, int, int]] = []  # digest, standing, place and id of `ordered`, sorted
        self.expiry: dict[int, int] = {}
        self.expiry_order: list[tuple[int, int]] = []
        self.failures: dict[int, FailureRow] = {}
        self.last_failures: dict[int, LastFailure] = {}
        self.ended: dict[int, EndedRow] = {}
        self.ended_order: list[tuple[int, int]] = []
        self.results: dict[int, bytes] = {}
        self.progress: dict[int, ProgressRow] = {}
        self.ended_from_ms = 0
        self.homes: dict[bytes, OrderHome] = {}
        self.batches = MemoryBatches(_rule)
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
        self.held: dict[int, HeldKey] = {}
        self.dead_keys: set[int] = set()  # those of dead letters
        self.slots = Holding()
        self.settings: dict[str, bytes] = {}
        self.holder: Holder | None = None
        self.connection = 0  # that of the last owner to open or to reconnect
        self.connections = 0
        self.late: list[Packet] = []
        self.observers: list[Callable[[int, Batch], None]] = []
        self.forgot: Callable[[list[int]], None] = lambda batches: None
        self.commits = 0

    def since_ms(self, item_id: int) -> int:
        """When the item could be delivered first, since its enqueue or its last redrive."""
        return self.first.get(item_id, self.items[item_id].deliver_after_ms)

    def connect(self) -> int:
        """The number of a new connection."""
        self.connections += 1
        return self.connections

    def stops(self, packet: Packet) -> bool:
        """Whether the fence of `packet` ends it."""
        return (self.epoch, self.connection, self.seq) != (packet.epoch, packet.connection, packet.seq)

    def run(self, packet: Packet) -> None:
        """Carry out the transaction of `packet`, whose fence holds."""
        self.apply(packet.epoch, packet.batch)
        self.seq += 1

    def begin_late(self) -> None:
        """The sessions that hung with a packet go on; their replies are lost."""
        late, self.late = self.late, []
        for packet in late:
            if not self.stops(packet) and not self.refuses(packet.batch):
                self.run(packet)

    def refuses(self, batch: Batch) -> bool:
        """Whether a row of `batch` cannot be stored."""
        bad = [item.payload for item in (*batch.inserts, *batch.bodies_new)] + [
            metadata for _, metadata in batch.metadata_new
        ]
        refused = any(data.startswith(POISON) or data.endswith(_POISONED_EVENT) for data in bad)
        return refused or self.has_keys(batch)

    def apply(self, epoch: int, batch: Batch) -> None:
        """Carries out `batch` for the owner of `epoch`, checking everything."""
        for observer in self.observers:
            observer(epoch, batch)
        _rule(epoch == self.epoch, "epoch {} changed rows of epoch {}", epoch, self.epoch)
        for lane in batch.lanes_new:
            names = [(*other[1:5], other.rules) for other in self.lanes.values()]
            known = lane.lane in self.lanes or (*lane[1:5], lane.rules) in names
            _rule(not known, "lane {} exists", lane)
            self.lanes[lane.lane] = lane
        for number, weight in batch.weights:
            _rule(number in self.lanes, "lane {} gets a weight but is not there", number)
            self.lanes[number] = self.lanes[number]._replace(weight=weight)
        for row in batch.order_gone:
            _rule(self.ordered.pop(row.id, None) == row, "row {} of ordered is deleted but is not there", row)
            del self.orders[bisect_left(self.orders, _order_of(row))]
        for item in batch.inserts:
            _rule(batch.ordered or not isinstance(item, NewOrdered), "item {} is not stored in order", item.id)
            self._insert(item)
        for _, priority, deliver_after_ms, item_id in batch.ready_gone:
            self._ready_gone((priority, deliver_after_ms, item_id))
        for item_id in batch.timer_gone:
            self._timer_gone(item_id)
        for item_id, metadata in batch.metadata_new:
            self.items[item_id] = self.items[item_id]._replace(metadata=metadata)
        for item_id, at_ms in batch.deliver_after_new:
            self.first.setdefault(item_id, self.items[item_id].deliver_after_ms)
            self.items[item_id] = self.items[item_id]._replace(deliver_after_ms=at_ms)
        for item_id, at_ms, packed in batch.failed_new:
            self.first.setdefault(item_id, self.items[item_id].deliver_after_ms)
            self.items[item_id] = self.items[item_id]._replace(deliver_after_ms=at_ms)
            self.last_failures[item_id] = LastFailure.unpack(packed)
        for new in batch.bodies_new:
            self.items[new.id] = self.items[new.id]._replace(
                priority=new.priority, deliver_after_ms=new.deliver_after_ms, payload=new.payload,
                metadata=new.metadata, headers=new.headers,
            )  # fmt: skip
            self.first.pop(new.id, None)
        for item_id, priority, at_ms, first in batch.placed:
            if first:
                self.first.pop(item_id, None)
            else:
                self.first.setdefault(item_id, self.items[item_id].deliver_after_ms)
            self.items[item_id] = self.items[item_id]._replace(priority=priority, deliver_after_ms=at_ms)
        for item_id, number, at_ms, expires_at_ms in batch.moved:
            body = self.items[item_id]
            _rule(self._is_lane(number) and number != body.lane, "item {} moves to lane {}", body, number)
            self.items[item_id] = body._replace(lane=number, deliver_after_ms=at_ms, expires_at_ms=expires_at_ms)
            self.first.pop(item_id, None)
            if all(failure.id != item_id for failure in batch.failure_new):
                self.last_failures.pop(item_id, None)
        for row in batch.order_new:
            self._order_new(row)
        for item_id, order_at in batch.order_at_new:
            body = self.items[item_id]
            _rule(body.order_key is not None, "item {} gets a place and has no order key", item_id)
            self.items[item_id] = body._replace(order_at=order_at)
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
        for item_id in batch.failure_gone:
            self.failures.pop(item_id, None)
        for failure in batch.failure_new:
            _rule(failure.id not in self.failures, "failure {} exists", failure)
            self.failures[failure.id] = failure
        self._ends(batch)
        self._members(batch)
        for item_id in batch.item_gone:
            _rule(item_id in self.items, "item {} is removed but is not there", item_id)
            del self.items[item_id]
            self.first.pop(item_id, None)
            self.last_failures.pop(item_id, None)
            self.unindexed.pop(item_id, None)
        for number in batch.lanes_gone:
            _rule(number in self.lanes, "lane {} is removed but is not there", number)
            _rule(not any(b.lane == number for b in self.items.values()), "lane {} has items", number)
            del self.lanes[number]
        keys = batch.keys or KeyRows(self.slots.bits)
        self._clear_slots(keys)
        if batch.dedup_gone is not None:
            low, high = batch.dedup_gone
            self.dedup = {d: row for d, row in self.dedup.items() if not low <= row.expires_at_ms <= high}
        for dedup in batch.dedup_again:
            old = self.dedup.get(dedup.digest)
            _rule(old is None or old.expires_at_ms <= self.now_ms() + 1, "key {} is stored twice", dedup)
        self.dedup.update(
            (row.digest, row) for row in (*keys.copied, *keys.marks, *batch.dedup_new, *batch.dedup_again)
        )
        self._held_keys(keys)
        self._change_homes(keys)
        self._check(batch)
        self.slots = self.slots if batch.slots is None else batch.slots
        self.ended_from_ms = self.ended_from_ms if batch.ended_from_ms is None else batch.ended_from_ms
        first = self.ended_order[0][0] if self.ended_order else self.ended_from_ms
        _rule(first >= self.ended_from_ms, "the checkpoint {} of ended items passed a row", self.ended_from_ms)
        self.dedup_from_ms = batch.dedup_from_ms
        self.next_number = batch.next_number
        if batch.indexed_to is not None:
            self.indexed_to = batch.indexed_to
        first = min(self.unindexed, default=self.indexed_to + 1)
        _rule(first > self.indexed_to > 0 or not self.unindexed, "{} is unindexed before {}", first, self.indexed_to)
        self.due_from_ms, self.expiry_from_ms = batch.due_from_ms, batch.expiry_from_ms
        self.commits += 1

    def tail(self) -> list[ReadyRow]:
        """Returns the rows that the unindexed items lack, as far as the tables and `indexed_to` show them, by id."""
        found = []
        for item_id, body in sorted(self.items.items()) if self.indexed_to else ():
            placed = item_id in self.ready or item_id in self.timer or item_id in self.ended
            if item_id > self.indexed_to and not placed and body.order_at is None:
                row = (body.lane, body.priority, body.deliver_after_ms, item_id, 0, 0, size_of(body))
                found.append(ReadyRow(*row))
        _rule(
            self.unindexed.keys() == {row.id for row in found},
            "items {} are not found by the next owner", self.unindexed,
        )  # fmt: skip
        return found

    def index_tail(self) -> None:
        """Writes these rows."""
        for row in self.tail():
            self._ready_new(row)

    def _ends(self, batch: Batch) -> None:
        for row in batch.ended_new:
            body = self.items.get(row.id)
            _rule(body is not None and body.lane == row.lane, "ended row {} is not what its item says: {}", row, body)
            _rule(row.id not in self.ended, "ended row {} exists", row)
            self.unindexed.pop(row.id, None)
            self.ended[row.id] = row
            insort(self.ended_order, (row.until_ms, row.id))
        for item_id, data in batch.results_new:
            _rule(item_id in self.ended and item_id not in self.results, "result of {} cannot be", item_id)
            self.results[item_id] = data
        for item_id in batch.ended_gone:
            ended = self.ended.pop(item_id, None)
            _rule(ended is not None and item_id in batch.item_gone, "the end of {} is removed alone", item_id)
            assert ended is not None
            del self.ended_order[bisect_left(self.ended_order, (ended.until_ms, item_id))]
            self.results.pop(item_id, None)
        for row in batch.progress_new:
            _rule(row.id in self.items, "progress of {}, which is not there", row)
            before = self.progress.get(row.id)
            self.progress[row.id] = row if before is None else before.then(row)
        for item_id in batch.progress_gone:
            self.progress.pop(item_id, None)

    def _members(self, batch: Batch) -> None:
        rows = batch.members or MemberRows()
        new = dict(rows.new)
        for item in batch.inserts:
            _rule(new.get(item.id, 0) == item.batch, "item {} of batch {} is no member", item.id, item.batch)
        self.batches.apply(rows)
        if rows.forgotten:
            self.forgot(rows.forgotten)

    def _clear_slots(self, keys: KeyRows) -> None:
        for low, high in map(hash_slot_bounds, keys.cleared):
            self.dedup = {digest: row for digest, row in self.dedup.items() if not low <= digest <= high}
            self.homes = {digest: home for digest, home in self.homes.items() if not low <= digest <= high}

    def _change_homes(self, keys: KeyRows) -> None:
        self.homes.update((home.digest, home) for home in keys.homes)
        for _, digest, home in keys.homes_gone:
            if self.homes.get(digest) == (digest, home.shard, home.stamp):
                del self.homes[digest]
        self.homes = {digest: home for digest, home in self.homes.items() if home.shard not in keys.shards_gone}

    def _held_keys(self, keys: KeyRows) -> None:
        for row in keys.held:
            _rule(row.id not in self.held, "key {} is held already", row)
            self.held[row.id] = row
        frees = bool(keys.ended or keys.dead) and self.strict
        _rule(keys.bits == self.slots.bits or not frees, "slots {} are not the shard's", keys.bits)
        for item_id in (*keys.ended, *keys.dead):
            if (held := self.held.get(item_id)) is None:
                continue
            here = has(keys.bits, hash_slot_of(held.digest)) and not held.free_at_ms
            self.held[item_id] = held._replace(free_at_ms=0 if here else 1)
            (self.dead_keys.add if item_id in keys.dead else self.dead_keys.discard)(item_id)
            row = self.dedup.get(held.digest)
            if row is not None and row.id == item_id:
                del self.dedup[held.digest]
        for item_id in keys.redriven:
            if item_id in self.held:
                self.held[item_id] = self.held[item_id]._replace(free_at_ms=0)
                self.dead_keys.discard(item_id)
        for claim in keys.claims:
            if (held := self.held.get(claim.id)) is not None and claim.id in self.dead_keys:
                self.held[claim.id] = held._replace(number=held.number + 1, free_at_ms=claim.free_at_ms)
        for noted in keys.noted:
            if (held := self.held.get(noted.id)) is not None and held[2:] == noted[2:]:
                self.held[noted.id] = held._replace(free_at_ms=0)
        for item_id in (*keys.ended, *(noted.id for noted in keys.noted)):
            held = self.held.get(item_id)
            if held is not None and not held.free_at_ms and item_id not in self.dead_keys:
                del self.held[item_id]
        for key in keys.freed:
            row = self.dedup.get(key.digest)
            if row is not None and row.id == key.id and row.expires_at_ms <= FOREVER_MS + key.number:
                del self.dedup[key.digest]
        for row in keys.taken:
            old = self.dedup.get(row.digest)
            if old is None or old.expires_at_ms <= keys.taken_ms or old.id == row.id:
                self.dedup[row.digest] = row

    def slots_have(self, digest: bytes) -> bool:
        """Whether the key is in a slot of the shard."""
        return has(self.slots.bits, hash_slot_of(digest))

    def has_keys(self, batch: Batch) -> bool:
        """Whether a new key of `batch` is there, or comes twice."""
        low, high = batch.dedup_gone or (1, 0)
        new = {dedup.digest for dedup in batch.dedup_new}
        there = [row for digest in new if (row := self.dedup.get(digest))]
        return len(new) < len(batch.dedup_new) or any(not low <= row.expires_at_ms <= high for row in there)

    def _insert(self, item: NewItem) -> None:
        _rule(item.id not in (self.ever if self.strict else self.items), "id {} is inserted twice", item.id)
        self.ever.add(item.id)
        self.items[item.id] = Body(
            item.id, item.lane, item.priority, item.deliver_after_ms, item.enqueued_at_ms, item.expires_at_ms,
            item.lease_ms, item.delivery, item.payload, item.metadata, item.headers, item.order_key, item.order_at,
            None, item.batch,
        )  # fmt: skip
        size = size_of(item)
        if isinstance(item, NewOrdered):
            self._order_new(item.order_row)
        if item.due_ms:
            self._timer_new(TimerRow(item.due_ms, item.id, item.lane, 0, 0, 0, size))
        elif isinstance(item, NewOrdered):
            pass
        elif item.unindexed:
            self.unindexed[item.id] = ReadyRow(item.lane, item.priority, item.deliver_after_ms, item.id, 0, 0, size)
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
        self.unindexed.pop(row.id, None)
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

    def _order_new(self, row: OrderRow) -> None:
        body = self.items.get(row.id)
        _rule(body is not None, "row {} of ordered without item", row)
        there = any(other[:3] == row[:3] for other in self.orders[bisect_left(self.orders, _order_of(row)[:3]) :][:1])
        _rule(row.id not in self.ordered and not there, "row {} of ordered exists", row)
        self.ordered[row.id] = row
        insort(self.orders, _order_of(row))

    def in_order(self, digest: bytes, place: int, limit: int, *, of_one: bool) -> list[InOrder]:
        """Return the first `limit` items that stand in order, of the key behind the place, or of all keys behind it."""
        found: list[InOrder] = []
        after = (digest, Standing.IN_ORDER if of_one else len(Standing), place, (1 << 63) - 1)
        for key, standing, at, item_id in self.orders[bisect_right(self.orders, after) :]:
            if len(found) == limit or (of_one and (key, standing) != (digest, Standing.IN_ORDER)):
                break
            if standing == Standing.IN_ORDER:
                body, ready, timer = self.items[item_id], self.ready.get(item_id), self.timer.get(item_id)
                row = ready or timer
                state = (0, 0, size_of(body)) if row is None else (row.attempt, row.lease, row.bytes)
                about = (body.lane, body.priority, body.deliver_after_ms, *state, ready is not None, timer is not None)
                found.append(InOrder(key, at, item_id, *about))
        return found

    def _timer_new(self, row: TimerRow) -> None:
        body = self.items.get(row.id)
        _rule(body is not None, "timer row {} without item", row)
        assert body is not None
        _rule(body.lane == row.lane and self._is_lane(row.lane), "timer row {} of another lane", row)
        _rule(bool(row.lease) or body.deliver_after_ms == row.due_ms, "delayed row {} is not due then", row)
        _rule(row.id not in self.timer, "timer row {} exists", row)
        self.unindexed.pop(row.id, None)
        self.timer[row.id] = row
        insort(self.due_order, (row.due_ms, row.id))

    def _timer_gone(self, item_id: int) -> None:
        row = self.timer.pop(item_id, None)
        _rule(row is not None, "timer row of {} is deleted but is not there", item_id)
        assert row is not None
        del self.due_order[bisect_left(self.due_order, (row.due_ms, item_id))]

    def _expiry_new(self, at_ms: int, item_id: int) -> None:
        _rule(item_id in self.items and item_id not in self.expiry, "expiry row of {} cannot be", item_id)
        self.expiry[item_id] = at_ms
        insort(self.expiry_order, (at_ms, item_id))

    def failures_of(
        self, lane: int, after: FailurePosition | None, wanted: FailureFilter, rows: int
    ) -> tuple[list[FailureRow], FailurePosition | None]:
        """Return the matching rows of a lane among the first `rows` behind `after`, and the position of the last one;
        None: of all of them."""
        low, only = after or (-(1 << 63), 0), wanted.in_index()
        mine = [row for row in self.failures.values() if row.lane == lane and only.matches(row)]
        behind = sorted((row for row in mine if (row.fingerprint, row.id) > low), key=lambda row: row[1:3])[:rows]
        end = (behind[-1].fingerprint, behind[-1].id) if len(behind) == rows else None
        return [row for row in behind if wanted.matches(row)], end

    def _check_order(self, item_id: int) -> None:
        body, row = self.items.get(item_id), self.ordered.get(item_id)
        over = body is None or body.order_at is None or item_id in self.failures or item_id in self.ended
        _rule((row is None) == over or not self.strict, "item {} is not in its order: {}", body, row)
        if row is None:
            return
        _rule(body is not None and body.lane == row.lane, "row {} of ordered is not what its item says: {}", row, body)
        assert body is not None
        order = None if body.order_at is None else Order.unpack(body.order_at, item_id)
        _rule(order == (row.digest, row.place, row.standing), "row {} of ordered is not at {}", row, order)
        placed = item_id in self.timer
        _rule(placed or row.standing == Standing.IN_ORDER, "item {} waits, and has no row in timer", row)

    def _first_key(self) -> list[tuple[int, int]]:
        return [min((row.expires_at_ms, 0) for row in self.dedup.values())] if self.dedup else []

    def _check(self, batch: Batch) -> None:
        for item_id in (*batch.ids(), *(second for _, second in batch.together)):
            tables = (item_id in self.ready) + (item_id in self.timer) + (item_id in self.unindexed)
            tables += item_id in self.ended
            self._check_order(item_id)
            order = self.ordered.get(item_id)
            if order is not None and order.standing == Standing.IN_ORDER and not tables:
                tables = 1  # it needs no row
            _rule(tables == (item_id in self.items), "item {} is in {} of ready, timer and ended", item_id, tables)
            body = self.items.get(item_id)
            has_ttl = body is not None and body.expires_at_ms > 0 and item_id not in self.ended
            _rule((item_id in self.expiry) == has_ttl, "item {} has the wrong expiry row", item_id)
            failure = self.failures.get(item_id)
            dead = failure is None or (body is not None and body.lane == failure.lane)
            member = self.batches.members.get(item_id)
            gone = (body is None or item_id in self.ended) and item_id not in self.batches.rows
            gone = gone and member is not None and not member.dead
            _rule(not gone or not self.strict, "member {} has ended, and is not counted", item_id)
            _rule(dead or not self.strict, "failure {} is not of its item {}", failure, body)
        for order, from_ms, what in (
            (self.due_order, batch.due_from_ms, "timer"),
            (self.expiry_order, batch.expiry_from_ms, "expiry"),
            (self._first_key(), batch.dedup_from_ms, "dedup"),
        ):
            _rule(not order or order[0][0] >= from_ms, "the {} checkpoint {} passed a row", what, from_ms)
