"""Spans of producers and consumers, over OpenTelemetry's own SDK, and the context that items and requests carry."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from foqs.client import Backoff, Client, FoqsError, Invalid, Item, ItemSpec, Producer, Retry, Worker, tracing
from foqs.client._sync.job import Held
from foqs.extras import missing
from foqs.idl import idl
from tests.api.hosts import HostProcess, dev, environment, locked
from tests.client.peer import LATER, Act, Peer, eventually, failed, refused, script
from tests.client.spans import EXPORTER

NewPeer = Callable[..., Peer]
ClientOf = Callable[..., Client]
OWN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET = "what the payload held"


Ended = Callable[[str], list[ReadableSpan]]


def context(span: ReadableSpan | trace.Span) -> tuple[int, int]:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id, found.span_id


def traceparent(span: ReadableSpan | trace.Span) -> str:
    found = span.get_span_context()
    assert found is not None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def of(host: HostProcess) -> str:
    return ":".join(map(str, host.address))


def headers(peer: Peer) -> list[Any]:
    """Those of each item of all requests to enqueue, in their order."""
    return [spec.headers for request in peer.named("Enqueue") for spec in request.items]


@pytest.mark.process
def test_a_trace_from_the_producer_over_a_host_to_the_consumer(
    tmp_path: Path, ended: Ended, tracer: trace.Tracer
) -> None:
    settings = {
        "FOQS_LOG__FORMAT": "json", "FOQS_LOG__SLOW_REQUEST_MS": "200", "FOQS_LIMITS__HEADERS_BYTES": "80",
    }  # fmt: skip
    with dev(tmp_path, "--shards", "1", **settings) as host, Client(of(host), "shop", tracing=True) as client:
        with tracer.start_as_current_span("order") as order:
            item_id = client.enqueue("mail", b"x")
        (sent,) = ended("enqueue mail")
        assert (sent.kind, parent(sent)) == (SpanKind.PRODUCER, context(order))
        assert sent.attributes == {
            "messaging.system": "foqs",
            "messaging.operation.name": "enqueue",
            "messaging.operation.type": "send",
            "messaging.destination.name": "mail",
            "messaging.message.id": str(item_id),
            "foqs.namespace": "shop",
        }
        assert client.get_item(item_id).headers == {"traceparent": traceparent(sent)}

        current = []
        with Worker(client, "mail", lambda item: current.append(context(trace.get_current_span())), wait_ms=100):
            eventually(lambda: ended("process mail"))
        (work,) = ended("process mail")
        assert (work.kind, parent(work), linked(work)) == (SpanKind.CONSUMER, context(sent), [context(sent)])
        assert (current, work.status.status_code) == ([context(work)], StatusCode.UNSET)
        assert [event.name for event in work.events] == ["ack"]
        assert work.attributes is not None
        assert (work.attributes["messaging.message.id"], work.attributes["foqs.attempt"]) == (str(item_id), 1)

        # What the server's limit leaves no room for goes without.
        assert client.enqueue("full", b"x", headers={"twenty": "bytes of a header"}) > item_id
        with pytest.raises(Invalid, match="more than 80"):
            client.enqueue("full", b"x", headers={"h": "x" * 80})
        assert [item.headers for item in client.list_items("full")] == [{"twenty": "bytes of a header"}]

        with locked(tmp_path, 1), tracer.start_as_current_span("slow") as slow, pytest.raises(FoqsError):
            client.enqueue("mail", b"x", timeout_ms=1_500)
        (failure,) = [span for span in ended("enqueue mail") if parent(span) == context(slow)]
        assert failure.status.status_code is StatusCode.ERROR
        assert host.stop() == 0
    lines = [json.loads(line) for line in host.said().splitlines()]
    assert f"{context(slow)[0]:032x}" in [line.get("trace_id") for line in lines if line["event"] == "request.slow"]


def test_a_batch(peer: Peer, client_of: ClientOf, ended: Ended) -> None:
    """One span, in all items; what an item carries already is kept, and linked."""
    specs = [
        ItemSpec("a", b"1"),
        ItemSpec("b", b"2", headers={"k": "v"}),
        ItemSpec("b", b"3", headers={"traceparent": OWN}),
    ]
    client_of(peer, tracing=True).enqueue_many(specs)
    (span,) = ended("enqueue")
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 3
    assert not {"messaging.destination.name", "messaging.message.id"} & set(span.attributes)
    mine = {"traceparent": traceparent(span)}
    assert headers(peer) == [mine, {**mine, "k": "v"}, {"traceparent": OWN}]
    assert [f"{trace_id:032x}" for trace_id, _ in linked(span)] == [OWN.split("-")[1]]
    assert [spec.headers for spec in specs] == [None, {"k": "v"}, {"traceparent": OWN}], "they are the caller's"


def test_items_of_wrong_types_fail_alone(peer: Peer, client_of: ClientOf, ended: Ended) -> None:
    wrong: list[Any] = [7, {"traceparent": 7}, {"traceparent": OWN, "tracestate": 7}, {7: "x"}, {"k": "\ud800"}]
    specs = [ItemSpec("a", b"1"), *(ItemSpec("a", b"x", headers=value) for value in wrong)]
    good, *bad = client_of(peer, tracing=True).enqueue_many(specs)
    assert type(good) is int and all(isinstance(outcome, Invalid) for outcome in bad)
    (span,) = ended("enqueue a")
    assert span.attributes is not None and span.attributes["foqs.failed_items"] == len(bad)
    assert (span.attributes["error.type"], span.status.description) == ("Unencodable", "Unencodable")


def test_no_more_headers_than_usual(peer: Peer, client_of: ClientOf, ended: Ended) -> None:
    client = client_of(peer, tracing=True)
    for size in (4096 - 66 - 1, 4096 - 66, 4096):
        client.enqueue("a", b"1", headers={"k": "x" * size})
    assert ["traceparent" in given for given in headers(peer)] == [True, False, False]


def test_a_lower_limit_of_the_server_is_learned(new_peer: NewPeer, client_of: ClientOf, ended: Ended) -> None:
    def refuses(name: str, request: Any) -> Any:
        if name == "GetServerInfo":
            return idl.GetServerInfoResponse(version="test", limits={"headers_bytes": 0})
        if name == "Enqueue" and any(spec.headers for spec in request.items):
            return idl.EnqueueResponse([idl.EnqueueOutcome(error=failed(1)) for _ in request.items])
        return Act.SERVE

    peer = new_peer(refuses)
    client = client_of(peer, tracing=True)
    with Producer(client) as producer:
        assert producer.enqueue("a", b"1").result(LATER) == 1
    assert client.enqueue("a", b"2") == 2
    assert [given is None for given in headers(peer)] == [False, True, True]
    assert {span.status.status_code for span in ended("enqueue a")} == {StatusCode.UNSET}


def test_items_of_a_producer_carry_the_context_of_its_caller(
    peer: Peer, client_of: ClientOf, ended: Ended, tracer: trace.Tracer
) -> None:
    with Producer(client_of(peer, tracing=True), linger_ms=60_000) as producer:
        givers = []
        for name in ("first", "second"):
            with tracer.start_as_current_span(name) as giver:
                givers.append(giver)
                producer.enqueue("a", b"x")
                producer.enqueue("a", b"y")
        producer.enqueue("a", b"of nobody")
        assert producer.flush(LATER * 1000)
    (span,) = ended("enqueue a")
    first, second = givers
    assert [given["traceparent"] for given in headers(peer)] == [
        *[traceparent(first)] * 2, *[traceparent(second)] * 2, traceparent(span),
    ]  # fmt: skip
    assert (parent(span), linked(span)) == (None, [context(first), context(second)])


def test_a_plain_dequeue(new_peer: NewPeer, client_of: ClientOf, ended: Ended, tracer: trace.Tracer) -> None:
    peer = new_peer()
    client = client_of(peer, tracing=True)
    assert client.dequeue("a") == []
    assert EXPORTER.get_finished_spans() == (), "nothing came"
    client.enqueue("a", b"1")
    client.enqueue("a", b"2")
    client_of(peer).enqueue("a", b"of nobody")
    sent = ended("enqueue a")
    *items, plain = client.dequeue("a", 3)
    (span,) = ended("dequeue a")
    assert (span.kind, linked(span)) == (SpanKind.CLIENT, [context(one) for one in sent])
    assert span.attributes is not None and span.attributes["messaging.operation.type"] == "receive"
    for item, one in zip(items, sent, strict=True):
        with tracer.start_as_current_span("work", context=tracing.context_of(item)) as work:
            client.ack(item)
        assert isinstance(work, ReadableSpan) and parent(work) == context(one)
        assert peer.named("Ack")[-1].context.traceparent == traceparent(work)
    assert trace.get_current_span(tracing.context_of(plain)) is trace.INVALID_SPAN
    peer.meddle = script("Dequeue", refused(1))
    with pytest.raises(Invalid):
        client.dequeue("a")
    assert [one.status.description for one in ended("dequeue a")] == [None, "Invalid"]


def failing(item: Any) -> None:
    if item.attempt == 1:
        raise ValueError(SECRET)
    if item.attempt == 2:
        raise Retry(delay_ms=0)


def test_a_handler_that_fails(peer: Peer, client_of: ClientOf, ended: Ended) -> None:
    """Each attempt is a span; a handler that asks for another one did not fail."""
    client = client_of(peer, tracing=True)
    client.enqueue("a", b"1")
    with Worker(client, "a", failing, wait_ms=100, backoff=Backoff(first_ms=1)) as worker:
        eventually(lambda: worker.counts.done == 1)
    first, second, third = ended("process a")
    assert first.attributes is not None
    assert (first.status.status_code, first.attributes["error.type"]) == (StatusCode.ERROR, "ValueError")
    assert SECRET not in first.to_json()
    assert {one.status.status_code for one in (second, third)} == {StatusCode.UNSET}
    assert [[event.name for event in one.events] for one in (first, second, third)] == [["nack"], ["nack"], ["ack"]]


class Loses:
    """Works until another consumer has its item."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def handle(self, item: Any, job: Any) -> None:
        self.peer.take_over(item.id)
        assert job.lease_lost.wait(LATER)


