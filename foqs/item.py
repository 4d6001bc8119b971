"""An item that a host knows in memory, its states as one table, and a change of its row.

The database holds every item. A host knows the items in its ready windows, its leased items, and items with a change.

A state has three parts: the table of the database that holds the item's row (`Place`), what the host does with the item
(`Phase`), and whether a change of the row waits or is in flight. `Step` names what may happen; `NEXT` says where each
step leads. A step that `NEXT` lacks is a defect of the host.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import product
from typing import NamedTuple

from foqs.buffers.checkpoint import Checkpoint
from foqs.errors import FoqsError
from foqs.fairness.keys import ORDERED, LaneKey
from foqs.order import Order
from foqs.prefetch.lane import Entry, Lane
from foqs.rows import (
    AT_MOST_ONCE,
    Body,
    DueRow,
    EndedRow,
    FailureRow,
    Found,
    LastFailure,
    NewItem,
    ProgressRow,
    ReadyRow,
)


class Place(IntEnum):
    """The table that holds the item's row, according to the last committed transaction."""

    READY = 1  # or none: an unindexed item is ready (`Item.unindexed`)
    TIMER = 2


class Phase(IntEnum):
    """What the host may do with the item."""

    IDLE = 1  # neither in a window nor leased: known only because of a change
    WINDOW = 2  # in its lane's ready window: may be leased
    LEASED = 3  # a consumer has it; `lease` is the token


class To(IntEnum):
    """Where a change moves the item's row."""

    GONE = 1  # ended: acked, deleted, TTL over, at-most-once lease over; a kept item has a row in `done`
    READY = 2  # may be leased again: lease over, nacked without delay, delay over
    DELAYED = 3  # nacked with a delay
    LEASED = 4  # writes the lease as it is in memory (first written, or extended)
    KEPT = 5  # stays in its table; only its TTL is put off until its lease ends (due_ms)
    MOVED = 6  # ready in the lane of another topic of its shard: a dead letter, or one that returns


class Step(IntEnum):
    ENTER = 1  # the item enters its lane's window
    LEAVE = 2  # the window forgets the item, or the item may no longer be leased
    LEASE = 3  # a consumer gets the item
    UNLEASE = 4  # the lease ends before it was written
    QUEUE = 5  # a change waits for the next transaction; it replaces one that waits
    WITHDRAW = 6  # the waiting change is dropped
    SEND = 7  # the waiting change becomes part of a transaction
    RETRY = 8  # the transaction certainly failed: its change waits again
    DROP = 9  # the change in flight ends without effect: refused, or replaced by the waiting change
    COMMIT = 10  # the change in flight is in the database


Known = tuple[Place, Phase]
Changes = tuple[bool, bool]
"""(a change waits, a change is in flight)."""

IDLE = (Place.READY, Phase.IDLE)
WINDOW = (Place.READY, Phase.WINDOW)
UNWRITTEN = (Place.READY, Phase.LEASED)
DELAYED = (Place.TIMER, Phase.IDLE)
WRITTEN = (Place.TIMER, Phase.LEASED)
NAMES: dict[Known, str] = {
    IDLE: "idle",
    WINDOW: "window",
    UNWRITTEN: "leased",
    DELAYED: "delayed",
    WRITTEN: "lease_written",
}
NONE, WAITING, IN_FLIGHT, BOTH = (False, False), (True, False), (False, True), (True, True)
_CHANGES_NAMES: dict[Changes, str] = {
    NONE: "no_change",
    WAITING: "waiting",
    IN_FLIGHT: "in_flight",
    BOTH: "in_flight_and_waiting",
}

