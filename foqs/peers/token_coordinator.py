"""Coordinators of quotas, bounds of topics and throttle rates: how many tokens a host that asks is granted.

The coordinator of a namespace, a topic or a throttle key is the owner of the shard that has its hash slot (see
`foqs.ids`). A shard has one owner at a time, because of the fence and the confirmed epochs, and a slot is on one shard
at a time. So no quota has two coordinators, whatever hosts believe of each other. `foqs.limits.bucket` decides. Where
stored items count, a coordinator first has them counted on all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

from foqs.bounds import Bounded, Quota
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.errors import FoqsError, NotServed, Unavailable
from foqs.fairness.keys import lane_key, topic_key
from foqs.idl import idl
from foqs.ids import digest_of, hash_slot_of
from foqs.limits.bucket import Ask, Grant, NamespaceTokens
from foqs.peers.forwarded import Timers
from foqs.peers.forwarder import Forwarder
from foqs.peers.hash_slots import SlotOwner, SlotOwners, ask_owners
from foqs.shardmgr.lifecycle import ShardState

T = TypeVar("T")


class Census(Generic[T]):
    """`count` counts one shard. `answer` gets the counts by shard, once; `left` shards have yet to be added."""

    __slots__ = ("_answer", "_count", "_found", "left")

    def __init__(
        self, shards: Collection[Shard], count: Callable[[Shard], T], answer: Callable[[dict[int, T]], None]
    ) -> None:
        self.left = len(shards)
        self._count = count
        self._answer: Callable[[dict[int, T]], None] | None = answer
        self._found: dict[int, T] = {}
        if not shards:
            self.end()

    def add(self, shard: Shard, confirmed: bool) -> None:
        """Count a shard. `confirmed`: its database says that this host owns it."""
        if self._answer is not None and confirmed and shard.owner.state in (ShardState.SERVING, ShardState.DRAINING):
            self._found[shard.number] = self._count(shard)
        self.left -= 1
        if not self.left:
            self.end()

    def end(self) -> None:
        """Answer without the shards that were not added in time."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(self._found)


COUNT_MS = 500
"""How long a question for tokens waits for counts. The last count of a shard counts if its next one is later."""
CENSUS_MS = 2_000
"""How long shards have to report their items. A report later than `COUNT_MS` serves the next question."""
_MARGIN_MS = 500
_COUNT_PAUSE_MS = 250


class ItemCounts:
    """Counts of the items that a namespace or a topic stores, on this host's shards and on all shards."""

    def __init__(self, engine: Engine, forwarder: Forwarder, owners: SlotOwners, timers: Timers) -> None:
        self._engine = engine
        self._forwarder = forwarder
        self._check = owners.check
        self._monotonic_ms = timers.monotonic_ms
        self._later = timers.later
        self._counts: dict[Bounded, _Count] = {}  # the latest of each

    def under_way(self, key: Bounded) -> bool:
        return key in self._counts

    def fresh(self, key: Bounded, within_ms: int) -> bool:
        """Return True if the items were counted in that time."""
        count = self._counts.get(key)
        return count is not None and self._monotonic_ms() < count.begun_ms + within_ms

    def refresh(self, key: Bounded, tokens: NamespaceTokens, then: Callable[[], None]) -> None:
        """Count the items of `key` on all shards unless that was done just now, and call `then`."""
        now_ms = self._monotonic_ms()
        count = self._counts.get(key)
        if count is not None and count.tokens is tokens:
            if count.open and now_ms < count.begun_ms + COUNT_MS:
                count.then.append(then)
                return
            if count.open or now_ms < count.begun_ms + _COUNT_PAUSE_MS:
                then()
                return
        for old, done in list(self._counts.items()):
            if not done.open and now_ms >= done.begun_ms + _COUNT_PAUSE_MS:
                del self._counts[old]
        count = self._counts[key] = _Count(tokens, now_ms, tokens.mark(now_ms), then)
        addresses = self._forwarder.routing().other_owners(self._engine.state.config.server.id)
        count.open = 1 + len(addresses)
        for address in addresses:
            request = idl.CountItemsRequest(key[0], key[1] or None)
            self._forwarder.ask(address, "CountItems", request, CENSUS_MS + _MARGIN_MS, count.answered)
        self.count_here(key, count.add)
        if count.open:
            self._later(COUNT_MS, count.go_on)

    def count_here(self, key: Bounded, answer: Callable[[dict[int, int]], None]) -> None:
        """Report, within `CENSUS_MS`, the items of `key` by shard of this host, including those not stored yet. A shard
        is left out unless its database confirms in time that this host owns it."""
        census = Census(self._engine.state.serving, lambda shard: items_of(shard, key), answer)
        for shard in self._engine.state.serving:
            self._check(shard, partial(census.add, shard))
        if census.left:
            self._later(CENSUS_MS, census.end)


