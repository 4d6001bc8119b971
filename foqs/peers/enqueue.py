"""An enqueue on a host that has no healthy shard: another host stores all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.engine.calls import EnqueueCall
from foqs.errors import FoqsError, OutcomeUnknown, Unavailable, item_error
from foqs.idl import idl
from foqs.ids import Duplicate
from foqs.peers.exchange import Exchange
from foqs.peers.forwarded import Forwarded, Outcome, Target, Ways
from foqs.second_answer import ONCE
from foqs.shardmgr.routing import Route

_UNSAID = "the asked host's answer has neither an id nor an error for the item"


class ForwardedEnqueue(Forwarded):
    """Asks one host after the other while none can store anything. A lost reply is the end: the host may have stored
    the items."""

    __slots__ = ("_addresses", "_indices", "_specs", "_tries", "_waiting")
    holds = False

    def __init__(
        self,
        exchange: Exchange,
        waiting: EnqueueCall,
        indices: Sequence[int],
        specs: Sequence[Any],
        request: Any,
        addresses: Sequence[str],
        deadline_ms: int,
    ) -> None:
        """`specs` are the items of `waiting` at `indices`; an entry is a position in `specs`."""
        super().__init__(exchange, "Enqueue", ONCE, request, deadline_ms)
        self._waiting = waiting
        self._indices = indices
        self._specs = specs
        self._addresses = addresses
        self._tries = [0] * len(specs)
        self._astray = list(range(len(specs)))

    @property
    def done(self) -> bool:
        return self._waiting.done

    def target(self, at: int) -> Target:
        return Route(self._addresses[self._tries[at]], 0, "")

    def part(self, group: Sequence[int]) -> Any:
        return idl.EnqueueRequest(self.origin.ns, [self._specs[at] for at in group])

    def outcomes(self, response: Any) -> Sequence[int | FoqsError] | None:
        return outcomes_of(response)

    def settle(self, at: int, outcome: int | FoqsError) -> None:
        self._waiting.settled([self._indices[at]], [outcome])

    def merge(self, group: Sequence[int], ways: Ways, outcomes: Sequence[Outcome]) -> None:
        more = self._tries[group[0]] + 1 < len(self._addresses) and self._exchange.now_ms() < self.deadline_ms
        ended: dict[int, Outcome] = {}
        for at, outcome in zip(group, outcomes, strict=True):
            if more and isinstance(outcome, Unavailable):  # whatever became of the other entries
                self._tries[at] += 1
                self.add(at)
            else:
                ended[self._indices[at]] = outcome
        if ended:
            self._waiting.settled(list(ended), list(ended.values()))


def outcomes_of(response: Any) -> Sequence[int | FoqsError] | None:
    """Return an id or an error for each item of an Enqueue's answer; None if the answer has no list."""
    return None if response.outcomes is None else [_outcome(one) for one in response.outcomes]


def _outcome(one: Any) -> int | FoqsError:
    if one.error is not None:
        return item_error(one.error)
    if not one.id:
        return OutcomeUnknown(_UNSAID)
    return Duplicate(one.id) if one.duplicate else int(one.id)