# Steps between states that are not committed: from, to. The item has no change, before and after.
_MOVES: dict[Step, dict[Known, Known]] = {
    Step.ENTER: {IDLE: WINDOW},
    Step.LEAVE: {WINDOW: IDLE},
    Step.LEASE: {WINDOW: UNWRITTEN},
    Step.UNLEASE: {UNWRITTEN: IDLE},
}
# Where a change may begin, and where its commit leads. A row that is gone leaves an idle item for a moment.
_COMMITS: dict[To, dict[Known, Known]] = {
    To.GONE: {IDLE: IDLE, UNWRITTEN: IDLE, DELAYED: DELAYED, WRITTEN: DELAYED},
    To.READY: {IDLE: IDLE, UNWRITTEN: IDLE, DELAYED: IDLE, WRITTEN: IDLE},
    To.DELAYED: {IDLE: DELAYED, DELAYED: DELAYED, UNWRITTEN: DELAYED, WRITTEN: DELAYED},
    To.LEASED: {UNWRITTEN: WRITTEN, WRITTEN: WRITTEN},
    To.MOVED: {IDLE: IDLE, UNWRITTEN: IDLE, DELAYED: IDLE, WRITTEN: IDLE},
    To.KEPT: {UNWRITTEN: UNWRITTEN, WRITTEN: WRITTEN},
}
_QUEUES: dict[Changes, Changes] = {NONE: WAITING, WAITING: WAITING, IN_FLIGHT: BOTH, BOTH: BOTH}
_ENDS: dict[Changes, Changes] = {IN_FLIGHT: NONE, BOTH: WAITING}
_CHANGES: dict[Step, dict[Changes, Changes]] = {
    Step.WITHDRAW: {WAITING: NONE, BOTH: IN_FLIGHT},
    Step.SEND: {WAITING: IN_FLIGHT},
    Step.RETRY: {IN_FLIGHT: WAITING},
    Step.DROP: _ENDS,
}

BORN = frozenset(NAMES) - {UNWRITTEN}
"""States in which an item is created; an unwritten lease cannot be read from the database."""

_Key = tuple[Step, To | None, Place, Phase, bool, bool]
NEXT: dict[_Key, tuple[Place, Phase, bool, bool]] = {}
for _step, _moves in _MOVES.items():
    for _from, _to in _moves.items():
        NEXT[(_step, None, *_from, *NONE)] = (*_to, *NONE)
for _step, _changes in _CHANGES.items():
    for _from, (_before, _after) in product(frozenset(NAMES) - {WINDOW}, _changes.items()):
        NEXT[(_step, None, *_from, *_before)] = (*_from, *_after)
for _by, _commits in _COMMITS.items():
    for _from, _to in _commits.items():
        for _before, _after in _QUEUES.items():
            NEXT[(Step.QUEUE, _by, *_from, *_before)] = (*_from, *_after)
        for _before, _after in _ENDS.items():
            NEXT[(Step.COMMIT, _by, *_from, *_before)] = (*_to, *(NONE if _by is To.GONE else _after))


class WrongStep(Exception):
    """A step that the table of states lacks."""


def check(step: Step, by: To | None, place: Place, phase: Phase, waiting: bool, in_flight: bool) -> tuple[Place, Phase]:
    """Return where `step` leads. Raises WrongStep. `by`: what a queued or committed change does."""
    found = NEXT.get((step, by, place, phase, waiting, in_flight))
    if found is None:
        change = f" of a change to {by.name}" if by is not None else ""
        state = (
            f"{NAMES[place, phase]} and {_CHANGES_NAMES[waiting, in_flight]}" if (place, phase) in NAMES else "unknown"
        )
        raise WrongStep(f"{step.name}{change} from {state}")
    return found[0], found[1]


# Members of enums, bound once for the hot path.
_WINDOW, _LEASED = Phase.WINDOW, Phase.LEASED

UNREAD = -1
"""`expires_at_ms` of an item whose body was not read: it may have a TTL."""

KNOWN_BYTES = 640
"""Memory of a known item without its body: the objects, its tuple in a window, its place in the dictionary."""


