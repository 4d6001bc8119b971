"""Spans of OpenTelemetry for what a client does, and the trace context that travels with items.

Import it only where the extra `otel` is installed. See docs/run/tracing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from operator import attrgetter
from time import time_ns
from typing import Any, TypeVar

try:
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        INVALID_SPAN,
        Link,
        Span,
        SpanKind,
        Status,
        StatusCode,
        get_current_span,
        get_tracer,
        use_span,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    from foqs.extras import missing

    raise ImportError(missing("tracing: OpenTelemetry", "otel")) from error

from foqs import __version__
from foqs.bounds import LIMITS
from foqs.client.guard import guarded, kind_of
from foqs.client.handlers import TASK_HEADER, Retry, WorkSpan, end_span
from foqs.client.items import Item, ItemSpec
from foqs.errors import FoqsError, Invalid

MOST_LINKS = 128
"""Of one span; what SDKs keep by default."""
# Not the process's own propagator: that may write baggage, which is not to be stored with items.
_W3C = TraceContextTextMapPropagator()
_TRACING = "tracing"
_PARENT, _STATE = "traceparent", "tracestate"
_fields_of = attrgetter(*(field.name for field in fields(ItemSpec)))

T = TypeVar("T")


def context_of(item: Item | ItemSpec) -> Context:
    """Return the context of the enqueue, by the item's headers; an empty context if they hold none.

    >>> with tracer.start_as_current_span("work", context=context_of(item)):   # doctest: +SKIP
    ...     work(item.payload)
    """
    headers = item.headers
    if not isinstance(headers, Mapping) or _PARENT not in headers:
        return Context()
    # The headers of an item to enqueue may hold anything.
    return _W3C.extract(
        {key: headers[key] for key in (_PARENT, _STATE) if isinstance(headers.get(key), str)}, Context()
    )


@dataclass(slots=True)
class _Carrying(ItemSpec):
    """An item with a trace context among its headers; `plain` is the user's own, without."""

    plain: ItemSpec | None = None


class Sending:
    """The items of an enqueue, and the outcome of each."""

    def __init__(self, specs: Sequence[ItemSpec]) -> None:
        self.specs = specs
        self.outcomes: list[int | FoqsError] = []

    def refused(self) -> dict[int, ItemSpec]:
        """Return the items that were Invalid, so not stored, in case our headers were the cause: without these."""
        return {
            i: spec.plain
            for i, (spec, outcome) in enumerate(zip(self.specs, self.outcomes, strict=True))
            if isinstance(outcome, Invalid) and isinstance(spec, _Carrying) and spec.plain is not None
        }


