"""Calls from host to host: replies, lost replies and bounds; and that nothing is left behind."""

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from foqs.bounds import Budget, Limits
from foqs.errors import Invalid, LostReply, NotFound, NotSent, OutcomeUnknown, Overloaded, RequestTooLarge
from foqs.idl import idl
from tests.client.peer import Act, Meddle, Peer, encode_reply, script
from tests.rpc.calling import Calling, RawPeer
from tests.rpc.serving import PATIENCE_S, Served
from tests.support.ports import held_port

MB = 1 << 20


@pytest.fixture
def calling(start: Callable[..., Calling]) -> Calling:
    return start()


@pytest.fixture
def meddling() -> Iterator[Callable[[Meddle], Peer]]:
    with contextlib.ExitStack() as stack:
        yield lambda meddle: stack.enter_context(Peer(meddle))


def of(served: Served) -> str:
    return f"{served.address[0]}:{served.address[1]}"


def enqueue(*sizes: int) -> Any:
    return idl.EnqueueRequest("n", [idl.ItemSpec("t", b"x" * size) for size in sizes])


def connect(calling: Calling, address: str, method: str = "GetServerInfo", request: Any = None) -> None:
    """So that a call with little time is sent at once."""
    calling.ask(address, method, request or idl.GetServerInfoRequest())


def ids(response: Any) -> list[int]:
    return [outcome.id for outcome in response.outcomes]


# ------------------------------------------------------------------------------------------------ answers


def test_answers_of_a_real_server(calling: Calling, served: Served) -> None:
    assert ids(calling.ask(of(served), "Enqueue", enqueue(3, 0, 70_000))) == [3, 0, 70_000]
    with pytest.raises(NotFound) as refused:
        calling.ask(of(served), "GetItem", idl.GetItemRequest(1))
    assert refused.value.retry_after_ms == 5
    served.raises = Overloaded("full", 7)
    with pytest.raises(Overloaded, match="full"):
        calling.ask(of(served), "Ack", idl.AckRequest([idl.AckItem(1, 2)]))
    with pytest.raises(Invalid, match="method"):
        calling.ask(of(served), "GetServerInfo", idl.GetServerInfoRequest())
    assert served.server.counters.connections_accepted == 1


def test_calls_in_progress_have_a_connection_each(calling: Calling, served: Served) -> None:
    """A call that is held does not hold up the other calls; afterwards the connections are used again."""
    held = [calling.begin(of(served), "Dequeue", idl.DequeueRequest(f"n{n}")) for n in range(5)]
    served.until(lambda: len(served.held) == 5)
    assert ids(calling.ask(of(served), "Enqueue", enqueue(1))) == [1]
    served.held.sort(key=lambda call: str(call.request.ns), reverse=True)
    for _ in range(5):
        served.on_loop(served.release)
    assert [future.result(PATIENCE_S).items[0].ns for future in held] == ["n0", "n1", "n2", "n3", "n4"]
    for size in range(20):
        assert ids(calling.ask(of(served), "Enqueue", enqueue(size))) == [size]
    assert served.server.counters.connections_accepted == 6


def test_calls_beyond_the_connections_wait_then_are_refused(start: Callable[..., Calling], served: Served) -> None:
    calling = start(connections=2, waiting=3)
    held = [calling.begin(of(served), "Dequeue", idl.DequeueRequest(f"n{n}")) for n in range(2)]
    served.until(lambda: len(served.held) == 2)
    waiting = [calling.begin(of(served), "Enqueue", enqueue(n)) for n in range(3)]
    with pytest.raises(Overloaded):
        calling.ask(of(served), "Enqueue", enqueue(9))
    served.on_loop(served.release)
    assert [ids(future.result(PATIENCE_S)) for future in waiting] == [[0], [1], [2]]
    served.on_loop(served.release)
    assert [future.result(PATIENCE_S).items[0].ns for future in held] == ["n0", "n1"]
    assert served.server.counters.connections_accepted == 2


