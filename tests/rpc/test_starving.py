"""Connections that hold unfinished frames: other callers are answered all the while."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ssl import SSLWantWriteError

import pytest

from foqs.budget import Budget
from foqs.errors import Code
from foqs.idl import idl
from foqs.limits import Limits
from foqs.wire.protocol import SMALL_BYTES
from tests.rpc.serving import Peer, Served, framed, message

pytestmark = pytest.mark.slow  # they wait for real deadlines
Serve = Callable[..., Served]
MB = 1 << 20
HEAD = struct.pack(">I", 16_000_000)
BUDGET_BYTES = 128 * MB
SERVED_SHARE = 0.5
"""Of the budget; beyond it a host drops windows, and refuses requests soon after."""


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def encryption(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def enqueue(size: int) -> bytes:
    return framed(message("Enqueue", idl.EnqueueRequest("n", [idl.ItemSpec("t", b"x" * size)])))


def answered(peer: Peer, calls: int = 20) -> bool:
    return all(peer.call("GetItem", idl.GetItemRequest(1)).retry_after_ms == 5 for _ in range(calls))


def unfinished(served: Served, count: int) -> None:
    served.until(lambda: len(served.server.frames) == count)


def received(served: Served, size: int) -> None:
    """Wait until the server has so many bytes of unfinished frames, without their heads."""
    served.until(lambda: sum(frame.received_bytes for frame in served.server.frames._all) == size)


@pytest.mark.parametrize("known", [True, False], ids=["open", "authentication"])
def test_lengths_that_are_announced_take_no_room(serve: Serve, stack: ExitStack, encryption: bool, known: bool) -> None:
    served = serve(budget=Budget(BUDGET_BYTES), trusts=lambda names: known)
    attackers = [stack.enter_context(served.peer()) for _ in range(9 if encryption else 7)]
    for attacker in attackers:
        attacker.send(HEAD)
    unfinished(served, len(attackers))
    assert served.budget.used_bytes <= len(attackers) * 32 * 1024
    with served.peer() as client:
        assert answered(client)
        if known:
            client.send(enqueue(MB))
            assert client.answer("Enqueue")[1].outcomes[0].id == MB
    assert len(served.server.frames) == len(attackers)
    assert served.server.counters.closed == {}


def test_large_frames_that_stand_still_leave_room(serve: Serve, stack: ExitStack) -> None:
    """All that 12 connections can send of 16 MB each, from one address, is less than half of the budget."""
    served = serve(budget=Budget(BUDGET_BYTES))
    served.stop_clock()
    frame = enqueue(16_000_000)
    senior, *others = (stack.enter_context(served.peer()) for _ in range(12))
    senior.send(frame[:-1])
    received(served, len(frame) - 5)
    for attacker in others:
        attacker.send(frame[:MB])
    served.until(lambda: served.server.frames.waiting == len(others))
    for attacker in others:
        attacker.socket.settimeout(0.0)
        with pytest.raises((BlockingIOError, SSLWantWriteError)):  # the server reads no more of them
            while True:
                attacker.socket.send(frame)
    assert served.budget.used_bytes < SERVED_SHARE * BUDGET_BYTES
    with served.peer() as client:
        assert answered(client)


def test_a_frame_that_stands_still_is_cut_for_waiting_ones(serve: Serve, stack: ExitStack) -> None:
    served = serve(limits=Limits(frame_bytes=4 * MB), budget=Budget(6 * MB))
    served.stop_clock()
    frame = enqueue(3 * MB)
    slow, other = (stack.enter_context(served.peer()) for _ in range(2))
    slow.send(frame[:MB])
    served.until(lambda: served.budget.used_bytes >= MB)
    other.send(frame[:MB])
    served.until(lambda: served.server.frames.waiting == 1)
    for _ in range(3):
        served.advance(1.0)
    assert slow.is_closed()
    other.send(frame[MB:])
    assert other.answer("Enqueue")[1].outcomes[0].id == 3 * MB
    assert served.server.counters.closed == {"slow frame": 1}


def test_slow_frames_are_left_alone_while_there_is_room(serve: Serve, stack: ExitStack) -> None:
    served = serve(budget=Budget(BUDGET_BYTES))
    served.stop_clock()
    frame = enqueue(MB)
    slow = [stack.enter_context(served.peer()) for _ in range(5)]
    for peer in slow:
        peer.send(frame[:-1])
    unfinished(served, 5)
    served.until(lambda: served.budget.used_bytes >= 5 * MB)
    for _ in range(2):
        served.advance(10.0)
    for peer in slow:
        peer.send(frame[-1:])
        assert peer.answer("Enqueue")[1].outcomes[0].id == MB


def test_an_unauthenticated_caller_sends_small_frames_only(serve: Serve) -> None:
    served = serve(trusts=lambda names: False)
    with served.peer() as peer:
        for _ in range(2):
            peer.send(enqueue(9 * MB))
            error = peer.answer("Enqueue")[1]
            assert error.code == Code.UNAUTHENTICATED
            assert "GetServerInfo" in error.message
            assert str(SMALL_BYTES) in error.message
        assert answered(peer)
        peer.send(framed(b"\x80\x01\x00\x01\x00\x00\x00\x04Nope\x00\x00\x00\x07" + bytes(MB)))
        assert "unknown method" in str(peer.answer("Enqueue")[1])
        peer.send(framed(bytes(MB)))
        assert peer.is_closed()
    assert served.server.counters.refused == {"unauthenticated": 2, "unknown method": 1}
    assert served.server.counters.closed == {"malformed": 1}


def test_a_large_frame_of_a_stranger_is_not_held(serve: Serve) -> None:
    served = serve(trusts=lambda names: False)
    frame = enqueue(9 * MB)
    with served.peer() as peer:
        peer.send(frame[:-1])
        received(served, len(frame) - 5)
        assert served.budget.used_bytes < 8 * 1024
        peer.send(frame[-1:])
        assert peer.answer("Enqueue")[1].code == Code.UNAUTHENTICATED


def test_large_frames_pass_after_an_authenticated_call(serve: Serve) -> None:
    served = serve(trusts=lambda names: False)
    handle = served.server.handlers["GetItem"]

    def authenticated(call: object) -> None:
        call.trust()  # type: ignore[attr-defined]
        handle(call)  # type: ignore[arg-type]

    served.server.handlers["GetItem"] = authenticated
    with served.peer() as peer:
        assert answered(peer, 1)
        peer.send(enqueue(9 * MB))
        assert peer.answer("Enqueue")[1].outcomes[0].id == 9 * MB