class Tracing:
    """Makes the spans of one client."""

    def __init__(self, namespace: str) -> None:
        self._tracer = get_tracer("foqs", __version__)
        self._namespace = namespace
        self._headers_bytes = LIMITS.headers_bytes

    def traceparent(self) -> str | None:
        """Return the context of the current span, for hosts' logs."""
        return _injected().get(_PARENT)

    # ------------------------------------------------------------------------------------- enqueue

    def carrying(self, spec: ItemSpec) -> ItemSpec:
        """Return `spec` with the context of the current span, unless it has a context or there is no room."""
        return self._with(spec, _injected())

    @contextmanager
    def enqueue(self, specs: Sequence[ItemSpec]) -> Iterator[Sending]:
        """Make a span. The value has the `specs` to store: each item without a context carries that of the span. The
        caller sets the `outcomes`, and stores items that are `refused` without it."""
        name, attributes = self._about("enqueue", "send", [spec.topic for spec in specs], len(specs))
        span = self._start(name, kind=SpanKind.PRODUCER, attributes=attributes, links=_links(specs))
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                own = _injected()
                sending = Sending([self._with(spec, own) for spec in specs] if own else specs)
                yield sending
            errors = [outcome for outcome in sending.outcomes if isinstance(outcome, FoqsError)]
            if len(specs) == 1 and not errors:
                _attribute(span, "messaging.message.id", str(sending.outcomes[0]))
            if errors:
                _failed(span, errors[0])
                _attribute(span, "foqs.failed_items", len(errors))
        except BaseException as error:
            _failed(span, error)
            raise
        finally:
            guarded(_TRACING, end_span, span)

    def learn(self, limits: Mapping[str, int]) -> None:
        """Take the limits of the server, which may be lower than the usual ones."""
        self._headers_bytes = limits.get("headers_bytes", self._headers_bytes)

    def _with(self, spec: ItemSpec, carrier: dict[str, str]) -> ItemSpec:
        """Return a copy of `spec` with a context, or `spec`, which is never changed: it belongs to the caller."""
        given: Any = {} if spec.headers is None else spec.headers
        if not carrier or not isinstance(given, Mapping) or _PARENT in given:
            return spec
        headers = {**carrier, **given}
        if not self._fits(headers):
            headers.pop(_STATE, None)
            if not self._fits(headers):
                return spec
        carrying = _Carrying(*_fields_of(spec))
        carrying.headers, carrying.plain = headers, spec
        return carrying

    def _fits(self, headers: dict[str, str]) -> bool:
        try:
            size = sum(len(key.encode()) + len(value.encode()) for key, value in headers.items())
        except (AttributeError, UnicodeEncodeError):
            return False  # it is refused as it is
        return size <= self._headers_bytes

    # ------------------------------------------------------------------------------------- dequeue

    @contextmanager
    def dequeue(self, topics: Collection[str]) -> Iterator[Callable[[T], T]]:
        """Yield a function that takes the response, and returns it. The span is made afterwards, and only for items or
        an error."""
        begun_ns, items = time_ns(), list[Item]()

        def note(response: Any) -> Any:
            items.extend(response.items or ())
            return response

        try:
            yield note
        except FoqsError as error:
            name, attributes = self._about("dequeue", "receive", topics, 0)
            span = self._start(name, kind=SpanKind.CLIENT, attributes=attributes, start_time=begun_ns)
            _failed(span, error)
            guarded(_TRACING, end_span, span)
            raise
        if items:
            name, attributes = self._about("dequeue", "receive", [item.topic for item in items], len(items))
            span = self._start(
                name, kind=SpanKind.CLIENT, attributes=attributes, links=_links(items), start_time=begun_ns
            )
            guarded(_TRACING, end_span, span)

    # ------------------------------------------------------------------------------------- process

    def process(self, held: Any) -> AbstractContextManager[None]:
        """Return the span of the work on a lease, which continues in `held.traced` until the server has the item's ack
        or nack."""
        item: Item = held.item
        name, attributes = self._about("process", "process", (item.topic,), 1)
        if isinstance(item.headers, Mapping) and TASK_HEADER in item.headers:
            attributes["foqs.task"] = item.headers[TASK_HEADER]
        span = self._start(
            name,
            context=context_of(item),
            kind=SpanKind.CONSUMER,
            attributes={**attributes, "messaging.message.id": str(item.id), "foqs.attempt": item.attempt},
            links=_links((item,)),
        )
        held.traced = WorkSpan(span)
        return _working(span)

    # ------------------------------------------------------------------------------------- inside

    def _start(self, name: str, **options: Any) -> Span:
        """Begin a span. A sampler or a processor of the user that fails costs the span alone."""
        span = guarded(_TRACING, self._tracer.start_span, name, **options)
        return INVALID_SPAN if span is None else span

    def _about(self, operation: str, kind: str, topics: Collection[str], count: int) -> tuple[str, dict[str, Any]]:
        """Return name and attributes of a span, after OpenTelemetry's conventions for messaging."""
        attributes: dict[str, Any] = {
            "messaging.system": "foqs",
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
            "foqs.namespace": self._namespace,
        }
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        topic = next(iter(topics), None)
        if not isinstance(topic, str) or any(other != topic for other in topics):
            return operation, attributes
        attributes["messaging.destination.name"] = topic
        return f"{operation} {topic}", attributes


@contextmanager
def _working(span: Span) -> Iterator[None]:
    # The span's own way to record an exception would keep its text, which may hold what a payload held.
    with use_span(span, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except Retry:
            raise
        except BaseException as error:
            _failed(span, error)
            raise


def _injected() -> dict[str, str]:
    """Return the context of the current span as headers; empty if there is none, or if it cannot be read."""
    return guarded(_TRACING, _inject) or {}


def _inject() -> dict[str, str]:
    carrier: dict[str, str] = {}
    if get_current_span().get_span_context().is_valid:
        _W3C.inject(carrier)
    return carrier


def _links(items: Iterable[Item | ItemSpec]) -> list[Link]:
    """Return links to the contexts that items carry, each once."""
    linked: dict[str, Link] = {}
    for item in items:
        headers = item.headers
        parent = headers.get(_PARENT) if isinstance(headers, Mapping) else None
        if not isinstance(parent, str) or parent in linked:
            continue
        found = get_current_span(context_of(item)).get_span_context()
        if found.is_valid:
            linked[parent] = Link(found)
            if len(linked) == MOST_LINKS:
                break
    return list(linked.values())


def _failed(span: Span, error: BaseException) -> None:
    """Record only the kind of an error: its text may hold a part of a payload."""
    guarded(_TRACING, _set_failed, span, kind_of(error))


def _set_failed(span: Span, kind: str) -> None:
    if not span.is_recording():  # a handler may end after its span, which a stop has ended
        return
    span.set_status(Status(StatusCode.ERROR, kind))
    span.set_attribute("error.type", kind)


def _attribute(span: Span, name: str, value: str | int) -> None:
    guarded(_TRACING, span.set_attribute, name, value)
