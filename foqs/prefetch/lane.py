"""A lane on one shard: the window of its first ready rows, how much of it is ready, and the merge over shards."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from foqs.counters import Namespace
from foqs.fairness.keys import LaneKey
from foqs.fairness.tenants import Flow, ShardTerm
from foqs.fairness.topics import TenantLanes, Topic
from foqs.rows import BACKLOG_SHIFT, Key

T = TypeVar("T")
Entry = tuple[int, int, int, T]
"""(priority, deliver_after_ms, id, item). Ids differ, so a comparison never reaches the item."""
_MOST_PRIORITIES = 32
"""Priorities in a window that a look for its oldest entry takes: hosts look at many lanes in a row."""
_SORT_SHARE = 32
"""Entries are inserted one by one into a window this many times longer; else both are merged."""


class Window(Generic[T]):
    """The first rows of a lane in `ready`, in order, as far as memory has them.

    Invariant, with R the lane's rows in the database that may be leased (ready, not being changed, not leased):
    while `more` is False the window holds all of R; while it is True the window holds all of R up to and including
    `end` (none when `end` is None) and nothing behind it.

    `asked_ms` is when a page was asked for (0: none is in flight). A page of an older `generation` is ignored."""

    __slots__ = ("asked_ms", "end", "entries", "generation", "more", "page_rows", "used_ms")

    def __init__(self, *, complete: bool, page_rows: int) -> None:
        self.entries: list[Entry[T]] = []
        self.more = not complete
        self.end: Key | None = None
        self.asked_ms = 0
        self.generation = 0
        self.page_rows = page_rows
        self.used_ms = 0

    def covers(self, key: Key) -> bool:
        """Return True if an item of this key belongs in the window. If not, a later page finds it."""
        return not self.more or (self.end is not None and key <= self.end)

    def add(self, entry: Entry[T]) -> None:
        """Its key must be covered."""
        insort(self.entries, entry)

    def add_all(self, entries: list[Entry[T]]) -> None:
        """All keys must be covered."""
        if len(entries) * _SORT_SHARE < len(self.entries):
            for entry in entries:
                insort(self.entries, entry)
        else:
            # Timsort takes the window and the new entries as two runs.
            entries.sort()
            self.entries += entries
            self.entries.sort()

    def remove(self, entry: Entry[T]) -> None:
        """Take out an entry that is in the window."""
        at = bisect_left(self.entries, entry[:3])
        assert self.entries[at][3] is entry[3], "the item is not in its window"
        del self.entries[at]

    def cut(self, keep: int) -> list[T]:
        """Forget all but the first `keep` entries; later pages read the rest again."""
        gone = [entry[3] for entry in self.entries[keep:]]
        if gone:
            del self.entries[keep:]
            self.more = True
            self.end = self.entries[-1][:3] if self.entries else None
            self.generation += 1
            self.asked_ms = 0
        return gone

    def extend(self, entries: list[Entry[T]], end: Key | None, *, more: bool) -> None:
        """Apply a page read behind `end`: `entries` are its unknown rows, the new `end` its last row."""
        self.entries += entries
        self.entries.sort()
        self.more = more
        if end is not None:
            self.end = end
        self.asked_ms = 0

    def wants_page(self, capacity: int) -> bool:
        low = min(self.page_rows, capacity) // 2
        return self.more and not self.asked_ms and len(self.entries) <= low

    def take(self, last: Entry[T]) -> list[Entry[T]]:
        """Remove and return the entries at or before `last`."""
        at = bisect_right(self.entries, last)
        taken = self.entries[:at]
        del self.entries[:at]
        return taken

    def oldest(self, until_ms: int | None) -> tuple[int | None, int]:
        """Return the lowest `deliver_after_ms` of the entries, and how many of them are below `until_ms` (None: all).
        It looks at one entry of each priority. None: there is no entry, or there are too many priorities for a look."""
        entries, first_ms, items, at, looks = self.entries, None, 0, 0, 0
        while at < len(entries):
            looks += 1
            if looks > _MOST_PRIORITIES:
                return None, 0
            priority, deliver_after_ms, *_ = entries[at]
            if first_ms is None or deliver_after_ms < first_ms:
                first_ms = deliver_after_ms
            behind = bisect_left(entries, (priority + 1,), at)
            items += (behind if until_ms is None else bisect_left(entries, (priority, until_ms), at, behind)) - at
            at = behind
        return first_ms, items

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        tail = f" then more behind {self.end}" if self.more else ""
        return f"Window({len(self.entries)} entries{tail})"


_MAX_BUCKETS = 1024


@dataclass(slots=True, eq=False, repr=False)
class Lane(Generic[T]):
    """`number` is None until the lane's row is part of a transaction. `total` counts the lane's items in any state,
    `leased` the leases whose end is not committed. `dead`: items of it may have rows in `failure`.
    `until`: when its items free their keys (`foqs.fairness.keys.until_of`), or ORDERED: `behind` counts the items that
    wait for earlier ones of their keys. `members`: its items belong to batches. `linked`: they do, or `until` is not 0.
    `weight`: of its last stored item that had one, 0 without. `tenants`: the lanes of its topic's tenants on its shard,
    None for a plain lane. Its `flow` is None where tenants take no turns.
    `slots`: the engine's; where its leases count, None if no limit on leases was seen for it.
    What happens to its items is counted in `namespace`. Its `topic` has it among its lanes while its shard is open.

    The count of ready items is exact at open and kept by every change since. Counting again would cost 0.2 s a million
    rows, so ages are kept in buckets of 2^16 ms instead."""

    key: LaneKey
    topic: Topic[Lane[T]]
    term: ShardTerm
    number: int | None
    namespace: Namespace
    next: Lane[T] | None = None
    flow: Flow[Lane[T]] | None = None
    stored: bool = False
    window: Window[T] | None = None
    ready: int = 0
    total: int = 0
    leased: int = 0
    slots: Any = None
    weight: int = 0
    tenants: TenantLanes | None = None
    dead: bool = False
    until: int = 0
    members: bool = False
    linked: bool = False
    behind: int = 0
    empty_since_ms: int = 0
    # A time in the bucket of all ready items, while `_buckets` is None: most lanes have one, and need no dict.
    # It is an item's own number; the bucket's would be another 32 bytes.
    _in_bucket_ms: int = field(default=0, init=False)
    _buckets: dict[int, int] | None = field(default=None, init=False)

    def weigh(self, weight: int) -> None:
        """An item of this weight is stored."""
        self.weight = weight
        if self.flow is not None:
            self.flow.tenant.weigh(weight)

    def add_ready(self, deliver_after_ms: int, items: int = 1) -> None:
        bucket, buckets = deliver_after_ms >> BACKLOG_SHIFT, self._buckets
        if not self.ready:
            self._in_bucket_ms = deliver_after_ms
        elif buckets is None and bucket != self._in_bucket_ms >> BACKLOG_SHIFT:
            self._buckets = {self._in_bucket_ms >> BACKLOG_SHIFT: self.ready, bucket: items}
        elif buckets is not None:
            buckets[bucket] = buckets.get(bucket, 0) + items
            if len(buckets) > _MAX_BUCKETS:
                # The two oldest become one, under the older name: ages stay a bound from above.
                oldest, second = sorted(buckets)[:2]
                buckets[oldest] += buckets.pop(second)
        self.ready += items
        if self.flow is not None:
            self.flow.count(self, items)

    def remove_ready(self, deliver_after_ms: int) -> None:
        self.ready -= 1
        if self.flow is not None:
            self.flow.count(self, -1)
        buckets = self._buckets
        if buckets is None:
            return
        bucket = deliver_after_ms >> BACKLOG_SHIFT
        if bucket not in buckets:
            older = [b for b in buckets if b < bucket]
            bucket = max(older) if older else min(buckets)
        buckets[bucket] -= 1
        if not buckets[bucket]:
            del buckets[bucket]
            if len(buckets) == 1:
                (last,), self._buckets = buckets, None
                self._in_bucket_ms = last << BACKLOG_SHIFT

    def lease(self, entries: list[Entry[T]]) -> None:
        """Items of the lane that were ready are leased."""
        self.leased += len(entries)
        if self._buckets is None:
            self.ready -= len(entries)
            if self.flow is not None:
                self.flow.count(self, -len(entries))
            return
        for entry in entries:
            self.remove_ready(entry[1])

    def lease_first(self, items: int = 1) -> None:
        """The first items of the window are leased."""
        window = self.window
        assert window is not None, "the lane has items in memory"
        entries = window.entries
        self.leased += items
        if self._buckets is None:
            self.ready -= items
            if self.flow is not None:
                self.flow.count(self, -items)
        else:
            for entry in entries[:items]:
                self.remove_ready(entry[1])
        del entries[:items]

    def oldest_ready_at_ms(self) -> int:
        """Return when the oldest ready item became ready; 0 if none is. It is exact if the window has all items of the
        oldest bucket. Else it is the start of that bucket: up to 2^16 ms too early, or more if buckets were joined."""
        if not self.ready:
            return 0
        buckets = self._buckets
        oldest = self._in_bucket_ms >> BACKLOG_SHIFT if buckets is None else min(buckets)
        if self.window is not None:
            behind = None if buckets is None else min(b for b in buckets if b > oldest) << BACKLOG_SHIFT
            first_ms, items = self.window.oldest(behind)
            if first_ms is not None and (
                not self.window.more or items >= (self.ready if buckets is None else buckets[oldest])
            ):
                return first_ms
        return oldest << BACKLOG_SHIFT

    def newest_ready_at_ms(self) -> int:
        """Start of the newest bucket: within 2^16 ms of the truth; 0 if no item is ready."""
        if not self.ready:
            return 0
        newest = self._in_bucket_ms >> BACKLOG_SHIFT if self._buckets is None else max(self._buckets)
        return newest << BACKLOG_SHIFT

    def __repr__(self) -> str:
        return f"Lane({'/'.join(self.topic.key)} #{self.number} ready={self.ready} total={self.total})"


# ------------------------------------------------------------------------------------------ merge over shards

# Windows are sorted lists, so the first n of their union are found by sorting the first of each: Timsort (Peters,
# listsort.txt) sees k runs and merges them in C, several times faster than a heap of heads in Python. Merging is right
# only as far as every window is known: behind the `end` of a window that has more, another shard's entry may not
# overtake rows that were not read yet.

_CUT_ITEMS = 32
"""For fewer items, sorting this number of each window is cheaper than finding entries that can be among the first."""
_FEW_WINDOWS = 8  # of more, sorting the first of each costs less than looking for the last one
LOWEST: Key = (-(1 << 63), 0, 0)


def known_until(windows: Sequence[Window[T]]) -> Key | None:
    """Return the last key up to which all `windows` are known; None when all of them are complete."""
    ends = [window.end or LOWEST for window in windows if window.more]
    return min(ends) if ends else None


def first_of(windows: Sequence[Window[T]], count: int, bound: Key | None) -> list[Entry[T]]:
    """Return up to `count` entries of `windows` in lane order, none behind `bound`, without taking them out."""
    if len(windows) == 1:
        entries = windows[0].entries[:count]
    elif count == 1:
        heads = [window.entries[0] for window in windows if window.entries]
        entries = [min(heads)] if heads else []
    elif len(windows) > _FEW_WINDOWS:
        entries = _first_of_many([window.entries for window in windows], count)
    else:
        last = _last_of(windows, count) if count >= _CUT_ITEMS else None
        entries = []
        for window in windows:
            most = min(count, len(window.entries))
            entries += window.entries[: most if last is None else bisect_right(window.entries, last, 0, most)]
        entries.sort()
        del entries[count:]
    if bound is not None and entries and entries[-1][:3] > bound:
        del entries[bisect_right(entries, bound, key=_key_of) :]
    return entries


def _last_of(windows: Sequence[Window[T]], count: int) -> Entry[T] | None:
    """Return an entry at or before which all of the first `count` are; None if the windows are short.

    Up to it, either one window has `count` entries, or each of them has its share. The first is close where items came
    in batches, as a batch is stored on one shard; the second where the shards took turns."""
    lasts = [window.entries[count - 1] for window in windows if len(window.entries) >= count]
    share = -(-count // len(windows))
    if min([len(window.entries) for window in windows]) >= share:
        lasts.append(max([window.entries[share - 1] for window in windows]))
    return min(lasts, default=None)


def _first_of_many(windows: Sequence[list[Entry[T]]], count: int) -> list[Entry[T]]:
    """Return the first `count` entries of many `windows`. Mostly they are among twice the share of each, which costs no
    look at the other entries: those are not in the processor's caches."""
    most = 2 * -(-count // len(windows))
    found: list[Entry[T]] = []
    for entries in windows:
        found += entries[:most]
    found.sort()
    lasts = found[count - 1 : count]
    longer = [entries for entries in windows if len(entries) > most and (not lasts or entries[most] <= lasts[0])]
    if longer:
        lasts += [entries[count - 1] for entries in longer if len(entries) >= count]
        last = min(lasts, default=None)
        for entries in longer:
            end = min(count, len(entries))
            found += entries[most : end if last is None else bisect_right(entries, last, most, end)]
        found.sort()
    del found[count:]
    return found


def _key_of(entry: Entry[T]) -> Key:
    return entry[:3]


def lease_until(lanes: Sequence[Lane[T]], last: Entry[T]) -> None:
    """Remove all entries up to and including `last` from the lanes' windows: they are leased."""
    for lane in lanes:
        window = lane.window
        if window is not None and window.entries and window.entries[0] <= last:
            lane.lease(window.take(last))