def test_long_calls_leave_the_other_connections_free(start: Callable[..., Calling], served: Served) -> None:
    calling = start(connections=1, long_calls=2)
    held = [calling.begin(of(served), "GetResult", idl.GetResultRequest(n)) for n in range(2)]
    served.until(lambda: len(served.held) == 2)
    with pytest.raises(Overloaded):
        calling.ask(of(served), "GetResult", idl.GetResultRequest(3))
    assert ids(calling.ask(of(served), "Enqueue", enqueue(4))) == [4]
    served.on_loop(lambda: [served.release() for _ in held])
    assert [future.result(PATIENCE_S) for future in held]
    assert served.server.counters.connections_accepted == 3


def test_a_long_call_is_given_up(start: Callable[..., Calling], served: Served) -> None:
    calling, give_ups = start(long_calls=1), list[Any]()
    done = Mock()

    def ask(item_id: int) -> None:
        request = idl.GetResultRequest(item_id)
        give_ups.append(calling.caller.call(of(served), "GetResult", request, 60_000, done))

    calling.on_loop(lambda: ask(1))
    served.until(lambda: len(served.held) == 1)
    calling.on_loop(give_ups[0])
    served.until(lambda: len(served.lost) == 1)
    calling.on_loop(lambda: (ask(2), give_ups[1]()))  # before it has a connection
    assert ids(calling.ask(of(served), "Enqueue", enqueue(4))) == [4]
    calling.on_loop(give_ups[0])  # once more: it has ended
    assert not done.called


def test_large_frames_both_ways(calling: Calling, served: Served) -> None:
    assert ids(calling.ask(of(served), "Enqueue", enqueue(15 * MB))) == [15 * MB]
    future = calling.begin(of(served), "Dequeue", idl.DequeueRequest("n"))
    served.until(lambda: len(served.held) == 1)
    assert served.on_loop(lambda: served.release(15 * MB))
    assert len(future.result(PATIENCE_S).items[0].payload) == 15 * MB


def test_what_does_not_fit_a_frame_is_not_sent(start: Callable[..., Calling], served: Served) -> None:
    calling = start(Limits(frame_bytes=100_000))
    with pytest.raises(RequestTooLarge):
        calling.ask(of(served), "Enqueue", enqueue(100_000))
    assert ids(calling.ask(of(served), "Enqueue", enqueue(99_000))) == [99_000]


def test_a_fault_of_one_receiver_costs_no_other_call(calling: Calling, served: Served) -> None:
    def faulty(response: Any, error: Any) -> None:
        raise RuntimeError("a fault")

    calling.on_loop(lambda: calling.caller.call(of(served), "Enqueue", enqueue(1), 10_000, faulty))
    calling.until(lambda: len(calling.reported) == 1)
    assert ids(calling.ask(of(served), "Enqueue", enqueue(2))) == [2]
    assert served.server.counters.connections_accepted == 1


# ------------------------------------------------------------------------------------------------ lost


def test_no_server_listens(calling: Calling) -> None:
    with held_port() as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        futures = [calling.begin(address, "Enqueue", enqueue(1)) for _ in range(100)]
        for future in futures:
            assert isinstance(future.exception(PATIENCE_S), NotSent)
    calling.until(calling.is_empty)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:x", ":", "no.such.host.invalid:1"])
def test_an_address_that_leads_nowhere(calling: Calling, address: str) -> None:
    with pytest.raises(NotSent):
        calling.ask(address, "Enqueue", enqueue(1))
    calling.until(calling.is_empty)


def test_a_peer_that_does_not_take_the_connection_in_time(start: Callable[..., Calling]) -> None:
    calling = start(connect_timeout_ms=200)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        port = listener.getsockname()[1]
        for _ in range(4):  # the backlog is full: a new connection gets no answer
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        with pytest.raises(NotSent, match="in time"):
            calling.ask(f"127.0.0.1:{port}", "Enqueue", enqueue(1))


