"""The host that answers requests, as the methods of the contract use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foqs.api import validation
from foqs.bounds import Limits
from foqs.engine import explain
from foqs.engine.engine import Engine
from foqs.engine.listing import ANSWERS_SHARE, OVERLOADED_RETRY_MS
from foqs.errors import Overloaded, Unavailable
from foqs.fairness.keys import TopicKey
from foqs.ids import shard_of
from foqs.peers.forwarder import Forwarder
from foqs.rpc.call import Call


class Host:
    """`now_ms` is the host's clock, and `address` returns host:port as clients know it. `rights_of` is that of the
    guard; without one, authentication is off. A reload of the configuration replaces `limits`: a method reads them
    once for each request."""

    __slots__ = ("address", "engine", "forwarder", "limits", "now_ms", "rights_of")

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        now_ms: Callable[[], int],
        address: Callable[[], str],
        forwarder: Forwarder,
        rights_of: Callable[[Any], tuple[str, dict[str, list[str]]] | None] = lambda context: None,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.now_ms = now_ms
        self.address = address
        self.forwarder = forwarder
        self.rights_of = rights_of

    def topic(self, request: Any) -> TopicKey:
        """Return the topic that a request names. Raises Invalid."""
        limits = self.limits
        return validation.name(request.ns, "ns", limits), validation.name(request.topic, "topic", limits)

    def no_item(self, call: Call) -> str:
        """Return why no item has the id of a request, or why the caller may not know it."""
        item_id, state = call.request.id, self.engine.state
        shard, below = state.shards.get(shard_of(item_id)), None
        if shard is not None and state.settles(shard) and call.within is None:
            below = shard.first_id + shard.queue.next_number
        return explain.no_item(item_id, self.forwarder.routing().shards | state.shards.keys(), below)

    def refuse_when_draining(self) -> None:
        """Raises Unavailable: the host is shutting down."""
        if self.engine.state.draining:
            raise Unavailable("the host is shutting down")

    def refuse_when_full(self) -> None:
        """Refuse a request with a long answer while answers that clients do not read fill the budget. Raises
        Overloaded."""
        if not self.engine.state.budget.fits(0, ANSWERS_SHARE):
            raise Overloaded("the host's buffers are full", OVERLOADED_RETRY_MS)
