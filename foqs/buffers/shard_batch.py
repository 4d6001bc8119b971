"""One batch for a shard's database: at most one transaction, then reads, one after the other on one connection.

Its transaction has enqueued items, in chunks of requests, and changes of items. Results are applied in the order of the
batches, so no read is staler than the writes before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from foqs.buffers.item_batches import Creation, Reported, Turn
from foqs.buffers.pending_dedup import Copy, Freed, ShardGone
from foqs.buffers.reads import Read
from foqs.errors import FoqsError
from foqs.fairness.keys import LaneKey
from foqs.ids import Dedup
from foqs.item import Change, Item, Place, To, body_bytes
from foqs.item_batch import BatchEnd
from foqs.order import KeyHome
from foqs.prefetch.lane import Lane
from foqs.rows import (
    Batch,
    DedupRow,
    EndedRow,
    NewItem,
    ReadyRow,
    TimerRow,
)


class TakesIds(Protocol):
    """An enqueue request: gets the outcome of its items, by their index in the request."""

    @property
    def done(self) -> bool: ...

    def stored(self, indices: Sequence[int], items: Sequence[NewItem]) -> None: ...

    def refused(self, indices: Sequence[int], error: FoqsError) -> None: ...


class _Answered:
    """A request that was answered before its items had an outcome."""

    done = True

    def stored(self, indices: Sequence[int], items: Sequence[NewItem]) -> None:
        """The caller has its answer."""

    def refused(self, indices: Sequence[int], error: FoqsError) -> None:
        """The caller has its answer."""


ANSWERED = _Answered()


@dataclass(slots=True, eq=False, repr=False)
class Chunk:
    """Part of one request, small enough for one transaction. `keys[i]` is the lane of `items[i]`.

    A chunk with `dedup`, its items' deduplication keys, may be stored only by the shard that has their slots.
    `weights`: by lane, the weight that its items bring; None if no item has one. `ruled`: some items have rules.
    `ordered`: its items have order keys. Only the shard that has the slots of these keys may store them,
    or that has items of these keys. `homes`: the shards that had the items of some of its keys, by digest.
    `members`: some of its items belong to batches, whose homes know of them if it has `joined` its shard.
    `end`: its items are the callbacks of a batch that ends with it; only the home of the batch may store it."""

    request: TakesIds
    indices: Sequence[int]
    items: list[NewItem]
    keys: Sequence[LaneKey]
    size_bytes: int
    dedup: list[Dedup] | None = None
    weights: Mapping[LaneKey, int] | None = None
    ruled: bool = False
    ordered: bool = False
    homes: Mapping[bytes, KeyHome] | None = None
    members: bool = False
    joined: object = None  # `Members` of the shard
    end: BatchEnd | None = None
    in_flight: bool = False  # part of a transaction whose outcome is not known yet
    delays: bool = False  # some of its items are delayed; known when it is in flight

    @property
    def bound(self) -> bool:
        """Return True if only one shard may store it: its keys are there."""
        return self.dedup is not None or self.ordered or self.end is not None

    def batches(self) -> Counter[int]:
        """Return by batch how many members it has."""
        return Counter(item.batch for item in self.items if item.batch)

    def by_lane(self) -> Mapping[LaneKey, list[NewItem]]:
        """Return the items of each lane, in their order."""
        items, keys = self.items, self.keys
        if keys and keys.count(keys[0]) == len(keys):
            return {keys[0]: items}
        found: dict[LaneKey, list[NewItem]] = {}
        for item, key in zip(items, keys, strict=True):
            found.setdefault(key, []).append(item)
        return found

    def part(self, at: Sequence[int]) -> Chunk:
        """Return the items with those indices in the chunk. `size_bytes` stays the size of the whole chunk."""
        dedup = None if self.dedup is None else [self.dedup[i] for i in at]
        items, keys = [self.items[i] for i in at], [self.keys[i] for i in at]
        part = Chunk(self.request, [self.indices[i] for i in at], items, keys, self.size_bytes, dedup, self.weights)
        part.in_flight, part.delays, part.ruled = self.in_flight, self.delays, self.ruled
        part.ordered, part.homes, part.end = self.ordered, self.homes, self.end
        part.members, part.joined = self.members, self.joined
        return part

    def keep(self, at: Sequence[int]) -> None:
        """Keep only the items with these indices in the chunk, as `part` returns them."""
        part = self.part(at)
        self.indices, self.items, self.keys, self.dedup = part.indices, part.items, part.keys, part.dedup

    def __repr__(self) -> str:
        return f"Chunk({len(self.items)} items, {self.size_bytes} bytes)"


# Members of enums, bound once for the hot path.
_KEPT, _GONE, _READY, _DELAYED, _MOVED = To.KEPT, To.GONE, To.READY, To.DELAYED, To.MOVED
_IN_READY = Place.READY


def emit(change: Change, transaction: Batch) -> None:
    """Add the rows of this change to `transaction`, which is `filled`.

    A change leaves the table the item is in when the transaction is built (every earlier outcome is known by then) and
    enters another one, or none."""
    item, to = change.item, change.to
    if to is _KEPT:
        transaction.expiry_gone.append(item.id)
        transaction.expiry_new.append((change.due_ms, item.id))
        return
    lane = item.lane.number
    assert lane is not None, "a stored item's lane has a number"
    if item.unindexed:
        pass  # it has no row that it could leave
    elif item.place is _IN_READY:
        transaction.ready_gone.append((lane, item.priority, item.deliver_after_ms, item.id))
    else:
        transaction.timer_gone.append(item.id)
    if to is _GONE:
        _end(change, transaction)
        return
    if change.body is not None:
        _replace(change.body, lane, transaction)
        return
    if change.priority is not None:
        _place(change, change.priority, lane, transaction)
        return
    if change.metadata is not None:
        transaction.metadata_new.append((item.id, change.metadata))
    size = item.bytes + change.more_bytes
    if to is _READY:
        _return(change, lane, transaction)
    elif to is _MOVED:
        _move(change, transaction)
    elif to is _DELAYED:
        _put_off(change, transaction)
        transaction.timer_new.append(TimerRow(change.due_ms, item.id, lane, 0, change.attempt, 0, size))
    else:
        change.due_ms = change.due_ms or item.lease_expires_at_ms
        change.lease, change.attempt = item.lease, item.attempt
        transaction.timer_new.append(
            TimerRow(change.due_ms, item.id, lane, item.lease, item.attempt, item.lease_ms, size)
        )


def _replace(body: NewItem, lane: int, transaction: Batch) -> None:
    """Add the rows of an item that has not begun and gets another body, priority and time."""
    size = body_bytes(body)
    transaction.bodies_new.append(body)
    if body.due_ms:
        transaction.timer_new.append(TimerRow(body.due_ms, body.id, lane, 0, 0, 0, size))
    else:
        transaction.ready_new.append(ReadyRow(lane, body.priority, body.deliver_after_ms, body.id, 0, 0, size))


def _place(change: Change, priority: int, lane: int, transaction: Batch) -> None:
    """Add the rows of an item at another place of its lane. The time since which it could be delivered begins again
    with a new time of an item that no consumer has had."""
    item, at_ms = change.item, change.due_ms
    first = not change.attempt and at_ms != item.deliver_after_ms
    transaction.placed.append((item.id, priority, at_ms, first))
    size = item.bytes + change.more_bytes
    if change.to is _READY:
        transaction.ready_new.append(ReadyRow(lane, priority, at_ms, item.id, change.attempt, change.lease, size))
    else:
        transaction.timer_new.append(TimerRow(at_ms, item.id, lane, 0, change.attempt, 0, size))


def _end(change: Change, transaction: Batch) -> None:
    """Remove the rows of an item that has ended, or add the rows of a kept item."""
    item = change.item
    if item.lane.dead:
        transaction.failure_gone.append(item.id)
    if item.expires_at_ms:
        transaction.expiry_gone.append(item.id)
    if change.ended is None:
        transaction.item_gone.append(item.id)
        return
    transaction.ended_new.append(change.ended)
    if change.metadata is not None:
        transaction.metadata_new.append((item.id, change.metadata))
    if change.stored is not None:
        transaction.results_new.append((item.id, change.stored))


def _return(change: Change, lane: int, transaction: Batch) -> None:
    """Add the rows of an item that is ready again, at its place or at another one."""
    item = change.item
    if change.due_ms:
        _put_off(change, transaction)
    at_ms = change.due_ms or item.deliver_after_ms
    transaction.ready_new.append(
        ReadyRow(lane, item.priority, at_ms, item.id, change.attempt, change.lease, item.bytes + change.more_bytes)
    )


def _put_off(change: Change, transaction: Batch) -> None:
    """Give the item its new time, and its last failure if that is why."""
    if change.failed is None:
        transaction.deliver_after_new.append((change.item.id, change.due_ms))
    else:
        transaction.failed_new.append((change.item.id, change.due_ms, change.failed.pack()))


def _move(change: Change, transaction: Batch) -> None:
    """Add the rows of an item in its new lane."""
    item, move, target = change.item, change.move, change.target
    assert move is not None, "a move says where to"
    assert target is not None, "the transaction has the lane"
    assert target.number is not None, "it has the lane's row"
    size = item.bytes + change.more_bytes
    at_ms, expires_at_ms = move.deliver_after_ms, move.expires_at_ms
    transaction.moved.append((item.id, target.number, at_ms, expires_at_ms))
    transaction.ready_new.append(
        ReadyRow(target.number, item.priority, at_ms, item.id, change.attempt, change.lease, size)
    )
    if item.expires_at_ms:
        transaction.expiry_gone.append(item.id)
    if expires_at_ms:
        transaction.expiry_new.append((expires_at_ms, item.id))
    if item.lane.dead:
        transaction.failure_gone.append(item.id)
    if move.failure is not None:
        transaction.failure_new.append(move.failure._replace(lane=target.number))


_NONE: Any = ()
"""Most batches have nothing of most kinds, and most results say nothing of single items: these cost no object."""


@dataclass(slots=True)
class ShardBatch:
    """The work for the shard's store. A batch with `reconnect` has nothing else."""

    reconnect: bool = False
    transaction: Batch | None = None
    chunks: list[Chunk] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    events: dict[LaneKey, list[NewItem]] = _NONE  # of changes, by lane: each lane has a chunk of them
    index_rows: bool = False  # some changes write rows of unindexed items, which need room as new items do
    indexed: list[Item] = _NONE  # they get their rows in `ready`, and stay as they are otherwise
    lanes_new: dict[Lane[Item], None] = _NONE
    weights: dict[Lane[Item], int] = _NONE  # of lanes whose weight changes
    lanes_filled: list[Lane[Item]] = _NONE  # they had a row and no item
    lanes_gone: dict[Lane[Item], None] = _NONE
    keeps: bool = False  # some items are kept after their end
    removals: list[EndedRow] = _NONE  # kept items whose time has ended
    removals_only: bool = False  # the database is full
    reads: Sequence[Read] = ()
    copies: Sequence[Copy | Freed | ShardGone] = ()
    creations: Sequence[Creation] = ()
    reported: Sequence[Reported] = ()
    turns: Sequence[Turn] = ()
    confirm: bool = False
    rows: int = 0
    taken_rows: int = 0  # items of all chunks that were taken out of the queue for it
    size_bytes: int = 0  # of the bodies in `chunks`
    begun_ms: int = 0
    doubted: bool = False  # its requests were answered as unknown
    keys_ms: int = 0  # a deduplication key that expires after this is remembered

    @property
    def grows(self) -> bool:
        """Return True if it stores new rows that belong to no change of another item."""
        return len(self.chunks) > len(self.events) or self.index_rows


