"""Calls, answers, errors, and the life of a connection."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs
from thriftpy2.thrift import TApplicationException

from foqs.bounds import Budget, Limits
from foqs.errors import Code, Overloaded
from foqs.idl import idl
from foqs.rpc.server import ThriftServer
from foqs.wire.protocol import end_wait
from tests.rpc.serving import PATIENCE_S, Peer, Served, enqueue_of, framed, i32, message

Serve = Callable[..., Served]


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def encryption(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def items(*sizes: int) -> list[object]:
    return [idl.ItemSpec(topic="t", payload=b"x" * size, priority=size) for size in sizes]


def test_one_call_after_the_other(served: Served) -> None:
    with served.peer() as peer:
        for size in (0, 1, 70_000, 3, 4_000_000):
            response = peer.call("Enqueue", idl.EnqueueRequest("n", items(size, 5)), seqid=size)
            assert [outcome.id for outcome in response.outcomes] == [size, 5]
    assert served.server.counters.calls == 5


def test_every_request_is_answered_whole(served: Served) -> None:
    with served.peer() as peer:
        response = peer.call("ListItems", idl.ListItemsRequest("ns-ü", "topic-😀", cursor="c" * 300_000))
    assert (response.items[0].ns, response.items[0].topic) == ("ns-ü", "topic-😀")
    assert response.cursor == "c" * 300_000


def test_pipelined_calls_are_answered_in_order_one_at_a_time(served: Served) -> None:
    with served.peer() as peer:
        wait = framed(message("Dequeue", idl.DequeueRequest("first"), 1))
        quick = [framed(message("Enqueue", idl.EnqueueRequest("n", items(size)), 2 + size)) for size in range(500)]
        peer.send(wait + b"".join(quick))
        served.until(lambda: len(served.held) == 1 and served.budget.used_bytes > 0)
        assert served.server.counters.calls == 0
        served.on_loop(served.release)
        assert peer.answer("Dequeue")[1].items[0].ns == "first"
        for size in range(500):
            seqid, response = peer.answer("Enqueue")
            assert (seqid, response.outcomes[0].id) == (2 + size, size)


def test_bytes_one_at_a_time(served: Served) -> None:
    with served.peer() as peer:
        for byte in framed(message("Enqueue", idl.EnqueueRequest("n", items(7)))):
            peer.send(bytes((byte,)))
        assert peer.answer("Enqueue")[1].outcomes[0].id == 7


def test_an_unknown_method_is_refused_and_the_connection_goes_on(served: Served) -> None:
    with served.peer() as peer:
        for name in (b"Nope", b"Nack", b"", b"\xff\xfe", b"x" * 100_000):
            head = b"\x80\x01\x00\x01" + i32(len(name)) + name + i32(9)
            peer.send(framed(head + b"whatever comes here is not read"))
            content = peer.frame()
            assert content is not None
            assert content[8 : 8 + min(255, len(name))] == name[:255]
            assert len(content) < 400
            assert b"unknown method" in content
        assert peer.call("Enqueue", idl.EnqueueRequest("n", items(1))).outcomes[0].id == 1
    assert served.server.counters.refused["unknown method"] == 5


def test_messages_that_are_no_calls(served: Served) -> None:
    request = idl.EnqueueRequest("n", items(1))
    with served.peer() as peer:
        for kind in (2, 3):
            peer.send(framed(message("Enqueue", request, 4, kind)))
            seqid, refusal = peer.answer("Enqueue")
            assert isinstance(refusal, TApplicationException)
            assert (seqid, refusal.type) == (4, TApplicationException.INVALID_MESSAGE_TYPE)
        peer.send(framed(message("Enqueue", request, 5, 4)))
        assert peer.call("Enqueue", request, 6).outcomes[0].id == 1
    assert served.server.counters.refused["oneway"] == 1


@pytest.mark.parametrize("parts", [1, 2, 20])
def test_a_oneway_message_ends_the_wait_of_the_call_before_it(served: Served, parts: int) -> None:
    with served.peer() as peer:
        ended: list[int] = []

        def wait() -> None:
            (call,) = served.held
            call.on_oneway = lambda: ended.append(1) or served.release()  # type: ignore[func-returns-value]

        peer.send(framed(message("Dequeue", idl.DequeueRequest("n", []), 1)))
        served.until(lambda: bool(served.held))
        served.on_loop(wait)
        oneway, size = end_wait(), -(-len(end_wait()) // parts)
        for at in range(0, len(oneway), size):
            peer.send(oneway[at : at + size])
        assert peer.answer("Dequeue")[0] == 1
        assert ended == [1]
        assert peer.call("Enqueue", idl.EnqueueRequest("n", items(1)), 6).outcomes[0].id == 1
    assert served.server.counters.refused["oneway"] == 0


def test_a_oneway_message_that_comes_late_is_dropped(served: Served) -> None:
    with served.peer() as peer:
        peer.send(end_wait())
        assert peer.call("Enqueue", idl.EnqueueRequest("n", items(1)), 6).outcomes[0].id == 1


def test_a_request_behind_a_call_does_not_end_its_wait(served: Served) -> None:
    with served.peer() as peer:
        peer.send(framed(message("Dequeue", idl.DequeueRequest("n", []), 1)))
        served.until(lambda: bool(served.held))
        served.on_loop(lambda: setattr(served.held[0], "on_oneway", served.release))
        peer.send(framed(message("Enqueue", idl.EnqueueRequest("n", items(1)), 2)))
        with served.peer() as other:
            assert other.call("Enqueue", idl.EnqueueRequest("n", items(1)), 6).outcomes[0].id == 1
        assert len(served.held) == 1


def test_a_declared_error(served: Served) -> None:
    with served.peer() as peer:
        error = peer.call("GetItem", idl.GetItemRequest(1))
    assert (error.code, error.message, error.retry_after_ms) == (Code.NOT_FOUND, "no such item", 5)


def test_what_a_handler_raises(served: Served) -> None:
    with served.peer() as peer:
        served.raises = Overloaded("full", 40)
        error = peer.call("Ack", idl.AckRequest([]))
        assert (error.code, error.message, error.retry_after_ms) == (Code.OVERLOADED, "full", 40)
        served.raises = ZeroDivisionError("secret")
        error = peer.call("Ack", idl.AckRequest([], context=idl.RequestContext(request_id="r-1")))
        assert (error.code, error.message) == (Code.UNAVAILABLE, "internal error")
        ((method, raised, request),) = served.reported
        assert (method, raised, request.context.request_id) == ("Ack", served.raises, "r-1")
        error = peer.call("DeleteItems", idl.DeleteItemsRequest([1]))
        assert (error.code, error.message) == (Code.UNAVAILABLE, "internal error")
        served.raises = None
        assert len(peer.call("Ack", idl.AckRequest([idl.AckItem(1, 2)])).outcomes) == 1
    assert served.server.counters.failed == 2


def test_an_answer_that_does_not_fit_a_frame(served: Served) -> None:
    with served.peer() as peer:
        error = peer.call("ExtendLease", idl.ExtendLeaseRequest([]))
        assert "does not fit a frame" in error.message
        assert peer.call("Enqueue", idl.EnqueueRequest("n", items(1))).outcomes[0].id == 1
    assert served.server.counters.too_large == 1


def test_a_call_is_answered_once(served: Served) -> None:
    with served.peer() as peer:
        peer.send(framed(message("Dequeue", idl.DequeueRequest("n"))))
        served.until(lambda: bool(served.held))
        call = served.held[0]
        assert served.on_loop(served.release) is True
        with pytest.raises(RuntimeError, match="answered before"):
            served.on_loop(lambda: call.fail(Overloaded("again")))
        assert (call.on_lost, call.on_oneway) == (None, None), "a circle of references"
        peer.answer("Dequeue")


@pytest.mark.parametrize("reset", [False, True])
def test_a_call_in_progress_hears_once_of_a_lost_connection(served: Served, reset: bool) -> None:
    with served.peer() as neighbour, served.peer() as peer:
        peer.send(framed(message("Dequeue", idl.DequeueRequest("n"))) + b"\0\0")
        served.until(lambda: bool(served.held))
        if reset:
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        served.until(lambda: bool(served.lost))
        assert served.lost == served.held
        assert served.held[0].on_lost is None, "a circle of references"
        assert served.budget.used_bytes == 0
        assert served.on_loop(served.release) is False
        assert len(served.lost) == 1
        assert neighbour.call("Enqueue", idl.EnqueueRequest("n", items(1))).outcomes[0].id == 1
    assert served.server.counters.lost == 1


def test_the_number_of_connections_is_bounded(serve: Serve, encryption: bool) -> None:
    served = serve(max_connections=2)
    with served.peer() as first, served.peer() as second:
        assert first.call("Enqueue", idl.EnqueueRequest("n", items(1))).outcomes[0].id == 1
        assert second.call("Enqueue", idl.EnqueueRequest("n", items(2))).outcomes[0].id == 2
        with pytest.raises(OSError) if encryption else nullcontext(), served.peer() as third:
            assert third.is_closed()
        assert served.server.counters.connections_refused == 1
    served.until(lambda: served.server.counters.connections == 0)
    with served.peer() as later:
        assert later.call("Enqueue", idl.EnqueueRequest("n", items(1))).outcomes[0].id == 1


def test_idle_connections_stay_for_their_time(serve: Serve) -> None:
    served = serve(idle_timeout_s=0.2)
    served.stop_clock()
    with served.peer() as idle, served.peer() as waiting:
        waiting.send(framed(message("Dequeue", idl.DequeueRequest("n"))))
        served.until(lambda: bool(served.held) and served.server.counters.connections == 2)
        served.advance(0.3)
        assert idle.goodbye()
        served.on_loop(served.release)
        assert waiting.answer("Dequeue")[1].items[0].ns == "n"
    assert served.server.counters.closed["idle"] >= 1


def test_two_thousand_idle_connections(served: Served, encryption: bool) -> None:
    count = 200 if encryption else 2000  # a handshake takes milliseconds
    peers = [served.peer() for _ in range(count)]
    try:
        for peer in (peers[0], peers[count // 2], peers[-1]):
            assert peer.call("Enqueue", idl.EnqueueRequest("n", items(1))).outcomes[0].id == 1
        served.until(lambda: served.server.counters.connections == count)
        assert served.budget.used_bytes == 0
    finally:
        for peer in peers:
            peer.close()


def test_drain_answers_calls_in_progress_and_starts_none(served: Served) -> None:
    with served.peer() as idle, served.peer() as partial, served.peer() as peer:
        peer.send(framed(message("Dequeue", idl.DequeueRequest("n"))))
        served.until(lambda: bool(served.held))
        behind = framed(message("Enqueue", idl.EnqueueRequest("n", items(1))))
        peer.send(behind)
        partial.send(behind[:-1])
        served.until(lambda: served.budget.used_bytes > 2 * len(behind) - 3)

        async def drain() -> bool:
            served.loop.call_later(0.05, served.release, 8_000_000)
            return await served.server.drain(served.loop.time() + PATIENCE_S)

        drained = served.wait
        assert idle.socket.fileno() >= 0
        future = _in_thread(lambda: drained(drain()))
        assert idle.goodbye()
        assert partial.goodbye()
        assert len(peer.answer("Dequeue")[1].items[0].payload) == 8_000_000
        assert peer.goodbye()
        assert future() is True
        with pytest.raises(ConnectionRefusedError):
            served.peer()
    assert served.server.counters.calls == 1


def test_a_request_that_meets_goaway_is_not_started(served: Served) -> None:
    """Closed instead, the connection would be reset, and its sender would not know the outcome."""

    def stop() -> None:
        peer.send(framed(message("Enqueue", idl.EnqueueRequest("n", items(1)))))
        served.say_goodbye()

    with served.peer() as peer:
        assert peer.call("Enqueue", idl.EnqueueRequest("n", items(1))).outcomes[0].id == 1
        served.on_loop(stop)
        seqid, refusal = peer.answer("Enqueue")
        assert (seqid, refusal.type, "nothing was begun" in refusal.message) == (0, 6, True)
        with suppress(OSError):  # it may be closed already
            peer.send(framed(message("Enqueue", idl.EnqueueRequest("n", items(1)))))
        assert peer.is_closed()
    assert served.server.counters.calls == 1


def test_drain_waits_for_no_peer_that_leaves_goaway_unread(served: Served) -> None:
    async def drain() -> bool:
        return await served.server.drain(served.loop.time() + 0.05)

    with served.peer() as peer:
        peer.call("Enqueue", idl.EnqueueRequest("n", items(1)))
        assert served.wait(drain()) is True


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_goaway_meets_a_peer_that_has_closed(serve: Callable[..., Served], new_loop: Any) -> None:
    """It answers GOAWAY with a reset, before the server has read the end of its stream."""
    served = serve(new_loop=new_loop)
    peer = served.peer()
    peer.call("Enqueue", idl.EnqueueRequest("n", items(1)))

    def stop() -> None:
        peer.close()
        served.say_goodbye()

    served.on_loop(stop)
    served.until(lambda: served.server.counters.connections == 0)


def test_drain_gives_up_at_its_deadline(served: Served) -> None:
    with served.peer() as peer:
        peer.send(framed(message("Dequeue", idl.DequeueRequest("n"))))
        served.until(lambda: bool(served.held))

        async def drain() -> bool:
            return await served.server.drain(served.loop.time() + 0.05)

        assert served.wait(drain()) is False
        assert peer.is_closed()
        served.until(lambda: served.lost == served.held)


def test_a_port_that_is_shared_beside_one_of_its_own(served: Served) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))  # takes none of the connections: it does not listen
        shared = other.getsockname()

        async def share() -> None:
            await served.server.bind(*shared, shared=True)
            await served.server.serve()

        served.wait(share())
        with served.peer() as own, Peer(shared, served.client_tls) as peer:
            for each in (own, peer):
                assert each.call("Enqueue", idl.EnqueueRequest("n", items(1))).outcomes[0].id == 1
            served.on_loop(served.server.stop_listening)
            for address in (served.address, shared):
                with pytest.raises(ConnectionRefusedError):
                    Peer(address)
            assert peer.call("Enqueue", idl.EnqueueRequest("n", items(1))).outcomes[0].id == 1


def test_a_wrong_set_up_is_refused() -> None:
    with pytest.raises(ValueError, match="no method Nope"):
        ThriftServer({"Nope": print}, Limits(), Budget(1 << 26), 10)
    with pytest.raises(ValueError, match="budget"):
        ThriftServer({}, Limits(), Budget(1 << 20), 10)


def test_requests_that_are_wrong_as_a_whole(served: Served) -> None:
    wrong = {
        "more than 10000 elements": enqueue_of(b"\x0f\0\2\x0c" + i32(10_001) + b"\0" * 10_001),
        "ns is not UTF-8": enqueue_of(b"\x0b\0\1" + i32(2) + b"\xff\xfe"),
        "context.token is not UTF-8": enqueue_of(b"\x0c\0\x0f\x0b\0\1" + i32(1) + b"\xff\0"),
        "no request": message("Enqueue", None),
    }
    for context, text in (
        (idl.RequestContext(token="t" * 4097), "context.token is longer"),
        (idl.RequestContext(request_id="ü" * 65), "context.request_id is longer"),
        (idl.RequestContext(traceparent="t" * 129), "context.traceparent is longer"),
        (idl.RequestContext(timeout_ms=0), "context.timeout_ms"),
        (idl.RequestContext(timeout_ms=600_001), "context.timeout_ms"),
        (idl.RequestContext(hops=-1), "context.hops is below 0"),
    ):
        wrong[text] = message("Enqueue", idl.EnqueueRequest("n", [], context))
    with served.peer() as peer:
        for text, content in wrong.items():
            peer.send(framed(content))
            error = peer.answer("Enqueue")[1]
            assert (error.code, text in error.message) == (Code.INVALID, True), (text, error)
            assert len(error.message) < 100
        context = idl.RequestContext("t" * 4096, "ü" * 64, "t" * 128, 600_000)
        assert peer.call("Enqueue", idl.EnqueueRequest("n", items(3), context)).outcomes[0].id == 3
    assert served.server.counters.refused["invalid"] == len(wrong)


def _in_thread(do: Callable[[], bool]) -> Callable[[], bool]:
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    future = pool.submit(do)
    return lambda: future.result(PATIENCE_S)


def test_the_connections_of_one_address_are_bounded(serve: Serve) -> None:
    served = serve(max_connections=3, max_connections_per_address=2)
    options = {} if served.client_tls is None else {"tls": served.client_tls}

    def called(peer: Peer) -> bool:
        return bool(peer.call("Enqueue", idl.EnqueueRequest("n", items(1))).outcomes)

    with served.peer() as first, served.peer() as second:
        assert called(first)
        assert called(second)
        with pytest.raises(OSError) if options else nullcontext(), served.peer() as third:
            assert third.is_closed()
        with socket.socket() as other:
            other.bind(("127.0.0.2", 0))
            other.settimeout(PATIENCE_S)
            other.connect(served.address)
            served.until(lambda: served.server.counters.connections == 3)
        served.until(lambda: served.server.counters.connections == 2)
        assert served.server.counters.connections_refused == 1
    served.until(lambda: served.server.counters.connections == 0)
    with served.peer() as first, served.peer() as second:
        assert called(first)
        assert called(second)


def test_a_refused_connection_names_the_key_to_change(serve: Serve) -> None:
    served = serve(max_connections=3, max_connections_per_address=1, tls=None, client_tls=None)
    with capture_logs() as logs, served.peer() as first:
        first.call("Enqueue", idl.EnqueueRequest("n", items(1)))
        for _ in range(3):
            with served.peer() as refused:
                assert refused.is_closed()
    told = [line for line in logs if line["event"] == "connection.refused"]
    assert 1 <= len(told) <= 3
    assert (told[0]["address"], told[0]["limit"]) == ("127.0.0.1", 1)
    assert "server.max_connections_per_address" in told[0]["hint"]
    assert served.server.counters.connections_refused == 3
