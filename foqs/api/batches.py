"""Batches of items: created with their callbacks, closed, cancelled and shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foqs.api import validation
from foqs.api.host import Host
from foqs.api.intake import Intake
from foqs.bounds import DAY_MS, YEAR_MS, Limits
from foqs.errors import FoqsError, Invalid, NotFound, NotServed
from foqs.fairness.keys import rules_of, tenancy_of
from foqs.idl import idl
from foqs.item_batch import NO_BATCH, BatchInfo, Callback, NewBatch
from foqs.policies.layers import NamespacePolicies
from foqs.rpc.call import Call
from foqs.rules import pack_rules

END_HEADERS_BYTES = 1_800
"""Most bytes of the own headers of `on_end`. The batch adds up to 2,296 bytes."""
_TTL_MS, _LEAST_TTL_MS = 7 * DAY_MS, 1_000
_OTHERS = ("dedup_key", "order_key", "batch", "deliver_after_ms", "expires_at_ms")
"""Fields of an ItemSpec that no callback has."""


class Batches:
    def __init__(self, host: Host) -> None:
        self._host = host

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {
            "CreateBatch": self.create,
            "CloseBatch": self.close,
            "CancelBatch": self.cancel,
            "GetBatch": self.get,
        }

    def create(self, call: Call) -> None:
        """Raises Invalid, Unavailable."""
        host, request, limits, now_ms = self._host, call.request, self._host.limits, self._host.now_ms()
        host.refuse_when_draining()
        ns = validation.name(request.ns, "ns", limits)
        timeout_ms = validation.timeout_ms(request, limits)
        ttl_ms = validation.within(request.ttl_ms, "ttl_ms", _LEAST_TTL_MS, YEAR_MS, _TTL_MS)
        parent = 0 if request.parent is None else validation.batch_id(request.parent, "parent")
        policies = host.engine.state.policies.namespaces.get(ns)
        on_success, on_end = (
            None if spec is None else callback(ns, what, spec, limits, policies, now_ms)
            for what, spec in (("on_success", request.on_success), ("on_end", request.on_end))
        )
        if host.forwarder.create_batch(call, now_ms, now_ms + timeout_ms):
            return

        def created(outcome: int | FoqsError) -> None:
            if isinstance(outcome, FoqsError):
                call.fail(outcome)
            else:
                call.reply(idl.CreateBatchResponse(outcome))

        new = NewBatch(ns, on_success, on_end, now_ms + ttl_ms, parent)
        host.engine.create_batch(new, created, now_ms, timeout_ms)

    def close(self, call: Call) -> None:
        """Raises Invalid."""
        self._change(call, self._host.engine.close_batch, idl.CloseBatchResponse)

    def cancel(self, call: Call) -> None:
        """Raises Invalid."""
        self._change(call, self._host.engine.cancel_batch, idl.CancelBatchResponse)

    def get(self, call: Call) -> None:
        """Raises Invalid, Overloaded."""
        self._host.refuse_when_full()
        self._ask(call, self._host.engine.find_batch, _found)

    def _change(self, call: Call, change: Callable[..., None], response: Callable[[], Any]) -> None:
        self._ask(call, change, lambda _: response())

    def _ask(self, call: Call, ask: Callable[..., None], response: Callable[[Any], Any]) -> None:
        """Ask the home of the batch that the request names."""
        host, request, limits = self._host, call.request, self._host.limits
        ns = validation.name(request.ns, "ns", limits)
        if request.id is None:
            raise Invalid("id is missing")
        batch = validation.batch_id(request.id, "id")
        deadline_ms = host.now_ms() + validation.timeout_ms(request, limits)

        _Asking(host, call, ask, response, ns, batch, deadline_ms).here()


class _Asking:
    """A question to the home of a batch, here or on another host. It holds no function that refers to it, so it is gone
    with its answer."""

    __slots__ = ("_ask", "_batch", "_call", "_deadline_ms", "_host", "_ns", "_response")

    def __init__(
        self, host: Host, call: Call, ask: Callable[..., None], response: Callable[[Any], Any], ns: str, batch: int,
        deadline_ms: int,
    ) -> None:  # fmt: skip
        self._host = host
        self._call = call
        self._ask = ask
        self._response = response
        self._ns = ns
        self._batch = batch
        self._deadline_ms = deadline_ms

    def here(self) -> None:
        now_ms = self._host.now_ms()
        self._ask(self._ns, self._batch, self._answered, now_ms, max(1, self._deadline_ms - now_ms))

    def _answered(self, outcome: Any) -> None:
        call = self._call
        if isinstance(outcome, NotServed) and self._host.forwarder.batch(call, self.here, self._deadline_ms):
            return
        if isinstance(outcome, FoqsError):
            call.fail(NotFound(NO_BATCH) if isinstance(outcome, NotFound) else outcome)
        else:
            call.reply(self._response(outcome))


def callback(
    ns: str, what: str, spec: Any, limits: Limits, policies: NamespacePolicies | None, now_ms: int
) -> Callback:  # fmt: skip
    """Return the callback that an ItemSpec asks for: `on_success` or `on_end`, as `what` says. Raises Invalid, and
    Unavailable: its topic is closed."""
    for name in _OTHERS:
        if getattr(spec, name) not in (None, ""):
            raise Invalid(f"{what}.{name}: a callback has none")
    taken = Intake(ns, [spec], limits, now_ms, policies)
    if taken.errors:
        if isinstance(taken.errors[0], Invalid):
            raise Invalid(f"{what}: {taken.errors[0].message}")
        raise taken.errors.pop(0)  # `taken` refers to it no longer, as it refers to `taken`
    (item,), (lane,), headers = taken.items, taken.keys, dict(spec.headers or {})
    size = sum([len(key.encode()) + len(text.encode()) for key, text in headers.items()])
    if what == "on_end" and size > END_HEADERS_BYTES:
        raise Invalid(f"on_end: headers have {size} bytes, more than {END_HEADERS_BYTES}: the batch adds its own")
    fairness, throttles = tenancy_of(lane)
    return Callback(
        spec.topic, item.payload, item.metadata, headers, item.priority, item.due_ms and item.due_ms - now_ms,
        item.lease_ms, item.expires_at_ms and item.expires_at_ms - now_ms, item.delivery, fairness, throttles,
        pack_rules(rules_of(lane)).decode(), spec.weight or 0,
    )  # fmt: skip


def _found(info: BatchInfo) -> Any:
    row = info.row
    return idl.GetBatchResponse(
        row.id, row.state, row.created_at_ms, row.expires_at_ms, row.ended_at_ms or None, row.parent or None,
        idl.BatchCounts(*info.counts), list(info.failed_ids), row.success_id or None, row.end_id or None,
    )  # fmt: skip
