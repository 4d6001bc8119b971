"""An item that a host knows in memory, and the lane it belongs to.

The database holds every item; a host knows those in its ready windows, those it handed out, and those it is changing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from foqs.rows import AT_MOST_ONCE, Body, DueRow, Found, NewItem, ReadyRow

if TYPE_CHECKING:
    from foqs.buffers.changes import Change
    from foqs.prefetch.lane import Lane

UNREAD = -1
"""`expires_at_ms` of an item whose body was not read: it may have a TTL."""

KNOWN_BYTES = 640
"""What a known item costs beside its body: the objects, its tuple in a window, its place in the dictionary."""


class Place(IntEnum):
    """The table that holds the item's row now, as far as committed transactions say."""

    READY = 1
    TIMER = 2


class Phase(IntEnum):
    """What the host may do with the item."""

    IDLE = 1  # neither in a window nor leased: known only because a change is under way
    WINDOW = 2  # in its lane's ready window: may be handed out
    LEASED = 3  # handed out; `lease` names it


class Item:
    """One item in memory.

    Invariants: `place` and `deliver_after_ms` are what the database says; an item has at most one change waiting
    (`change`) and one in the transaction under way (`flying`); an item with either is in no window.
    """

    __slots__ = (
        "at_most_once", "attempt", "awaited", "body", "bytes", "change", "deliver_after_ms", "expires_at_ms", "flying",
        "held", "id", "lane", "lease", "lease_expires_at_ms", "lease_ms", "phase", "place", "priority",
    )  # fmt: skip

    def __init__(
        self,
        item_id: int,
        lane: Lane,
        priority: int,
        deliver_after_ms: int,
        attempt: int,
        lease: int,
        size_bytes: int,
        body: NewItem | Body | None,
    ) -> None:
        self.id = item_id
        self.lane = lane
        self.priority = priority
        self.deliver_after_ms = deliver_after_ms
        self.attempt = attempt
        self.lease = lease
        self.lease_ms = 0
        self.lease_expires_at_ms = 0
        self.bytes = size_bytes
        self.held = 0  # bytes of the host's budget that it holds
        self.place = Place.READY
        self.phase = Phase.IDLE
        self.change: Change | None = None
        self.flying: Change | None = None
        self.awaited = False  # a dequeue that is not answered yet will deliver it
        self.at_most_once = False
        self.expires_at_ms = UNREAD
        self.body: NewItem | Body | None = None
        if body is not None:
            self.set_body(body)

    def set_body(self, body: NewItem | Body) -> None:
        self.body = body
        self.bytes = body_bytes(body)  # a nack may have made the metadata longer since the row was written
        self.at_most_once = body.delivery == AT_MOST_ONCE
        self.expires_at_ms = body.expires_at_ms

    @property
    def key(self) -> tuple[int, int, int]:
        return (self.priority, self.deliver_after_ms, self.id)

    @property
    def busy(self) -> bool:
        """Whether a change is waiting or under way."""
        return self.change is not None or self.flying is not None

    def __repr__(self) -> str:
        at = self.lease_expires_at_ms if self.phase is Phase.LEASED else self.deliver_after_ms
        return f"Item({self.id} {self.phase.name} row={self.place.name} attempt={self.attempt} at={at})"


def body_bytes(body: NewItem | Body) -> int:
    """Size of payload, metadata and headers."""
    return len(body.payload) + len(body.metadata or b"") + len(body.headers or b"")


def from_ready(row: ReadyRow, lane: Lane, body: Body | None) -> Item:
    return Item(row.id, lane, row.priority, row.deliver_after_ms, row.attempt, row.lease, row.bytes, body)


def from_found(found: Found, lane: Lane) -> Item:
    """A leased item comes as LEASED with its written lease; any other as IDLE."""
    body = found.body
    if found.ready is not None:
        return from_ready(found.ready, lane, body)
    row = found.timer
    assert row is not None, "an item has a row in ready or in timer"
    item = Item(
        row.id, lane, body.priority, body.deliver_after_ms, row.attempt, row.lease, row.bytes, body
    )  # fmt: skip
    item.place = Place.TIMER
    if row.lease:
        item.phase = Phase.LEASED
        item.lease_ms, item.lease_expires_at_ms = row.lease_ms, row.due_ms
    return item


def from_due(due: DueRow, lane: Lane) -> Item:
    row = due.timer
    item = Item(row.id, lane, due.priority, due.deliver_after_ms, row.attempt, row.lease, row.bytes, None)
    item.place = Place.TIMER
    item.at_most_once = due.delivery == AT_MOST_ONCE
    item.expires_at_ms = due.expires_at_ms
    if row.lease:
        item.phase = Phase.LEASED
        item.lease_ms, item.lease_expires_at_ms = row.lease_ms, row.due_ms
    return item
