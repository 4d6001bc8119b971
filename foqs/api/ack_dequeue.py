"""AckAndDequeue: acks, and the dequeue that begins when each of them has its outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from foqs.api import responses, validation
from foqs.api.host import Host
from foqs.api.item_life import ItemLife, Sifted, sifted_acks
from foqs.engine import item_ops
from foqs.engine.calls import DequeueCall, ItemsCall
from foqs.engine.engine import Engine
from foqs.errors import Code, FoqsError
from foqs.fairness.keys import MOST_TENANCY_BYTES
from foqs.idl import idl
from foqs.peers import forwarded_requests
from foqs.rpc.call import Call
from foqs.travel import bare
from foqs.wire.protocol import encode_struct

_OVER = (Code.STALE_LEASE, Code.NOT_FOUND)
"""Errors of acks whose leases have ended."""


class DequeueAfterAcks:
    """The dequeue of an AckAndDequeue. Its answer carries the outcomes of the acks, also when it fails."""

    __slots__ = ("_call", "_engine", "outcomes", "request")

    def __init__(self, call: Call, engine: Engine) -> None:
        self._call = call
        self._engine = engine
        self.request: Any = call.request
        self.outcomes: list[Any] = []

    def reply(self, response: Any) -> bool:
        if isinstance(response, bytes):
            acked = responses.carried_out(len(self.outcomes))
            if [one for one in self.outcomes if one.error is not None]:
                acked = encode_struct(idl.AckResponse(self.outcomes))
            return self._call.reply(responses.ack_and_dequeue_response(acked, response))
        items, doubtful, retry_ms = response.items, response.doubtful, response.retry_after_ms
        both = idl.AckAndDequeueResponse(
            self.outcomes, items, doubtful, None, retry_ms, response.reason, response.per_worker
        )
        return self._call.reply(both)

    def fail(self, error: FoqsError) -> bool:
        if not error.outcome_known:
            self._call.doubt(0, error.message)
        refusal = responses.refusal(self._call, error, self._engine.state.counters)
        return self._call.reply(idl.AckAndDequeueResponse(self.outcomes, [], None, refusal))


class AckDequeue:
    """The dequeue begins after the acks, so no lease runs while a commit is slow. The acks end within `confirm_ms`: a
    shard that does not answer delays the items of other shards by that at most."""

    def __init__(self, items: ItemLife, host: Host) -> None:
        self._items = items
        self._host = host
        self._engine = host.engine

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"AckAndDequeue": self.ack_and_dequeue}

    def ack_and_dequeue(self, call: Call) -> None:
        """Check both parts, then carry out the acks. Raises Invalid."""
        request, limits = call.request, self._host.limits
        has_acks = bool(request.acks)
        if has_acks:
            validation.counted(request.acks, "acks", limits.request_items)
            ids, leases, sifted = sifted_acks(request.acks)
        now_ms = self._host.now_ms()
        dequeue = DequeueAfterAcks(call, self._engine)
        waiting, wait_ms = self._items.consumer(call, dequeue, now_ms)
        self._items.follow(call, waiting)
        if not has_acks:
            self._dequeue(dequeue, waiting, now_ms, wait_ms)
            return
        timeout_ms = min(validation.timeout_ms(request, limits), self._engine.state.config.host.confirm_ms)
        acked = partial(self._acked, call, dequeue, waiting, sifted)
        if ids:
            self._ack(request, ids, leases, sifted, now_ms, timeout_ms, acked)
        else:  # each ack has its error
            acked([])

    def _ack(
        self, request: Any, ids: Sequence[int], leases: Sequence[int], sifted: Sifted | None,
        now_ms: int, timeout_ms: int, acked: Callable[[list[FoqsError | None]], None],
    ) -> None:  # fmt: skip
        """Call `acked` with the outcomes of `ids` when each of them has one."""
        elsewhere = None
        if self._engine.state.shards_elsewhere:
            if request.context is None:
                request.context = idl.RequestContext()  # shared with the acks: lines of the log have one request id
            given = request.acks if sifted is None else sifted.of(request.acks)
            origin = idl.AckRequest(given, request.ns, request.context)
            op = lambda at: item_ops.ack(leases[at])  # noqa: E731
            until_ms = now_ms + timeout_ms
            elsewhere = partial(self._host.forwarder.items, forwarded_requests.ACK, origin, ids, op, until_ms)
        self._engine.ack(ItemsCall(len(ids), acked, None, elsewhere), ids, leases, request.ns, now_ms, timeout_ms)

    def _acked(
        self, call: Call, dequeue: DequeueAfterAcks, waiting: DequeueCall, sifted: Sifted | None,
        outcomes: list[FoqsError | None],
    ) -> None:  # fmt: skip
        if sifted is not None:
            outcomes = sifted.outcomes(outcomes)
        dequeue.outcomes = responses.item_outcomes(call, outcomes, self._engine.state.counters)
        # The outcomes may come while a batch is applied, in the middle of a shard's memory.
        self._engine.state.slices.soon(partial(self._begin, dequeue, waiting))

    def _begin(self, dequeue: DequeueAfterAcks, waiting: DequeueCall) -> None:
        """Dequeue ready items; a wait for a first item would hold back the outcomes."""
        if waiting.done:  # its consumer has disconnected
            return
        limits = self._host.limits
        # The process still holds these items, and they may be of any of the topics.
        waiting.unacked = sum([one.error is not None and one.error.code not in _OVER for one in dequeue.outcomes])
        waiting.max_bytes -= responses.outcomes_bytes(dequeue.outcomes)
        # The first item is returned whatever its size.
        largest_bytes = limits.payload_bytes + limits.metadata_bytes + limits.headers_bytes
        if waiting.max_bytes < largest_bytes + waiting.item_overhead_bytes:
            dequeue.reply(idl.DequeueResponse([]))
            return
        # A host to which the dequeue is forwarded fills a frame of its own, without the outcomes.
        items = waiting.most or sum([count for _, count in waiting.wants])
        bodies_bytes = waiting.max_bytes - items * (waiting.item_overhead_bytes + MOST_TENANCY_BYTES)
        if bodies_bytes < largest_bytes:
            waiting.elsewhere = None
        dequeue.request.max_bytes = min(waiting.bodies_bytes, bodies_bytes)
        self._dequeue(dequeue, waiting, self._host.now_ms(), 0)

    def _dequeue(self, dequeue: DequeueAfterAcks, waiting: DequeueCall, now_ms: int, wait_ms: int) -> None:
        try:
            self._host.refuse_when_draining()
            self._host.refuse_when_full()
        except FoqsError as error:
            dequeue.fail(bare(error))
        else:
            self._engine.dequeue(waiting, now_ms, wait_ms)
