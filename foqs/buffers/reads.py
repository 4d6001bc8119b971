"""Reads of a shard batch: each asks the store on the shard's thread, and is applied on the event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from foqs.buffers.checkpoint import Checkpoint, Range
from foqs.errors import FoqsError
from foqs.rows import (
    Body,
    DeadPage,
    DedupRow,
    DedupScan,
    DueRow,
    EndedRow,
    EndedState,
    ExpiringRow,
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
    TimerRow,
)

if TYPE_CHECKING:
    from foqs.policies.failures import FailureFilter


class StoreReads(Protocol):
    """The reads of a shard's store that a batch asks for. All block, and any may raise `StoreDown` or `StoreBusy`."""

    def page(self, lane: int, after: Key | None, limit: int) -> list[ReadyRow]:
        """Return up to `limit` ready rows of `lane` behind `after`, in lane order."""

    def page_of_lanes(self, lanes: list[int], limit: int) -> list[ReadyRow]:
        """Return the first `limit` ready rows of `lanes` (at most 1,000), by lane number, then in lane order."""

    def bodies(self, ids: list[int]) -> list[Body]:
        """Return the bodies of those `ids` that exist, in any order."""

    def due(self, from_ms: int, now_ms: int, limit: int, after_id: int = 0) -> Scan[DueRow]:
        """Return timer rows with from_ms <= due_ms <= now_ms, by (due_ms, id); of from_ms, rows with an id behind
        `after_id`."""

    def expiring(self, from_ms: int, now_ms: int, limit: int) -> Scan[ExpiringRow]:
        """Return expiry rows with from_ms <= at_ms <= now_ms, by (at_ms, id)."""

    def look(self, ids: list[int]) -> list[Found]:
        """Return the items of `ids` that exist, without `failure` and `stored`."""

    def failures(self, ids: list[int]) -> list[FailureRow]:
        """Return the rows of those `ids` that are dead letters, in any order."""

    def last_failures(self, ids: list[int]) -> list[tuple[int, LastFailure]]:
        """Return the last failed attempts of those `ids` that have one, by id, in any order."""

    def failure_groups(
        self, lane: int, after: FailurePosition | None, wanted: FailureFilter, limit: int, rows: int
    ) -> FailureGroups:
        """Return the groups of the first `rows` rows of `lane` behind `after`: about `limit` of them, and whole
        fingerprints. Only rows that `wanted` matches count."""

    def dead_page(
        self, lane: int, after: FailurePosition | None, wanted: FailureFilter, limit: int, rows: int
    ) -> DeadPage:
        """Return up to `limit` dead letters that `wanted` matches, of the next `rows` rows of `lane` behind `after`."""

    def dedup(self, digests: list[bytes]) -> list[DedupRow]:
        """Return the rows of those `digests` that exist, expired ones too, in any order."""

    def dedup_between(self, low: bytes, high: bytes, limit: int) -> list[DedupRow]:
        """Return the first `limit` keys whose digest is one of these or between them, by digest."""

    def dedup_expired(self, from_ms: int, now_ms: int, limit: int) -> DedupScan:
        """Find out how far from `from_ms` about `limit` expired rows reach."""

    def held_keys(self, ids: list[int]) -> list[HeldKey]:
        """Return the rows of those `ids` that hold a key, or did so before they became dead letters, in any order."""

    def keys_to_free(self, after: tuple[int, int], now_ms: int, limit: int) -> tuple[list[HeldKey], int]:
        """Return the first `limit` keys behind `after` with 0 < free_at_ms <= now_ms, by (free_at_ms, id), and the
        first time behind `now_ms`; 0: there is none."""

    def ended_due(self, from_ms: int, now_ms: int, limit: int) -> Scan[EndedRow]:
        """Return ended items with from_ms <= until_ms <= now_ms, by (until_ms, id)."""

    def list_ended(self, lanes: list[int], state: int, after: tuple[int, int] | None, limit: int) -> list[EndedRow]:
        """Return the first `limit` ended items of `lanes` behind `after` (until_ms, id), in that order. `state` 0 means
        all."""

    def results(self, ids: list[int]) -> list[tuple[int, bytes]]:
        """Return the bytes stored with the ends of `ids` (`Batch.results_new`), in any order."""

    def progress(self, ids: list[int]) -> list[ProgressRow]:
        """Return what the consumers of `ids` gave, in any order; of an item without any of it, nothing."""

    def list_timer(self, lanes: list[int], leased: bool, after: tuple[int, int] | None, limit: int) -> list[TimerRow]:
        """Return timer rows of `lanes` (at most 1,000) in the order of time, delayed or leased ones, behind `after`
        (due_ms, id). For operators: may scan."""


