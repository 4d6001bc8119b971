"""The items of a simulated run: their enqueues, deliveries, and the requests that ended them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from foqs.fairness.keys import ORDERED, LaneKey, lane_key, unpack_throttles
from foqs.ids import Dedup
from foqs.rows import LaneRow, NewItem
from foqs.rules import ItemRules, unpack_members, unpack_rules, unpack_until
from tests.kernel.run import PromiseBroken

NACKS = ("nack", "fail", "reject")
ENDING = ("ack", *NACKS, "release", "delete")


class MemoryWrong(AssertionError):
    """What a host remembers is not what the database says."""


@dataclass
class Spec:
    """One item of an enqueue request. `state`: sent, stored, refused (nothing was changed), unknown.
    `weight`: the one that it brings for its tenant, 0 without."""

    number: int
    key: tuple[str, str]
    poisoned: bool
    state: str = "sent"
    id: int = 0
    dedup: Dedup | None = None  # then it may be asked for again and again
    open: int = 0  # requests for it with a key that were not answered, or answered OUTCOME_UNKNOWN
    remembered_ms: int = 0  # its key, until then
    ids: set[int] = field(default_factory=set)  # of all items that were stored for its key
    new: set[int] = field(default_factory=set)  # of those, the items that a reply did not call duplicates
    tenant: str = ""
    throttles: tuple[str, ...] = ()
    weight: int = 0
    rules: ItemRules | None = None
    until: int = 0  # when its key is free
    order: str = ""  # its order key
    request: int = 0  # of items with order keys, by its number
    batch: int = 0  # it is a member of it
    calls: int | None = None  # the batch whose callback it is, by the time at which that expires

    def lane(self, topic: tuple[str, str]) -> LaneKey:
        """Return the lane that the item has in a topic."""
        return lane_key(topic, self.tenant, self.throttles, self.rules, self.lane_until, self.batch != 0)

    @property
    def lane_until(self) -> int:
        return ORDERED if self.order else self.until


@dataclass(eq=False)
class Delivery:
    """A lease that a host has made. `until_ms` is a lower bound of its end."""

    token: int
    lease_ms: int
    until_ms: int
    told: bool = False  # its consumer got the reply
    void: bool = False  # its owner is gone and had not written it


@dataclass(eq=False)
class Op:
    """An ack, nack (plain, "fail" or "reject"), release, extend, delete, replace or change. `state`: sent, ok, refused
    (nothing was changed), unknown.
    `late`: another consumer had been given the item before it was sent. `contested`: another op that ends the lease was
    open at the same time."""

    kind: str
    id: int
    token: int
    sent_ms: int
    metadata: bytes | None = None
    delay_ms: int = 0
    lease_ms: int = 0
    result: bytes | None = None
    checkpoint: bytes | None = None
    durable: bool = False
    digest: bytes = b""  # of the key by which an item is cancelled; `kind` is delete
    leased: bool = False
    body: NewItem | None = None  # the new one; `kind` is replace
    topic: tuple[str, str] = ("", "")
    counted: bool = True  # the attempt of a nack
    priority: int | None = None  # of a change, as the next one
    at_ms: int | None = None
    wrong_ns: bool = False
    late: bool = False
    contested: bool = False
    state: str = "sent"


@dataclass
class Record:
    """Everything about one stored item. `place`: its topic; `first`: the first of `deliveries` there."""

    spec: Spec
    place: tuple[str, str]
    first: int = 0
    deliveries: list[Delivery] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    removed: str = ""

    def delivery(self, token: int) -> Delivery | None:
        return next((d for d in self.deliveries if d.token == token), None)

    def died_after(self, token: int) -> bool:
        """Whether it went to another topic after that lease."""
        return any(d.token == token for d in self.deliveries[: self.first])

    def open_ops(self, *kinds: str) -> list[Op]:
        """Those that happened or may have."""
        return [op for op in self.ops if op.kind in kinds and op.state != "refused"]

    def live(self, d: Delivery, now_ms: int) -> bool:
        """Whether its consumer may count on the lease."""
        if not d.told or d.void or now_ms >= d.until_ms:
            return False
        return not any(op.token == d.token or op.kind == "delete" for op in self.open_ops(*ENDING))


def is_event(item: NewItem) -> bool:
    """Whether the host stored the item by itself: no client's payload begins like that."""
    return item.payload.startswith(b"{")


def spec_number(item: NewItem) -> int:
    """Return the number of the item's spec: payloads begin with it. That of an event is less than 0."""
    return -item.id if is_event(item) else int(item.payload.split(b":", 1)[0])


@cache
def lane_of(row: LaneRow) -> LaneKey:
    """Return the lane that a row names."""
    topic = (row.ns.decode(), row.topic.decode())
    throttles, rules, until = unpack_throttles(row.throttles), unpack_rules(row.rules), unpack_until(row.rules)
    return lane_key(topic, row.fairness.decode(), throttles, rules, until, unpack_members(row.rules))


def broken(promise: int, message: str) -> None:
    raise PromiseBroken(f"promise {promise}: {message}")
