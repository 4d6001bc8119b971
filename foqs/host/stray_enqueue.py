"""An enqueue on a host that has no healthy shard: another host stores all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foqs.errors import FoqsError, OutcomeUnknown, Unavailable
from foqs.host.requests import EnqueueCall
from foqs.idl import idl
from foqs.rpc.outgoing import RequestTooLarge, item_error

if TYPE_CHECKING:
    from foqs.host.forward import Forwarder


class StrayEnqueue:
    """Asks one host after the other, as long as nothing can be stored: a lost reply is the end, for a part of the
    request may be there."""

    __slots__ = ("_addresses", "_deadline_ms", "_forwarder", "_indices", "_request", "_specs", "_waiting")

    def __init__(
        self,
        forwarder: Forwarder,
        waiting: EnqueueCall,
        indices: Sequence[int],
        specs: Sequence[Any],
        request: Any,
        addresses: list[str],
        deadline_ms: int,
    ) -> None:
        """`specs` are the items of `waiting` at `indices`."""
        self._forwarder = forwarder
        self._waiting = waiting
        self._indices = indices
        self._specs = specs
        self._request = request
        self._addresses = addresses
        self._deadline_ms = deadline_ms

    def ask(self) -> None:
        part = idl.EnqueueRequest(self._request.ns, self._specs)
        self._forwarder.send(self._addresses[-1], "Enqueue", part, self._request, self._deadline_ms, self._answered)

    def _answered(self, response: Any, error: FoqsError | None) -> None:
        if isinstance(error, RequestTooLarge) and len(self._specs) > 1:
            half = len(self._specs) // 2
            self._part(slice(0, half)).ask()
            self._part(slice(half, None)).ask()
            return
        self._addresses.pop()
        outcomes = self._outcomes(response, error)
        nowhere = all(isinstance(outcome, Unavailable) for outcome in outcomes)
        if nowhere and self._addresses and self._forwarder.now_ms() < self._deadline_ms:
            self.ask()
        else:
            self._waiting.settled(self._indices, outcomes)

    def _part(self, part: slice) -> StrayEnqueue:
        """With what the host has to say of the caller a full frame of the caller's is too long."""
        indices, specs, addresses = self._indices[part], self._specs[part], list(self._addresses)
        return StrayEnqueue(
            self._forwarder, self._waiting, indices, specs, self._request, addresses, self._deadline_ms
        )  # fmt: skip

    def _outcomes(self, response: Any, error: FoqsError | None) -> list[int | FoqsError]:
        """One an item."""
        count = len(self._specs)
        if error is not None:
            return [error] * count
        outcomes = response.outcomes
        if outcomes is None or len(outcomes) != count:
            return [OutcomeUnknown("the host that was asked did not say what became of each item")] * count
        unsaid = OutcomeUnknown("the host that was asked did not say what became of the item")
        return [one.id or (unsaid if one.error is None else item_error(one.error)) for one in outcomes]