class Read:
    """One read. `run` keeps the rows; then `apply` is called, or `missed` if the batch failed before the read.

    `shard` is a `foqs.engine.shard.Shard`."""

    __slots__ = ()

    def run(self, store: StoreReads) -> int:
        """Ask the store. Return the database's time in ms if the answer has it, else 0."""
        raise NotImplementedError

    def apply(self, shard: Any, saved: bool, now_ms: int) -> None:
        """Bring the rows into memory. `saved`: `BatchResult.saved` of the transaction before the read."""
        raise NotImplementedError

    def missed(self, shard: Any, now_ms: int) -> None:
        """Have a later batch read this, unless what asked for the read does so."""

    def refuse(self, error: FoqsError) -> None:
        """Answer the request that waits for the rows, if there is one: they come too late, or never."""


@dataclass(slots=True, eq=False)
class ScanRead(Read):
    """The next range of a time-ordered scan."""

    scan: Checkpoint
    wanted: Range
    limit: int
    found: Any = None  # the store's answer

    def missed(self, shard: Any, now_ms: int) -> None:
        self.scan.failed(now_ms)


def bodies_of(store: StoreReads, ids: list[int], *, noted: bool) -> list[Body]:
    """Return the bodies of those `ids` that exist. `noted`: some of them may have a checkpoint."""
    bodies = store.bodies(ids)
    if not noted:
        return bodies
    checkpoints = {row.id: row.checkpoint for row in store.progress(ids)}
    return [body._replace(checkpoint=checkpoints.get(body.id)) for body in bodies]


class ListedRows(NamedTuple):
    """Rows of a `ListRead`, with the bodies, failures and progress of their items by id. `stored`: of FAILED items, as
    in `Batch.results_new`."""

    rows: list[ReadyRow] | list[TimerRow] | list[EndedRow]
    bodies: dict[int, Body]
    failures: dict[int, FailureRow]
    stored: dict[int, bytes]
    progress: dict[int, ProgressRow]
    last_failures: dict[int, LastFailure]


NOTHING_LISTED = ListedRows([], {}, {}, {}, {}, {})
_ENDED = {"completed": EndedState.COMPLETED, "failed": EndedState.FAILED}