def names(spans: Sequence[ReadableSpan]) -> list[list[tuple[str, Any]]]:
    return [[(event.name, (event.attributes or {}).get("error.type")) for event in span.events] for span in spans]


def test_a_lease_that_is_lost(new_peer: NewPeer, client_of: ClientOf, ended: Ended) -> None:
    """Noted while the handler works, or by its ack."""
    peer = new_peer()
    client = client_of(peer, tracing=True)
    client.enqueue("a", b"1")
    with Worker(client, "a", Loses(peer), lease_ms=2_000, wait_ms=100) as worker:
        eventually(lambda: worker.counts.lost == 1)
    assert names(ended("process a")) == [[("lease_lost", None)]]
    stale = [idl.ItemOutcome(error=failed(3))]
    answers = {"Ack": idl.AckResponse(stale), "AckAndDequeue": idl.AckAndDequeueResponse(stale, [])}
    other = new_peer(lambda name, request: answers.get(name, Act.SERVE))
    client = client_of(other, tracing=True)
    client.enqueue("b", b"1")
    with Worker(client, "b", lambda item: None, wait_ms=100) as worker:
        eventually(lambda: worker.counts.lost == 1)
    assert names(ended("process b")) == [[("ack", "StaleLease")]]


def test_a_loss_is_in_the_span_before_the_handler_hears_of_it(ended: Ended, tracer: trace.Tracer) -> None:
    held = Held(Item(), inf, inf)
    held.traced = tracing.WorkSpan(tracer.start_span("work"))

    class Returns(threading.Event):
        def set(self) -> None:
            assert held.traced is not None
            held.traced.end()

    held.lost = Returns()
    held.tell()
    assert names(ended("work")) == [[("lease_lost", None)]]


