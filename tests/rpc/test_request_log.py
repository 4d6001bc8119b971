"""Log lines about single requests, and which ids they may have."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.bounds import Limits
from foqs.errors import Invalid, OutcomeUnknown
from foqs.idl import idl, request_id_of, trace_of
from foqs.rpc.call import RequestLog, log_failure
from foqs.wire.scan import check_context
from tests.rpc.serving import Served, framed, message


class Clock:
    """Moves on demand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def dequeue(wait_ms: int) -> Any:
    return idl.DequeueRequest("n", [], wait_ms=wait_ms, context=idl.RequestContext(request_id="r-1"))


def call() -> Any:
    return SimpleNamespace(method="Dequeue", request=dequeue(0), peer="")


@pytest.mark.parametrize("forged", ["a\nb", "a\rb", "a\x1b[31m", "a\u2028b", "a\u202eb", "\0", "\x7f"])
def test_an_id_cannot_forge_lines(forged: str) -> None:
    with pytest.raises(Invalid, match="has characters that cannot be printed"):
        check_context(idl.RequestContext(request_id=forged), Limits())
    check_context(idl.RequestContext(request_id="Bestellung 4711/ü"), Limits())


def test_a_request_without_an_id_gets_one_and_keeps_it() -> None:
    without, empty = idl.AckRequest([]), idl.AckRequest([], context=idl.RequestContext(request_id="", timeout_ms=5))
    first, second = request_id_of(without), request_id_of(empty)
    assert first and second and first != second
    assert (request_id_of(without), without.context.request_id) == (first, first)
    assert (request_id_of(empty), empty.context.timeout_ms) == (second, 5)


def test_a_slow_request_took_longer_than_its_wait(serve: Callable[..., Served]) -> None:
    clock = Clock()
    served = serve(requests=RequestLog(clock, 500))
    with served.peer() as peer, capture_logs() as logs:
        for wait_ms, took_s in ((0, 0.4), (1_000, 1.4), (1_000, 1.6)):
            peer.send(framed(message("Dequeue", dequeue(wait_ms))))
            served.until(lambda: len(served.held) == 1)

            def answer(took_s: float = took_s) -> None:
                clock.now_s += took_s
                served.held.pop().reply(idl.DequeueResponse([]))

            served.on_loop(answer)
            peer.answer("Dequeue")
        peer.send(framed(message("Dequeue", dequeue(0))))
        served.until(lambda: len(served.held) == 1)
        clock.now_s += 0.7
        peer.close()
        served.until(lambda: len(served.lost) == 1)
    assert {(line["event"], line["method"], line["request_id"]) for line in logs} == {
        ("request.slow", "Dequeue", "r-1")
    }
    assert [(line["took_ms"], line["wait_ms"], line["answered"]) for line in logs] == [
        (1600, 1000, True),
        (700, 0, False),
    ]


def test_no_slow_request_is_logged_where_that_is_off() -> None:
    requests = RequestLog(Clock())
    with capture_logs() as logs:
        requests.took("Ack", call().request, "", 1e9, answered=True)
    assert logs == []


def test_lines_of_a_kind_are_bounded_apart() -> None:
    clock = Clock()
    requests = RequestLog(clock, 1)
    with capture_logs() as logs:
        for _ in range(100):
            requests.took("Ack", call().request, "", 1.0, answered=False)
        requests.outcome_unknown("Dequeue", dequeue(0), 3, "lost")
        clock.now_s += 1
        requests.took("Ack", call().request, "", 1.0, answered=False)
    assert [(line["event"], line["left_out"]) for line in logs] == [
        *[("request.slow", 0)] * 5,
        ("outcome.unknown", 0),
        ("request.slow", 95),
    ]


def test_an_unknown_outcome_is_in_the_log(served: Served) -> None:
    served.raises = OutcomeUnknown("outcome unknown")
    with served.peer() as peer, capture_logs() as logs:
        peer.call("Ack", idl.AckRequest([], context=idl.RequestContext(request_id="r-7")))
    assert [(line["event"], line["request_id"], line["items"], line["reason"]) for line in logs] == [
        ("outcome.unknown", "r-7", 0, "outcome unknown")
    ]


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "told",
    [
        "",
        TRACE,
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
    ],
)
def test_an_invalid_trace_context_is_in_no_line(told: str) -> None:
    assert trace_of(idl.RequestContext(traceparent=told)) == {}


def test_every_line_about_a_request_has_its_trace() -> None:
    context = idl.RequestContext(request_id="r-1", traceparent=f"00-{TRACE}-{SPAN}-00")
    request, requests, error = idl.AckRequest([], context=context), RequestLog(Clock(), 1), OutcomeUnknown("gone")
    with capture_logs() as logs:
        requests.took("Ack", request, "", 1.0, answered=True)
        requests.reply_lost("Ack", context, "h:1", error)
        requests.not_sent("Ack", context, "h:1", error)
        requests.unrouted("Ack", request, 1)
        requests.outcome_unknown("Ack", request, 1, "gone")
        log_failure("Ack", error, request)
    assert [line["trace_id"] for line in logs] == [TRACE] * 6
    context.traceparent = None
    with capture_logs() as logs:
        requests.unrouted("Ack", request, 1)
        requests.unrouted("Ack", idl.AckRequest([]), 1)
        log_failure("Ack", error, None)
    assert len(logs) == 3 and not any("trace_id" in line for line in logs)
