"""One change of an item's row: where it goes, who waits for it, and what it writes.

A change leaves the table the item is in when the transaction is built (every earlier outcome is known by then) and
enters another one, or none.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from foqs.errors import FoqsError
from foqs.item import Item, Place
from foqs.rows import Batch, ReadyRow, TimerRow

if TYPE_CHECKING:
    from foqs.leases.checkpoint import Checkpoint


class To(IntEnum):
    GONE = 1  # removed: acked, deleted, TTL over, at-most-once lease over
    READY = 2  # may be handed out again: lease over, nacked without delay, delay over
    DELAYED = 3  # nacked with a delay
    LEASED = 4  # writes the lease as it stands in memory (first written, or extended)
    KEPT = 5  # stays where it is; only its TTL is put off until its lease ends (due_ms)


class Cause(IntEnum):
    """Why; each is counted (promise 3)."""

    ACK = 1
    NACK = 2
    RELEASE = 3
    EXTEND = 4
    DELETE = 5
    LEASE = 6  # the lease row is written behind the hand-out
    EXPIRED = 7  # the lease ended by time
    DUE = 8  # the delay is over
    TTL = 9
    DROPPED = 10  # a nacked or expired at-most-once item


Waits = tuple["Settles", int]
"""Who is told of the outcome: `request.settled(at, error)` for (request, at)."""


class Settles:
    """What a change reports to. `error` is None when it is committed."""

    __slots__ = ()

    def settled(self, at: int, error: FoqsError | None) -> None:
        raise NotImplementedError


class Change:
    """Mutable until its transaction is built. `attempt` and `lease` are those of the new row.

    `scan` is the scan that found the item's row at time `scan_ms`, and is not over before this change is.
    Without `__slots__`, so that what most changes do not need costs nothing to make (one is made per item).
    """

    due_ms = 0
    lease = 0
    metadata: bytes | None = None
    scan: Checkpoint | None = None
    scan_ms = 0

    def __init__(
        self,
        item: Item,
        to: To,
        cause: Cause,
        waits: Waits | None = None,
        *,
        due_ms: int = 0,
        attempt: int | None = None,
        lease: int = 0,
        metadata: bytes | None = None,
    ) -> None:
        self.item = item
        self.to = to
        self.cause = cause
        self.waits = [waits] if waits is not None else []
        self.attempt = item.attempt if attempt is None else attempt
        if due_ms:
            self.due_ms = due_ms
        if lease:
            self.lease = lease
        if metadata is not None:
            self.metadata = metadata

    def emit(self, batch: Batch) -> None:
        """Adds the rows of this change to `batch`."""
        item, to = self.item, self.to
        if to == To.KEPT:
            batch.expiry_gone.append(item.id)
            batch.expiry_new.append((self.due_ms, item.id))
            return
        lane = item.lane.number
        assert lane is not None, "a stored item's lane has a number"
        if item.place == Place.READY:
            batch.ready_gone.append((lane, item.priority, item.deliver_after_ms, item.id))
        else:
            batch.timer_gone.append(item.id)
        if to == To.GONE:
            batch.item_gone.append(item.id)
            if item.expires_at_ms:
                batch.expiry_gone.append(item.id)
            return
        if self.metadata is not None:
            batch.metadata_new.append((item.id, self.metadata))
        if to == To.READY:
            batch.ready_new.append(
                ReadyRow(lane, item.priority, item.deliver_after_ms, item.id, self.attempt, self.lease, item.bytes)
            )
        elif to == To.DELAYED:
            batch.deliver_after_new.append((item.id, self.due_ms))
            batch.timer_new.append(TimerRow(self.due_ms, item.id, lane, 0, self.attempt, 0, item.bytes))
        else:
            self.due_ms = self.due_ms or item.lease_expires_at_ms
            self.lease, self.attempt = item.lease, item.attempt
            batch.timer_new.append(
                TimerRow(self.due_ms, item.id, lane, item.lease, item.attempt, item.lease_ms, item.bytes)
            )

    def __repr__(self) -> str:
        return f"Change({self.item.id} to {self.to.name} by {self.cause.name}, {len(self.waits)} waiting)"
