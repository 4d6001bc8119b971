"""ExplainItem in a cluster: an item's owner explains it, and all hosts explain a topic together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from foqs.engine import explain
from foqs.engine.shard import Shard
from foqs.errors import FoqsError, NotFound, NotServed
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


class Nearest:
    """Gathers the answers of the hosts at `addresses` and that of this one, and calls `reply` with the answer of the
    host that is nearest to a delivery. If no host has items of the topic, the items may be on `unowned` shards, or on
    hosts that did not answer."""

    def __init__(
        self,
        here: Any,
        addresses: Collection[str],
        unowned: Iterable[int],
        reply: Callable[[Any], object],
    ) -> None:
        self._answers = [here]
        self._left = len(addresses)
        self._unowned = sorted(unowned)
        self._missing: list[str] = []
        self._reply = reply
        if not addresses:
            self._end()

    def answered(self, address: str, response: Any, error: FoqsError | None) -> None:
        """Take the answer of a host."""
        if error is not None:
            self._missing.append(address)
        else:
            self._answers.append(response)
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        answer = max(self._answers, key=_distance)
        if _distance(answer) == idl.Reason.GONE and (self._unowned or self._missing):
            shards = [f"shard {number} is not served" for number in self._unowned]
            hosts = [f"host {address} did not answer" for address in sorted(self._missing)]
            why = f"No host that answered has items of the topic, and {', '.join(shards + hosts)}"
            rest = [reason for reason in answer.reasons if reason.code != idl.Reason.GONE]
            answer = idl.ExplainItemResponse(
                [idl.ExplainReason(idl.Reason.SHARD_NOT_SERVED, f"{why}: see foqs cluster status."), *rest]
            )
        self._reply(answer)


def _distance(answer: Any) -> int:
    return answer.reasons[0].code if answer.reasons else _NEAREST
