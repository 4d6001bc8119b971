"""Requests in progress: their open parts, their deadlines, and how each ends, by a reply or a timeout.

Indices are places in the request's items. `reply` is called exactly once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.shard_batch import Chunk
from foqs.engine.shard import Shard
from foqs.engine.shard_queue import Look
from foqs.errors import FoqsError, NotServed, OutcomeUnknown, Unavailable
from foqs.fairness.keys import TopicKey
from foqs.ids import shard_of
from foqs.item import Item, Settles, Waits
from foqs.rows import Found, NewItem

_TOO_LATE = "the shard did not answer in time; nothing was changed"
FRESH = 16
_UNKNOWN = "the shard did not answer in time; the change may have been made"


class Ends(Protocol):
    """Something that may end before its deadline."""

    @property
    def done(self) -> bool: ...


T = TypeVar("T", bound=Ends)


class Deadlines(Generic[T]):
    """Deadlines in ms of the caller's clock: new ones in `fresh`, and a heap of older ones.

    Nearly every request ends long before its deadline, so a new entry is only appended. `sift` drops the requests that
    have ended and puts the rest into the heap, which is rebuilt when most of its entries have ended. Its size stays
    within a constant factor of the open requests, at O(1) amortised. Ended requests may hold much, so `fresh` keeps
    few of them: `sift` follows the append behind FRESH entries."""

    __slots__ = ("_heap", "_limit", "_pushed", "fresh")

    def __init__(self) -> None:
        self.fresh: list[tuple[int, T]] = []
        self._heap: list[tuple[int, int, T]] = []
        self._pushed = 0
        self._limit = FRESH

    def push(self, at_ms: int, what: T) -> None:
        self.fresh.append((at_ms, what))
        if len(self.fresh) > FRESH:
            self.sift()

    def sift(self) -> list[tuple[int, int, T]]:
        """Move the open requests of `fresh` into the heap, and return the heap."""
        heap = self._heap
        for at_ms, what in self.fresh:
            if not what.done:
                self._pushed += 1
                heapq.heappush(heap, (at_ms, self._pushed, what))
        self.fresh.clear()
        if len(heap) > self._limit:
            heap = self._heap = [entry for entry in heap if not entry[2].done]
            heapq.heapify(heap)
            self._limit = 2 * len(heap) + FRESH
        return heap

    def next_ms(self) -> int:
        heap = self.sift()
        while heap and heap[0][2].done:
            heapq.heappop(heap)
        return heap[0][0] if heap else NEVER_MS

    def pop_due(self, now_ms: int) -> list[T]:
        """Remove and return the open requests with a deadline at or before `now_ms`, earliest first."""
        due: list[T] = []
        heap = self.sift()
        while heap and heap[0][0] <= now_ms:
            what = heapq.heappop(heap)[2]
            if not what.done:
                due.append(what)
        return due

    def moved(self, by_ms: int) -> None:
        """Shift all deadlines by `by_ms`, so the remaining waits do not change when the clock is set."""
        self._heap = [(at_ms + by_ms, pushed, what) for at_ms, pushed, what in self.sift()]

    def __len__(self) -> int:
        return len(self._heap) + len(self.fresh)


def _answered(_: object) -> None:
    """Replaces `reply` after its call. `reply` refers to the request, and `Deadlines` may keep a finished call for
    some time."""


class Timed(Protocol):
    """A request with a deadline."""

    @property
    def done(self) -> bool: ...

    def timed_out(self, shards: Mapping[int, Shard]) -> None: ...


class Withdraws(Protocol):
    """Holds items of an enqueue before they are sent to a database or to another host."""

    def withdraw(self) -> Sequence[int]:
        """Drop the items that were never sent, and return their indices in the request."""


class ForwardedEntries(Protocol):
    """The entries of an `ItemsCall` whose shards are not served here; settles each of them later."""

    def add(self, at: int) -> None: ...

    def end(self) -> None:
        """The call has ended."""


class EnqueueCall:
    """`outcomes[i]` is an id or an error. `unsent` holds items with deduplication keys: see `timed_out`."""

    __slots__ = ("chunks", "done", "left", "outcomes", "reply", "unsent")

    def __init__(self, count: int, reply: Callable[[list[int | FoqsError]], None]) -> None:
        self.outcomes: list[int | FoqsError] = [0] * count
        self.left = count
        self.reply = reply
        self.chunks: list[Chunk] = []
        self.unsent: list[Withdraws] = []
        self.done = False

    def stored(self, indices: Sequence[int], items: Sequence[NewItem]) -> None:
        if self.done:
            return  # too late
        outcomes = self.outcomes
        for index, item in zip(indices, items, strict=True):
            outcomes[index] = item.id
        self.left -= len(items)
        if self.left:
            return
        self.done = True
        self.chunks, self.unsent = [], []  # they refer to this call: only the garbage collector would free the payloads
        reply, self.reply = self.reply, _answered
        self.outcomes = []  # the call may stay in the heap of deadlines for a while
        reply(outcomes)

    def refused(self, indices: Sequence[int], error: FoqsError) -> None:
        self.settled(indices, [error] * len(indices))

    def settled(self, indices: Sequence[int], outcomes: Sequence[int | FoqsError]) -> None:
        if self.done:
            return  # too late
        for index, outcome in zip(indices, outcomes, strict=True):
            self.outcomes[index] = outcome
        self.left -= len(indices)
        self.stored((), ())  # replies if each item has its outcome

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        """Refuse items that were not sent as UNAVAILABLE. The outcome of the rest is unknown."""
        errors: dict[int, FoqsError] = {}
        for chunk in self.chunks:
            error = OutcomeUnknown(_UNKNOWN) if chunk.in_flight else Unavailable(_TOO_LATE)
            errors |= dict.fromkeys(chunk.indices, error)
        for unsent in self.unsent:
            errors |= dict.fromkeys(unsent.withdraw(), Unavailable(_TOO_LATE))
        unknown = OutcomeUnknown(_UNKNOWN)  # of items that were sent to a shard with their keys, or to another host
        left = [index for index, outcome in enumerate(self.outcomes) if outcome == 0]
        self.settled(left, [errors.get(index, unknown) for index in left])


class ItemsCall(Settles):
    """Acks, nacks, extensions or deletes: `outcomes[i]` is None or an error, `items[i]` the item once it is known.

    `within`: items of other namespaces are not found. `elsewhere(call)` is called for an entry whose shard is not
    served here; it returns what settles all such entries, or None if they are refused.
    """

    __slots__ = ("_elsewhere", "_forwarded", "done", "items", "left", "outcomes", "reply", "within")

    def __init__(
        self,
        count: int,
        reply: Callable[[list[FoqsError | None]], None],
        within: Container[str] | None = None,
        elsewhere: Callable[[ItemsCall], ForwardedEntries | None] | None = None,
    ) -> None:
        self.outcomes: list[FoqsError | None] = [None] * count
        self.left = count
        self.reply = reply
        # True: settled. False: sent to another host, which may have done it.
        self.items: list[Item | bool | None] = [None] * count
        self.within = within
        self._elsewhere = elsewhere
        self._forwarded: ForwardedEntries | None = None
        self.done = False

    def settled(self, at: int, error: FoqsError | None) -> None:
        if self.done:
            return
        if error is not None:
            if isinstance(error, NotServed) and self._elsewhere is not None:
                self._forwarded = self._forwarded or self._elsewhere(self)
                if self._forwarded is not None:
                    self._forwarded.add(at)
                    return
            self.outcomes[at] = error
        self.items[at] = True
        self.left -= 1
        if self.left:
            return
        self.done = True
        if self._forwarded is not None:
            self._forwarded.end()
        self._elsewhere = self._forwarded = None  # they refer to the request
        reply, self.reply = self.reply, _answered
        outcomes, self.outcomes = self.outcomes, []  # the call may stay in the heap of deadlines for a while
        reply(outcomes)

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        """Withdraw changes that were not sent. The outcome of the rest is unknown."""
        for at, item in enumerate(self.items):
            if item is True:
                continue
            undone = item is None
            if isinstance(item, Item):
                undone = _withdrawn(shards[shard_of(item.id)], item, (self, at))
            self.settled(at, Unavailable(_TOO_LATE) if undone else OutcomeUnknown(_UNKNOWN))


def _withdrawn(shard: Shard, item: Item, waits: Waits) -> bool:
    change = item.change
    return change is not None and waits in change.waits and shard.withdraw(change, waits)


class Hint(NamedTuple):
    """Why a host had no items, and when the topic that can deliver first may have one (ms of the hosts' clock)."""

    reason: str | None
    retry_at_ms: int | None


PER_WORKER = "per_worker"
"""Why a consumer gets nothing that holds all the items it may hold."""


class Limit(NamedTuple):
    """A topic's `per_worker`, and how many items the worker reported that it holds; None: it did not report."""

    most: int
    holding: int | None


@dataclass(slots=True, eq=False, repr=False)
class DequeueCall:
    """`reply` gets the leased items and the ids in `doubtful`, and returns True if they were sent.

    `elsewhere` is asked before the call waits here because nothing is ready. It returns True if it took the call to
    another host. `max_bytes` bounds the answer with all its fields."""

    wants: list[tuple[TopicKey, int]]
    lease_ms: int  # 0: each item's own
    max_bytes: int
    item_overhead_bytes: int
    reply: Callable[[list[Item], list[int]], bool]
    bodies_bytes: int = 1 << 62  # left for bodies alone
    elsewhere: Callable[[DequeueCall], bool] | None = None
    worker: str = ""
    begins: int | None = None  # the consumer begins this number of items at once; None: all
    asked: Sequence[Any] = ()  # the TopicCounts of the request
    most: int | None = None  # items of several topics together; each count of `wants` is within it
    weights: Mapping[TopicKey, int] | None = None  # of the topics that share `most`; None: they share it evenly
    far: bool = False  # is sent to another host first, for topics without a ready item here; with weights: it may be
    limits: Mapping[TopicKey, Limit] | None = None  # of its topics with `per_worker`; see `Holdings.limits`
    limited_at: int = -1  # `Policies.changes` when they were made
    limits_then: Mapping[TopicKey, Limit] | None = None  # when its wait began
    unacked: int = 0  # acks of its request that failed: the process holds these items
    found: list[tuple[Shard, Item, int]] = field(default_factory=list)  # each lease that was made
    doubtful: list[int] = field(default_factory=list)  # ids of at-most-once items that may be leased without a consumer
    commits: bool = False  # some of the leases must be committed before the reply
    lacks: bool = False  # some of its ready items are not in memory yet
    places: dict[TopicKey, int] = field(default_factory=dict)  # of topics in `wants`, when they were asked for
    ready_at: int = 0  # place in `wants` of the topic that had ready items last, while this host keeps the call
    away: bool = False  # on another host; its answer would be lost if no consumer waited for it
    hint: Hint | None = None  # from the last other host that had nothing
    refused: frozenset[tuple[str, TopicKey]] = frozenset()  # hosts whose items of a topic it may not have
    waits: bool = False  # for items, on this host
    hurried: bool = False  # its consumer ended the wait
    done: bool = False

    def part(self, keys: Collection[TopicKey]) -> list[tuple[TopicKey, int]]:
        """Return the wants for the topics `keys`, in the order of `wants`."""
        if len(self.wants) == 1:
            return self.wants
        if not self.places:
            self.places = {key: at for at, (key, _) in enumerate(self.wants)}
        return [self.wants[at] for at in sorted(self.places[key] for key in keys)]


class LongPoll:
    """A request that waits until the asked value differs from `version`: of the routing, settings or ready topics."""

    __slots__ = ("done", "reply", "version")

    def __init__(self, version: int | None, reply: Callable[[LongPoll], None]) -> None:
        self.version = version
        self.reply = reply
        self.done = False

    def answer(self) -> None:
        if not self.done:
            self.done = True
            self.reply(self)

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self.answer()


class LookCall:
    """GetItem: `reply` gets the item and its rows, None twice, or an error."""

    __slots__ = ("done", "reply")

    def __init__(self, reply: Look) -> None:
        self.reply = reply
        self.done = False

    def found(self, item: Item | None, rows: Found | None, error: FoqsError | None) -> None:
        if not self.done:
            self.done = True
            self.reply(item, rows, error)

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self.found(None, None, Unavailable(_TOO_LATE))
