"""Units that are tokens, at the coordinator: of throttle keys, for deliveries; of quotas and of bounds of topics, for
items that are stored.

`foqs.limits.bucket` decides. Where stored items count, a coordinator first has all shards count them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from foqs.bounds import THROTTLE, Bounded, Quota
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.errors import FoqsError
from foqs.fairness.keys import lane_key, topic_key
from foqs.idl import idl
from foqs.limits.bucket import Ask, Grant, QuotaTokens, ThrottleTokens
from foqs.peers.coordinator import HashSlotOwners, Unit
from foqs.peers.forwarded import Timers
from foqs.peers.forwarder import Forwarder

COUNT_MS = 500
"""How long a question for tokens waits for counts. The last count of a shard counts if its next one is later."""
ITEM_CENSUS_MS = 2_000
"""How long shards have to report their items. A report later than `COUNT_MS` serves the next question."""
_MARGIN_MS = 500
_COUNT_PAUSE_MS = 250
_RECOUNT_MS = 1_000
"""Items of a topic are counted again so often while hosts ask for tokens: dead letters, and enqueues of hosts that do
not know the topic's policy yet, are stored without tokens."""


class ThrottleUnit(Unit):
    """Tokens of a throttle key with a rate: one for each delivery."""

    def __init__(self, engine: Engine, timers: Timers) -> None:
        super().__init__(timers)
        self._state = engine.state

    def rule(self, key: Bounded) -> Quota | None:
        throttle = self._state.policies.namespace(key[0]).throttle(key[1][len(THROTTLE) :])
        return None if throttle is None else throttle.quota

    def new_ledger(self, key: Bounded, rule: Quota, empty_at_ms: int) -> ThrottleTokens:
        return ThrottleTokens(rule, empty_at_ms)

    def early(self, rule: Quota, ask: Ask, wait_ms: int) -> Grant:
        return Grant(0, False, wait_ms + rule.ms_for(1))

    def lend(
        self, key: Bounded, ledger: ThrottleTokens, holder: str, ask: Ask, answer: Callable[[Grant], None]
    ) -> None:
        grant = ledger.lend(holder, ask, self._monotonic_ms())
        self._state.counters.tokens_lent += grant.granted
        answer(grant)


class _Census:
    """One count on all shards. `open`: answers not received yet."""

    __slots__ = ("_mark", "_tokens", "begun_ms", "open", "then")

    def __init__(self, tokens: QuotaTokens, begun_ms: int, then: Callable[[], None]) -> None:
        self._tokens = tokens
        self._mark = tokens.mark(begun_ms)
        self.begun_ms = begun_ms
        self.open = 0
        self.then = [then]

    def answered(self, response: Any, error: FoqsError | None) -> None:
        self.add({} if error is not None or response.shards is None else response.shards)

    def add(self, items: dict[int, int]) -> None:
        for shard, count in items.items():
            self._tokens.counted(shard, count, self._mark)
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


class QuotaUnit(Unit):
    """Tokens of a namespace, or of a topic that bounds its stored items: one for each item that is enqueued."""

    def __init__(self, engine: Engine, forwarder: Forwarder, owners: HashSlotOwners, timers: Timers) -> None:
        super().__init__(timers)
        section = engine.state.config.quotas
        general, own = section.quota(), {ns: keys.quota() for ns, keys in section.namespaces.items()}
        # Every enqueue asks: without a general quota, by a look-up alone.
        self.of: Callable[[str], Quota | None] = own.get if general is None else lambda ns: own.get(ns, general)
        self.configured = general is not None or any(own.values())
        self._state = engine.state
        self._forwarder = forwarder
        self._owners = owners
        self._later = timers.later

    def rule(self, key: Bounded) -> Quota | None:
        if not key[1]:
            return self.of(key[0])
        most = self._state.policies.of(key).max_stored
        return None if most is None else Quota(None, 0, most)

    def new_ledger(self, key: Bounded, rule: Quota, empty_at_ms: int) -> QuotaTokens:
        return QuotaTokens(rule, empty_at_ms)

    def early(self, rule: Quota, ask: Ask, wait_ms: int) -> Grant:
        return Grant(0, False, wait_ms + rule.ms_for(ask.wanted))

    def lend(self, key: Bounded, ledger: QuotaTokens, holder: str, ask: Ask, answer: Callable[[Grant], None]) -> None:
        kept = ledger.report(holder, ask, self._monotonic_ms())

        def answer_now() -> None:
            answer(ledger.lend(holder, ask, self._shards(), self._monotonic_ms(), kept=kept))

        if ledger.lacks(ask.wanted, self._shards()):
            self._refresh(key, ledger, answer_now)
            return
        answer_now()
        counted = ledger.census is not None and self._monotonic_ms() < ledger.census.begun_ms + _RECOUNT_MS
        if key[1] and not counted:
            self._refresh(key, ledger, lambda: None)

    def tend(self, key: Bounded, ledger: QuotaTokens, ledgers: int) -> bool:
        return super().tend(key, ledger, ledgers) or bool(ledger.census is not None and ledger.census.open)

    def _shards(self) -> Collection[int]:
        """All shards whose items count."""
        routing = self._forwarder.routing()
        return routing.shards - routing.disabled

    def _refresh(self, key: Bounded, tokens: QuotaTokens, then: Callable[[], None]) -> None:
        """Count the items of `key` on all shards unless that was done just now, and call `then`."""
        now_ms, census = self._monotonic_ms(), tokens.census
        if census is not None:
            if census.open and now_ms < census.begun_ms + COUNT_MS:
                census.then.append(then)
                return
            if census.open or now_ms < census.begun_ms + _COUNT_PAUSE_MS:
                then()
                return
        census = tokens.census = _Census(tokens, now_ms, then)
        addresses = self._forwarder.routing().other_owners(self._state.config.server.id)
        census.open = 1 + len(addresses)
        for address in addresses:
            request = idl.CountItemsRequest(key[0], key[1] or None)
            self._forwarder.ask(address, "CountItems", request, ITEM_CENSUS_MS + _MARGIN_MS, census.answered)
        self.count_here(key, census.add)
        if census.open:
            self._later(COUNT_MS, census.go_on)

    def count_here(self, key: Bounded, answer: Callable[[dict[int, int]], None]) -> None:
        """Report, within `ITEM_CENSUS_MS`, the items of `key` by shard of this host, including items that are not
        stored yet. A shard is left out unless its database confirms in time that this host owns it."""
        self._owners.census(self._state.serving, partial(items_of, key=key), ITEM_CENSUS_MS, answer)
