"""The span of one handler's work on one item."""

from __future__ import annotations

from opentelemetry.trace import Span

from foqs.errors import FoqsError


class WorkSpan:
    """The span of one handler's work. Thread-safe, as spans are."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._lost = False

    def lease_lost(self) -> None:
        """Note the loss; may be called more than once."""
        if not self._lost and self._span.is_recording():
            self._lost = True
            self._span.add_event("lease_lost")

    def settled(self, what: str, error: FoqsError | None) -> None:
        """The server took an "ack" or "nack", or `error` is why not."""
        if self._span.is_recording():
            self._span.add_event(what, None if error is None else {"error.type": type(error).__name__})

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()