class Cause(IntEnum):
    """Why a row changes; each change is counted by its cause (promise 3)."""

    ACK = 1
    NACK = 2
    RELEASE = 3
    EXTEND = 4
    DELETE = 5
    LEASE = 6  # the lease row is written behind the hand-out
    EXPIRED = 7  # the lease ended by time
    DUE = 8  # the delay has ended
    TTL = 9
    DROPPED = 10  # a nacked or expired at-most-once item
    INDEX = 11  # an unindexed item leaves memory
    REJECTED = 12
    EXHAUSTED = 13  # the last attempt failed, and the topic has no dead-letter topic
    LIMIT = 14  # found ready with all its attempts used up
    REDRIVE = 15  # a dead letter returns
    HOOK = 16  # the script of its topic dropped it, or gave it up where the topic has no dead-letter topic
    CANCEL = 17  # by its deduplication key
    REPLACE = 18  # an enqueue gives it another body
    CHANGE = 19  # an operator gives it another priority or time


class Move(NamedTuple):
    """Where a change to MOVED takes its item: a lane of another topic of the same namespace, in the same shard.

    `failure` is the row that goes with it, whose lane is set when the transaction is built; None: a row that the item
    has is removed."""

    lane: LaneKey
    deliver_after_ms: int
    expires_at_ms: int
    failure: FailureRow | None


Waits = tuple["Settles", int]
"""`request.settled(at, error)` is called with the outcome, for (request, at)."""


class Settles:
    """Receiver of the outcome of a change. `error` is None when it is committed."""

    __slots__ = ()

    def settled(self, at: int, error: FoqsError | None) -> None:
        raise NotImplementedError


class Change:
    """A change of an item's row, mutable until its transaction is built. `attempt` and `lease` are of the new row.

    `due_ms`: the item's new time, or the end of a lease; 0 keeps the item's time, and with it its place in the lane.

    `scan` is the scan that found the item's row at time `scan_ms`, and is not over before this change is.
    `asked`: what a nack asked for, so that the same nack, repeated, shares its outcome. A change with a `move` has its
    `target` when its transaction is built.
    `progress`: what the consumer has given since the last change, which its transaction takes along; `more_bytes`: how
    much longer its checkpoint is than the last one. `result` came with an ack. `failure`: why an item that is gone
    has failed. `failed`: the attempt that this change ends, if it failed. `ended` and `stored`: the rows of an item
    that is kept; they are made when the transaction is built. `by_operator`: an operator ended the lease, so `failed`
    is no failure of a worker.
    `digest`: of the key that is free then, of an item that does not hold it by itself. `body`: the item gets it, with
    its priority and time. `priority`: the item gets it, with the time `due_ms`, and keeps its body. `order`: the item
    has it then, of a redriven one from the beginning; None: its order stays.
    Without `__slots__`, so that what most changes do not need costs nothing to make (one is made per item).
    """

    due_ms = 0
    lease = 0
    metadata: bytes | None = None
    scan: Checkpoint | None = None
    scan_ms = 0
    asked: tuple[object, ...] | None = None
    move: Move | None = None
    target: Lane[Item] | None = None
    progress: ProgressRow | None = None
    more_bytes = 0
    result: bytes | None = None
    failure: FailureRow | None = None
    failed: LastFailure | None = None
    by_operator = False
    ended: EndedRow | None = None
    stored: bytes | None = None
    digest: bytes | None = None
    body: NewItem | None = None
    priority: int | None = None
    order: Order | None = None

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

    def __repr__(self) -> str:
        return f"Change({self.item.id} to {self.to.name} by {self.cause.name}, {len(self.waits)} waiting)"


class Given(NamedTuple):
    """When a lease was given, and the consumer: one object for all items of a reply that were alike. Not stored.

    `worker` is "" where the consumer gave no name. Not `begun`: the consumer said that it has not begun the item.
    `moment`: of `Throttling`; None if an earlier owner gave the lease, or this one has forgotten it: `at_ms` is then
    the latest moment at which it may have been given. `extensions` of the lease, the last one at `extended_ms`.
    """

    at_ms: int
    worker: str
    begun: bool = True
    moment: int | None = None
    extensions: int = 0
    extended_ms: int = 0