class _Count:
    """One count on all shards. `open`: answers not received yet."""

    __slots__ = ("_mark", "begun_ms", "open", "then", "tokens")

    def __init__(self, tokens: NamespaceTokens, begun_ms: int, mark: int, then: Callable[[], None]) -> None:
        self.tokens = tokens
        self.begun_ms = begun_ms
        self.open = 0
        self.then = [then]
        self._mark = mark

    def answered(self, response: Any, error: FoqsError | None) -> None:
        self.add({} if error is not None or response.shards is None else response.shards)

    def add(self, items: dict[int, int]) -> None:
        for shard, count in items.items():
            self.tokens.counted(shard, count, self._mark)
        self.open -= 1
        if not self.open:
            self.go_on()

    def go_on(self) -> None:
        """Continue with the counts received so far."""
        then, self.then = self.then, []
        for one in then:
            one()


def items_of(shard: Shard, key: Bounded) -> int:
    """Return how many items of a namespace or a topic the shard stores or may be about to store."""
    queue, memory = shard.queue, shard.memory
    ns, topic = key
    batches = [batch for batch in (queue.in_flight, queue.unsettled) if batch is not None]
    chunks = [*queue.chunks, *queue.returned, *(chunk for batch in batches for chunk in batch.chunks)]
    if topic:
        plain, tenants = memory.lanes.get(lane_key(key)), memory.tenants.get(key)
        stored = (plain.total if plain is not None else 0) + (tenants.total if tenants is not None else 0)
        return stored + sum([topic_key(one) == key for chunk in chunks for one in chunk.keys])
    waiting = sum(len(chunk.items) for chunk in chunks if chunk.keys and topic_key(chunk.keys[0])[0] == ns)
    return memory.totals.get(ns, 0) + waiting


_KEEP_CONFIRMED_SHARE = 3
_TENDED = 2_000
"""Quotas that are looked at each time, to forget idle ones."""
_RECOUNT_MS = 1_000
"""Items of a topic are counted again so often while hosts ask for tokens: dead letters, and enqueues of hosts that do
not know the topic's policy yet, are stored without tokens."""
_NOT_HERE = "this host does not coordinate the quota now"

Answer = Callable[[Grant | FoqsError], None]
Grants = Callable[[list[Grant | None]], None]
"""Gets an answer to each question; None where this host does not coordinate the key."""


def coordinator_slot(ns: str, topic: str = "") -> int:
    return hash_slot_of(digest_of(ns, topic))


class TokenCoordinator:
    """The coordinator on one host. `quota_of` returns the quotas of its configuration and settings."""

    def __init__(
        self,
        engine: Engine,
        quota_of: Callable[[Bounded], Quota | None],
        forwarder: Forwarder,
        owners: SlotOwners,
        timers: Timers,
    ) -> None:
        self._engine = engine
        self._quota_of = quota_of
        self._routing = forwarder.routing
        self._now_ms = timers.now_ms
        self._monotonic_ms = timers.monotonic_ms
        self._tokens: dict[Bounded, tuple[NamespaceTokens, SlotOwner, int]] = {}  # with since when there are none
        self._owners = owners
        self.counts = ItemCounts(engine, forwarder, owners, timers)

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
        self._engine.state.counters.tokens_lent += grant.granted
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
            shard = self._engine.state.shards.get(number)
            if shard is not None and shard.owner.state is ShardState.SERVING:
                age_ms = self._now_ms() - shard.owner.confirmed_ms
                if not 0 <= age_ms * _KEEP_CONFIRMED_SHARE < shard.config.confirm_ms:
                    shard.owner.want_confirmation()
                    self._engine.state.touch(shard)

    def _shards(self) -> Collection[int]:
        """All shards whose items count."""
        return self._routing().shards - self._routing().disabled
