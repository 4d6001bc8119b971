"""Counts of the items that a namespace stores, on this host's shards and on all shards. Coordinators need them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.errors import FoqsError
from foqs.fairness.keys import topic_key
from foqs.idl import idl
from foqs.peers.forwarder import Forwarder
from foqs.peers.lone_host import LoneForwarder
from foqs.quotas.namespace_tokens import NamespaceTokens
from foqs.shardmgr.lifecycle import ShardState

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
        self._counts: dict[str, _Count] = {}  # by namespace: the latest

    def under_way(self, ns: str) -> bool:
        return ns in self._counts

    def refresh(self, ns: str, tokens: NamespaceTokens, then: Callable[[], None]) -> None:
        """Count the namespace's items on all shards unless that was done just now, and call `then`."""
        now_ms = self._monotonic_ms()
        count = self._counts.get(ns)
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
        count = self._counts[ns] = _Count(tokens, now_ms, tokens.mark(now_ms), then)
        addresses = self._forwarder.routing().other_owners(self._engine.config.server.id)
        count.open = 1 + len(addresses)
        for address in addresses:
            request = idl.CountItemsRequest(ns)
            self._forwarder.ask(address, "CountItems", request, CENSUS_MS + _MARGIN_MS, count.answered)
        self.count_here(ns, count.add)
        if count.open:
            self._later(COUNT_MS, count.go_on)

    def count_here(self, ns: str, answer: Callable[[dict[int, int]], None]) -> None:
        """Report, within `CENSUS_MS`, the namespace's items by shard of this host, including those not stored yet. A
        shard is left out unless its database confirms in time that this host owns it."""
        census = _Census(self._engine.serving, ns, answer)
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


class _Census:
    """One count of the shards of this host; `left` of them have yet to be added."""

    __slots__ = ("_answer", "_found", "_ns", "left")

    def __init__(self, shards: Collection[Shard], ns: str, answer: Callable[[dict[int, int]], None]) -> None:
        self.left = len(shards)
        self._ns = ns
        self._answer: Callable[[dict[int, int]], None] | None = answer
        self._found: dict[int, int] = {}
        if not shards:
            self.end()

    def add(self, shard: Shard, counts: bool) -> None:
        if counts and shard.state in (ShardState.SERVING, ShardState.DRAINING):
            self._found[shard.number] = items_of(shard, self._ns)
        self.left -= 1
        if not self.left:
            self.end()

    def end(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(self._found)


def items_of(shard: Shard, ns: str) -> int:
    """Return how many items of a namespace the shard stores or may be about to store."""
    batches = [batch for batch in (shard.in_flight, shard.unsettled) if batch is not None]
    chunks = [*shard.chunks, *shard.returned, *(chunk for batch in batches for chunk in batch.chunks)]
    waiting = sum(len(chunk.items) for chunk in chunks if chunk.keys and topic_key(chunk.keys[0])[0] == ns)
    return shard.totals.get(ns, 0) + waiting