class Item:
    """One item in memory.

    Invariants: `place` and `deliver_after_ms` are what the database says; an item has at most one change waiting
    (`change`) and one `in_flight`; an item with either is in no window. `foqs.item` has all states and the steps
    between them. The methods below take these steps, and raise WrongStep where the table lacks one.
    `unindexed`: the database has no row of it in `ready` or `timer` yet. Such an item is always known.
    `given` is of the last lease; None if an earlier owner gave it, or it left memory since.
    `order`: of an item in a lane whose items have order keys; None there if the database has lost it. It may be
    `unindexed` and not known, while it waits for an earlier one of its key.
    """

    __slots__ = (
        "at_most_once", "attempt", "awaited", "body", "bytes", "change", "deliver_after_ms", "expires_at_ms", "given",
        "held", "id", "in_flight", "lane", "lease", "lease_expires_at_ms", "lease_ms", "order", "phase", "place",
        "priority", "unindexed",
    )  # fmt: skip

    def __init__(
        self,
        item_id: int,
        lane: Lane[Item],
        priority: int,
        deliver_after_ms: int,
        attempt: int,
        lease: int,
        size_bytes: int,
        body: NewItem | Body | None,
        place: Place = Place.READY,
        phase: Phase = Phase.IDLE,
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
        self.place = place
        self.phase = phase
        self.change: Change | None = None
        self.in_flight: Change | None = None
        self.unindexed = False
        self.awaited = False  # the reply of an open dequeue will contain it
        self.at_most_once = False
        self.expires_at_ms = UNREAD
        self.given: Given | None = None
        self.order: Order | None = None
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
        """True while a change waits or is in flight."""
        return self.change is not None or self.in_flight is not None

    @property
    def entry(self) -> Entry[Item]:
        """The item's entry in a window."""
        return (self.priority, self.deliver_after_ms, self.id, self)

    # ------------------------------------------------------------------------------------- steps

    def enter_window(self) -> None:
        self._take(Step.ENTER)

    def leave_window(self) -> None:
        self._take(Step.LEAVE)

    @property
    def attempts_begun(self) -> int:
        """Its attempts if the current lease ends by time now: one that was not begun is not counted."""
        return self.attempt if self.given is None or self.given.begun else self.attempt - 1

    def give_lease(self, lease: int, lease_ms: int, given: Given) -> None:
        """Lease the item to a consumer. (An item in a window has no change, so one comparison is the whole check.)"""
        if self.phase is not _WINDOW:
            self._take(Step.LEASE)
        self.phase = _LEASED
        self.attempt += 1
        self.lease = lease
        self.lease_ms = lease_ms
        self.lease_expires_at_ms = given.at_ms + lease_ms
        self.given = given

    def extended(self, now_ms: int) -> None:
        """Note that its lease was extended."""
        if self.given is not None:
            self.given = self.given._replace(extensions=self.given.extensions + 1, extended_ms=now_ms)

    def unlease(self) -> None:
        """End a lease that was not written."""
        self._take(Step.UNLEASE)
        self.attempt -= 1
        self.lease = 0

    def queue(self, change: Change) -> None:
        """Let `change` wait for the next transaction, in place of one that waited."""
        self._take(Step.QUEUE, change.to)
        self.change = change

    def withdraw(self) -> None:
        """Drop the change that waits."""
        self._take(Step.WITHDRAW)
        self.change = None

    def send(self, change: Change) -> None:
        """Make the waiting `change` part of a transaction. (The table allows it wherever a change waits.)"""
        if self.change is not change or self.in_flight is not None:
            raise WrongStep(f"SEND of {change} from {self}")
        self.change, self.in_flight = None, change

    def retry(self) -> None:
        """Let the change wait again: its transaction certainly failed."""
        self._take(Step.RETRY)
        self.change, self.in_flight = self.in_flight, None

    def drop(self) -> None:
        """End the change in flight without effect."""
        self._take(Step.DROP)
        self.in_flight = None

    def commit(self, change: Change) -> None:
        """Apply `change`, which was in flight and is in the database. A row that is gone drops the waiting change."""
        to = change.to
        self._take(Step.COMMIT, to)
        self.in_flight = None
        if to is To.GONE:
            self.change = None
            self.lease = 0
        elif to is not To.KEPT:
            self.attempt = change.attempt
            if to is To.LEASED:
                self.lease_expires_at_ms = change.due_ms
            else:
                self.lease = change.lease
                if change.priority is not None:
                    self.priority = change.priority
                if change.due_ms:
                    self.deliver_after_ms = change.due_ms
                elif change.move is not None:
                    self.deliver_after_ms = change.move.deliver_after_ms
                    self.expires_at_ms = change.move.expires_at_ms

    def abandon(self) -> None:
        """Forget the lease: the shard is closed, and no lease of this host holds."""
        self.lease = 0

    def _take(self, step: Step, by: To | None = None) -> None:
        self.place, self.phase = check(
            step, by, self.place, self.phase, self.change is not None, self.in_flight is not None
        )

    def __repr__(self) -> str:
        at = self.lease_expires_at_ms if self.phase is Phase.LEASED else self.deliver_after_ms
        return f"Item({self.id} {self.phase.name} row={self.place.name} attempt={self.attempt} at={at})"


def body_bytes(body: NewItem | Body) -> int:
    """Return the size of payload, metadata, headers and checkpoint."""
    size = len(body.payload) + len(body.metadata or b"") + len(body.headers or b"")
    return size if body.checkpoint is None else size + len(body.checkpoint)


def _order_of(stored: bytes | None, item_id: int, lane: Lane[Item]) -> Order | None:
    """Return the order of an item. A dead letter, which keeps its place for a redrive, has none."""
    return None if stored is None or lane.until != ORDERED else Order.unpack(stored, item_id)


def from_ready(row: ReadyRow, lane: Lane[Item], body: Body | None, phase: Phase = Phase.IDLE) -> Item:
    return Item(
        row.id, lane, row.priority, row.deliver_after_ms, row.attempt, row.lease, row.bytes, body, Place.READY, phase
    )  # fmt: skip


def from_found(found: Found, lane: Lane[Item]) -> Item:
    """Return the item of a row. A leased item is LEASED with its written lease; any other is IDLE."""
    body = found.body
    order = _order_of(body.order_at, body.id, lane)
    if found.ready is not None:
        item = from_ready(found.ready, lane, body)
        item.order = order
        return item
    row = found.timer
    if row is None:  # an owner knows its own unindexed items: it has an order key, or another host has the shard now
        item = Item(body.id, lane, body.priority, body.deliver_after_ms, 0, 0, 0, body)
        item.unindexed, item.order = True, order
        return item
    phase = Phase.LEASED if row.lease else Phase.IDLE
    item = Item(
        row.id, lane, body.priority, body.deliver_after_ms, row.attempt, row.lease, row.bytes, body, Place.TIMER, phase
    )  # fmt: skip
    item.order = order
    if row.lease:
        item.lease_ms, item.lease_expires_at_ms = row.lease_ms, row.due_ms
    return item


def from_due(due: DueRow, lane: Lane[Item]) -> Item:
    row = due.timer
    phase = Phase.LEASED if row.lease else Phase.IDLE
    item = Item(
        row.id, lane, due.priority, due.deliver_after_ms, row.attempt, row.lease, row.bytes, None, Place.TIMER, phase
    )  # fmt: skip
    item.at_most_once = due.delivery == AT_MOST_ONCE
    item.expires_at_ms = due.expires_at_ms
    item.order = _order_of(due.order_at, row.id, lane)
    if row.lease:
        item.lease_ms, item.lease_expires_at_ms = row.lease_ms, row.due_ms
    return item
