"""AckAndDequeue: acks, and the dequeue that begins when each of them has its outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from foqs.api import responses, validation
from foqs.api.host import Host
from foqs.api.item_life import ItemLife, Results, Sifted, ack_op, sifted_acks
from foqs.engine.calls import DequeueCall, ForwardedEntries, ItemsCall
from foqs.engine.engine import Engine
from foqs.engine.item_ops import Op
from foqs.engine.listing import ANSWERS_SHARE
from foqs.errors import Code, FoqsError
from foqs.fairness.keys import MOST_TENANCY_BYTES
from foqs.idl import idl
from foqs.peers import forwarded_requests
from foqs.rpc.call import Call
from foqs.travel import bare
from foqs.wire.protocol import encode_struct
from foqs.wire.usual_requests import AckColumns

_OVER = (Code.STALE_LEASE, Code.NOT_FOUND)
"""Errors of acks whose leases have ended."""


class DequeueAfterAcks:
    """The dequeue of an AckAndDequeue. Its answer carries the outcomes of the acks, also when it fails."""

    __slots__ = ("_engine", "acked", "call", "outcomes", "request")

    def __init__(self, call: Call, engine: Engine) -> None:
        self.call = call
        self._engine = engine
        self.request: Any = call.request
        self.outcomes: list[Any] = []
        self.acked = True  # each ack was carried out

    def reply(self, response: Any) -> bool:
        if isinstance(response, bytes):
            acked = b"" if self.acked else encode_struct(idl.AckResponse(self.outcomes))
            return self.call.reply(responses.ack_and_dequeue_response(len(self.outcomes), acked, response))
        items, doubtful, retry_ms = response.items, response.doubtful, response.retry_after_ms
        both = idl.AckAndDequeueResponse(
            self.outcomes, items, doubtful, None, retry_ms, response.reason, response.per_worker
        )
        return self.call.reply(both)

    def fail(self, error: FoqsError) -> bool:
        if not error.outcome_known:
            self.call.doubt(0, error.message)
        refusal = responses.refusal(self.call, error, self._engine.state.counters)
        return self.call.reply(idl.AckAndDequeueResponse(self.outcomes, [], None, refusal))


class AckDequeue:
    """The dequeue begins after the acks, so no lease runs while a commit is slow. The acks end within `confirm_ms`: a
    shard that does not answer delays the items of other shards by that at most.

    The dequeues whose acks one batch carries out begin together, and share the merge of their topic."""

    def __init__(self, items: ItemLife, host: Host) -> None:
        self._items = items
        self._host = host
        self._engine = host.engine
        self._acked: list[tuple[DequeueAfterAcks, DequeueCall]] = []  # their dequeues begin in the next slice

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"AckAndDequeue": self.ack_and_dequeue}

    def ack_and_dequeue(self, call: Call) -> None:
        """Check both parts, then carry out the acks. Raises Invalid."""
        request, limits, state = call.request, self._host.limits, self._engine.state
        acks, now_ms = request.acks, self._host.now_ms()
        dequeue = DequeueAfterAcks(call, self._engine)
        ids: Sequence[int] | None = None
        results: Results = None
        if type(acks) is AckColumns and len(acks.ids) == 1:
            ids, leases, sifted = acks.ids, acks.leases, None
        elif acks:
            validation.counted(acks, "acks", limits.request_items)
            ids, leases, results, sifted = sifted_acks(acks, limits)
        waiting, wait_ms = self._items.consumer(call, dequeue, now_ms)
        self._items.follow(call, waiting)
        if ids is None:
            if (refusal := self._refusal()) is not None:
                dequeue.fail(refusal)
            else:
                self._engine.dequeue(waiting, now_ms, wait_ms)
            return
        timeout_ms = min(validation.timeout_ms(request, limits), state.config.host.confirm_ms)
        acked = partial(self._settled, dequeue, waiting, sifted)
        if not ids:  # each ack has its error
            acked([])
            return
        elsewhere = None
        if state.shards_elsewhere:
            elsewhere = self._elsewhere(request, ids, ack_op(leases, results), sifted, now_ms + timeout_ms)
        waits = ItemsCall(len(ids), acked, None, elsewhere)
        self._engine.ack(waits, ids, leases, request.ns, now_ms, timeout_ms, results)

    def _elsewhere(
        self, request: Any, ids: Sequence[int], op: Callable[[int], Op], sifted: Sifted | None, until_ms: int
    ) -> Callable[[ItemsCall], ForwardedEntries | None]:
        """Return what sends the acks of other hosts' items there."""
        if request.context is None:
            request.context = idl.RequestContext()  # shared with the acks: lines of the log have one request id
        given = request.acks if sifted is None else sifted.of(request.acks)
        origin = idl.AckRequest(given, request.ns, request.context)
        return partial(self._host.forwarder.items, forwarded_requests.ACK, origin, ids, op, until_ms)

    def _settled(
        self, dequeue: DequeueAfterAcks, waiting: DequeueCall, sifted: Sifted | None, outcomes: list[FoqsError | None]
    ) -> None:
        if sifted is not None:
            outcomes = sifted.outcomes(outcomes)
        dequeue.acked = outcomes.count(None) == len(outcomes)
        dequeue.outcomes = responses.item_outcomes(dequeue.call, outcomes, self._engine.state.counters)
        # The outcomes may come while a batch is applied, in the middle of a shard's memory.
        if not self._acked:
            self._engine.state.slices.soon(self._begin)
        self._acked.append((dequeue, waiting))

    def _begin(self) -> None:
        """Dequeue ready items; a wait for a first item would hold back the outcomes."""
        acked, self._acked = self._acked, []
        limits, refusal = self._host.limits, self._refusal()
        # The first item is returned whatever its size.
        largest_bytes = limits.payload_bytes + limits.metadata_bytes + limits.headers_bytes
        calls: list[DequeueCall] = []
        for dequeue, waiting in acked:
            if waiting.done:  # its consumer has disconnected
                continue
            outcomes = dequeue.outcomes
            if dequeue.acked:
                waiting.max_bytes -= len(outcomes)
            else:
                # The process still holds these items, and they may be of any of the topics.
                waiting.unacked = sum([one.error is not None and one.error.code not in _OVER for one in outcomes])
                waiting.max_bytes -= responses.outcomes_bytes(outcomes)
            if waiting.max_bytes < largest_bytes + waiting.item_overhead_bytes:
                dequeue.reply(idl.DequeueResponse([]))
                continue
            if waiting.elsewhere is not None:
                # A host to which the dequeue is forwarded fills a frame of its own, without the outcomes.
                items = waiting.most or sum([count for _, count in waiting.wants])
                bodies_bytes = waiting.max_bytes - items * (waiting.item_overhead_bytes + MOST_TENANCY_BYTES)
                if bodies_bytes < largest_bytes:
                    waiting.elsewhere = None
                dequeue.request.max_bytes = min(waiting.bodies_bytes, bodies_bytes)
            if refusal is None:
                calls.append(waiting)
            else:
                dequeue.fail(refusal)
        self._engine.dequeue_together(calls, self._engine.state.now_ms)

    def _refusal(self) -> FoqsError | None:
        """Return why the host gives no items, None if it does."""
        state = self._engine.state
        if state.draining or state.budget.used_bytes > state.budget.limit_bytes * ANSWERS_SHARE:
            try:
                self._host.refuse_when_draining()
                self._host.refuse_when_full()
            except FoqsError as error:
                return bare(error)
        return None
