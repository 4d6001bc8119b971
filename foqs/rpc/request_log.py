"""Log lines about single requests. Each line has the request's id, which hosts pass on when they forward, so the lines
of all hosts about one request can be found together.

A request without an id gets one when a line is written about it, or when it is forwarded. Every kind of line is
bounded: `left_out` counts the lines omitted before it. A request of a trace has that trace's id in its lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from foqs.bounds import LogThrottle
from foqs.errors import FoqsError
from foqs.idl import request_id_of, trace_of

log = structlog.get_logger("foqs.request")

NEVER_S = float("inf")


class RequestLog:
    """`now_s` is monotonic; `slow_ms`, beyond what a request asked to wait, makes it a slow one (0: none is)."""

    def __init__(self, now_s: Callable[[], float], slow_ms: int = 0) -> None:
        self.now_s = now_s
        self.bound(slow_ms)
        self._slow = LogThrottle()
        self._lost = LogThrottle()
        self._unsent = LogThrottle()
        self._unrouted = LogThrottle()
        self._unknown = LogThrottle()

    def bound(self, slow_ms: int) -> None:
        """Set the bound, from the next answer on."""
        self.slow_s = slow_ms / 1000 if slow_ms else NEVER_S

    def took(self, method: str, request: Any, peer: str, took_s: float, *, answered: bool) -> None:
        """Log a slow request that was answered, or whose caller disconnected. `request` is None where it was not
        decoded."""
        wait_s = (getattr(request, "wait_ms", None) or 0) / 1000
        if request is None or took_s - wait_s <= self.slow_s:
            return
        left_out = self._slow.take(self.now_s())
        if left_out is not None:
            log.warning(
                "request.slow",
                method=method,
                request_id=request_id_of(request),
                peer=peer,
                took_ms=round(took_s * 1000),
                wait_ms=round(wait_s * 1000),
                answered=answered,
                left_out=left_out,
                **trace_of(request.context),
            )

    def reply_lost(self, method: str, context: Any, address: str, error: FoqsError) -> None:
        """Log a forwarded request whose reply was lost; the other host may have carried it out."""
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
        """Log a forwarded request that did not reach the other host."""
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
        """Log that a request was given up: its shard had no owner in time."""
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
        """Log that the caller got OUTCOME_UNKNOWN for `items` of its items."""
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