def test_a_lease_that_cannot_be_extended_in_time(new_peer: NewPeer, client_of: ClientOf, ended: Ended) -> None:
    """Noted once, however often that is tried."""
    peer = new_peer(lambda name, request: refused(5) if name == "ExtendLease" else Act.SERVE)
    client = client_of(peer, tracing=True)
    client.enqueue("a", b"1")

    class Waits:
        def handle(self, item: Any, job: Any) -> None:
            eventually(lambda: monotonic() > job.held.expires)
            tries = len(peer.named("ExtendLease"))
            eventually(lambda: len(peer.named("ExtendLease")) >= tries + 3)

    with Worker(client, "a", Waits(), concurrency=1, prefetch=0, lease_ms=200, wait_ms=100) as worker:
        eventually(lambda: worker.counts.done == 1)
    assert names(ended("process a")) == [[("lease_lost", None), ("ack", None)]]


def test_a_handler_that_outlives_the_grace(
    peer: Peer, client_of: ClientOf, ended: Ended, gate: threading.Event
) -> None:
    client = client_of(peer, tracing=True)
    client.enqueue("a", b"1")
    begun, raised = threading.Event(), threading.Event()

    def slow(item: Any) -> None:
        begun.set()
        gate.wait(LATER)
        raised.set()
        raise ValueError

    with Worker(client, "a", slow, wait_ms=100, grace_ms=0):
        assert begun.wait(LATER)
    (span,) = ended("process a")
    gate.set()
    assert raised.wait(LATER)
    assert (names([span]), span.status.status_code) == ([[]], StatusCode.UNSET), "it has ended with the worker"


