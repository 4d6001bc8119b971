"""Why an item is not delivered, or none of a topic: what a client asks, and the answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from foqs.client import methods
from foqs.client.items import ItemState
from foqs.client.options import checked
from foqs.client.requests import Requests
from foqs.idl import idl
from foqs.ids import parse_id


class Reason(IntEnum):
    """What keeps an item from being delivered. The numbers are no order: see `Explanation.reasons`."""

    GONE = 1
    ENDED = 2
    SHARD_NOT_SERVED = 3
    OWNER_IN_GRACE = 4
    BREAKER_OPEN = 5
    DELAYED = 6
    LEASED = 7
    PAUSED = 8
    THROTTLED = 9
    CONCURRENCY = 10
    BEHIND_IN_LANE = 11
    BEHIND_IN_TURN = 12
    NO_CONSUMER = 13
    NOT_LOADED = 14
    PER_WORKER = 15
    CLOCK_IN_DOUBT = 16


@dataclass(frozen=True, slots=True)
class ExplainReason:
    """`text` says it in words, with a command that shows more and changes nothing. `until_ms` is Unix epoch
    milliseconds: when it ends by itself, as far as the host knows. `key`, `count` and `by` depend on `code`: see
    `Reason` in thrift/foqs.thrift. A code of a newer server is an int."""

    code: Reason | int
    text: str
    until_ms: int | None = None
    key: str | None = None
    count: int | None = None
    by: str | None = None


class Explanation(NamedTuple):
    """`reasons` in the order in which they have to end, none if the item is deliverable now. `eta_ms` is an estimate of
    the time until its delivery, None when it is not known; `state` that of an item, as far as it could be read."""

    reasons: tuple[ExplainReason, ...]
    eta_ms: int | None = None
    state: ItemState | None = None


class Explaining:
    """Methods of `Client`."""

    namespace: str
    _requests: Requests

    @checked()
    def explain(self, item_id: int | str, *, timeout_ms: int | None = None) -> Explanation:
        """Why an item is not delivered yet. `eta_ms` needs the rate of the topic's deliveries, which a host measures
        from the first question on: ask again some seconds later.

        >>> client.explain(281474976710657)                         # doctest: +SKIP
        Explanation(reasons=(ExplainReason(code=<Reason.DELAYED: 6>, text='Its delay ends in 42.0 s.', ...),), ...)
        """
        number = parse_id(item_id)
        return _explanation(self._requests.read(methods.EXPLAIN, idl.ExplainItemRequest(id=number), timeout_ms, number))

    @checked()
    def explain_topic(self, topic: str, *, timeout_ms: int | None = None) -> Explanation:
        """Why no item of a topic is delivered: as the host that is nearest to a delivery sees it."""
        request = idl.ExplainItemRequest(ns=self.namespace, topic=topic)
        return _explanation(self._requests.read(methods.EXPLAIN, request, timeout_ms))


def _explanation(response: Any) -> Explanation:
    state = None if response.state is None else ItemState(response.state)
    return Explanation(tuple(map(_reason, response.reasons or ())), response.eta_ms, state)


def _reason(found: Any) -> ExplainReason:
    code = Reason(found.code) if found.code in Reason._value2member_map_ else found.code
    return ExplainReason(code, found.text or "", found.until_ms, found.key, found.count, found.by)
