"""Counters and histograms of a host. Plain numbers that only the event loop changes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import NamedTuple

from foqs.bounds import NAME_BYTES
from foqs.errors import Code

NO_NAME = ""
"""Key of the counts of requests that name no namespace."""
OTHER = "other"
"""Name for namespaces beyond the bound, and for a namespace with this name."""
CAUSES = ("ack", "ttl", "delete", "cancel", "dropped", "rejected", "exhausted", "hook")
"""Causes of removals."""
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
QUEUE_SECONDS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 86_400.0)
ATTEMPTS = (1.0, 2.0, 3.0, 5.0, 10.0, 30.0)
PAUSE_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
ROWS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0)


class Histogram:
    """`counts[i]` values were at most `bounds[i]` and above the bound before; the last ones were above all bounds.
    `total` is their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` rise."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_many(self, values: list[int], scale: float = 1.0) -> None:
        """Count values, each divided by `scale`. The list is sorted: that is done in C, and a look-up for each value
        is not."""
        values.sort()
        before = 0
        for at, bound in enumerate(self.bounds):
            upto = bisect_right(values, bound * scale)
            self.counts[at] += upto - before
            before = upto
        self.counts[-1] += len(values) - before
        self.total += sum(values) / scale

    def copy(self) -> Histogram:
        """Return the current counts."""
        copied = Histogram(self.bounds)
        copied.counts, copied.total = self.counts.copy(), self.total
        return copied

    def __repr__(self) -> str:
        return f"Histogram({sum(self.counts)} values, together {self.total:g})"


class BatchSums(NamedTuple):
    """Sums over the transactions of a shard: their number, rows and seconds, rows squared, and rows times seconds.
    `open_s`: seconds of all batches, those without a transaction too."""

    batches: int = 0
    rows: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    open_s: float = 0.0


class BatchMetrics:
    """Histograms of a shard's batches: `seconds` of whole batches, reads included; seconds and rows of transactions."""

    __slots__ = ("_products", "_rows", "_seconds", "_squares", "_transaction_seconds", "fresh")

    def __init__(self) -> None:
        self._seconds = Histogram(SECONDS)
        self._transaction_seconds = Histogram(SECONDS)
        self._rows = Histogram(ROWS)
        self._squares = self._products = 0.0
        self.fresh: list[tuple[float, float | None, int]] = []
        """Of each batch since `sift`: its ms, those of its transaction (None: it had none), and its rows."""

    @property
    def seconds(self) -> Histogram:
        self.sift()
        return self._seconds

    @property
    def transaction_seconds(self) -> Histogram:
        self.sift()
        return self._transaction_seconds

    @property
    def transaction_rows(self) -> Histogram:
        self.sift()
        return self._rows

    def sift(self) -> None:
        """Count the `fresh` batches, together: one by one they would cost each batch more than its share."""
        fresh, self.fresh = self.fresh, []
        for latency_ms, transaction_ms, rows in fresh:
            self._seconds.observe(latency_ms / 1000)
            if transaction_ms is not None:
                self._transaction_seconds.observe(transaction_ms / 1000)
                self._rows.observe(rows)
                self._squares += rows * rows
                self._products += rows * transaction_ms / 1000

    def sums(self) -> BatchSums:
        self.sift()
        rows, seconds = self._rows, self._transaction_seconds
        return BatchSums(
            sum(rows.counts), rows.total, seconds.total, self._squares, self._products, self._seconds.total
        )


_seconds = partial(Histogram, SECONDS)


class Namespace:
    """Counts of one namespace. `removed` counts removals of items by cause, `dead` dead letters by the cause of their
    failure, `failed` failed attempts by their cause. `nacked` counts items that a nack returned to their topic,
    `changed` items with another priority or time by an operator. `seconds` has the durations of requests, by method.
    `acked_once` counts items that were acked after one attempt, and `ended` has the attempts of other ones that were
    acked, or failed."""

    __slots__ = (
        "_queue_seconds", "acked_once", "changed", "dead", "delivered", "ended", "enqueued", "expired", "extended",
        "failed", "fresh_ms", "nacked", "redriven", "released", "removed", "seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self.enqueued = 0
        self.delivered = 0
        self.nacked = 0
        self.released = 0
        self.extended = 0
        self.expired = 0
        self.removed: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.redriven = 0
        self.changed = 0
        self.acked_once = 0
        self.ended = Histogram(ATTEMPTS)
        self._queue_seconds = Histogram(QUEUE_SECONDS)
        self.fresh_ms: list[int] = []
        """How long items were ready before their first deliveries since `sift`."""
        self.seconds: defaultdict[str, Histogram] = defaultdict(_seconds)

    @property
    def queue_seconds(self) -> Histogram:
        """How long items were ready before their first deliveries."""
        self.sift()
        return self._queue_seconds

    @property
    def attempts(self) -> Histogram:
        """The attempts of items at their ends, by an ack or as failures."""
        made = self.ended.copy()
        made.counts[0] += self.acked_once
        made.total += self.acked_once
        return made

    def sift(self) -> None:
        """Count the fresh times together, as `BatchMetrics` does."""
        fresh, self.fresh_ms = self.fresh_ms, []
        self._queue_seconds.observe_many(fresh, 1_000)


class TopicCounters:
    """What happened to the items of a topic. `failed`: attempts that failed. `dead`: items that became dead letters."""

    __slots__ = ("_taken", "acked", "dead", "delivered", "enqueued", "failed")

    def __init__(self) -> None:
        self.enqueued = self.delivered = self.acked = self.failed = self.dead = 0
        self._taken = NO_EVENTS

    def events(self) -> TopicEvents:
        return TopicEvents(self.enqueued, self.delivered, self.acked, self.failed, self.dead)

    def take(self) -> TopicEvents:
        """Return the events since the last call."""
        before, self._taken = self._taken, self.events()
        return self._taken.minus(before)


class TopicEvents(NamedTuple):
    enqueued: int = 0
    delivered: int = 0
    acked: int = 0
    failed: int = 0
    dead: int = 0

    def plus(self, other: TopicEvents) -> TopicEvents:
        return TopicEvents(*[a + b for a, b in zip(self, other, strict=True)])

    def minus(self, other: TopicEvents) -> TopicEvents:
        return TopicEvents(*[a - b for a, b in zip(self, other, strict=True)])


NO_EVENTS = TopicEvents()


class Namespaces:
    """Counts of the first `most` namespaces separately, and of all further ones together as OTHER."""

    def __init__(self, most: int = 50) -> None:
        self._known = {NO_NAME: Namespace(), OTHER: Namespace()}
        self._most = most + len(self._known)

    def of(self, name: str | None) -> Namespace:
        """Return the counts of a namespace. None: NO_NAME. A value that cannot be a name is OTHER."""
        found = self._known.get(name or NO_NAME)
        return found if found is not None else self._first(name)

    def _first(self, name: object) -> Namespace:
        if not isinstance(name, str) or len(name) > NAME_BYTES or len(self._known) >= self._most:
            return self._known[OTHER]
        found = self._known[name] = Namespace()
        return found

    def __iter__(self) -> Iterator[tuple[str, Namespace]]:
        return iter(self._known.items())


@dataclass(slots=True)
class Counters:
    """`removed` counts every removal of an item by cause (promise 3): nothing else takes an item away.

    `refused` are answers to items by the code of their error, `duplicates` items that were stored before under their
    key. `window_hits` are dequeues that got something at once, `window_misses` dequeues that waited for a page.
    `forwarded` are requests to other hosts, `held` client requests that waited because a shard had no owner to ask.
    `quota_admitted` and `quota_refused` are items of namespaces that have a quota, on the host that their client asked.
    `tokens_lent` are tokens of throttle keys that this host granted as their coordinator. `schedules_fired` are times
    of schedules with an item, `schedules_missed` those without. `batches_created`, `batches_ended`: batches of items.
    """

    namespaces: Namespaces = field(default_factory=Namespaces)
    redelivered: int = 0
    duplicates: int = 0
    due: int = 0
    refused: Counter[Code] = field(default_factory=Counter)
    refused_rows: int = 0
    lease_writes: int = 0
    lease_writes_saved: int = 0
    merge_waits: int = 0
    merge_skips: int = 0
    window_hits: int = 0
    window_misses: int = 0
    page_reads: int = 0
    page_rows: int = 0
    body_reads: int = 0
    transactions: int = 0
    transaction_rows: int = 0
    failed_transactions: int = 0
    unsettled_transactions: int = 0
    shards_opened: int = 0
    shards_not_opened: int = 0
    shards_released: int = 0
    shards_lost: int = 0
    forwarded: int = 0
    held: int = 0
    quota_admitted: int = 0
    quota_refused: int = 0
    tokens_lent: int = 0
    schedules_fired: int = 0
    schedules_missed: int = 0
    batches_created: int = 0
    batches_ended: int = 0
    clock_jumps: int = 0

    @property
    def removed(self) -> Counter[str]:
        return sum((namespace.removed for _, namespace in self.namespaces), Counter[str]())

    @property
    def dead(self) -> Counter[str]:
        """Dead letters of all namespaces, by the cause of their failure."""
        return sum((namespace.dead for _, namespace in self.namespaces), Counter[str]())

    def as_dict(self) -> dict[str, object]:
        """Return all counters, with the sums over the namespaces."""
        totals: dict[str, object] = {
            name: sum(getattr(namespace, name) for _, namespace in self.namespaces)
            for name in ("enqueued", "delivered", "nacked", "released", "extended", "expired", "redriven", "changed")
        }
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("namespaces", "refused")}
        refused = {code.name.lower(): count for code, count in self.refused.items()}
        return totals | plain | {"removed": dict(self.removed), "dead": dict(self.dead), "refused": refused}
