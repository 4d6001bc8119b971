"""The rows of a shard, as they travel between the event loop (which decides) and the store (which does SQL).

Every item has one row in `item` (its body) and exactly one in `ready`, `timer` or `done`. Unindexed items have none
there yet: they are ready and were never leased. Items with order keys may have none, too (`foqs.order`).
A `Batch` is one transaction. Times are epoch milliseconds; 0 means "none".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from foqs.enums import NamedInt
from foqs.item_batch import MemberRows
from foqs.order import KeyHome, Order, OrderHome, OrderRow, Standing

AT_LEAST_ONCE = 1
AT_MOST_ONCE = 2
BACKLOG_SHIFT = 16
LOG_BYTES = 8 << 10
"""The end of an item's log that stays."""


class FailureCause(NamedInt):
    """Why an item became a dead letter."""

    FAILED = 1  # a nack with `failed`
    EXPIRED = 2  # the lease ended by time
    REJECTED = 3
    HOOK = 4  # the script of its topic said so
    LIMIT = 5  # ready again with all its attempts used up


class EndedState(NamedInt):
    """How an item ended that is kept, as the contract's ItemState has it."""

    COMPLETED = 4
    FAILED = 5


Key = tuple[int, int, int]
"""The order inside a lane: (priority, deliver_after_ms, id)."""
FailurePosition = tuple[int, int]
"""The order of a lane's rows in `failure`: (fingerprint, id)."""


class NewItem:
    """An item before it is stored. Mutable only in `id`, `lane` and `unindexed`, which its batch sets when it is built.

    `due_ms` is 0 for a row in `ready`, else the time of its row in `timer` (equal to `deliver_after_ms`).
    `lease_ms` 0 means the server's default; `expires_at_ms` 0 means never. `headers` is a JSON object in UTF-8.
    `unindexed`: it is stored without a row in `ready`.
    """

    batch: int = 0
    checkpoint: bytes | None = None
    order_key: bytes | None = None
    order_at: bytes | None = None

    __slots__ = (
        "deliver_after_ms", "delivery", "due_ms", "enqueued_at_ms", "expires_at_ms", "headers", "id", "lane",
        "lease_ms", "metadata", "payload", "priority", "unindexed",
    )  # fmt: skip

    def __init__(
        self,
        payload: bytes,
        metadata: bytes | None,
        headers: bytes | None,
        priority: int,
        deliver_after_ms: int,
        due_ms: int,
        enqueued_at_ms: int,
        expires_at_ms: int,
        lease_ms: int,
        delivery: int,
    ) -> None:
        self.id = 0
        self.lane = 0
        self.payload = payload
        self.metadata = metadata
        self.headers = headers
        self.priority = priority
        self.deliver_after_ms = deliver_after_ms
        self.due_ms = due_ms
        self.enqueued_at_ms = enqueued_at_ms
        self.expires_at_ms = expires_at_ms
        self.lease_ms = lease_ms
        self.delivery = delivery
        self.unindexed = False


_columns_of = attrgetter(
    "payload", "metadata", "headers", "priority", "deliver_after_ms", "due_ms", "enqueued_at_ms", "expires_at_ms",
    "lease_ms", "delivery",
)  # fmt: skip


class NewMember(NewItem):
    """A new item of a `batch`."""

    __slots__ = ("batch",)

    @classmethod
    def of(cls, item: NewItem, batch: int) -> NewMember:
        """Return the item as a member of a batch."""
        made = cls(*_columns_of(item))
        made.batch = batch
        return made


class NewOrdered(NewItem):
    """A new item with an order `key`, in UTF-8; `digest` as in `Order`. It gets no row in `ready`, as the first item of
    a key is ready without one. Its place is its id. `batch` 0: of none."""

    __slots__ = ("batch", "digest", "key")

    digest: bytes
    key: bytes

    @classmethod
    def of(cls, item: NewItem, key: bytes, digest: bytes) -> NewOrdered:
        """Return the item with an order key."""
        made = cls(*_columns_of(item))
        made.key, made.digest, made.batch = key, digest, item.batch
        return made

    @property
    def order_key(self) -> bytes:  # type: ignore[override]
        return self.key

    @property
    def order_at(self) -> bytes:  # type: ignore[override]
        return Order(self.digest, 0, Standing.NEW if self.due_ms else Standing.IN_ORDER).pack()

    @property
    def order_row(self) -> OrderRow:
        return OrderRow(self.digest, Standing.NEW if self.due_ms else Standing.IN_ORDER, self.id, self.id, self.lane)


