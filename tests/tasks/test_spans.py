"""The spans of OpenTelemetry around the run of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace

from foqs import App
from tests.client.peer import LATER, eventually
from tests.client.real_server import PATIENT_MS, Server
from tests.client.spans import EXPORTER, provide

pytestmark = pytest.mark.threads


@pytest.fixture(autouse=True)
def spans() -> Iterator[None]:
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # a process has one provider
        provide()
    EXPORTER.clear()
    yield
    EXPORTER.clear()


def test_a_run_is_a_span_of_the_trace_of_its_enqueue(server: Server, start: Callable[..., Any]) -> None:
    tracer = trace.get_tracer("test")
    with App(server.address, "shop", timeout_ms=PATIENT_MS, tracing=True) as app:

        @app.task(topic="mail")
        async def send() -> int:
            with tracer.start_as_current_span("inside send"):
                return 1

        @app.task(topic="files")
        def pack() -> int:
            with tracer.start_as_current_span("inside pack"):
                return 1

        start(app)
        with tracer.start_as_current_span("order") as order:
            handles = [send.enqueue(), pack.enqueue()]
        assert [handle.result(LATER) for handle in handles] == [1, 1]

        def ended() -> dict[str, Any]:
            return {span.name: span for span in EXPORTER.get_finished_spans()}

        eventually(lambda: {"process mail", "process files"} <= ended().keys())
        for topic, task, handle in (("mail", "send", handles[0]), ("files", "pack", handles[1])):
            run, inside = ended()[f"process {topic}"], ended()[f"inside {task}"]
            assert run.attributes["foqs.task"] == task
            assert run.attributes["messaging.message.id"] == str(handle.id)
            assert inside.parent.span_id == run.context.span_id
            assert run.context.trace_id == order.get_span_context().trace_id