class Outcome(Enum):
    NONE = "none"  # there was no transaction
    COMMITTED = "committed"
    FAILED = "failed"  # certainly not committed
    UNKNOWN = "unknown"  # reconnect tells


@dataclass(slots=True)
class BatchResult:
    """The result of a shard batch.

    `outcome` holds for every item of the transaction that is not in `rejected` (why the database refuses it),
    `committed` (settled before the rest, while a failing statement was bisected), `failed` or `known` (not stored,
    because the key was stored before; the row has the stored item).
    `reads` is the number of the batch's reads that were made. `settled` answers a reconnect.
    `transaction_ms` is the part of `latency_ms` that the transaction took. `disk_full`: a transaction failed for it.
    `read_only`: the database is `down` because it takes no writes. `denied`: it is `down` although its server
    answers, which has no such database or table, or denies the account. `ended`: it is `down` because the server had
    ended the connection, and the reads that were not made were not sent.
    """

    outcome: Outcome = Outcome.NONE
    rejected: dict[int, str] = _NONE
    committed: set[int] = _NONE
    failed: set[int] = _NONE
    known: dict[int, DedupRow] = _NONE
    reads: int = 0
    confirmed: bool = False
    db_now_ms: int = 0
    settled: bool | None = None
    down: bool = False
    fenced: bool = False
    disk_full: bool = False
    read_only: bool = False
    denied: bool = False
    ended: bool = False
    error: str = ""
    latency_ms: float = 0.0
    transaction_ms: float = field(default=0.0, repr=False)

    @property
    def saved(self) -> bool:
        """Return True if the parts of the transaction without items are committed, with all items or with some."""
        if self.outcome is not Outcome.COMMITTED:
            return False
        return bool(self.committed) or not (self.rejected or self.failed)