class LaneRow(NamedTuple):
    """Names are bytes (a collation would make `A` equal `a`). `throttles`: the keys, as `fairness/keys.py` packs them.
    `weight`: of the last stored item that had one, 0 without. `rules`: as `foqs/rules.py` packs them."""

    lane: int
    ns: bytes
    topic: bytes
    fairness: bytes
    throttles: bytes = b""
    weight: int = 0
    rules: bytes = b""


class SettingRow(NamedTuple):
    """`doc` is a document of `foqs.policies.settings`."""

    ns: bytes
    doc: bytes


class ReadyRow(NamedTuple):
    """`bytes` is the size of payload, metadata and headers. `lease` is the last lease's token, 0 if none can ack. An
    expired lease can still be acked until the item is leased again, so the token stays with the row."""

    lane: int
    priority: int
    deliver_after_ms: int
    id: int
    attempt: int
    lease: int
    bytes: int


class TimerRow(NamedTuple):
    """A delayed item (`lease` 0) or a leased one; `due_ms` is when it becomes ready or its lease ends. `lease_ms`: how
    long the lease was given at first, 0 for a delayed item."""

    due_ms: int
    id: int
    lane: int
    lease: int
    attempt: int
    lease_ms: int
    bytes: int


class ProgressRow(NamedTuple):
    """The row of `progress`, which the consumers of an item gave: its `checkpoint`; `done` of `total` steps, with a
    `text`; and lines of its `log`, each with its newline. `done` None: no progress was given.

    In a `Batch` it is a change: columns that are None stay as they are, and the log is added to the log of the item, of
    which the last `LOG_BYTES` stay."""

    id: int
    checkpoint: bytes | None = None
    done: int | None = None
    total: int | None = None
    text: bytes | None = None
    log: bytes = b""

    def then(self, later: ProgressRow) -> ProgressRow:
        """Return the row after both changes."""
        said = self if later.done is None else later
        checkpoint = self.checkpoint if later.checkpoint is None else later.checkpoint
        return ProgressRow(self.id, checkpoint, *said[2:5], (self.log + later.log)[-LOG_BYTES:])

    @property
    def size_bytes(self) -> int:
        return len(self.checkpoint or b"") + len(self.text or b"") + len(self.log)

    def lines(self) -> list[str]:
        """Return the lines of the log. The first line of a full log may have lost its beginning, and is left out."""
        lines = self.log.decode(errors="replace").split("\n")[:-1]
        return lines[1:] if len(self.log) == LOG_BYTES else lines


class Body(NamedTuple):
    """The row of `item`, and the item's checkpoint. `order_at`: `Order.pack` of an item with an `order_key`."""

    id: int
    lane: int
    priority: int
    deliver_after_ms: int
    enqueued_at_ms: int
    expires_at_ms: int
    lease_ms: int
    delivery: int
    payload: bytes
    metadata: bytes | None
    headers: bytes | None
    order_key: bytes | None = None
    order_at: bytes | None = None
    checkpoint: bytes | None = None
    batch: int = 0


_LAST_FAILURE = struct.Struct(">BiqqB")


class LastFailure(NamedTuple):
    """The last attempt of an item that failed. `cause` is a FailureCause, `worker` had the lease (b"": not known),
    `reason` is UTF-8 of at most REASON_BYTES."""

    attempt: int
    cause: int
    at_ms: int
    fingerprint: int
    worker: bytes = b""
    reason: bytes = b""

    def pack(self) -> bytes:
        """Return what the item's row has."""
        head = _LAST_FAILURE.pack(self.cause, self.attempt, self.at_ms, self.fingerprint, len(self.worker))
        return head + self.worker + self.reason

    @classmethod
    def unpack(cls, stored: bytes) -> LastFailure:
        cause, attempt, at_ms, fingerprint, worker_bytes = _LAST_FAILURE.unpack_from(stored)
        texts = stored[_LAST_FAILURE.size :]
        return cls(attempt, cause, at_ms, fingerprint, texts[:worker_bytes], texts[worker_bytes:])


