"""Reads of a shard batch: each asks the store on the shard's thread, and is applied on the event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from foqs.buffers.checkpoint import Checkpoint, Range
from foqs.errors import FoqsError
from foqs.item_batch import BatchPart, BatchRow, ShardCounts
from foqs.item_filter import ItemFacts, ItemFilter
from foqs.order import InOrder, OrderHome
from foqs.policies.failures import FailureFilter, is_newer, unpack_failure
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


class StoreReads(Protocol):
    """The reads of a shard's store that a batch asks for. All block, and any may raise `StoreDown` or `StoreBusy`."""

    def page(
        self, lane: int, after: Key | None, limit: int, priorities: tuple[int, int] | None = None
    ) -> list[ReadyRow]:
        """Return up to `limit` ready rows of `lane` behind `after`, in lane order; with `priorities`, only rows from
        the first priority up to the second."""

    def page_of_lanes(self, lanes: list[int], limit: int, priorities: tuple[int, int] | None = None) -> list[ReadyRow]:
        """Return the first `limit` ready rows of `lanes` (at most 1,000), by lane number, then in lane order;
        `priorities` as in `page`."""

    def facts(self, ids: list[int], headers: bool) -> list[ItemFacts]:
        """Return the facts of those `ids` that exist, in any order; without `headers` none has any."""

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

    def orders_behind(self, digest: bytes, limit: int) -> list[InOrder]:
        """Return the first `limit` items that are IN_ORDER, of keys behind `digest`, by (digest, place)."""

    def orders_of(self, keys: list[tuple[bytes, int]], limit: int) -> list[InOrder]:
        """Return of each of `keys` (digest, place; at most 100) the first `limit` items that are IN_ORDER behind the
        place, by (digest, place)."""

    def list_behind(self, lanes: list[int], after: tuple[bytes, int] | None, limit: int) -> list[InOrder]:
        """Return the first `limit` items of `lanes` (at most 1,000) behind `after` (digest, place) with standing
        IN_ORDER and without a row in `timer`, by (digest, place). For operators: may scan."""

    def orders_in(self, digests: list[bytes]) -> set[bytes]:
        """Return those `digests` that have a row in `ordered`: some item has the key that is no dead letter."""

    def orders_between(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        """Return the first `limit` digests in `ordered` that are one of these or between them, in order."""

    def order_homes(self, low: bytes, high: bytes, limit: int) -> list[OrderHome]:
        """Return the first `limit` rows of `order_home` whose digest is one of these or between them, by digest."""

    def dead_orders(self, after_id: int, limit: int) -> list[tuple[int, bytes | None]]:
        """Return the next `limit` dead letters behind `after_id`, by id: the id, and `Order.pack`; None without an
        order key."""

    def member_counts(self, batches: list[int]) -> list[ShardCounts]:
        """Return the counts of those `batches` that the shard has members of, in any order."""

    def unsent_counts(self, after: int, limit: int) -> list[ShardCounts]:
        """Return the first `limit` counts that have changed since they were noted as sent, of batches behind `after`,
        by batch."""

    def members_of(self, batch: int, after: tuple[bool, int], limit: int) -> list[tuple[bool, int]]:
        """Return the next `limit` members of `batch` behind `after`: has it failed, and its id; in this order."""

    def batch_rows(self, batches: list[int]) -> list[BatchRow]:
        """Return those `batches` whose home this shard is, in any order."""

    def live_batches(self, after: int, limit: int) -> list[BatchRow]:
        """Return the first `limit` batches behind `after` that have not ended, by id, without their callbacks."""

    def batch_parts(self, batches: list[int]) -> list[BatchPart]:
        """Return the last reports of shards on those `batches`, in any order."""

    def ended_batches(self, before_ms: int, limit: int) -> list[int]:
        """Return the first `limit` batches that ended before that time, by the time of their end."""

    def confirm(self) -> object:
        """Read that the owner that asks has the shard. Raises Fenced."""

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


Rows = list[ReadyRow] | list[TimerRow] | list[EndedRow] | list[InOrder]


class ListedRows(NamedTuple):
    """Rows of a `ListRead`, with the bodies, failures and progress of their items by id. `stored`: of FAILED items, as
    in `Batch.results_new`. The next read begins behind `last`, the last of `looked_at` rows; None: there are no
    more."""

    rows: Rows
    bodies: dict[int, Body]
    failures: dict[int, FailureRow]
    stored: dict[int, bytes]
    progress: dict[int, ProgressRow]
    last_failures: dict[int, LastFailure]
    last: ReadyRow | TimerRow | EndedRow | InOrder | None = None
    looked_at: int = 0


NOTHING_LISTED = ListedRows([], {}, {}, {}, {}, {})
_DIGEST_PARTS = ((0, 6), (6, 12), (12, 16))
_FAILURES_BYTES = 16 << 20
"""A search for reasons looks at items of about these bytes at a time: SQLite reads a payload before the column."""
_ENDED = {"completed": EndedState.COMPLETED, "failed": EndedState.FAILED}


def position_in_order(row: InOrder) -> tuple[int, ...]:
    """Return where an item is in a list of items that wait in their orders: its digest in parts, and its place."""
    return (*(int.from_bytes(row.digest[low:high]) for low, high in _DIGEST_PARTS), row.place)


def spot_in_order(position: tuple[int, ...]) -> tuple[bytes, int]:
    """Return the digest and the place of a `position_in_order`. Raises ValueError for other numbers."""
    *parts, place = position
    try:
        digest = [part.to_bytes(high - low) for part, (low, high) in zip(parts, _DIGEST_PARTS, strict=True)]
    except OverflowError:
        raise ValueError("no digest has these parts") from None
    return b"".join(digest), place


@dataclass(slots=True)
class ListRead(Read):
    """Rows for an operator, of lanes in the order of their numbers (at most 1,000).

    Ready rows come lane by lane in their order; `after` is in the first lane. Other rows come in the order of time."""

    lanes: list[int]
    state: str  # "ready", "delayed", "leased", "completed", "failed" or "behind"
    after: tuple[int, ...] | None
    limit: int
    body_bytes: int
    done: Callable[[ListedRows, FoqsError | None], None]
    dead: bool = False  # items of the lanes may have rows in `failure`
    noted: bool = False  # and in `progress`
    found: ListedRows = NOTHING_LISTED

    def run(self, store: StoreReads) -> int:
        rows = self._rows(store, self.limit)
        count = len(ids_within(rows, self.body_bytes, least=1))
        self._read(store, rows[:count], rows, count)
        return 0

    def _rows(self, store: StoreReads, limit: int, priorities: tuple[int, int] | None = None) -> Rows:
        """Return the next rows of the lanes; ready ones of these priorities."""
        if self.state == "ready":
            after = (self.after[0], self.after[1], self.after[2]) if self.after else None
            first, *others = self.lanes
            rows = store.page(first, after, limit, priorities)
            if others and len(rows) < limit:
                rows += store.page_of_lanes(others, limit - len(rows), priorities)
            return rows
        if self.state == "behind":
            return store.list_behind(self.lanes, spot_in_order(self.after) if self.after else None, limit)
        behind = (self.after[0], self.after[1]) if self.after else None
        if self.state in _ENDED:
            return store.list_ended(self.lanes, _ENDED[self.state], behind, limit)
        return store.list_timer(self.lanes, self.state == "leased", behind, limit)

    def _read(self, store: StoreReads, listed: Rows, rows: Rows, looked_at: int) -> None:
        """Read what `listed` show, which are some of the first `looked_at` of `rows`."""
        ids = [row.id for row in listed]
        bodies = {body.id: body for body in store.bodies(ids)} if ids else {}
        failures = {failure.id: failure for failure in store.failures(ids)} if ids and self.dead else {}
        stored = dict(store.results(ids)) if self.state == "failed" and ids else {}
        progress = {row.id: row for row in store.progress(ids)} if ids and self.noted else {}
        for item_id, given in progress.items():
            bodies[item_id] = bodies[item_id]._replace(checkpoint=given.checkpoint)
        tried = [row.id for row in listed if row.attempt or self.dead]
        last = dict(store.last_failures(tried)) if tried else {}
        end = rows[looked_at - 1] if looked_at else None
        self.found = ListedRows(listed, bodies, failures, stored, progress, last, end, looked_at)

    def apply(self, shard: Any, saved: bool, now_ms: int) -> None:
        self.done(self.found, None)

    def missed(self, shard: Any, now_ms: int) -> None:
        shard.queue.lists.insert(0, self)

    def refuse(self, error: FoqsError) -> None:
        done, self.done = self.done, _answered
        done(NOTHING_LISTED, error)


@dataclass(slots=True)
class SearchRead(ListRead):
    """A list of the rows that `wanted` matches, among the next `most_rows`. Of other items no payload is read, and the
    headers of items of at most `facts_bytes` at a time."""

    wanted: ItemFilter = field(kw_only=True)
    most_rows: int = field(kw_only=True)
    facts_bytes: int = field(kw_only=True)
    digest: bytes | None = field(default=None, kw_only=True)  # of the order key that `wanted` names

    def _rows(self, store: StoreReads, limit: int, priorities: tuple[int, int] | None = None) -> Rows:
        if self.state != "behind" or self.digest is None:
            return ListRead._rows(self, store, limit, priorities)
        place = self.after[-1] if self.after else -1
        return [row for row in store.orders_of([(self.digest, place)], limit) if not row.timer]

    def run(self, store: StoreReads) -> int:
        rows = self._rows(store, self.most_rows, self.wanted.priorities)
        found: list[Any] = []
        room_bytes, looked_at, failures_bytes = self.body_bytes, 0, 0
        while looked_at < len(rows) and failures_bytes < _FAILURES_BYTES:
            part = rows[looked_at:]
            part = part[: len(ids_within(part, self.facts_bytes, least=1))]  # headers are a part of a row's bytes
            matching = self._matching(store, part)
            for row in part:
                if row.id in matching:
                    room_bytes -= row.bytes
                    if len(found) == self.limit or (found and room_bytes < 0):
                        self._read(store, found, rows, looked_at)
                        return 0
                    found.append(row)
                looked_at += 1
            if self.wanted.failure_contains is not None:
                failures_bytes += sum([row.bytes for row in part if row.attempt or self.dead])
        self._read(store, found, rows, looked_at)
        return 0

    def _matching(self, store: StoreReads, rows: Rows) -> Set[int]:
        """Return the ids of the rows that match."""
        wanted, ids = self.wanted, [row.id for row in rows]
        if wanted.needs_facts or (wanted.priorities is not None and self.state != "ready"):
            facts = store.facts(ids, bool(wanted.headers))
            ids = [one.id for one in facts if wanted.matches_facts(one)]
        if wanted.failure_contains is None or not ids:
            return frozenset(ids)
        left = frozenset(ids)
        failures = {failure.id: failure for failure in store.failures(ids)} if self.dead else {}
        if self.state == "failed":
            stored = dict(store.results(ids))
            ended = [row for row in rows if isinstance(row, EndedRow) and row.id in left]
            failures |= {row.id: _failure_of(row, stored) for row in ended}
        tried = [row.id for row in rows if row.id in left and (row.attempt or self.dead)]
        last = dict(store.last_failures(tried)) if tried else {}
        matching = set()
        for item_id in ids:
            failure, failed = failures.get(item_id), last.get(item_id)
            reasons = [] if failure is None else [failure.reason]
            if failed is not None and is_newer(failed, failure):
                reasons.append(failed.reason)
            if wanted.matches_reasons(*reasons):
                matching.add(item_id)
        return matching


def _failure_of(row: EndedRow, stored: Mapping[int, bytes]) -> FailureRow:
    cause, worker, reason = unpack_failure(stored.get(row.id, b"\0"))
    return FailureRow(row.lane, 0, row.id, cause, row.attempt, row.ended_at_ms, b"", b"", reason, worker=worker)


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


def ids_within(rows: Rows, room_bytes: int, *, least: int = 0) -> list[int]:
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
