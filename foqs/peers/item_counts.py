"""Counts of the items that a namespace or a topic stores, on this host's shards and on all shards, for coordinators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from foqs.bounds import Bounded
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.errors import FoqsError
from foqs.fairness.keys import lane_key, topic_key
from foqs.idl import idl
from foqs.limits.bucket import NamespaceTokens
from foqs.peers.census import Census
from foqs.peers.forwarder import Forwarder
from foqs.peers.lone_host import LoneForwarder

COUNT_MS = 500
"""How long a question for tokens waits for counts. The last count of a shard stands if its next one is later."""
CENSUS_MS = 2_000
"""How long shards have to report their items. A report later than `COUNT_MS` serves the next question."""
_MARGIN_MS = 500
_COUNT_PAUSE_MS = 250


class ItemCounts:
    """One host's. `check(shard, then)` calls `then` with whether this host owns the shard."""

    def __init__(
        self,
        engine: Engine,
        forwarder: Forwarder | LoneForwarder,
        check: Callable[[Shard, Callable[[bool], None]], None],
        monotonic_ms: Callable[[], int],
        later: Callable[[int, Callable[[], None]], Any],
    ) -> None:
        self._engine = engine
        self._forwarder = forwarder
        self._check = check
        self._monotonic_ms = monotonic_ms
        self._later = later
        self._counts: dict[Bounded, _Count] = {}  # the latest of each

    def under_way(self, key: Bounded) -> bool:
        return key in self._counts

    def fresh(self, key: Bounded, within_ms: int) -> bool:
        """Whether the items were counted in that time."""
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
        addresses = self._forwarder.routing().other_owners(self._engine.config.server.id)
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
        census = Census(self._engine.serving, lambda shard: items_of(shard, key), answer)
        for shard in self._engine.serving:
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
    ns, topic = key
    batches = [batch for batch in (shard.in_flight, shard.unsettled) if batch is not None]
    chunks = [*shard.chunks, *shard.returned, *(chunk for batch in batches for chunk in batch.chunks)]
    if topic:
        plain, tenants = shard.lanes.get(lane_key(key)), shard.tenants.get(key)
        stored = (plain.total if plain is not None else 0) + (tenants.total if tenants is not None else 0)
        return stored + sum([topic_key(one) == key for chunk in chunks for one in chunk.keys])
    waiting = sum(len(chunk.items) for chunk in chunks if chunk.keys and topic_key(chunk.keys[0])[0] == ns)
    return shard.totals.get(ns, 0) + waiting
