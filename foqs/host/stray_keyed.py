"""Items with deduplication keys whose shards other hosts serve. Each may be asked for as often as it takes: whoever has
stored it says so again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from foqs.buffers.keys import Keyed
from foqs.dedup import Duplicate, OwnDuplicate
from foqs.errors import FoqsError, Forbidden, OutcomeUnknown, Overloaded, Unauthenticated, Unavailable
from foqs.host import keyed
from foqs.host.requests import EnqueueCall
from foqs.host.shard import Shard
from foqs.host.strays import AGAIN_MS, NO_OWNER, RETRY_MS, was_moved
from foqs.idl import idl
from foqs.rpc.outgoing import RequestTooLarge, item_error
from foqs.rpc.peer import LostReply, NotSent
from foqs.shardmgr.routing import Route

if TYPE_CHECKING:
    from foqs.host.forward import Forwarder

_NOT_SERVED = "no host serves the shard of the dedup_key: it is disabled, or no host can open its database"
_NOT_SERVED_RETRY_MS = 1_000
_UNSAID = "the host that was asked did not say what became of the item"


class StrayKeyed:
    """In `_astray` are those to be sent, or held for an owner of their shard; `_under_way` counts requests."""

    __slots__ = (
        "_astray", "_call", "_deadline_ms", "_doubtful", "_forwarder", "_request", "_under_way", "again_ms", "done",
        "hold_until_ms",
    )  # fmt: skip

    def __init__(
        self, forwarder: Forwarder, call: EnqueueCall, items: list[Keyed], request: Any, deadline_ms: int
    ) -> None:
        self._forwarder = forwarder
        self._call = call
        self._astray = items
        self._request = request
        self._deadline_ms = deadline_ms
        self._doubtful: set[int] = set()  # indices of those that may be stored
        self._under_way = 0
        self.again_ms = self.hold_until_ms = 0
        self.done = False
        call.unsent.append(self)

    def route(self) -> None:
        """Places, sends or holds what is astray."""
        forwarder = self._forwarder
        if self.done or self._call.done:
            self._end()
            return
        astray, self._astray = self._astray, []
        routing = forwarder.routing()
        for number, part in keyed.by_shard(routing.slots.shards, astray).items():
            owner = routing.owners.get(number)
            if forwarder.has(number):
                away = self._place(number, part)
                if away:  # rows of their slots are on their way, or the shard is about to have them
                    self._astray += away
                    forwarder.slot_moves.adopt()
            elif owner is None and not forwarder.expects_owner(number):
                for one in part:
                    self._settle(one, Unavailable(_NOT_SERVED, _NOT_SERVED_RETRY_MS))
            elif owner is None or owner.host == forwarder.host_id:
                self._astray += part
            else:
                self._send(number, owner, part)
        self._hold_or_end()

    def withdraw(self) -> Sequence[int]:
        """See `Withdraws`: the items that are held, and that no host was asked to store."""
        astray, self._astray = self._astray, []
        return [one.at for one in astray if one.at not in self._doubtful]

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        """End the hold: refuse what is still held."""
        astray, self._astray = self._astray, []
        if astray:
            self._forwarder.requests.unrouted("Enqueue", self._request, len(astray))
        for one in astray:
            self._settle(one, Unavailable(NO_OWNER, RETRY_MS))
        if not self._under_way:
            self._end()

    def _place(self, number: int, part: Sequence[Keyed]) -> list[Keyed]:
        """The shard is here; as `keyed.place`."""
        host, now_ms = self._forwarder.host, self._forwarder.now_ms()
        away = keyed.place(host, self._call, number, [one for one in part if one.at not in self._doubtful], now_ms)
        for one in part:
            if one.at in self._doubtful:
                away += keyed.place(host, self._call_of(one), number, [one], now_ms)
        return away

    def _call_of(self, one: Keyed) -> EnqueueCall:
        """For one that may be stored already, whatever this host says of it."""

        def reply(outcomes: list[int | FoqsError]) -> None:
            if not self._call.done:
                self._settle(one, outcomes[one.at])

        call = EnqueueCall(one.at + 1, reply)
        call.left = 1
        return call

    def _send(self, number: int, owner: Route, part: Sequence[Keyed]) -> None:
        self._under_way += 1
        request = idl.EnqueueRequest(self._request.ns, [self._request.items[one.at] for one in part])
        answered = partial(self._answered, number, owner, part)
        self._forwarder.send(owner.address, "Enqueue", request, self._request, self._deadline_ms, answered)

    def _answered(
        self, number: int, owner: Route, part: Sequence[Keyed], response: Any, error: FoqsError | None
    ) -> None:
        self._under_way -= 1
        if isinstance(error, RequestTooLarge) and len(part) > 1:
            half = len(part) // 2
            self._send(number, owner, part[:half])
            self._send(number, owner, part[half:])
            return
        for one, outcome in zip(part, _outcomes(response, error, len(part)), strict=True):
            if isinstance(outcome, LostReply):
                self._doubtful.add(one.at)
            if isinstance(outcome, LostReply | NotSent) or (isinstance(outcome, FoqsError) and was_moved(outcome)):
                self._astray.append(one)
            else:
                self._settle(one, outcome)
        if self._call.done:
            self._end()
        else:
            self._hold_or_end()

    def _hold_or_end(self) -> None:
        if self._astray:
            self._forwarder.hold(self)
            if not self.done:
                self._forwarder.again(self, AGAIN_MS)
        elif not self._under_way:
            self._end()

    def _settle(self, one: Keyed, outcome: int | FoqsError) -> None:
        if one.at in self._doubtful:
            if isinstance(outcome, Duplicate):
                outcome = OwnDuplicate(outcome)
            elif isinstance(outcome, Overloaded | Unavailable | Forbidden | Unauthenticated):
                outcome = OutcomeUnknown("the host that was asked may have stored it")
        self._call.settled([one.at], [outcome])

    def _end(self) -> None:
        self.done = True
        self._forwarder.release(self)


def _outcomes(response: Any, error: FoqsError | None, count: int) -> list[int | FoqsError]:
    if error is not None:
        return [error] * count
    outcomes = response.outcomes
    if outcomes is None or len(outcomes) != count:
        return [OutcomeUnknown(_UNSAID)] * count
    return [_outcome(one) for one in outcomes]


def _outcome(one: Any) -> int | FoqsError:
    if one.error is not None:
        return item_error(one.error)
    if not one.id:
        return OutcomeUnknown(_UNSAID)
    return Duplicate(one.id) if one.duplicate else int(one.id)