@pytest.mark.parametrize("act", [Act.CLOSE_BEFORE, Act.CLOSE_AFTER, Act.HALF, Act.JUNK, Act.WRONG_NUMBER])
def test_a_reply_that_is_lost_or_none(calling: Calling, meddling: Callable[[Meddle], Peer], act: Act) -> None:
    """The outcome is unknown then; that connection is closed and the next call takes another."""
    peer = meddling(script("Enqueue", act))
    assert len(calling.ask(peer.address, "GetServerInfo", idl.GetServerInfoRequest()).limits) == 1
    with pytest.raises(LostReply):
        calling.ask(peer.address, "Enqueue", enqueue(1))
    assert calling.ask(peer.address, "Enqueue", enqueue(1)).outcomes[0].id > 0
    assert peer.connections == 2


def test_a_silent_peer(calling: Calling, meddling: Callable[[Meddle], Peer]) -> None:
    peer = meddling(script("Enqueue", Act.SILENT))
    connect(calling, peer.address)
    with pytest.raises(LostReply, match="too long"):
        calling.ask(peer.address, "Enqueue", enqueue(1), timeout_ms=200)
    assert calling.ask(peer.address, "Enqueue", enqueue(1)).outcomes[0].id > 0


def test_a_reply_to_a_call_that_was_given_up_is_dropped(calling: Calling, served: Served) -> None:
    connect(calling, of(served), "Enqueue", enqueue(1))
    late = calling.begin(of(served), "Dequeue", idl.DequeueRequest("late"), timeout_ms=300)
    served.until(lambda: len(served.held) == 1)
    assert isinstance(late.exception(PATIENCE_S), LostReply)
    served.until(lambda: len(served.lost) == 1)
    held = calling.begin(of(served), "Dequeue", idl.DequeueRequest("next"))
    served.until(lambda: len(served.held) == 2)
    assert served.on_loop(served.release) is False
    served.on_loop(served.release)
    assert held.result(PATIENCE_S).items[0].ns == "next"