class FailureRow(NamedTuple):
    """Why an item is a dead letter. `lane` has it now; `topic`, `fairness`, `throttles` and `rules` name the
    lane that it came from.

    `cause` is a FailureCause; `reason` is UTF-8 of at most REASON_BYTES. `worker` had the last lease; b"": not known.
    """

    lane: int
    fingerprint: int
    id: int
    cause: int
    attempts: int
    died_at_ms: int
    topic: bytes
    fairness: bytes
    reason: bytes
    throttles: bytes = b""
    rules: bytes = b""
    worker: bytes = b""


class FailureGroup(NamedTuple):
    """The dead letters of a lane with the same fingerprint and cause; the sample is one of them."""

    fingerprint: int
    cause: int
    items: int
    first_died_at_ms: int
    last_died_at_ms: int
    sample_id: int
    sample_reason: bytes


class FailureGroups(NamedTuple):
    """The groups of a range of rows, by (fingerprint, cause). Rows behind `next` may belong to the last groups, too;
    None: there are no more."""

    groups: list[FailureGroup]
    next: FailurePosition | None


class EndedRow(NamedTuple):
    """An item that has ended and is kept until `until_ms`. `state` is an EndedState."""

    until_ms: int
    id: int
    lane: int
    state: int
    attempt: int
    ended_at_ms: int
    bytes: int


class Found(NamedTuple):
    """An item looked up by id: its body, and its row in one of `ready`, `timer` and `done` (`ended`), or in none if it
    is unindexed or has an order key. `since_ms`: when it could be delivered first, since its enqueue or its last
    redrive. `failure`, `stored` (of an ended item, as in `Batch.results_new`) and `progress` are read only where a
    caller asks. `last_failure`: of its attempts that failed, as far as the row has it."""

    body: Body
    ready: ReadyRow | None
    timer: TimerRow | None
    since_ms: int = 0
    failure: FailureRow | None = None
    ended: EndedRow | None = None
    stored: bytes | None = None
    progress: ProgressRow | None = None
    last_failure: LastFailure | None = None

    def with_progress(self, row: ProgressRow | None) -> Found:
        if row is None:
            return self
        return self._replace(progress=row, body=self.body._replace(checkpoint=row.checkpoint))


class DeadRow(NamedTuple):
    """A dead letter without its body; one of `ready` and `timer` is set. `headers` is what the item has stored."""

    failure: FailureRow
    priority: int
    deliver_after_ms: int
    expires_at_ms: int
    headers: bytes | None
    ready: ReadyRow | None
    timer: TimerRow | None
    order_key: bytes | None = None
    order_at: bytes | None = None


class DeadPage(NamedTuple):
    """`next` is the position of the last row that was looked at; None: there are no rows behind it."""

    rows: list[DeadRow]
    next: FailurePosition | None


class DueRow(NamedTuple):
    """A row of `timer` that is due, with what its body says and is needed to move it. `since_ms`: as in `Found`."""

    timer: TimerRow
    priority: int
    deliver_after_ms: int
    expires_at_ms: int
    delivery: int
    since_ms: int
    order_at: bytes | None = None


class ExpiringRow(NamedTuple):
    """A row of `expiry` whose time has come (`at_ms`, which a live lease may have put off)."""

    at_ms: int
    found: Found


class DedupRow(NamedTuple):
    """A key that was enqueued with (see `foqs.ids`), and the item that was stored for it."""

    digest: bytes
    content: int
    id: int
    expires_at_ms: int


class HeldKey(NamedTuple):
    """A key that an item holds until it starts or is done, as the shard of the item keeps it. `number`: how many
    redrives took the key. `free_at_ms`: when the shard of the key must hear that the item does not hold it; 0: not, 1:
    at once."""

    id: int
    digest: bytes
    number: int = 0
    free_at_ms: int = 0


class HomeGone(NamedTuple):
    """The row of `order_home` of a key, which item `id` of this shard has now."""

    id: int
    digest: bytes
    home: KeyHome


