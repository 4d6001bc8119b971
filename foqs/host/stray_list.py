"""ListItems of a cluster: shard by shard, each asked of the host that serves it (also where that is this one), until
one has something. Shards in the order of their numbers, so that one that moves meanwhile is not missed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foqs.errors import FoqsError, OutcomeUnknown, Unavailable
from foqs.host import listing
from foqs.host.strays import NO_OWNER, RETRY_MS
from foqs.idl import idl
from foqs.rpc.call import Call

if TYPE_CHECKING:
    from foqs.host.forward import Forwarder


class StrayList:
    """Answers `call` with the items of the first shard that has some, and a cursor for what follows."""

    def __init__(self, forwarder: Forwarder, call: Call, deadline_ms: int) -> None:
        """Raises Invalid: the cursor is none."""
        self._forwarder = forwarder
        self._call = call
        self._deadline_ms = deadline_ms
        self._cursor: str | None = call.request.cursor
        self._shards = sorted(forwarder.routing().shards)
        if self._cursor is not None:
            first = listing.cursor_shard(self._cursor)
            self._shards = [shard for shard in self._shards if shard >= first]
            if self._shards[:1] != [first]:
                self._cursor = None  # that shard was removed

    def ask(self) -> None:
        if not self._shards:
            self._call.reply(idl.ListItemsResponse([], None))
            return
        request, shard = self._call.request, self._shards[0]
        route = self._forwarder.routing().owners.get(shard)
        if route is None:
            self._call.fail(Unavailable(NO_OWNER, RETRY_MS))
            return
        part = idl.ListItemsRequest(
            request.ns, request.topic, request.state, request.limit, cursor=self._cursor, shard=shard
        )
        self._forwarder.send(route.address, "ListItems", part, request, self._deadline_ms, self._answered)

    def _answered(self, response: Any, error: FoqsError | None) -> None:
        if error is not None:
            lost = "the shard's host did not answer: nothing was read"
            self._call.fail(Unavailable(lost, RETRY_MS) if isinstance(error, OutcomeUnknown) else error)
            return
        if response.cursor is None:
            self._shards.pop(0)
        self._cursor = response.cursor
        if not response.items:
            self.ask()
            return
        cursor = self._cursor
        if cursor is None and self._shards:
            cursor = listing.first_cursor(self._shards[0], self._call.request.state or 0)
        self._call.reply(idl.ListItemsResponse(response.items, cursor))
