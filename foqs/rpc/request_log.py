"""What the log says about single requests. Each line has the request's id, which hosts pass on when they forward: so
the lines of all hosts about one request can be found together.

A request without an id gets one when there is something to say of it, or when it is forwarded. Every kind of line is
bounded: `left_out` counts those that were not written before it. A request of a trace has that trace's id in its lines.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.lines import Lines

if TYPE_CHECKING:
    from foqs.rpc.call import Call

log = structlog.get_logger("foqs.request")

NEVER_S = float("inf")
_TRACEPARENT = re.compile("(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""https://www.w3.org/TR/trace-context/"""


def request_id_of(request: Any) -> str:
    """The id in the context of a request; one that has none gets one."""
    context = request.context
    if context is None:
        context = request.context = idl.RequestContext()
    if not context.request_id:
        context.request_id = f"{random.getrandbits(48):012x}"
    found: str = context.request_id
    return found


def trace_of(context: Any) -> dict[str, str]:
    """What a line says of the trace that a request with this context is part of: its `trace_id`, or nothing where there
    is no `traceparent`, or one that is not W3C's."""
    told = None if context is None else context.traceparent
    found = None if told is None else _TRACEPARENT.fullmatch(told)
    return {} if found is None else {"trace_id": found[1]}


class RequestLog:
    """`now_s` is monotonic; `slow_ms`, beyond what a request asked to wait, makes it a slow one (0: none is)."""

    def __init__(self, now_s: Callable[[], float], slow_ms: int = 0) -> None:
        self.now_s = now_s
        self.bound(slow_ms)
        self._slow = Lines()
        self._lost = Lines()
        self._unsent = Lines()
        self._unrouted = Lines()
        self._unknown = Lines()

    def bound(self, slow_ms: int) -> None:
        """From the next answer on."""
        self.slow_s = slow_ms / 1000 if slow_ms else NEVER_S

    def took(self, call: Call, took_s: float, *, answered: bool) -> None:
        """A request is over: answered, or its caller is gone."""
        request = call.request
        wait_s = (getattr(request, "wait_ms", None) or 0) / 1000
        if request is None or took_s - wait_s <= self.slow_s:
            return
        left_out = self._slow.take(self.now_s())
        if left_out is not None:
            log.warning(
                "request.slow",
                method=call.method,
                request_id=request_id_of(request),
                peer=call.peer,
                took_ms=round(took_s * 1000),
                wait_ms=round(wait_s * 1000),
                answered=answered,
                left_out=left_out,
                **trace_of(request.context),
            )

    def reply_lost(self, method: str, context: Any, address: str, error: FoqsError) -> None:
        """What another host was asked, with this context, it may have done."""
        left_out = self._lost.take(self.now_s())
        if left_out is not None:
            log.warning(
                "forward.reply_lost",
                method=method,
                request_id=context.request_id,
                to=address,
                reason=error.message,
                left_out=left_out,
                **trace_of(context),
            )

    def not_sent(self, method: str, context: Any, address: str, error: FoqsError) -> None:
        """Another host was not reached."""
        left_out = self._unsent.take(self.now_s())
        if left_out is not None:
            log.warning(
                "forward.not_sent",
                method=method,
                request_id=context.request_id,
                to=address,
                reason=error.message,
                left_out=left_out,
                **trace_of(context),
            )

    def unrouted(self, method: str, request: Any, items: int) -> None:
        """What was held for an owner of its shard is given up."""
        left_out = self._unrouted.take(self.now_s())
        if left_out is not None:
            request_id = request_id_of(request)
            log.warning(
                "request.unrouted",
                method=method,
                request_id=request_id,
                items=items,
                left_out=left_out,
                **trace_of(request.context),
            )

    def outcome_unknown(self, method: str, request: Any, items: int, reason: str) -> None:
        """The caller was told that nobody knows what became of so many of its items."""
        left_out = self._unknown.take(self.now_s())
        if left_out is not None:
            log.warning(
                "outcome.unknown",
                method=method,
                request_id=request_id_of(request),
                items=items,
                reason=reason,
                left_out=left_out,
                **trace_of(request.context),
            )
