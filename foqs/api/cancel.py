"""CancelItem: removes an item by its deduplication key, and frees the key."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from foqs.api import validation
from foqs.api.host import Host
from foqs.engine import item_ops
from foqs.engine.calls import ItemsCall
from foqs.errors import Conflict, FoqsError, Invalid, NotFound, NotServed
from foqs.idl import idl, is_forwarded
from foqs.ids import digest_of
from foqs.peers import forwarded_requests
from foqs.rpc.call import Call


class CancelMethods:
    """The host with the slot of the key finds the item, and the host with the item's shard removes it."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"CancelItem": self.cancel}

    def cancel(self, call: Call) -> None:
        """Raises Invalid, Overloaded."""
        host, request = self._host, call.request
        host.refuse_when_full()
        deadline_ms = host.now_ms() + validation.timeout_ms(request, host.limits)
        ns = validation.name(request.ns, "ns", host.limits)
        digest = digest_of(ns, validation.name(request.dedup_key, "dedup_key", host.limits))
        if request.id is None:
            self._find(call, digest, deadline_ms)
        elif is_forwarded(request):
            self._remove(call, digest, deadline_ms)
        else:
            raise Invalid("id is set by hosts only")

    def _find(self, call: Call, digest: bytes, deadline_ms: int) -> None:
        host, now_ms = self._host, self._host.now_ms()
        found = partial(self._found, call, digest, deadline_ms)
        host.engine.find_key(host.forwarder.slots(), digest, found, now_ms, max(1, deadline_ms - now_ms))

    def _found(self, call: Call, digest: bytes, deadline_ms: int, item_id: int | None, error: FoqsError | None) -> None:
        if isinstance(error, NotServed):
            again = partial(self._find, call, digest, deadline_ms)
            there = partial(self._found_there, call, digest, deadline_ms)
            if self._host.forwarder.find_key(call, digest, again, there, deadline_ms, call.method):
                return
        if item_id is None:
            call.fail(error or NotFound("no item has the dedup_key"))
        elif is_forwarded(call.request):
            call.reply(idl.CancelItemResponse(item_id, False))
        else:
            call.request.id = item_id
            self._remove(call, digest, deadline_ms)

    def _found_there(self, call: Call, digest: bytes, deadline_ms: int, outcome: Any) -> None:
        if isinstance(outcome, FoqsError):
            call.fail(outcome)
        else:
            self._found(call, digest, deadline_ms, outcome.id, None)

    def _remove(self, call: Call, digest: bytes, deadline_ms: int) -> None:
        host, request, now_ms = self._host, call.request, self._host.now_ms()
        op, elsewhere = item_ops.cancel(digest, leased=bool(request.leased)), None
        if host.engine.state.shards_elsewhere:
            elsewhere = partial(
                host.forwarder.items, forwarded_requests.CANCEL, request, [request.id], lambda _: op, deadline_ms
            )
        waiting = ItemsCall(1, partial(_removed, call), call.within, elsewhere)
        host.engine.settle(waiting, [(request.id, op)], request.ns, now_ms, max(1, deadline_ms - now_ms))


def _removed(call: Call, outcomes: list[FoqsError | None]) -> None:
    (error,) = outcomes
    if error is None or isinstance(error, Conflict | NotFound):
        call.reply(idl.CancelItemResponse(call.request.id, error is None))
    else:
        call.fail(error)
