"""Ledgers of tokens: of a throttle key (`ThrottleTokens`), and of a namespace or topic (`QuotaTokens`). Both lend from
a `Bucket`. Pure.

Conservation: the tokens in the bucket and the tokens that hosts may still spend are never more than the burst together.
So no `t` seconds see more than burst + rate * t of them. It needs no messages that arrive: the tokens of a host end
`TTL_MS` after its question, by the host's own clock, and count here until `TTL_MS` after the question arrived. A token
can be lost with a message, but it never exists twice.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from foqs.bounds import NANO, Quota

QUOTA_TOKENS, THROTTLE_TOKENS = "quota", "tokens"
"""The names of these units."""
TTL_MS = 1_500
"""Tokens are good for this time, unless the host asks again. A new coordinator lends nothing for this time."""
STORED_RETRY_MS = 1_000
"""The hint when the bound on stored items is reached: the time at which consumers make room is not known."""
UNCOUNTED_RETRY_MS = 200
PATIENCE_MS = 100
"""A host that got no token for two intervals and this time comes before other hosts. It asks again within this time."""

_UNBOUNDED = 1 << 60


class Ask(NamedTuple):
    """A host's question. `held`: its tokens, with those spent on items that may yet be refused; `back`: the tokens
    that it gives back, not counted in `held`. `number`: a host's later question has a higher one. `spent_ago_ms`: the
    tokens that it had and that are in neither were spent at least this long before the question was sent."""

    number: int
    wanted: int
    held: int
    back: int
    spent_ago_ms: int = 0


class Grant(NamedTuple):
    """The answer. `kept`: the tokens that the host held are good for another `TTL_MS`; else they are void.
    `retry_after_ms`: after this time the bucket may have the rest of the wanted tokens."""

    granted: int
    kept: bool
    retry_after_ms: int


class _Holding(NamedTuple):
    number: int
    tokens: int
    until_ms: int


class Bucket:
    """Tokens that accrue by rate. Times are of any clock that never goes back. Tokens are counted in billionths,
    exactly.

    Invariant: `level` + `out` <= burst, where `out` is at least what hosts may spend still. After a smaller burst came
    into force, the level is 0 until `out` has room for it."""

    __slots__ = ("_at_ms", "_burst", "_full_ms", "_holders", "_level", "_nano_per_ms", "granted", "out")

    def __init__(self, quota: Quota, empty_at_ms: int) -> None:
        """`empty_at_ms`: the time at which no token was in the bucket or on a host."""
        self._nano_per_ms = quota.nano_per_ms
        self._burst = quota.burst if quota.per_second is not None else _UNBOUNDED
        self._level = 0 if quota.per_second is not None else _UNBOUNDED * NANO
        self._at_ms = self._full_ms = empty_at_ms  # what accrued from `_full_ms` to `_at_ms` found no room
        self._holders: dict[str, _Holding] = {}  # whose tokens end first comes first
        self.out = 0
        self.granted = 0  # in total, less those given back

    def update(self, quota: Quota, now_ms: int) -> None:
        """Follow another rate and burst from `now_ms` on. From then on, hosts spend in t seconds at most rate * t more
        than the new burst, or than the tokens that they held at `now_ms` if these are more."""
        self.advance(now_ms)
        self._full_ms = now_ms
        bounded = self._nano_per_ms is not None
        self._nano_per_ms = quota.nano_per_ms
        self._burst = quota.burst if quota.per_second is not None else _UNBOUNDED
        self._level = self._capped(self._level if bounded or quota.per_second is not None else _UNBOUNDED * NANO)

    def ms_until(self, tokens: int) -> int:
        """Return the time until `tokens`, at most the burst, are here, if no host holds or takes any."""
        if self._nano_per_ms is None:
            return 0
        lacking = min(tokens, self._burst) * NANO - self._level
        return max(0, -(-lacking // max(1, self._nano_per_ms)))

    def here(self, now_ms: int) -> float:
        """Return the tokens that no host holds."""
        self.advance(now_ms)
        return self._level / NANO

    @property
    def spent(self) -> int:
        """Tokens of which it is known that they are spent, or lost."""
        return self.granted - self.out

    def report(self, holder: str, ask: Ask, now_ms: int) -> bool:
        """Record the tokens that the host holds. Return True if it may keep them."""
        self.advance(now_ms)
        before = self._holders.get(holder)
        if before is not None and before.number >= ask.number:
            return False  # a later question overtook it: no host waits for the answer
        had = before.tokens if before is not None else 0
        kept = ask.held <= had
        held = ask.held if kept else 0
        # Tokens that left the records count as spent: they must not return to the bucket.
        back = min(ask.back, had - held)
        self._hold(holder, ask.number, held, now_ms)
        self.granted -= back
        self._level = self._capped(self._level + back * NANO)
        self._make_up(had - held - back, ask.spent_ago_ms, now_ms)
        return kept

    def lend(self, holder: str, number: int, wanted: int, now_ms: int) -> int:
        """Return how many of `wanted` the host gets. `report` has recorded the question with that number."""
        self.advance(now_ms)
        held = self._holders.get(holder)
        if held is None or held.number != number:
            return 0
        granted = min(wanted, self._level // NANO)
        self._level -= granted * NANO
        self.granted += granted
        self._hold(holder, number, held.tokens + granted, now_ms)
        return granted

    def advance(self, now_ms: int) -> None:
        """Let tokens expire and accrue until `now_ms`, in order of time: lent tokens leave no room for new ones."""
        for holder, held in list(self._holders.items()):
            if held.until_ms > now_ms:
                break
            self._fill(held.until_ms)
            del self._holders[holder]
            self.out -= held.tokens
        self._fill(now_ms)

    def full(self, now_ms: int) -> bool:
        """Return True if no host holds tokens and the bucket is full: a new bucket would fill up to the same state."""
        self.advance(now_ms)
        return not self._holders and (self._nano_per_ms is None or self._level == self._burst * NANO)

    def _make_up(self, spent: int, ago_ms: int, now_ms: int) -> None:
        """Add what would have accrued if `spent` tokens had left the records `ago_ms` ago, when they were spent: so a
        late report costs nothing of the rate. No more than `spent` and no time twice, which keeps the bound."""
        if self._nano_per_ms is not None and spent and ago_ms:
            missed_ms = min(ago_ms, now_ms - self._full_ms)
            self._level = self._capped(self._level + min(spent * NANO, self._nano_per_ms * missed_ms))
            self._full_ms = now_ms

    def _hold(self, holder: str, number: int, tokens: int, now_ms: int) -> None:
        before = self._holders.pop(holder, None)
        self.out += tokens - (before.tokens if before is not None else 0)
        self._holders[holder] = _Holding(number, tokens, now_ms + TTL_MS)

    def _fill(self, at_ms: int) -> None:
        if at_ms > self._at_ms:
            if self._nano_per_ms is not None:
                accrued = self._nano_per_ms * (at_ms - self._at_ms)
                level = self._level + accrued
                self._level = self._capped(level)
                over = level - self._level
                if over < accrued:
                    self._full_ms = at_ms - over // self._nano_per_ms
            self._at_ms = at_ms

    def _capped(self, level: int) -> int:
        return max(0, min(level, (self._burst - self.out) * NANO))

    def __repr__(self) -> str:
        return f"Bucket({self._level / NANO} here, {self.out} out)"


class _Tokens:
    """The ledger of one key whose units are tokens."""

    __slots__ = ("_bucket", "_quota")

    def __init__(self, quota: Quota, empty_at_ms: int) -> None:
        """See `Bucket`."""
        self._quota = quota
        self._bucket = Bucket(quota, empty_at_ms)

    def follow(self, quota: Quota, now_ms: int) -> None:
        """Follow another rate, burst or bound on stored items."""
        if quota != self._quota:
            self._quota = quota
            self._bucket.update(quota, now_ms)

    def here(self, now_ms: int) -> float:
        """Return the number of tokens that no host holds."""
        return self._bucket.here(now_ms)

    def idle(self, now_ms: int) -> bool:
        """Return True if this can be forgotten without a loss."""
        return self._bucket.full(now_ms)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._bucket})"


class ThrottleTokens(_Tokens):
    """The tokens of a throttle key. The host of the coordinator asks without delay, so it could take each token of a
    fast key: a token is kept for the host that has waited longest, if it is patient no more."""

    __slots__ = ("_waiting",)

    def __init__(self, quota: Quota, empty_at_ms: int) -> None:
        super().__init__(quota, empty_at_ms)
        self._waiting: dict[str, tuple[int, int]] = {}  # by holder: since when it got no token, and when it asks again

    def lend(self, holder: str, ask: Ask, now_ms: int) -> Grant:
        """Return the answer to a question, with the time until the next token."""
        bucket = self._bucket
        kept = bucket.report(holder, ask, now_ms)
        reserved = ask.wanted > 0 and self._reserved(holder, now_ms)
        free = max(0, int(bucket.here(now_ms)) - reserved)
        granted = bucket.lend(holder, ask.number, min(ask.wanted, free), now_ms)
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


class QuotaTokens(_Tokens):
    """The tokens of a namespace or a topic, one for each item that is stored. `counted` records the items of a shard.
    The last count of each shard is kept, for a shard that does not answer or is being moved.

    An item stored after a count used a token that was lent, and not known to be spent, when the counting began. So
    no shard's items are missed: all tokens lent since the oldest count are taken to be stored on top of it."""

    __slots__ = ("_counts", "census")

    def __init__(self, quota: Quota, empty_at_ms: int) -> None:
        super().__init__(quota, empty_at_ms)
        self.census: Any = None  # the latest count of all shards
        self._counts: dict[int, tuple[int, int]] = {}  # by shard: items, and the mark of their count

    def report(self, holder: str, ask: Ask, now_ms: int) -> bool:
        """Record the tokens that the host holds. Return True if it may keep them."""
        return self._bucket.report(holder, ask, now_ms)

    def lend(self, holder: str, ask: Ask, shards: Collection[int], now_ms: int, *, kept: bool) -> Grant:
        """Return the answer to a question that was reported. `shards`: all whose items count."""
        left, wanted = self.left(shards), ask.wanted
        if left is not None:
            wanted = min(wanted, max(0, left))
        elif self._quota.stored_items is not None:
            wanted = 0
        granted = self._bucket.lend(holder, ask.number, wanted, now_ms)
        retry_after_ms = self._quota.ms_for(ask.wanted - granted)
        if wanted < ask.wanted:
            retry_after_ms = max(retry_after_ms, UNCOUNTED_RETRY_MS if left is None else STORED_RETRY_MS)
        return Grant(granted, kept, retry_after_ms)

    def lacks(self, wanted: int, shards: Collection[int]) -> bool:
        """Return True if another count may allow more of `wanted`."""
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

    def mark(self, now_ms: int) -> int:
        """Return the mark for `counted`. Take it before the shard is asked for its count."""
        self._bucket.advance(now_ms)
        return self._bucket.spent

    def counted(self, shard: int, items: int, mark: int) -> None:
        """Record the items that the shard stores or is about to store."""
        self._counts[shard] = (items, mark)
