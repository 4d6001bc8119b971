"""Coordinators of quotas and throttles: decide how many tokens a host that asks is granted.

The coordinator of a namespace, a topic or a throttle key is the owner of the shard that has its slot (see
`foqs.ids`). A shard has one owner at a time, because of the fence and the confirmed epochs, and a slot is on one
shard at a time. So no quota has two coordinators, whatever hosts believe of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice
from typing import Any

from foqs.bounds import Bounded, Quota
from foqs.engine.engine import Engine
from foqs.errors import FoqsError, NotServed, Unavailable
from foqs.ids import digest_of, hash_slot_of
from foqs.limits.bucket import Ask, Grant, NamespaceTokens
from foqs.peers.forwarder import Forwarder
from foqs.peers.item_counts import ItemCounts
from foqs.peers.lone_host import LoneForwarder, LoneSlotOwner
from foqs.peers.slot_owners import SlotOwner, SlotOwners, ask_owners
from foqs.shardmgr.lifecycle import ShardState

_KEEP_CONFIRMED_SHARE = 3
_TENDED = 2_000
"""Quotas that are looked at each time for whether they can be forgotten."""
_RECOUNT_MS = 1_000
"""Items of a topic are counted again so often while hosts ask for tokens: dead letters, and enqueues of hosts that do
not know the topic's policy yet, are stored without tokens."""
_NOT_HERE = "this host does not coordinate the quota now"

Answer = Callable[[Grant | FoqsError], None]
Grants = Callable[[list[Grant | None]], None]
"""Gets an answer to each question; None where this host does not coordinate the key."""


def coordinator_slot(ns: str, topic: str = "") -> int:
    return hash_slot_of(digest_of(ns, topic))


class QuotaCoordinator:
    """One host's. `quota_of` returns the quotas of its configuration and settings. `now_ms` is the host's clock, which
    may be set; tokens accrue by `monotonic_ms`."""

    def __init__(
        self,
        engine: Engine,
        quota_of: Callable[[Bounded], Quota | None],
        forwarder: Forwarder | LoneForwarder,
        owners: SlotOwners | LoneSlotOwner,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        later: Callable[[int, Callable[[], None]], Any],
    ) -> None:
        self._engine = engine
        self._quota_of = quota_of
        self._routing = forwarder.routing
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._tokens: dict[Bounded, tuple[NamespaceTokens, SlotOwner, int]] = {}  # with since when there are none
        self._owners = owners
        self.counts = ItemCounts(engine, forwarder, owners.check, monotonic_ms, later)

    def take(self, key: Bounded, holder: str, asked: Ask, answer: Answer) -> None:
        """Answer the question of one host, after the shard was confirmed and, if needed, the items were counted."""
        quota = self._quota_of(key)
        if quota is None:
            answer(Unavailable("there is no such quota here: the hosts' configurations, or their settings, differ"))
            return
        self._owners.find(coordinator_slot(*key), partial(self._take_here, key, quota, holder, asked, answer))

    def _take_here(
        self, key: Bounded, quota: Quota, holder: str, asked: Ask, answer: Answer, owner: SlotOwner | None,
        empty_at_ms: int,
    ) -> None:  # fmt: skip
        if owner is None:
            answer(NotServed(_NOT_HERE))
            return
        now_ms = self._monotonic_ms()
        if now_ms < empty_at_ms:
            answer(Grant(0, False, empty_at_ms - now_ms + quota.ms_for(asked.wanted)))
            return
        tokens = self._tokens_of(key, quota, owner, empty_at_ms, now_ms)
        kept = tokens.report(holder, asked, now_ms)

        def grant() -> None:
            answer(tokens.grant(holder, asked, self._shards(), self._monotonic_ms(), kept=kept))

        if tokens.lacks(asked.wanted, self._shards()):
            self.counts.refresh(key, tokens, grant)
            return
        grant()
        if key[1] and not self.counts.fresh(key, _RECOUNT_MS):
            self.counts.refresh(key, tokens, lambda: None)

    def lend(self, holder: str, asks: Sequence[tuple[Bounded, Ask]], answer: Grants) -> None:
        """Answer the questions of one host for tokens of throttle keys, after their shards were confirmed."""
        grants: list[Grant | None] = [None] * len(asks)

        def lend(at: int, owner: SlotOwner, empty_at_ms: int) -> None:
            grants[at] = self._lend_here(*asks[at], holder, owner, empty_at_ms, self._monotonic_ms())

        ask_owners(self._owners.find, [coordinator_slot(*key) for key, _ in asks], lend, lambda: answer(grants))

    def _lend_here(
        self, key: Bounded, asked: Ask, holder: str, owner: SlotOwner, empty_at_ms: int, now_ms: int
    ) -> Grant | None:
        quota = self._quota_of(key)
        if quota is None:
            return None
        if now_ms < empty_at_ms:
            return Grant(0, False, empty_at_ms - now_ms + quota.ms_for(1))
        grant = self._tokens_of(key, quota, owner, empty_at_ms, now_ms).lend(holder, asked, now_ms)
        self._engine.counters.tokens_lent += grant.granted
        return grant

    def _tokens_of(
        self, key: Bounded, quota: Quota, owner: SlotOwner, empty_at_ms: int, now_ms: int
    ) -> NamespaceTokens:
        known = self._tokens.get(key)
        if known is None or known[1:] != (owner, empty_at_ms):
            known = self._tokens[key] = (NamespaceTokens(quota, empty_at_ms), owner, empty_at_ms)
        known[0].follow(quota, now_ms)
        return known[0]

    def keys(self) -> list[Bounded]:
        """Return the quotas and throttle keys that hosts asked this one about of late."""
        return list(self._tokens)

    def tokens_of(self, key: Bounded) -> float | None:
        """Return the tokens that no host holds, None if the key is not coordinated here."""
        known = self._tokens.get(key)
        return None if known is None else known[0].here(self._monotonic_ms())

    def tend(self) -> None:
        """Keep the shards confirmed that a coordinator needs, and forget idle quotas. Call it twice a second or
        so."""
        self._owners.observe()
        now_ms = self._monotonic_ms()
        shards: set[int] = set()
        for key, known in list(islice(self._tokens.items(), _TENDED)):
            del self._tokens[key]
            if not known[0].idle(now_ms) or self.counts.under_way(key):
                self._tokens[key] = known  # at the end
                shards.add(known[1].shard)
        for number in shards:
            shard = self._engine.shards.get(number)
            if shard is not None and shard.state is ShardState.SERVING:
                age_ms = self._now_ms() - shard.confirmed_ms
                if not 0 <= age_ms * _KEEP_CONFIRMED_SHARE < shard.config.confirm_ms:
                    shard.confirm_wanted = True
                    self._engine.touch(shard)

    def _shards(self) -> Collection[int]:
        """All shards whose items count."""
        return self._routing().shards - self._routing().disabled
