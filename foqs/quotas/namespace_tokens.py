"""The tokens of a namespace, a topic or a throttle key at its coordinator: granted by rate and by the number of stored
items."""

from __future__ import annotations

from collections.abc import Collection

from foqs.bounds import Quota
from foqs.quotas.bucket import Ask, Bucket, Grant

STORED_RETRY_MS = 1_000
"""The hint when the bound on stored items is reached: when consumers make room is not known."""
UNCOUNTED_RETRY_MS = 200
PATIENCE_MS = 100
"""A host that got no token for two intervals and this time comes before other hosts. It asks again within this time."""


class NamespaceTokens:
    """`counted` records the items of a shard. The last count of each shard is kept, for a shard that does not answer or
    is being moved.

    An item stored after a count used a token that was granted, and not known to be spent, when the counting began. So
    no shard's items are missed: all tokens granted since the oldest count are taken to be stored on top of it."""

    __slots__ = ("_bucket", "_counts", "_quota", "_waiting")

    def __init__(self, quota: Quota, empty_at_ms: int) -> None:
        """See `Bucket`."""
        self._quota = quota
        self._bucket = Bucket(quota, empty_at_ms)
        self._counts: dict[int, tuple[int, int]] = {}  # by shard: items, and the mark of their count
        self._waiting: dict[str, tuple[int, int]] = {}  # by holder: since when it got no token, and when it asks again

    def follow(self, quota: Quota, now_ms: int) -> None:
        """Go by another rate, burst or bound on stored items."""
        if quota != self._quota:
            self._quota = quota
            self._bucket.update(quota, now_ms)

    def report(self, holder: str, ask: Ask, now_ms: int) -> bool:
        return self._bucket.report(holder, ask, now_ms)

    def grant(self, holder: str, ask: Ask, shards: Collection[int], now_ms: int, *, kept: bool) -> Grant:
        """Return the answer to a question that was reported. `shards`: all whose items count."""
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

    def lend(self, holder: str, ask: Ask, now_ms: int) -> Grant:
        """Return the answer to a question for tokens of a throttle key, with the time until the next token. The host of
        the coordinator asks without delay, so it could take each token of a fast key: a token is kept for the host that
        has waited longest, if it is patient no more."""
        bucket = self._bucket
        kept = bucket.report(holder, ask, now_ms)
        reserved = ask.wanted > 0 and self._reserved(holder, now_ms)
        free = max(0, int(bucket.here(now_ms)) - reserved)
        granted = bucket.grant(holder, ask.number, min(ask.wanted, free), now_ms)
        retry_after_ms = bucket.ms_until(1 + reserved) if granted < ask.wanted else 0
        since_ms, _ = self._waiting.pop(holder, (now_ms, 0))
        if ask.wanted and not granted:
            self._waiting[holder] = (since_ms, now_ms + retry_after_ms)
        return Grant(granted, kept, retry_after_ms)

    def _reserved(self, holder: str, now_ms: int) -> bool:
        """Return True if a token is kept for another host than `holder`."""
        for other, (_, again_ms) in list(self._waiting.items()):
            if now_ms > again_ms + PATIENCE_MS:
                del self._waiting[other]  # it wants none, or is gone
        first = min(self._waiting, key=lambda other: self._waiting[other][0], default=holder)
        waited_ms = now_ms - self._waiting[first][0] if first != holder else 0
        return waited_ms > PATIENCE_MS + 2 * self._quota.ms_for(1)

    def lacks(self, wanted: int, shards: Collection[int]) -> bool:
        """Whether another count may allow more of `wanted`."""
        if not wanted or self._quota.stored_items is None:
            return False
        left = self.left(shards)
        return left is None or left < wanted

    def left(self, shards: Collection[int]) -> int | None:
        """Return how many more items may be stored; None: there is no bound, or some shard was never counted."""
        for shard in self._counts.keys() - set(shards):  # one that returns is counted again
            del self._counts[shard]
        if self._quota.stored_items is None or not shards or not self._counts.keys() >= set(shards):
            return None
        counts = [self._counts[shard] for shard in shards]
        since = self._bucket.granted - min(mark for _, mark in counts)
        return self._quota.stored_items - sum(items for items, _ in counts) - since

    def here(self, now_ms: int) -> float:
        """Return how many tokens no host holds."""
        return self._bucket.here(now_ms)

    def mark(self, now_ms: int) -> int:
        """Return the mark for `counted`. Take it before the shard is asked for its count."""
        self._bucket.advance(now_ms)
        return self._bucket.spent

    def counted(self, shard: int, items: int, mark: int) -> None:
        """`items`: those the shard stores, and those that it is about to store."""
        self._counts[shard] = (items, mark)

    def idle(self, now_ms: int) -> bool:
        """Whether this can be forgotten without a loss."""
        return self._bucket.full(now_ms)

    def __repr__(self) -> str:
        return f"NamespaceTokens({self._bucket}, counts {self._counts})"
