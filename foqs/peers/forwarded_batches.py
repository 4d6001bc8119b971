"""Requests about a batch that go to another host: to the owner of its home, or for a new batch to any host that can
store it. Items of a batch are forwarded as other items are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foqs.engine.shard import Shard
from foqs.errors import NotFound, Unavailable
from foqs.idl import idl
from foqs.item_batch import NO_BATCH
from foqs.peers.forwarded import RETRY_MS, Exchange, Incoming, Outcome, Target, Ways
from foqs.peers.forwarded_requests import ForwardedGetItem, LookUp
from foqs.second_answer import END_ITEM, ONCE, last_word
from foqs.shardmgr.routing import Route

_MOVED = "the shard of the batch is being moved"


class ForwardedBatch(ForwardedGetItem):
    """A CloseBatch, CancelBatch or GetBatch. Each of them may be repeated."""

    __slots__ = ()

    def __init__(self, exchange: Exchange, call: Any, ask_here: Callable[[], None], deadline_ms: int) -> None:
        super().__init__(exchange, call, ask_here, deadline_ms, call.method)
        if self.method != "GetBatch":
            self.policy = END_ITEM

    def part(self, group: Sequence[int]) -> Any:
        return getattr(idl, f"{self.method}Request")(self.origin.ns, self._item_id)

    def settle(self, at: int, outcome: Any) -> None:
        if outcome is None:  # it was closed or cancelled before, and is gone
            outcome = getattr(idl, f"{self.method}Response")()
        super().settle(at, NotFound(NO_BATCH) if isinstance(outcome, NotFound) else outcome)

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        """Give up. A request without an answer may be carried out."""
        self._exchange.log.unrouted(self.method, self.origin, 1)
        doubtful = not self._astray or bool(self._doubtful)
        self.settle(0, last_word(self.policy, Unavailable(_MOVED, RETRY_MS), doubtful))


class ForwardedCreateBatch(LookUp):
    """A CreateBatch on a host that has no healthy shard: as a `ForwardedEnqueue`."""

    __slots__ = ("_addresses", "_tries")
    holds = False

    def __init__(self, exchange: Exchange, call: Incoming, addresses: Sequence[str], deadline_ms: int) -> None:
        super().__init__(exchange, call, "CreateBatch", deadline_ms)
        self.policy = ONCE
        self._addresses = addresses
        self._tries = 0

    def target(self, at: int) -> Target:
        return Route(self._addresses[self._tries], 0, "")

    def part(self, group: Sequence[int]) -> Any:
        asked = self.origin
        return idl.CreateBatchRequest(asked.ns, asked.on_success, asked.on_end, asked.ttl_ms, asked.parent)

    def settle(self, at: int, outcome: Any) -> None:
        self._answer(outcome)

    def merge(self, group: Sequence[int], ways: Ways, outcomes: Sequence[Outcome]) -> None:
        (outcome,) = outcomes
        more = self._tries + 1 < len(self._addresses) and self._exchange.now_ms() < self.deadline_ms
        if more and isinstance(outcome, Unavailable):
            self._tries += 1
            self.add(0)
        else:
            self.settle(0, outcome)
