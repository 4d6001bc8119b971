"""A look-up whose shard is served by another host, or by nobody for now. It changes nothing, so it may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from foqs.errors import FoqsError, NotFound, Unavailable
from foqs.host.shard import Shard
from foqs.host.strays import AGAIN_MS, NO_OWNER, RETRY_MS, was_moved
from foqs.idl import idl
from foqs.rpc.call import Call
from foqs.rpc.peer import LostReply, NotSent
from foqs.shardmgr.routing import Route

if TYPE_CHECKING:
    from foqs.host.forward import Forwarder


class StrayLook:
    """A GetItem whose shard is not served here. `here` looks in this host's own shards."""

    __slots__ = (
        "_call", "_deadline_ms", "_forwarder", "_here", "_item_id", "_tried", "again_ms", "done", "hold_until_ms",
    )  # fmt: skip

    def __init__(self, forwarder: Forwarder, call: Call, here: Callable[[], None], deadline_ms: int) -> None:
        self._forwarder = forwarder
        self._call = call
        self._here = here
        self._item_id = call.request.id
        self._deadline_ms = deadline_ms
        self.again_ms = self.hold_until_ms = 0
        self._tried: Route | None = None
        self.done = False
        forwarder.ring(deadline_ms, self)

    def route(self) -> None:
        """Asks the owner, or waits for one."""
        if self.done:
            return
        routing = self._forwarder.routing()
        route = routing.owner(self._item_id)
        if self._forwarder.serves(self._item_id):
            self._end()
            self._here()
        elif not routing.exists(self._item_id):
            self._fail(NotFound("no such item"))
        elif route is None or route.host == self._forwarder.host_id or route == self._tried:
            self._forwarder.hold(self)
        else:
            request = idl.GetItemRequest(self._item_id)
            self._forwarder.send(
                route.address,
                "GetItem",
                request,
                self._call.request,
                self._deadline_ms,
                lambda response, error: self._answered(route, response, error),
            )

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self._forwarder.requests.unrouted("GetItem", self._call.request, 1)
        self._fail(Unavailable(NO_OWNER, RETRY_MS))

    def _answered(self, route: Route, response: Any, error: FoqsError | None) -> None:
        if self.done:
            return
        if error is None:
            self._end()
            self._call.reply(response)
        elif isinstance(error, NotSent | LostReply) or was_moved(error):
            if not isinstance(error, NotSent | LostReply):
                self._tried = route
            self._forwarder.hold(self)
            if not self.done:
                self._forwarder.again(self, 0 if self._forwarder.routing().owner(self._item_id) != route else AGAIN_MS)
        else:
            self._fail(error)

    def _end(self) -> None:
        self.done = True
        self._forwarder.release(self)

    def _fail(self, error: FoqsError) -> None:
        self._end()
        self._call.fail(error)
