"""Connections that hold unfinished frames: other callers are answered all the while."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from ssl import SSLWantWriteError
from time import sleep

import pytest

from foqs.bounds import Budget, Limits
from foqs.errors import Code, NotFound
from foqs.idl import idl
from foqs.rpc.certificates import server_context
from foqs.rpc.frames import PATIENCE_S as FRAME_PATIENCE_S
from foqs.wire.protocol import SMALL_BYTES
from tests.rpc.serving import PATIENCE_S, Peer, Served, framed, message
from tests.support.certificates import Authority

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
    served.until(lambda: sum(frame.received_bytes for frame in served.server.frames.unfinished) == size)


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


# --------------------------------------------------------------------------------- many small frames without their end

SMALL_BUDGET_BYTES = 16 * MB
CROWD = 400
"""Small frames of this number are more than the budget."""
BEGUN = framed(bytes(SMALL_BYTES))[:-1]


def trusting(call: object) -> None:
    call.trust()  # type: ignore[attr-defined]
    call.fail(NotFound("no such item", 5))  # type: ignore[attr-defined]


def crowd(served: Served, stack: ExitStack, kind: str) -> list[Peer]:
    """Connections that send all but the last byte of a frame, each as far as the host reads it."""
    begun = framed(bytes(SMALL_BYTES + 1))[:-1] if kind == "large" else BEGUN
    peers = [stack.enter_context(served.peer()) for _ in range(CROWD)]
    for peer in peers:
        if kind in ("proven", "large"):
            assert answered(peer, 1)
        if kind == "behind a call":
            peer.send(framed(message("Dequeue", idl.DequeueRequest("n"))))
        peer.socket.settimeout(0.0)
        with suppress(BlockingIOError, SSLWantWriteError):
            peer.socket.send(begun)
        peer.socket.settimeout(PATIENCE_S)
    if kind == "behind a call":
        served.until(lambda: len(served.held) == CROWD)
    else:
        unfinished(served, CROWD)
    return peers


@pytest.mark.parametrize("kind", ["stranger", "open", "proven", "behind a call", "large"])
def test_a_crowd_of_unfinished_frames_leaves_room(serve: Serve, stack: ExitStack, encryption: bool, kind: str) -> None:
    """Neither their bytes nor their number keep a client from an answer, nor the host from its work."""
    served = serve(
        limits=Limits(frame_bytes=MB), budget=Budget(SMALL_BUDGET_BYTES), trusts=lambda names: kind != "stranger"
    )
    served.server.handlers["GetItem"] = trusting
    client = stack.enter_context(served.peer())
    assert answered(client)
    crowd(served, stack, kind)
    assert served.budget.used_bytes < SERVED_SHARE * SMALL_BUDGET_BYTES
    assert answered(client)
    whole = enqueue(60_000)
    client.send(whole[:30_000])
    client.send(whole[30_000:])
    assert client.answer("Enqueue")[1].outcomes[0].id == 60_000
    with served.peer() as stranger:
        stranger.send(whole)
        assert stranger.answer("Enqueue")[1].outcomes[0].id == 60_000
    assert served.budget.used_bytes < SERVED_SHARE * SMALL_BUDGET_BYTES


def test_only_strangers_wait_for_their_share(serve: Serve, stack: ExitStack) -> None:
    served = serve(limits=Limits(frame_bytes=MB), budget=Budget(SMALL_BUDGET_BYTES), trusts=lambda names: False)
    served.server.handlers["GetItem"] = trusting
    served.stop_clock()  # no frame gets old, so the strangers keep their share
    client = stack.enter_context(served.peer())
    assert answered(client)
    crowd(served, stack, "stranger")
    waits = served.server.counters.budget_waits
    assert waits > 0
    whole = enqueue(60_000)
    client.send(whole[:30_000])
    unfinished(served, CROWD + 1)
    client.send(whole[30_000:])
    assert client.answer("Enqueue")[1].outcomes[0].id == 60_000
    assert served.server.counters.budget_waits == waits
    with served.peer() as stranger:
        stranger.send(whole)  # more than is read of it before it is admitted
        assert stranger.answer("Enqueue")[1].outcomes[0].id == 60_000
    assert served.server.counters.closed == {}


def test_a_frame_that_trickles_is_closed_by_its_age(serve: Serve, stack: ExitStack) -> None:
    served = serve(limits=Limits(frame_bytes=MB), budget=Budget(SMALL_BUDGET_BYTES))
    served.stop_clock()
    frames = served.server.frames
    limit = frames.small_share_bytes // SMALL_BYTES
    first = stack.enter_context(served.peer())
    first.send(BEGUN[:2])
    unfinished(served, 1)
    for number in range(3):  # age counts from the first byte
        served.advance(0.8)
        first.send(BEGUN[2 + number : 3 + number])
        received(served, number - 1 if number > 1 else 0)
    assert served.server.counters.closed == {}
    for _ in range(limit):
        stack.enter_context(served.peer()).send(BEGUN)
    served.until(lambda: frames.waiting > 0 or served.server.counters.closed != {})
    assert first.is_closed()
    assert served.server.counters.closed == {"slow frame": 1}


def test_a_pause_of_the_host_makes_no_frame_slow(serve: Serve, stack: ExitStack, encryption: bool) -> None:
    """The rest of each frame is in its socket when the host goes on; most of them wait for room."""
    served = serve(limits=Limits(frame_bytes=MB), budget=Budget(8 * MB))
    whole = enqueue(600_000)
    peers = [stack.enter_context(served.peer()) for _ in range(60)]
    for peer in peers:
        peer.send(whole[:20_000])
    unfinished(served, len(peers))
    served.until(lambda: served.server.frames.waiting > 0)
    served.loop.call_soon_threadsafe(sleep, 2 * FRAME_PATIENCE_S)
    with ThreadPoolExecutor(len(peers)) as threads:
        for _ in threads.map(lambda peer: peer.send(whole[20_000:]), peers):
            pass
        ids = threads.map(lambda peer: peer.answer("Enqueue")[1].outcomes[0].id, peers)
        assert set(ids) == {600_000}
    assert served.server.counters.closed == {}


def test_handshakes_with_much_to_say_are_bounded(serve: Serve, authority: Authority, stack: ExitStack) -> None:
    served = serve(
        limits=Limits(frame_bytes=MB),
        budget=Budget(SMALL_BUDGET_BYTES),
        tls=server_context(authority.section(authority.issue("127.0.0.1"))),
        client_tls=authority.client(),
    )
    hello = b"\x01" + (130_000).to_bytes(3, "big") + bytes(130_000)
    records = [b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in (hello[:16_000], hello[16_000:32_000])]
    for _ in range(60):
        peer = stack.enter_context(Peer(served.address))
        peer.send(b"".join(records))
    served.until(lambda: served.server.frames.waiting > 0)
    assert served.budget.used_bytes < SERVED_SHARE * SMALL_BUDGET_BYTES
    with served.peer() as client:
        assert answered(client)
    with Peer(served.address) as talker:
        for start in range(0, len(hello), 16_000):
            part = hello[start : start + 16_000]
            with suppress(OSError):
                talker.send(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part)
        assert talker.is_closed()
