"""Requests from this host to other hosts: the routing they follow, how they are sent, held and repeated.

A forwarded request takes one hop, never more. A shard without an owner is being moved: a request for it is held for
`handover_ms`, and sent when the routing names an owner.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from foqs.engine.calls import Timed
from foqs.engine.engine import Engine
from foqs.errors import FoqsError, LostReply, NotSent
from foqs.idl import idl, is_forwarded, request_id_of
from foqs.ids import shard_of
from foqs.peers.ready_subscriber import Ask, Done
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import Routing

RETRY_MS = 100
"""The hint for a client whose request was held for too long."""
AGAIN_MS = 100
"""The pause before a host that did not answer is asked again."""
NO_OWNER = "the item's shard is being moved"

_MARGIN = 0.1
_MARGIN_MS = 500
"""The other host gets this much less time than is left, so that its answer comes before this host gives it up."""


class Incoming(Protocol):
    """A client's request, and how to answer it; see `foqs.rpc.call.Call`."""

    request: Any
    on_lost: Callable[[], None] | None
    on_oneway: Callable[[], None] | None

    def reply(self, response: Any) -> bool: ...

    def fail(self, error: FoqsError) -> bool: ...


class ForwardLog(Protocol):
    """The lines of the log about forwarded requests; see `foqs.rpc.call.RequestLog`."""

    def reply_lost(self, method: str, context: Any, address: str, error: FoqsError) -> None: ...

    def not_sent(self, method: str, context: Any, address: str, error: FoqsError) -> None: ...

    def unrouted(self, method: str, request: Any, items: int) -> None: ...


class Exchange:
    """The state that all forwarded requests of one host share.

    `host_id` is this host's own. `ask` sends a request; `soon` calls back at the next turn of the event loop. `changed`
    and then `route_held` are called whenever `routing` gives another value. `held` has the functions that route.
    """

    def __init__(
        self,
        engine: Engine,
        host_id: str,
        routing: Callable[[], Routing],
        ask: Ask,
        *,
        handover_ms: int,
        now_ms: Callable[[], int],
        soon: Callable[[Callable[[], None]], Any],
        log: ForwardLog,
    ) -> None:
        self.engine = engine
        self.host_id = host_id
        self.routing = routing
        self.handover_ms = handover_ms
        self.now_ms = now_ms
        self.soon = soon
        self.log = log
        self.held: dict[Callable[[], None], None] = {}
        self._ask = ask
        self._unowned_ms: dict[int, int] = {}  # shards without an owner -> since when

    def changed(self) -> None:
        """Note since when shards have no owner."""
        now_ms = self.now_ms()
        self._unowned_ms = {number: self._unowned_ms.get(number, now_ms) for number in self.routing().unowned}

    def route_held(self) -> None:
        """Route the held requests by the new routing."""
        held, self.held = self.held, {}
        for route in held:
            route()

    def settles(self, item_id: int) -> bool:
        """Whether this host accepts changes of the item."""
        shard = self.engine.shards.get(shard_of(item_id))
        return shard is not None and self.engine.settles(shard)

    def serves(self, number: int) -> bool:
        """Whether this host serves the shard."""
        shard = self.engine.shards.get(number)
        return shard is not None and shard.state is ShardState.SERVING

    def expects_owner(self, number: int) -> bool:
        """Whether a shard without an owner may have one soon: it is not disabled, and lost its owner less than
        `handover_ms` ago. A planned move takes no longer."""
        now_ms = self.now_ms()
        left_ms = self._unowned_ms.get(number, now_ms) + self.handover_ms - now_ms
        return number not in self.routing().disabled and 0 <= left_ms <= self.handover_ms

    def other_hosts(self) -> set[str]:
        """Addresses of the other living hosts."""
        return {address for host, address in self.routing().hosts.items() if host != self.host_id}

    def send(self, address: str, method: str, request: Any, origin: Any, deadline_ms: int, done: Done) -> None:
        """Ask another host on behalf of the caller of `origin`, the request that `request` is a part of."""
        request_id, given = request_id_of(origin), origin.context
        left_ms = max(1, deadline_ms - self.now_ms())
        timeout_ms = max(1, left_ms - min(_MARGIN_MS, int(left_ms * _MARGIN)))
        context = request.context = idl.RequestContext(timeout_ms=timeout_ms, hops=1)
        context.token = given.token
        context.principal = given.principal
        context.request_id = request_id
        context.traceparent = given.traceparent

        def answered(response: Any, error: FoqsError | None) -> None:
            if isinstance(error, LostReply):
                self.log.reply_lost(method, context, address, error)
            elif isinstance(error, NotSent):
                self.log.not_sent(method, context, address, error)
            done(response, error)

        self.engine.counters.forwarded += 1
        self._ask(address, method, request, left_ms, answered)

    def ask_others(
        self, method: str, part: Callable[[], Any], origin: Any, deadline_ms: int,
        take: Callable[[str, Any], object], end: Callable[[list[str]], object],
    ) -> None:  # fmt: skip
        """Send a `part` of `origin` to each of the other hosts. Call `take(address, response)` for each answer, then
        `end` with the addresses of the hosts that did not answer. No host is asked for a forwarded request."""
        addresses = set[str]() if is_forwarded(origin) else self.other_hosts()
        left, missing = len(addresses), list[str]()
        if not left:
            end(missing)

        def answered(address: str, response: Any, error: FoqsError | None) -> None:
            nonlocal left
            if error is not None:
                missing.append(address)
            else:
                take(address, response)
            left -= 1
            if not left:
                end(sorted(missing))

        for address in addresses:
            self.send(address, method, part(), origin, deadline_ms, partial(answered, address))

    def ring(self, at_ms: int, what: Timed) -> None:
        """Call `what.timed_out` at that time, unless it is done by then."""
        self.engine.deadlines.push(at_ms, what)
        self.engine.alarm(at_ms)
