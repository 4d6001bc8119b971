"""The span of one handler's work on one item."""

from __future__ import annotations

from opentelemetry.trace import Span

from foqs.client.guard import guarded
from foqs.errors import FoqsError

_TRACING = "tracing a handler"


class WorkSpan:
    """The span of one handler's work. Thread-safe, as spans are. Raises nothing: processors of spans are the user's,
    and the threads that call this send outcomes and extend leases."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._lost = False

    def lease_lost(self) -> None:
        """Note the loss; may be called more than once."""
        if not self._lost:
            self._lost = True
            guarded(_TRACING, self._note, "lease_lost", None)

    def settled(self, what: str, error: FoqsError | None) -> None:
        """The server took an "ack" or "nack", or `error` is why not."""
        guarded(_TRACING, self._note, what, error)

    def end(self) -> None:
        guarded(_TRACING, end, self._span)

    def _note(self, what: str, error: FoqsError | None) -> None:
        if self._span.is_recording():
            self._span.add_event(what, None if error is None else {"error.type": type(error).__name__})


def end(span: Span) -> None:
    """End a span that has not ended."""
    if span.is_recording():
        span.end()
