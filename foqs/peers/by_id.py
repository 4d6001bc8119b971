"""Acks, nacks, extensions and deletes of items whose shards other hosts serve, or no host for now.

Only a request that asks twice for the same end is repeated after a lost reply: an ack, an extension, a delete. A
repeated nack could delay the item, or count its attempt, a second time, so a lost one is OUTCOME_UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from foqs.engine import item_ops
from foqs.engine.calls import ItemsCall
from foqs.errors import FoqsError, NotFound, item_error
from foqs.idl import idl
from foqs.peers.exchange import Exchange
from foqs.peers.forwarded import HERE, Forwarded, Target
from foqs.second_answer import END_ITEM, FORWARDED_ACK, ONCE, Policy
from foqs.second_answer import EXTEND as EXTEND_POLICY


@dataclass(frozen=True, slots=True)
class Kind:
    """A method for items by id."""

    method: str
    policy: Policy

    def part(self, request: Any, group: Sequence[int]) -> Any:
        """Return a request for these entries of `request`."""
        if self is DELETE:
            return idl.DeleteItemsRequest([request.ids[at] for at in group])
        return getattr(idl, f"{self.method}Request")([request.items[at] for at in group], request.ns)

    def sifted(self, request: Any, group: Sequence[int]) -> Any:
        """As `part`, in the context of `request`: lines of the log about both have one request id."""
        part = self.part(request, group)
        if request.context is None:
            request.context = idl.RequestContext()
        part.context = request.context
        return part


ACK = Kind("Ack", FORWARDED_ACK)
NACK = Kind("Nack", ONCE)
EXTEND = Kind("ExtendLease", EXTEND_POLICY)
DELETE = Kind("DeleteItems", END_ITEM)


def target_of(exchange: Exchange, item_id: int) -> Target:
    """Return where a request for the item goes."""
    if exchange.settles(item_id):
        return HERE
    routing = exchange.routing()
    if not routing.exists(item_id):
        return NotFound("no such item")
    route = routing.owner(item_id)
    return None if route is None or route.host == exchange.host_id else route


class ForwardedItems(Forwarded):
    """The entries of one request that are not served here, as far as `call` gives them to `add`.

    An entry that may be carried out elsewhere is marked in the call (`ItemsCall.items`): at its time-out the outcome of
    that entry is unknown.
    """

    __slots__ = ("_call", "_ids", "_kind", "_op")

    def __init__(
        self,
        exchange: Exchange,
        call: ItemsCall,
        kind: Kind,
        request: Any,
        ids: Sequence[int],
        op: Callable[[int], item_ops.Op],
        deadline_ms: int,
    ) -> None:
        """`op(at)` is how this host carries out the entry if its shard is opened here."""
        super().__init__(exchange, kind.method, kind.policy, request, deadline_ms)
        self._call = call
        self._kind = kind
        self._ids = ids
        self._op = op

    @property
    def done(self) -> bool:
        return self._call.done

    def target(self, at: int) -> Target:
        return target_of(self._exchange, self._ids[at])

    def part(self, group: Sequence[int]) -> Any:
        return self._kind.part(self.origin, group)

    def outcomes(self, response: Any) -> Sequence[FoqsError | None] | None:
        if response.outcomes is None:
            return None
        return [None if one.error is None else item_error(one.error) for one in response.outcomes]

    def settle(self, at: int, outcome: FoqsError | None) -> None:
        self._call.settled(at, outcome)

    def mark(self, at: int, *, carried_out: bool) -> None:
        self._call.items[at] = False if carried_out else None

    def here(self, group: list[int]) -> Sequence[int]:
        now_ms = self._exchange.now_ms()

        def reply(outcomes: list[FoqsError | None]) -> None:
            if not self.done:
                self.merge(group, {}, outcomes)

        items = [(self._ids[at], self._op(at)) for at in group]
        here = ItemsCall(len(group), reply, self._call.within)
        ns = getattr(self.origin, "ns", None)
        self._exchange.engine.settle(here, items, ns, now_ms, max(1, self.deadline_ms - now_ms))
        return ()