@dataclass(slots=True)
class KeyRows:
    """What a transaction changes about keys that items hold until they start or are done, and about slots that arrive.

    `bits`: the slots of the shard. Items of `ended` and `dead` free their keys: in these slots now, elsewhere by
    `HeldKey.free_at_ms`. The rows of `dead` stay for a redrive, and `redriven` items hold their keys again. `claims`
    are of dead letters whose keys a redrive takes: the keys are free at `free_at_ms` unless the item is redriven
    before. The shards of the keys of `noted` have freed them.

    Of items of any shard: `freed` keys, and `taken` ones, as far as they are free or have expired by `taken_ms`. Slots
    of `cleared` arrive: the shard has old rows of them. `copied` are from the shard that had the slot before. `marks`
    say up to when schedules have fired (`foqs.peers.scheduler`). `homes` come with `copied`. `homes_gone` are of order
    keys whose items are in this shard now, `shards_gone` of shards that are no longer in the cluster.
    """

    bits: bytes = b""
    held: list[HeldKey] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    redriven: list[int] = field(default_factory=list)
    claims: list[HeldKey] = field(default_factory=list)
    noted: list[HeldKey] = field(default_factory=list)
    freed: list[HeldKey] = field(default_factory=list)
    taken: list[DedupRow] = field(default_factory=list)
    taken_ms: int = 0
    cleared: list[int] = field(default_factory=list)
    copied: list[DedupRow] = field(default_factory=list)
    marks: list[DedupRow] = field(default_factory=list)
    homes: list[OrderHome] = field(default_factory=list)
    homes_gone: list[HomeGone] = field(default_factory=list)
    shards_gone: list[int] = field(default_factory=list)

    def only(self, ids: set[int]) -> KeyRows:
        """Return the part that touches items of `ids`, and all that belongs to no item of the shard."""
        return replace(self, **_rows_of(self, _ID_OF_KEYS, ids))


class Holding(NamedTuple):
    """The slots of deduplication keys that a shard has, a bit each. `stamp`: the stamp of the cluster's record that
    changed them last."""

    stamp: int = 0
    bits: bytes = b""


class DedupScan(NamedTuple):
    """Rows that have expired: up to `bound_ms` there are about `limit` rows, all up to `now` when it is `complete`.
    `first_ms` is the time of the first, `next_ms` the first after `now`; 0 if there is none."""

    first_ms: int
    bound_ms: int
    complete: bool
    next_ms: int
    db_now_ms: int


Row = TypeVar("Row")


class Scan(NamedTuple, Generic[Row]):
    """Result of a time-ordered scan. `rows` in order; `next_ms` is the first time after `now`, 0 if there is none.

    `complete` is False when `limit` cut the scan: rows up to and including the last one's time may remain.
    """

    rows: list[Row]
    complete: bool
    next_ms: int
    db_now_ms: int


_NO_ROWS: Any = ()
"""A column of a `Batch` without rows."""


