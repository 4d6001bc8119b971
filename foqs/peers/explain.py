"""ExplainItem in a cluster: an item's owner explains it, and all hosts explain a topic together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from foqs.engine import explain
from foqs.engine.shard import Shard
from foqs.errors import NotFound, NotServed
from foqs.idl import idl
from foqs.ids import shard_of
from foqs.peers.exchange import Exchange, Incoming
from foqs.peers.forwarded import Target
from foqs.peers.get_item import ForwardedGetItem

_NEAREST = 1 << 30


def response(explanation: explain.Explanation) -> Any:
    """Return the answer to an ExplainItem."""
    return idl.ExplainItemResponse(list(explanation.reasons), explanation.eta_ms, explanation.state)


class ForwardedExplain(ForwardedGetItem):
    """A shard without an owner is an answer here, and is not waited for."""

    __slots__ = ()

    def __init__(self, exchange: Exchange, call: Incoming, look_here: Callable[[], None], deadline_ms: int) -> None:
        super().__init__(exchange, call, look_here, deadline_ms, "ExplainItem")

    def target(self, at: int) -> Target:
        found = super().target(at)
        return NotServed() if found is None else found

    def settle(self, at: int, outcome: Any) -> None:
        if isinstance(outcome, NotFound):
            outcome = response(explain.GONE)
        elif isinstance(outcome, NotServed):
            number = shard_of(self._item_id)
            disabled = number in self._exchange.routing().disabled
            outcome = response(explain.not_served(number, disabled=disabled))
        super().settle(at, outcome)

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        """The host that should serve the shard refused it, or did not answer."""
        self._exchange.log.unrouted(self.method, self.origin, 1)
        self.settle(0, NotServed())


def nearest(answers: Iterable[Any], unowned: Iterable[int], missing: Iterable[str]) -> Any:
    """Return the answer of the host that is nearest to a delivery. If no host has items of the topic, the items may be
    on `unowned` shards, or on the hosts in `missing`, which did not answer."""
    answer = max(answers, key=_distance)
    shards = [f"shard {number} is not served" for number in sorted(unowned)]
    hosts = [f"host {address} did not answer" for address in missing]
    if not answer.reasons or answer.reasons[0].code != idl.Reason.GONE or not (shards or hosts):
        return answer
    why = f"No host that answered has items of the topic, and {', '.join(shards + hosts)}: see foqs cluster status."
    rest = [reason for reason in answer.reasons if reason.code != idl.Reason.GONE]
    return idl.ExplainItemResponse([idl.ExplainReason(idl.Reason.SHARD_NOT_SERVED, why), *rest])


def _distance(answer: Any) -> int:
    return explain.rank(answer.reasons[0].code) if answer.reasons else _NEAREST
