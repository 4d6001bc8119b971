"""Items of a request whose shards are served by other hosts, or by nobody for now: sent, held, sent again, merged.

What is repeated is only what asks twice for the same end: an ack, an extension, a delete. When the reply to a delete
was lost, NOT_FOUND to the next says that it was done; to an ack it leaves open whether it was done by this one or by
another holder's before it, so that is OUTCOME_UNKNOWN (the item is gone in either case). STALE_LEASE says that it was
not done, as the item is still there. A repeated nack could delay or count the item once more, so a lost one is
OUTCOME_UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foqs.errors import FoqsError, Forbidden, NotFound, OutcomeUnknown, Overloaded, Unauthenticated, Unavailable
from foqs.host import ops
from foqs.host.requests import ItemsCall
from foqs.host.shard import Shard
from foqs.idl import idl
from foqs.ids import shard_of
from foqs.rpc.outgoing import RequestTooLarge, item_error
from foqs.rpc.peer import LostReply, NotSent
from foqs.shardmgr.routing import Route

if TYPE_CHECKING:
    from foqs.host.forward import Forwarder

RETRY_MS = 100
AGAIN_MS = 100
"""After this a host that could not be reached is tried again, if it still is the one to ask."""
NO_OWNER = "the item's shard is being moved"
_REMOVED = "a reply was lost, and the item's shard was removed since"


@dataclass(frozen=True, slots=True)
class Kind:
    """`repeat`: it may be asked again when nobody knows whether it was done."""

    method: str
    repeat: bool

    def part(self, request: Any, indices: Sequence[int]) -> Any:
        """A request for these entries of `request`."""
        if self is DELETE:
            return idl.DeleteItemsRequest([request.ids[at] for at in indices])
        return getattr(idl, f"{self.method}Request")([request.items[at] for at in indices], request.ns)


ACK = Kind("Ack", repeat=True)
NACK = Kind("Nack", repeat=False)
EXTEND = Kind("ExtendLease", repeat=True)
DELETE = Kind("DeleteItems", repeat=True)


def was_moved(error: FoqsError) -> bool:
    """Whether a host says that the shard is not there, and nothing was changed."""
    return isinstance(error, Unavailable) and error.retry_after_ms == 0


class Strays:
    """The entries of one request that are not served here. In `_astray` are those to be sent, or held for an owner.

    An entry that was sent is marked in the call (`ItemsCall.items`): if the time ends, nobody knows what became of it.
    """

    __slots__ = (
        "_astray", "_call", "_deadline_ms", "_doubtful", "_forwarder", "_ids", "_kind", "_op", "_request",
        "_routing_due", "_tried", "again_ms", "hold_until_ms",
    )  # fmt: skip

    def __init__(
        self,
        forwarder: Forwarder,
        call: ItemsCall,
        kind: Kind,
        request: Any,
        ids: Sequence[int],
        op: Callable[[int], ops.Op],
        deadline_ms: int,
    ) -> None:
        """`op(at)` is what the host would do about the entry if it were served here."""
        self._forwarder = forwarder
        self._call = call
        self._kind = kind
        self._request = request
        self._ids = ids
        self._op = op
        self._deadline_ms = deadline_ms
        self.hold_until_ms = 0  # set when something is held for the first time
        self.again_ms = 0  # when it is routed again, if it is
        self._astray: list[int] = []
        self._routing_due = False
        self._doubtful: set[int] = set()  # sent once with an outcome that nobody knows
        self._tried: dict[int, Route | None] = {}  # by shard: the route that turned out to lead nowhere

    @property
    def done(self) -> bool:
        return self._call.done

    def add(self, at: int | None) -> None:
        """The entry's shard is not served here. None: the call has ended."""
        if at is None:
            self._request = None  # it may be large, and this waits until its deadline is forgotten
            self._forwarder.release(self)
            return
        self._call.items[at] = False if at in self._doubtful else None
        self._astray.append(at)
        if not self._routing_due:
            self._routing_due = True
            self._forwarder.soon(self.route)

    def route(self) -> None:
        """Sends what has an owner now, and holds the rest."""
        self._routing_due = False
        astray, self._astray = self._astray, []
        if self.done:
            return
        forwarder, routing = self._forwarder, self._forwarder.routing()
        groups: dict[Route | None, list[int]] = {}
        by_address: dict[str, Route] = {}
        for at in astray:
            item_id = self._ids[at]
            route = routing.owner(item_id)
            if forwarder.serves(item_id):
                groups.setdefault(None, []).append(at)
            elif not routing.exists(item_id):
                self._settle(at, NotFound("no such item") if at not in self._doubtful else OutcomeUnknown(_REMOVED))
            elif route is None or route.host == forwarder.host_id or route == self._tried.get(shard_of(item_id)):
                self._astray.append(at)
            else:
                groups.setdefault(by_address.setdefault(route.address, route), []).append(at)
        if self._astray:
            self._forwarder.hold(self)
        for leader, group in groups.items():
            if leader is None:
                self._do_here(group)
            else:
                self._send(leader.address, group)

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        """Held for too long."""
        astray, self._astray = self._astray, []
        if astray:
            self._forwarder.requests.unrouted(self._kind.method, self._request, len(astray))
        for at in astray:
            self._settle(at, Unavailable(NO_OWNER, RETRY_MS))

    # ------------------------------------------------------------------------------------- inside

    def _do_here(self, group: list[int]) -> None:
        """The shard came here meanwhile."""
        now_ms = self._forwarder.now_ms()

        def reply(outcomes: list[FoqsError | None]) -> None:
            if not self.done:
                self._merge(group, {}, outcomes)

        for at in group:
            self._call.items[at] = False
        items = [(self._ids[at], self._op(at)) for at in group]
        here = ItemsCall(len(group), reply)
        here.within = self._call.within
        ns = getattr(self._request, "ns", None)
        self._forwarder.host.settle(here, items, ns, now_ms, max(1, self._deadline_ms - now_ms))

    def _send(self, address: str, group: list[int]) -> None:
        routing = self._forwarder.routing()
        routes = {shard_of(self._ids[at]): routing.owner(self._ids[at]) for at in group}
        for at in group:
            self._call.items[at] = False

        def done(response: Any, error: FoqsError | None) -> None:
            if self.done:
                return
            outcomes = None if response is None else response.outcomes
            if isinstance(error, RequestTooLarge) and len(group) > 1:
                half = len(group) // 2
                self._send(address, group[:half])
                self._send(address, group[half:])
            elif isinstance(error, NotSent | LostReply):
                self._unreached(group, routes, error)
            elif error is not None:
                self._merge(group, routes, [error] * len(group))
            elif outcomes is None or len(outcomes) != len(group):
                self._unreached(group, routes, LostReply("not as many outcomes as were asked for"))
            else:
                errors = [None if one.error is None else item_error(one.error) for one in outcomes]
                self._merge(group, routes, errors)

        part = self._kind.part(self._request, group)
        self._forwarder.send(address, self._kind.method, part, self._request, self._deadline_ms, done)

    def _unreached(self, group: list[int], routes: Mapping[int, Route | None], error: FoqsError) -> None:
        """Nothing came back. The way is tried again after a while, or when it is another one."""
        if isinstance(error, OutcomeUnknown):
            if not self._kind.repeat:
                self._merge(group, routes, [error] * len(group))
                return
            self._doubtful.update(group)
        for at in group:
            self._call.items[at] = False if at in self._doubtful else None
        self._astray += group
        self._forwarder.hold(self)
        self._forwarder.again(self, AGAIN_MS if self._same(group, routes) else 0)

    def _merge(
        self, group: list[int], routes: Mapping[int, Route | None], outcomes: Sequence[FoqsError | None]
    ) -> None:
        """`routes` are the ways that were taken, by shard; none for what was done here."""
        held, pause_ms = False, AGAIN_MS
        for at, error in zip(group, outcomes, strict=True):
            if isinstance(error, OutcomeUnknown) and self._kind.repeat:
                self._doubtful.add(at)
                self._tried[shard_of(self._ids[at])] = routes.get(shard_of(self._ids[at]))
            elif error is not None and was_moved(error):
                self._tried[shard_of(self._ids[at])] = routes.get(shard_of(self._ids[at]))
            elif at in self._doubtful and isinstance(error, Overloaded | Unavailable):
                pause_ms = max(pause_ms, error.retry_after_ms or 0)  # the next answer may tell what became of it
            else:
                self._settle(at, error)
                continue
            self._call.items[at] = False if at in self._doubtful else None
            self._astray.append(at)
            held = True
        if held and not self.done:
            self._forwarder.hold(self)
            self._forwarder.again(self, 0 if not self._same(group, routes) else pause_ms)

    def _same(self, group: list[int], routes: Mapping[int, Route | None]) -> bool:
        """Whether these are still the ways to go."""
        routing = self._forwarder.routing()
        return all(routing.owner(self._ids[at]) == routes.get(shard_of(self._ids[at])) for at in group)

    def _settle(self, at: int, error: FoqsError | None) -> None:
        if at in self._doubtful:
            if isinstance(error, NotFound) and self._kind is DELETE:
                error = None
            elif isinstance(error, NotFound) and self._kind is ACK:
                # By the ack whose reply was lost, or before it by another holder's: then this lease was over.
                error = OutcomeUnknown("the item is gone, and the reply that said why was lost")
            elif isinstance(error, Overloaded | Unavailable | Forbidden | Unauthenticated):
                error = OutcomeUnknown(f"an earlier reply was lost; then: {error.message}")
        self._call.settled(at, error)