@dataclass(slots=True)
class Batch:
    """One transaction. The store runs the lists in this order, after the fence.

    An item that moves is in the list it leaves and in the list it enters. The caller keeps a batch below the store's
    `max_batch_bytes`. Most batches have rows in `inserts` and `item_gone` alone: `fill` makes lists of other columns.
    """

    lanes_new: list[LaneRow] = _NO_ROWS
    weights: list[tuple[int, int]] = _NO_ROWS  # lane, weight
    dedup_gone: tuple[int, int] | None = None  # all that expire in this range, both ends included
    dedup_new: list[DedupRow] = _NO_ROWS  # RowRejected if a row with one of the digests is there
    dedup_again: list[DedupRow] = _NO_ROWS  # the same, in place of rows that expired
    order_gone: list[OrderRow] = _NO_ROWS
    ordered: bool = False  # it has rows of items with order keys
    inserts: list[NewItem] = field(default_factory=list)
    ready_gone: list[tuple[int, int, int, int]] = _NO_ROWS  # lane, priority, deliver_after, id
    timer_gone: list[int] = _NO_ROWS
    metadata_new: list[tuple[int, bytes]] = _NO_ROWS  # id, metadata
    deliver_after_new: list[tuple[int, int]] = _NO_ROWS  # id, deliver_after_ms
    failed_new: list[tuple[int, int, bytes]] = _NO_ROWS  # the same of an item whose attempt failed; `LastFailure.pack`
    bodies_new: list[NewItem] = _NO_ROWS  # of items that are there: payload, metadata, headers, priority and time
    placed: list[tuple[int, int, int, bool]] = _NO_ROWS  # id, priority, deliver_after_ms; is this its first time?
    moved: list[tuple[int, int, int, int]] = _NO_ROWS  # id, lane, deliver_after_ms, expires_at_ms
    order_new: list[OrderRow] = _NO_ROWS  # of items that are there; `inserts` say their own
    order_at_new: list[tuple[int, bytes]] = _NO_ROWS  # id, `Order.pack`
    ready_new: list[ReadyRow] = _NO_ROWS
    timer_new: list[TimerRow] = _NO_ROWS
    expiry_gone: list[int] = _NO_ROWS
    expiry_new: list[tuple[int, int]] = _NO_ROWS  # at_ms, id
    failure_gone: list[int] = _NO_ROWS  # of those ids that have a row
    failure_new: list[FailureRow] = _NO_ROWS
    ended_new: list[EndedRow] = _NO_ROWS
    results_new: list[tuple[int, bytes]] = _NO_ROWS  # id; the result, or of a FAILED item why (`pack_failure`)
    ended_gone: list[int] = _NO_ROWS  # the id is in `item_gone` as well
    progress_new: list[ProgressRow] = _NO_ROWS
    progress_gone: list[int] = _NO_ROWS  # ids that have a row, or would get one that is still pending
    item_gone: list[int] = field(default_factory=list)
    lanes_gone: list[int] = _NO_ROWS
    keys: KeyRows | None = None
    members: MemberRows | None = None
    together: list[tuple[int, int]] = _NO_ROWS  # two ids: the rows of both are stored, or of neither
    slots: Holding | None = None  # None: as they are
    next_number: int = 1  # from here on: saved with the fence's own UPDATE
    due_from_ms: int = 0
    expiry_from_ms: int = 0
    dedup_from_ms: int = 0
    ended_from_ms: int | None = None  # None: as it is
    indexed_to: int | None = None  # only items with a greater id may be unindexed; None: as it is
    indexed_from: int | None = None  # the same before this transaction: a part of it saves this
    filled: bool = False

    def fill(self) -> None:
        """Make lists of the columns that have none yet, so that rows can be added to them."""
        self.filled = True
        for name in _COLUMNS:
            if getattr(self, name) is _NO_ROWS:
                setattr(self, name, [])

    def ids(self) -> list[int]:
        """Return in a stable order the items that it touches, of two `together` the first, and new batches."""
        touched = [id_of(row) for name, id_of in _ID_OF.items() for row in getattr(self, name)]
        touched += [] if self.members is None else [row.id for row in self.members.created]
        seconds = {second for _, second in self.together}
        return [one for one in dict.fromkeys(touched) if one not in seconds]

    def only(self, ids: set[int], *, lanes: bool) -> Batch:
        """Return the part that touches `ids`, with or without the changes of lanes. What the fence saves stays whole,
        except `indexed_to`: the items of another part may stay unindexed."""
        ids = ids | {second for first, second in self.together if first in ids}
        kept = _rows_of(self, _ID_OF | dict.fromkeys(("dedup_new", "dedup_again"), _row_id), ids)
        if self.keys is not None:
            kept["keys"] = self.keys.only(ids)
        if self.members is not None:
            kept["members"] = self.members.only(ids)
        if not lanes:
            kept.update(lanes_new=[], weights=[], lanes_gone=[])
        return replace(self, indexed_to=self.indexed_from, **kept)


def _rows_of(rows: object, lists: Mapping[str, Callable[[Any], int]], ids: Container[int]) -> dict[str, Any]:
    """Return the rows of these items by list."""
    return {name: [row for row in getattr(rows, name) if id_of(row) in ids] for name, id_of in lists.items()}


_row_id: Callable[[Any], int] = attrgetter("id")
_first: Callable[[Any], int] = itemgetter(0)
_ID_OF: dict[str, Callable[[Any], int]] = {
    "inserts": _row_id,
    "ready_gone": itemgetter(3),
    "ready_new": _row_id,
    "timer_new": _row_id,
    "metadata_new": _first,
    "deliver_after_new": _first,
    "failed_new": _first,
    "bodies_new": _row_id,
    "placed": _first,
    "moved": _first,
    "order_gone": _row_id,
    "order_new": _row_id,
    "order_at_new": _first,
    "expiry_new": itemgetter(1),
    "failure_new": _row_id,
    "ended_new": _row_id,
    "results_new": _first,
    "ended_gone": int,
    "progress_new": _row_id,
    "progress_gone": int,
    "timer_gone": int,
    "expiry_gone": int,
    "failure_gone": int,
    "item_gone": int,
}
"""By the list of a batch: the id of the item in one of its rows."""
_ID_OF_KEYS = {"held": _row_id, "homes_gone": _row_id} | dict.fromkeys(("ended", "dead", "redriven"), int)
_COLUMNS = [*_ID_OF, "lanes_new", "weights", "dedup_new", "dedup_again", "lanes_gone", "together"]