def test_a_failed_connection_is_tried_again_while_one_is_busy(
    calling: Calling, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question may wait for seconds there: an ack must not wait for that."""
    held = calling.begin(of(served), "Dequeue", idl.DequeueRequest("n"))
    served.until(lambda: len(served.held) == 1)
    connected, faults = calling.caller._open, [TimeoutError()]

    async def fails_once(*where: Any) -> Any:
        if faults:
            raise faults.pop()
        return await connected(*where)

    monkeypatch.setattr(calling.caller, "_open", fails_once)
    assert ids(calling.ask(of(served), "Enqueue", enqueue(1), timeout_ms=20_000)) == [1]
    assert (faults, held.done()) == ([], False)
    served.on_loop(served.release)


def test_a_call_that_waits_for_a_connection_was_not_sent(start: Callable[..., Calling], served: Served) -> None:
    calling = start(connections=1)
    calling.begin(of(served), "Dequeue", idl.DequeueRequest("n"))
    served.until(lambda: len(served.held) == 1)
    with pytest.raises(NotSent, match="in time"):
        calling.ask(of(served), "Enqueue", enqueue(1), timeout_ms=100)
    served.on_loop(served.release)


def test_a_request_that_did_not_go_out_whole_was_not_sent(calling: Calling) -> None:
    """The peer reads nothing of 15 MB, so it cannot have carried it out."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        future = calling.begin(address, "Enqueue", enqueue(15 * MB))
        connection, _ = listener.accept()
        assert connection.recv(4)
        connection.close()
        assert isinstance(future.exception(PATIENCE_S), NotSent)


def test_a_peer_that_is_said_to_be_gone(start: Callable[..., Calling], served: Served) -> None:
    calling = start(connections=1)
    sent = calling.begin(of(served), "Dequeue", idl.DequeueRequest("n"))
    served.until(lambda: len(served.held) == 1)
    waiting = calling.begin(of(served), "Enqueue", enqueue(1))
    calling.on_loop(lambda: calling.caller.cut(of(served)))
    assert isinstance(sent.exception(PATIENCE_S), LostReply)
    assert isinstance(waiting.exception(PATIENCE_S), NotSent)
    calling.until(calling.is_empty)
    assert ids(calling.ask(of(served), "Enqueue", enqueue(4))) == [4]


def test_a_server_that_stops(calling: Calling, serve: Callable[..., Served]) -> None:
    served = serve()
    address = of(served)
    sent = calling.begin(address, "Dequeue", idl.DequeueRequest("n"))
    served.until(lambda: len(served.held) == 1)
    served.on_loop(served.server.close)
    assert isinstance(sent.exception(PATIENCE_S), LostReply)
    assert isinstance(calling.begin(address, "Enqueue", enqueue(1)).exception(PATIENCE_S), NotSent)
    calling.until(calling.is_empty)


def test_a_call_that_meets_goaway_was_not_started(start: Callable[..., Calling], served: Served) -> None:
    def stop() -> Any:
        sent = calling.begin(of(served), "Enqueue", enqueue(1))
        waits = calling.begin(of(served), "Enqueue", enqueue(2))
        served.say_goodbye()
        return sent, waits

    calling = start(connections=1)
    assert ids(calling.ask(of(served), "Enqueue", enqueue(1))) == [1]
    sent, waits = served.on_loop(stop)
    assert isinstance(sent.exception(PATIENCE_S), NotSent)
    assert ids(waits.result(PATIENCE_S)) == [2], "over a connection of its own"
    assert served.server.counters.calls == 2


@pytest.mark.parametrize("payload_bytes", [1, MB])
def test_goaway_behind_a_reply_costs_the_connection_alone(
    start: Callable[..., Calling], served: Served, payload_bytes: int
) -> None:
    def stop() -> None:
        (connection,) = served.server._connections
        # The last of the reply leaves with the goodbye: read before it, the connection would get the next call.
        connection._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        served.release(payload_bytes)
        served.say_goodbye()

    calling = start(connections=1)
    asked = calling.begin(of(served), "Dequeue", idl.DequeueRequest("n"))
    served.until(lambda: len(served.held) == 1)
    waits = calling.begin(of(served), "Enqueue", enqueue(2))
    served.on_loop(stop)
    assert len(asked.result(PATIENCE_S).items[0].payload) == payload_bytes
    assert ids(waits.result(PATIENCE_S)) == [2]


# ------------------------------------------------------------------------------------------------ garbage


def seqid_of(frame: bytes) -> int:
    (name_bytes,) = struct.unpack_from(">I", frame, 4)
    return int(struct.unpack_from(">i", frame, 8 + name_bytes)[0])


def framed(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


RESPONSE = idl.EnqueueResponse([idl.EnqueueOutcome(id=5), idl.EnqueueOutcome(error=idl.ItemError(1, "no", 3))])
NOT_REPLIES = {
    "nothing": lambda whole: struct.pack(">I", 0),
    "a negative length": lambda whole: struct.pack(">i", -1) + whole,
    "more than a frame": lambda whole: struct.pack(">I", 100 * MB) + whole,
    "HTTP": lambda whole: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "bytes behind the message": lambda whole: framed(whole + b"\0"),
    "a call": lambda whole: framed(b"\x80\x01\x00\x01" + whole[4:]),
    "another method": lambda whole: framed(whole.replace(b"Enqueue", b"Dequeue")),
    "a text that is not UTF-8": lambda whole: framed(whole.replace(b"\0\0\0\2no", b"\0\0\0\2\xff\xfe")),
    "no result": lambda whole: framed(whole[:19] + b"\0"),
    "a billion elements": lambda whole: framed(whole[:19] + b"\x0c\0\0\x0f\0\1\x0c\x3f\xff\xff\xff\0\0"),
    "elements of no type": lambda whole: framed(whole[:19] + b"\x0c\0\0\x0f\0\1\x55\x7f\xff\xff\xff\0\0"),
}


@pytest.mark.parametrize("what", NOT_REPLIES)
def test_garbage(calling: Calling, what: str) -> None:
    def answer(frame: bytes) -> bytes:
        return NOT_REPLIES[what](encode_reply("Enqueue", RESPONSE, seqid_of(frame))[4:])

    with RawPeer(answer) as peer:
        with pytest.raises(LostReply):
            calling.ask(peer.address, "Enqueue", enqueue(1, 1))
        calling.until(calling.is_empty)


@pytest.mark.parametrize("behind", [b"\0", framed(b"x")])
def test_bytes_behind_a_reply_cost_the_connection_alone(calling: Calling, behind: bytes) -> None:
    with RawPeer(lambda frame: encode_reply("Enqueue", RESPONSE, seqid_of(frame)) + behind) as peer:
        assert ids(calling.ask(peer.address, "Enqueue", enqueue(1, 1))) == [5, None]
        calling.until(calling.is_empty)


def test_every_truncation_of_a_reply(calling: Calling) -> None:
    whole = len(encode_reply("Enqueue", RESPONSE, 1)) - 4
    lengths = iter(range(1, whole + 1))

    def answer(frame: bytes) -> bytes:
        return framed(encode_reply("Enqueue", RESPONSE, seqid_of(frame))[4 : 4 + next(lengths)])

    with RawPeer(answer) as peer:
        for _ in range(1, whole):
            with pytest.raises(OutcomeUnknown):
                calling.ask(peer.address, "Enqueue", enqueue(1, 1))
        assert ids(calling.ask(peer.address, "Enqueue", enqueue(1, 1))) == [5, None]


def test_unrequested_bytes_close_an_idle_connection(calling: Calling) -> None:
    with RawPeer(lambda frame: encode_reply("Enqueue", RESPONSE, seqid_of(frame))) as peer:
        assert ids(calling.ask(peer.address, "Enqueue", enqueue(1, 1))) == [5, None]
        peer.open[0].sendall(encode_reply("Enqueue", RESPONSE, 2))
        calling.until(calling.is_empty)
        assert ids(calling.ask(peer.address, "Enqueue", enqueue(1, 1))) == [5, None]
        assert len(peer.open) == 2


# ------------------------------------------------------------------------------------------------ bounds


def test_idle_connections_are_closed(start: Callable[..., Calling], served: Served) -> None:
    calling = start(idle_ms=100)
    assert ids(calling.ask(of(served), "Enqueue", enqueue(1))) == [1]
    calling.until(calling.is_empty)
    served.until(lambda: served.server.counters.connections == 0)
    assert ids(calling.ask(of(served), "Enqueue", enqueue(1))) == [1]


def test_a_full_budget_refuses_calls(start: Callable[..., Calling], served: Served) -> None:
    calling = start(budget=Budget(2 * MB))
    future = calling.begin(of(served), "Dequeue", idl.DequeueRequest("n" * MB))
    with pytest.raises(Overloaded):
        calling.ask(of(served), "Enqueue", enqueue(MB))
    served.until(lambda: len(served.held) == 1)
    served.on_loop(served.release)
    assert future.result(PATIENCE_S).items


def test_a_large_reply_waits_for_room(start: Callable[..., Calling], served: Served) -> None:
    calling = start(budget=Budget(2 * MB))
    future = calling.begin(of(served), "Dequeue", idl.DequeueRequest("n"))
    served.until(lambda: len(served.held) == 1)
    calling.on_loop(lambda: calling.budget.take(2 * MB - 1000))
    served.on_loop(lambda: served.release(MB))
    # A small one passes in that time.
    assert ids(calling.ask(of(served), "Enqueue", enqueue(5))) == [5]
    assert not future.done()
    calling.on_loop(lambda: calling.budget.give(2 * MB - 1000))
    assert len(future.result(PATIENCE_S).items[0].payload) == MB


def test_a_reply_that_waits_for_room_does_so_until_its_deadline(start: Callable[..., Calling], served: Served) -> None:
    calling = start(budget=Budget(2 * MB))
    connect(calling, of(served), "Enqueue", enqueue(1))
    future = calling.begin(of(served), "Dequeue", idl.DequeueRequest("n"), timeout_ms=1_000)
    served.until(lambda: len(served.held) == 1)
    calling.on_loop(lambda: calling.budget.take(2 * MB - 1000))
    served.on_loop(lambda: served.release(MB))
    assert isinstance(future.exception(PATIENCE_S), LostReply)
    calling.on_loop(lambda: calling.budget.give(2 * MB - 1000))
