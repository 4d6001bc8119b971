"""The state of a shard, as a new owner reads it."""

from __future__ import annotations

import marshal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, Generic, NamedTuple, TypeVar

from foqs.ids import Mark
from foqs.order import Order, OrderHome
from foqs.rows import Holding, LaneRow, ReadyRow, SettingRow

Row = TypeVar("Row")


class RowPages(Generic[Row]):
    """Rows that wait for the event loop, a page of them in one string: numbers and bytes, to be read once. `made` makes
    a row of its columns.

    A row as a tuple takes 100 to 200 bytes, and a shard of 100,000 lanes has 200,000 rows. As objects, they would leave
    the process with memory in pieces between the objects that are made of them."""

    def __init__(self, made: Callable[..., Row]) -> None:
        self._made = made
        self._pages: deque[bytes] = deque()

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add a page of rows."""
        self._pages.append(marshal.dumps([tuple(row) for row in rows]))

    def __iter__(self) -> Iterator[Row]:
        while self._pages:
            yield from starmap(self._made, marshal.loads(self._pages.popleft()))  # bytes of `add`


class Backlog(NamedTuple):
    """Ready items of one lane whose deliver_after_ms >> BACKLOG_SHIFT is `bucket`."""

    lane: int
    bucket: int
    items: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The state of a shard, as a new owner reads it. `lanes`, by number, and `backlog` are read once. `timers` counts
    by lane the rows of `timer`, and how many of these are leases.

    `db_now_ms` is the database's clock, as of `read_ns` of the machine's monotonic one.
    `behind`: the mark of the shard that was saved, if its database is an older copy; `leases_ended` are its leases.
    `identity` is the shard's, in hex, and `seq` the number of transactions that its owners have committed. `server`
    tells one database server, or file, from another; empty: not known.
    `replaced`: the previous owner did not close the shard in order. It may still run, and lease items from memory until
    it notices.
    `dead`: the lanes with rows in `failure`. `ended` counts by lane the rows of `done`: COMPLETED and FAILED ones.
    `settings`: the settings of all namespaces that the shard keeps, as stored. `noted`: the items with rows in
    `progress`, and the bytes of their checkpoints. `holding`: some items have rows in `held_key`. `restored_ms`: when
    an owner found last that the database is an older copy, by the database's clock; 0: never. `tail`: the unindexed
    items, by id, of a full database: their rows found no room. `ordered` counts by lane the rows of `ordered`, and how
    many of these are IN_ORDER. `order_leases`: order, id and lane of the leased items among these.
    `homes`: the rows of `order_home`. `batches`: there are rows of batches, or of counts of their members.
    """

    epoch: int
    next_number: int
    due_from_ms: int
    expiry_from_ms: int
    lanes: Iterable[LaneRow]
    backlog: Iterable[Backlog]
    timers: dict[int, tuple[int, int]]
    db_now_ms: int
    warnings: list[str]
    replaced: bool
    dedup_from_ms: int = 0
    slots: Holding = field(default_factory=Holding)
    read_ns: int = 0
    behind: Mark | None = None
    dead: list[int] = field(default_factory=list)
    settings: list[SettingRow] = field(default_factory=list)
    identity: str = ""
    seq: int = 0
    server: bytes = b""
    leases_ended: int = 0
    ended: dict[int, tuple[int, int]] = field(default_factory=dict)
    ended_from_ms: int = 0
    noted: dict[int, int] = field(default_factory=dict)
    holding: bool = False
    restored_ms: int = 0
    tail: Sequence[ReadyRow] = ()
    ordered: dict[int, tuple[int, int]] = field(default_factory=dict)
    order_leases: Sequence[tuple[Order, int, int]] = ()
    homes: Sequence[OrderHome] = ()
    batches: bool = False