@dataclass(slots=True)
class ListRead(Read):
    """Rows for an operator, of lanes in the order of their numbers (at most 1,000).

    Ready rows come lane by lane in their order; `after` is in the first lane. Other rows come in the order of time."""

    lanes: list[int]
    state: str  # "ready", "delayed", "leased", "completed" or "failed"
    after: tuple[int, ...] | None
    limit: int
    body_bytes: int
    done: Callable[[ListedRows, FoqsError | None], None]
    dead: bool = False  # items of the lanes may have rows in `failure`
    noted: bool = False  # and in `progress`
    found: ListedRows = NOTHING_LISTED

    def run(self, store: StoreReads) -> int:
        rows: list[ReadyRow] | list[TimerRow] | list[EndedRow]
        if self.state == "ready":
            after = (self.after[0], self.after[1], self.after[2]) if self.after else None
            first, *others = self.lanes
            rows = store.page(first, after, self.limit)
            if others and len(rows) < self.limit:
                rows += store.page_of_lanes(others, self.limit - len(rows))
        else:
            behind = (self.after[0], self.after[1]) if self.after else None
            if self.state in _ENDED:
                rows = store.list_ended(self.lanes, _ENDED[self.state], behind, self.limit)
            else:
                rows = store.list_timer(self.lanes, self.state == "leased", behind, self.limit)
        ids = ids_within(rows, self.body_bytes, least=1)
        bodies = {body.id: body for body in store.bodies(ids)} if ids else {}
        failures = {failure.id: failure for failure in store.failures(ids)} if ids and self.dead else {}
        stored = dict(store.results(ids)) if self.state == "failed" and ids else {}
        progress = {row.id: row for row in store.progress(ids)} if ids and self.noted else {}
        for item_id, given in progress.items():
            bodies[item_id] = bodies[item_id]._replace(checkpoint=given.checkpoint)
        tried = [row.id for row in rows[: len(ids)] if row.attempt or self.dead]
        last = dict(store.last_failures(tried)) if tried else {}
        self.found = ListedRows(rows[: len(ids)], bodies, failures, stored, progress, last)
        return 0

    def apply(self, shard: Any, saved: bool, now_ms: int) -> None:
        self.done(self.found, None)

    def missed(self, shard: Any, now_ms: int) -> None:
        shard.queue.lists.insert(0, self)

    def refuse(self, error: FoqsError) -> None:
        done, self.done = self.done, _answered
        done(NOTHING_LISTED, error)


@dataclass(slots=True)
class DeadRead(Read):
    """A page of dead letters, as `ShardStore.dead_page` has it."""

    lane: int
    after: FailurePosition | None
    wanted: FailureFilter
    limit: int
    rows: int
    done: Callable[[Any, FoqsError | None], None]
    found: DeadPage | FailureGroups | None = None

    def run(self, store: StoreReads) -> int:
        self.found = store.dead_page(self.lane, self.after, self.wanted, self.limit, self.rows)
        return 0

    def apply(self, shard: Any, saved: bool, now_ms: int) -> None:
        self.done(self.found, None)

    def missed(self, shard: Any, now_ms: int) -> None:
        shard.queue.dead_reads.appendleft(self)

    def refuse(self, error: FoqsError) -> None:
        done, self.done = self.done, _answered
        done(None, error)


class GroupsRead(DeadRead):
    """Groups of dead letters, as `ShardStore.failure_groups` has them."""

    __slots__ = ()

    def run(self, store: StoreReads) -> int:
        self.found = store.failure_groups(self.lane, self.after, self.wanted, self.limit, self.rows)
        return 0


@dataclass(slots=True)
class KeyRead(Read):
    """The row of a deduplication key, if the key has not expired."""

    digest: bytes
    done: Callable[[DedupRow | None, FoqsError | None], None]
    found: list[DedupRow] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.found = store.dedup([self.digest])
        return 0

    def apply(self, shard: Any, saved: bool, now_ms: int) -> None:
        self.done(next((row for row in self.found if row.expires_at_ms > now_ms), None), None)

    def missed(self, shard: Any, now_ms: int) -> None:
        shard.queue.dead_reads.appendleft(self)

    def refuse(self, error: FoqsError) -> None:
        done, self.done = self.done, _answered
        done(None, error)


def ids_within(rows: list[ReadyRow] | list[TimerRow] | list[EndedRow], room_bytes: int, *, least: int = 0) -> list[int]:
    """Return the ids of the first rows whose bodies fit into `room_bytes`, and of `least` rows in any case."""
    ids: list[int] = []
    for row in rows:
        room_bytes -= row.bytes
        if room_bytes < 0 and len(ids) >= least:
            break
        ids.append(row.id)
    return ids


def _answered(*_: object) -> None:
    """The caller has its answer."""
