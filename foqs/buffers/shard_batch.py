"""One batch for a shard's database: at most one transaction, then reads, one after the other on one connection.

Results are applied in the order of the batches, so no read is staler than the writes before it.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from foqs.buffers.inserts import Chunk
from foqs.buffers.pending_dedup import Copy, Give
from foqs.item import Change, Item
from foqs.leases.checkpoint import Range
from foqs.policies.filter import FailureFilter
from foqs.prefetch.lane import Lane, Window
from foqs.rows import (
    Batch,
    Body,
    DeadPage,
    DedupRow,
    DedupScan,
    DueRow,
    ExpiringRow,
    FailureGroups,
    FailurePosition,
    FailureRow,
    Found,
    Key,
    ReadyRow,
    Scan,
    TimerRow,
)


@dataclass(slots=True)
class PageRead:
    """A page of `window` behind `after`, with the bodies of its first rows up to `body_bytes`."""

    lane: Lane[Item]
    window: Window[Item]
    generation: int
    after: Key | None
    limit: int
    body_bytes: int


@dataclass(slots=True)
class LanesRead:
    """All rows of several short lanes, together, whatever their `PageRead.after`: up to `limit` rows, lane by lane in
    the order of their numbers, which is the order of `pages`. The bodies of the first rows come along up to
    `body_bytes`."""

    pages: list[PageRead]
    limit: int
    body_bytes: int


@dataclass(slots=True)
class ListRead:
    """Rows for an operator, of lanes in the order of their numbers (at most 1,000): ready ones, lane by lane in their
    order, `after` is in the first lane; or timer rows in the order of time, behind `after`."""

    lanes: list[int]
    state: str  # "ready", "delayed" or "leased"
    after: tuple[int, ...] | None
    limit: int
    body_bytes: int
    done: Any  # called with (rows, bodies, failures), or with an error


@dataclass(slots=True)
class GroupsRead:
    """Groups of dead letters, as `ShardStore.failure_groups` has them."""

    lane: int
    after: FailurePosition | None
    wanted: FailureFilter
    limit: int
    rows: int
    done: Any  # called with (FailureGroups, None), or with (None, error)


@dataclass(slots=True)
class DeadRead:
    """A page of dead letters, as `ShardStore.dead_page` has it."""

    lane: int
    after: FailurePosition | None
    wanted: FailureFilter
    limit: int
    rows: int
    done: Any  # called with (DeadPage, None), or with (None, error)


@dataclass(slots=True)
class ShardBatch:
    """The work for the shard's store. A batch with `reconnect` has nothing else."""

    reconnect: bool = False
    transaction: Batch | None = None
    chunks: list[Chunk] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    indexed: list[Item] = field(default_factory=list)  # they get their rows in `ready`, and stay as they are otherwise
    lanes_new: dict[Lane[Item], None] = field(default_factory=dict)
    weights: dict[Lane[Item], int] = field(default_factory=dict)  # of lanes whose weight changes
    lanes_filled: list[Lane[Item]] = field(default_factory=list)  # they had a row and no item
    lanes_gone: dict[Lane[Item], None] = field(default_factory=dict)
    pages: list[PageRead] = field(default_factory=list)
    lanes_pages: list[LanesRead] = field(default_factory=list)
    bodies: list[int] = field(default_factory=list)
    look: list[int] = field(default_factory=list)
    dead_lanes: Set[int] = frozenset()  # `look` and `lists` bring the failures of their items along
    due: tuple[Range, int] | None = None  # range, limit
    expiring: tuple[Range, int] | None = None
    lists: list[ListRead] = field(default_factory=list)
    dead: GroupsRead | DeadRead | None = None
    dedup_expired: tuple[Range, int] | None = None
    give: Give | None = None
    copies: list[Copy] = field(default_factory=list)
    confirm: bool = False
    rows: int = 0
    size_bytes: int = 0  # of the bodies in `chunks`
    begun_ms: int = 0
    doubted: bool = False  # its requests were answered as unknown
    keys_ms: int = 0  # a deduplication key that expires after this is remembered

    @property
    def reads(self) -> bool:
        """Whether it reads anything, apart from the rows of a slot that it gives away."""
        ready = self.pages or self.lanes_pages or self.bodies or self.dead
        return bool(ready or self.look or self.due or self.expiring or self.lists or self.dedup_expired or self.confirm)


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
    Reads that were not made are None, or missing at the end of `pages`, `lanes_pages` and `lists`. `settled` answers a
    reconnect.
    `transaction_ms` is the part of `latency_ms` that the transaction took. `disk_full`: a transaction failed for it.
    `read_only`: the database is `down` because it takes no writes. `ended`: it is `down` because the server had ended
    the connection, and the missing results were not asked for.
    """

    outcome: Outcome = Outcome.NONE
    rejected: dict[int, str] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    known: dict[int, DedupRow] = field(default_factory=dict)
    pages: list[tuple[list[ReadyRow], dict[int, Body]]] = field(default_factory=list)
    lanes_pages: list[tuple[list[ReadyRow], dict[int, Body]]] = field(default_factory=list)
    bodies: list[Body] | None = None
    look: list[Found] | None = None
    due: Scan[DueRow] | None = None
    expiring: Scan[ExpiringRow] | None = None
    lists: list[tuple[list[ReadyRow] | list[TimerRow], dict[int, Body], dict[int, FailureRow]]] = field(
        default_factory=list
    )
    dead: FailureGroups | DeadPage | None = None
    dedup_expired: DedupScan | None = None
    given: list[DedupRow] | None = None
    confirmed: bool = False
    db_now_ms: int = 0
    settled: bool | None = None
    down: bool = False
    fenced: bool = False
    disk_full: bool = False
    read_only: bool = False
    ended: bool = False
    error: str = ""
    latency_ms: float = 0.0
    transaction_ms: float = field(default=0.0, repr=False)

    @property
    def saved(self) -> bool:
        """Whether the parts of the transaction beside items are committed, with all items or with some."""
        if self.outcome is not Outcome.COMMITTED:
            return False
        return bool(self.committed) or not (self.rejected or self.failed)
