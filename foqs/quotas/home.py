"""The home of one namespace's quota: what it grants, by rate and by what is stored."""

from __future__ import annotations

from collections.abc import Collection

from foqs.quota import Quota
from foqs.quotas.bucket import Ask, Bucket, Grant

STORED_RETRY_MS = 1_000
"""Told when as much is stored as may be: nobody knows when consumers will have made room."""
UNCOUNTED_RETRY_MS = 200


class Home:
    """`counted` says what a shard stores; the last count of each is kept, for one that does not answer or is being
    moved.

    Whatever was stored after a count used a token that was granted, and not known to be spent, when the counting began.
    So no shard's items are missed: those since the oldest count are all taken to be stored beside what was counted."""

    __slots__ = ("_bucket", "_counts", "_quota")

    def __init__(self, quota: Quota, empty_at_ms: int) -> None:
        """See `Bucket`."""
        self._quota = quota
        self._bucket = Bucket(quota, empty_at_ms)
        self._counts: dict[int, tuple[int, int]] = {}  # by shard: items, and the mark of their count

    def report(self, holder: str, ask: Ask, now_ms: int) -> bool:
        return self._bucket.report(holder, ask, now_ms)

    def grant(self, holder: str, ask: Ask, shards: Collection[int], now_ms: int, *, kept: bool) -> Grant:
        """The answer to a question that was reported. `shards`: all that count."""
        left, wanted = self.left(shards), ask.wanted
        if left is not None:
            wanted = min(wanted, max(0, left))
        elif self._quota.stored_items is not None:
            wanted = 0
        granted = self._bucket.grant(holder, ask.number, wanted, now_ms)
        retry_after_ms = self._quota.ms_for(ask.wanted - granted)
        if wanted < ask.wanted:
            retry_after_ms = max(retry_after_ms, UNCOUNTED_RETRY_MS if left is None else STORED_RETRY_MS)
        return Grant(granted, kept, retry_after_ms)

    def lacks(self, wanted: int, shards: Collection[int]) -> bool:
        """Whether another count may allow more of `wanted`."""
        if not wanted or self._quota.stored_items is None:
            return False
        left = self.left(shards)
        return left is None or left < wanted

    def left(self, shards: Collection[int]) -> int | None:
        """How many more may be stored; None: there is no bound, or not every shard was counted yet."""
        if self._quota.stored_items is None or not shards or not self._counts.keys() >= set(shards):
            return None
        counts = [self._counts[shard] for shard in shards]
        since = self._bucket.granted - min(mark for _, mark in counts)
        return self._quota.stored_items - sum(items for items, _ in counts) - since

    def mark(self, now_ms: int) -> int:
        """To be taken before a shard is asked, for `counted`."""
        self._bucket.advance(now_ms)
        return self._bucket.spent

    def counted(self, shard: int, items: int, mark: int) -> None:
        """`items`: those stored, and those on their way into the shard."""
        self._counts[shard] = (items, mark)

    def idle(self, now_ms: int) -> bool:
        """Whether nothing is lost when it is forgotten."""
        return self._bucket.full(now_ms)

    def __repr__(self) -> str:
        return f"Home({self._bucket}, counts {self._counts})"