def test_there_are_no_spans_without_tracing(
    peer: Peer, client_of: ClientOf, ended: Ended, tracer: trace.Tracer
) -> None:
    client = client_of(peer)
    with tracer.start_as_current_span("order"):
        client.enqueue("a", b"1")
        client.ack(*client.dequeue("a"))
    assert headers(peer) == [None]
    assert [request.context.traceparent for _, request in peer.calls] == [None] * len(peer.calls)
    assert [span.name for span in EXPORTER.get_finished_spans()] == ["order"]


WITHOUT = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
from foqs.client import Client, Worker
with Client({address!r}, tracing={tracing}) as client:
    client.enqueue("a", b"x")
    (item,) = client.dequeue("a")
    client.nack(item)
    worker = Worker(client, "a", lambda item: worker.stop(), wait_ms=100)
    worker.run()
    print(item.headers, worker.counts.done, *sorted(name for name in sys.modules if name == "opentelemetry"))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("blocked", "asked", "said"),
    [
        ({"opentelemetry"}, False, "None 1\n"),
        ({"opentelemetry"}, True, f"ImportError: {missing('tracing: OpenTelemetry', 'otel')}\n"),
        ({"none"}, False, "None 1\n"),
        ({"none"}, True, "None 1 opentelemetry\n"),
    ],
    ids=["without the package", "asked for without the package", "not asked for", "without a provider"],
)
def test_a_process_without(peer: Peer, blocked: set[str], asked: bool, said: str) -> None:
    source = WITHOUT.format(blocked=blocked, address=peer.address, tracing=asked)
    run = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=3 * LATER, env=environment()
    )
    assert (run.stdout + run.stderr).endswith(said)
    assert all(request.context.traceparent is None for _, request in peer.calls)


class OddSpan(trace.NonRecordingSpan):
    """Records, and raises whatever is done with it."""

    def is_recording(self) -> bool:
        return True

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise OSError("the processor of spans failed")

    end = add_event = set_attribute = set_status = _fail


@pytest.mark.parametrize("begins", [True, False])
def test_a_tracer_that_fails_costs_spans_alone(
    peer: Peer, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    """Items are stored, taken, worked on, and settled."""
    client = client_of(peer, tracing=True)

    def start(*_: Any, **__: Any) -> trace.Span:
        if begins:
            return OddSpan(trace.INVALID_SPAN_CONTEXT)
        raise OSError("the sampler failed")

    monkeypatch.setattr(client.tracing, "_tracer", type("OddTracer", (), {"start_span": staticmethod(start)}))
    ids = client.enqueue_many([ItemSpec("t", b"a"), ItemSpec("t", b"b")])

    def handle(item: Item) -> None:
        if item.attempt == 1:
            raise ValueError

    worker = Worker(client, "t", handle, wait_ms=50, backoff=Backoff(1, 1))
    worker.start()
    eventually(lambda: worker.counts.done == 2)
    worker.stop()
    assert worker.join(LATER * 1000)
    assert sorted(peer.acked) == ids
    assert [nack.reason for nack in peer.nacked] == ["ValueError"] * 2
    with pytest.raises(Invalid):
        client.enqueue("", b"x")
