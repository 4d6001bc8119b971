"""One connection that asks once: no pool, no second try, so that each answer is one event of the history.

It is the client library's own connection and codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

from foqs.client import methods
from foqs.client.connection import Connection
from foqs.client.items import Item, ItemSpec, Leased
from foqs.client.items import Nack as NackOfItem
from foqs.client.routes import Address
from foqs.errors import FoqsError, LostReply, NotFound, NotSent, OutcomeUnknown, StaleLease, item_error
from foqs.idl import idl
from foqs.wire.client_codec import RemoteMethod
from foqs_lab.crash.history import Answer

_GRACE_MS = 3_000
"""Time that the client waits for a reply, beyond the time-out in the request."""


def answer_of(outcome: object) -> Answer:
    """What an outcome (an id, None, or an error) says of the change."""
    if not isinstance(outcome, FoqsError):
        return Answer.OK
    if isinstance(outcome, OutcomeUnknown):
        return Answer.UNKNOWN
    if isinstance(outcome, StaleLease):
        return Answer.STALE
    return Answer.NOT_FOUND if isinstance(outcome, NotFound) else Answer.REFUSED


class Wire:
    """A connection for one thread, opened when needed. `timeout_ms` is the time-out in the request.

    Every call answers one outcome an item: a request that failed as a whole is the outcome of each.
    """

    def __init__(self, port: int, namespace: str, *, timeout_ms: int) -> None:
        self._address = Address("127.0.0.1", port)
        self._namespace = namespace
        self._timeout_ms = timeout_ms
        self._connection: Connection | None = None
        self._sequence = 0

    def enqueue(self, specs: Sequence[ItemSpec]) -> list[int | FoqsError]:
        """Ids or errors."""
        return self._each(methods.ENQUEUE, idl.EnqueueRequest(ns=self._namespace, items=specs), len(specs))

    def dequeue(self, topics: Sequence[str], count: int, *, wait_ms: int, lease_ms: int) -> list[Item]:
        """Raises FoqsError; LostReply when items may have been leased."""
        return self.dequeue_told(topics, count, wait_ms=wait_ms, lease_ms=lease_ms)[0]

    def dequeue_told(
        self, topics: Sequence[str], count: int, *, wait_ms: int, lease_ms: int
    ) -> tuple[list[Item], tuple[int, ...]]:
        """Items, and the ids of which the answer is not sure. Raises FoqsError; LostReply when items may have been
        leased."""
        wants = [idl.TopicCount(topic=topic, count=count) for topic in topics]
        request = idl.DequeueRequest(ns=self._namespace, wants=wants, wait_ms=wait_ms, lease_ms=lease_ms)
        response = self._ask(methods.DEQUEUE, request, wait_ms)
        return response.items or [], tuple(response.doubtful or ())

    def ack_and_dequeue(
        self, items: Sequence[Leased], topics: Sequence[str], count: int, *, lease_ms: int
    ) -> tuple[list[FoqsError | None], list[Item], tuple[int, ...], FoqsError | None]:
        """Outcomes of the acks; items, the ids of which the answer is not sure, and the error of the dequeue. Raises
        FoqsError; LostReply when each ack may have been carried out, and items may have been leased."""
        acks = [idl.AckItem(id=item.id, lease=item.lease) for item in items]
        wants = [idl.TopicCount(topic=topic, count=count) for topic in topics]
        request = idl.AckAndDequeueRequest(ns=self._namespace, acks=acks, wants=wants, lease_ms=lease_ms)
        response = self._ask(methods.ACK_AND_DEQUEUE, request)
        if len(response.outcomes) != len(acks):
            raise AssertionError(f"{len(response.outcomes)} outcomes for {len(acks)} items")
        outcomes = [self._outcome(methods.ACK, outcome) for outcome in response.outcomes]
        error = None if response.error is None else item_error(response.error)
        return outcomes, response.items or [], tuple(response.doubtful or ()), error

    def ack(self, items: Sequence[Leased]) -> list[FoqsError | None]:
        acks = [idl.AckItem(id=item.id, lease=item.lease) for item in items]
        return self._each(methods.ACK, idl.AckRequest(items=acks), len(acks))

    def nack(self, items: Sequence[Leased], *, delay_ms: int) -> list[FoqsError | None]:
        nacks = [NackOfItem.of(item, delay_ms=delay_ms) for item in items]
        return self._each(methods.NACK, idl.NackRequest(items=nacks), len(nacks))

    def extend(self, items: Sequence[Leased], lease_ms: int) -> list[FoqsError | None]:
        extensions = [idl.ExtendItem(id=item.id, lease=item.lease, lease_ms=lease_ms) for item in items]
        return self._each(methods.EXTEND, idl.ExtendLeaseRequest(items=extensions), len(extensions))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _each(self, method: RemoteMethod, request: Any, count: int) -> list[Any]:
        try:
            outcomes = self._ask(method, request).outcomes
        except FoqsError as error:
            return [error] * count
        if len(outcomes) != count:
            raise AssertionError(f"{len(outcomes)} outcomes for {count} items")
        return [self._outcome(method, outcome) for outcome in outcomes]

    def _outcome(self, method: RemoteMethod, outcome: Any) -> Any:
        if outcome.error is not None:
            return item_error(outcome.error)
        return outcome.id if method is methods.ENQUEUE else None

    def _ask(self, method: RemoteMethod, request: Any, wait_ms: int = 0) -> Any:
        request.context = idl.RequestContext(timeout_ms=self._timeout_ms)
        self._sequence += 1
        request_frame = method.encode(request, self._sequence)
        deadline = monotonic() + (self._timeout_ms + wait_ms + _GRACE_MS) / 1000
        try:
            if self._connection is None or not self._connection.usable():
                self.close()
                self._connection = Connection(self._address, 1.0)
            frame = self._connection.exchange(request_frame, deadline)
        except (NotSent, LostReply):
            self.close()
            raise
        return method.decode(frame, self._sequence)
