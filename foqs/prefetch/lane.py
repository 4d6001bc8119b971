"""A lane on one shard: its interned number, its window, and how much of it is ready.

The count of ready items is exact at open and kept by every change since. Counting again would cost 0.2 s a million
rows, so ages are kept in buckets of 2^16 ms instead.
"""

from __future__ import annotations

from typing import Any, Generic

from foqs.counters import Namespace
from foqs.fairness.keys import LaneKey
from foqs.fairness.tenants import Flow, Tenure
from foqs.fairness.topics import TenantLanes, Topic
from foqs.prefetch.window import Entry, T, Window
from foqs.rows import BACKLOG_SHIFT

_MAX_BUCKETS = 1024


class Lane(Generic[T]):
    """`number` is None until the lane's row is part of a transaction; `total` counts the lane's items in any state,
    `leased` those that are leased until their end is committed. `dead`: items of it may have rows in `failure`.
    `weight`: of its last stored item that had one, 0 without. `tenants`: those of its topic on its shard, None for a
    plain lane. Its `flow` is None where tenants take no turns.
    `slots`: the engine's; where its leases count, None if no limit on leases was seen for it.
    What happens to its items is counted in `namespace`. Its `topic` has it among its lanes while its shard is open."""

    __slots__ = (
        "_buckets",
        "_in_bucket_ms",
        "dead",
        "empty_since_ms",
        "flow",
        "key",
        "leased",
        "namespace",
        "next",
        "number",
        "ready",
        "slots",
        "stored",
        "tenants",
        "tenure",
        "topic",
        "total",
        "weight",
        "window",
    )

    def __init__(
        self, key: LaneKey, topic: Topic[Lane[T]], tenure: Tenure, number: int | None, namespace: Namespace
    ) -> None:
        self.key = key
        self.topic = topic
        self.tenure = tenure
        self.next: Lane[T] | None = None
        self.flow: Flow[Lane[T]] | None = None
        self.namespace = namespace
        self.number = number
        self.stored = number is not None
        self.window: Window[T] | None = None
        self.ready = 0
        self.total = 0
        self.leased = 0
        self.slots: Any = None
        self.weight = 0
        self.tenants: TenantLanes | None = None
        self.dead = False
        self.empty_since_ms = 0
        # A time in the bucket of all ready items, while `_buckets` is None: most lanes have one, and need no dict.
        # It is an item's own number; the bucket's would be another 32 bytes.
        self._in_bucket_ms = 0
        self._buckets: dict[int, int] | None = None

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

    def lease_first(self) -> None:
        """The first item of the window is leased."""
        window = self.window
        assert window is not None, "the lane has items in memory"
        entry = window.entries.pop(0)
        self.leased += 1
        if self._buckets is None:
            self.ready -= 1
            if self.flow is not None:
                self.flow.count(self, -1)
        else:
            self.remove_ready(entry[1])

    def oldest_ready_at_ms(self) -> int:
        """Start of the oldest bucket: within 2^16 ms of the truth unless very many buckets were joined; 0 if none."""
        if not self.ready:
            return 0
        oldest = self._in_bucket_ms >> BACKLOG_SHIFT if self._buckets is None else min(self._buckets)
        return oldest << BACKLOG_SHIFT

    def __repr__(self) -> str:
        return f"Lane({'/'.join(self.topic.key)} #{self.number} ready={self.ready} total={self.total})"
