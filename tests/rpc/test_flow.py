"""Slow senders, slow readers, and a budget that is short."""

import struct
import threading
from collections.abc import Callable

import pytest

from foqs.bounds import Budget, Limits
from foqs.idl import idl
from foqs.rpc.connection import BEHIND_BYTES
from tests.rpc.serving import PATIENCE_S, Peer, Served, framed, message

pytestmark = pytest.mark.slow  # they wait for real deadlines
Serve = Callable[..., Served]
MB = 1 << 20


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def encryption(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def enqueue(size: int, seqid: int = 1) -> bytes:
    return framed(message("Enqueue", idl.EnqueueRequest("n", [idl.ItemSpec("t", b"x" * size)]), seqid))


def dequeue(ns: str) -> bytes:
    return framed(message("Dequeue", idl.DequeueRequest(ns)))


def test_a_frame_that_does_not_come_whole_in_its_time(serve: Serve) -> None:
    served = serve(frame_timeout_s=0.3)
    served.stop_clock()
    with served.peer() as neighbour, served.peer() as head, served.peer() as part:
        head.send(b"\0")
        part.send(enqueue(100_000)[:-1])
        served.until(lambda: len(served.server.frames) == 2 and served.budget.used_bytes > 100_000)
        served.advance(0.3)
        assert head.is_closed()
        assert part.is_closed()
        assert neighbour.call("GetItem", idl.GetItemRequest(1)).retry_after_ms == 5
    assert served.server.counters.closed == {"slow frame": 2}


def test_changed_times_count_for_frames_in_flight(serve: Serve) -> None:
    served = serve(frame_timeout_s=3600.0, idle_timeout_s=3600.0)
    with served.peer() as part:
        part.send(enqueue(100_000)[:-1])
        served.until(lambda: served.budget.used_bytes > 100_000)
        served.server.bound(5000, None, frame_timeout_s=0.2, idle_timeout_s=3600.0)
        assert part.is_closed()
    assert served.server.counters.closed == {"slow frame": 1}


@pytest.mark.parametrize("cut", [2, 100])
def test_every_frame_has_its_own_time(serve: Serve, cut: int) -> None:
    served = serve(frame_timeout_s=0.4)
    served.stop_clock()
    frame = enqueue(200)
    with served.peer() as peer:
        peer.send(frame[:cut])
        for _ in range(4):
            served.until(lambda: served.budget.used_bytes > 0)
            served.advance(0.3)
            peer.send(frame[cut:] + frame[:cut])
            assert peer.answer("Enqueue")[1].outcomes[0].id == 200
        served.until(lambda: served.budget.used_bytes > 0)
        served.advance(0.5)
        assert peer.is_closed()
    assert served.server.counters.closed == {"slow frame": 1}


def test_a_frame_is_charged_for_its_received_bytes(served: Served) -> None:
    frame = enqueue(9 * MB)
    with served.peer() as peer:
        sent = 0
        for end, most in ((100, 8 * 1024), (MB, 2 * MB + 8 * 1024), (4 * MB, 5 * MB + 8 * 1024)):
            peer.send(frame[sent:end])
            sent = end
            served.until(lambda end=end: served.budget.used_bytes >= end - 4)
            assert served.budget.used_bytes <= most
    served.until(lambda: served.budget.used_bytes == 0)


def test_large_frames_from_many_clients_all_finish(serve: Serve) -> None:
    """Together they are four times the budget, and each has begun before the first one is whole."""
    served = serve(limits=Limits(frame_bytes=4 * MB), budget=Budget(6 * MB))
    frames = [enqueue(3 * MB - number) for number in range(8)]
    peers = [served.peer() for _ in frames]
    for peer, frame in zip(peers, frames, strict=True):
        peer.send(frame[:10])
    senders = [
        threading.Thread(target=peer.send, args=(frame[10:],)) for peer, frame in zip(peers, frames, strict=True)
    ]
    for sender in senders:
        sender.start()
    most = 0
    for number, peer in enumerate(peers):
        assert peer.answer("Enqueue")[1].outcomes[0].id == 3 * MB - number
        most = max(most, served.budget.used_bytes)
    assert most <= 6 * MB
    for sender, peer in zip(senders, peers, strict=True):
        sender.join(PATIENCE_S)
        peer.close()
    served.until(lambda: served.budget.used_bytes == 0)
    assert served.server.counters.closed == {}
    assert len(served.server.frames) == served.server.frames.waiting == 0


def test_a_budget_without_room(serve: Serve, encryption: bool) -> None:
    budget = Budget(20 * MB)
    served = serve(budget=budget)
    served.on_loop(lambda: budget.take(20 * MB))
    peers = [served.peer() for _ in range(3)]
    for peer in peers:
        peer.send(enqueue(100_000) + enqueue(10))
    served.until(lambda: served.server.counters.budget_waits == 3)
    # The lengths; and under TLS the bytes read together with the end of the handshake.
    assert budget.used_bytes <= 20 * MB + 3 * (4 + 64 * 1024 * encryption)
    served.on_loop(lambda: budget.give(20 * MB))
    for peer in peers:
        assert peer.answer("Enqueue")[1].outcomes[0].id == 100_000
        assert peer.answer("Enqueue")[1].outcomes[0].id == 10
        peer.close()


def test_a_connection_closed_while_it_waits_waits_no_more(serve: Serve) -> None:
    budget = Budget(20 * MB)
    served = serve(budget=budget)
    served.on_loop(lambda: budget.take(20 * MB))
    with served.peer() as peer:
        peer.send(enqueue(100_000))
        served.until(lambda: served.server.counters.budget_waits == 1)
        served.on_loop(lambda: (served.server.close(), budget.give(20 * MB)))
        assert peer.is_closed()


def send_until_full(peer: Peer, data: bytes) -> int:
    """Sends without waiting, again and again, until the other side takes no more. Returns the bytes sent."""
    sent = 0
    peer.socket.settimeout(0.3)
    try:
        while sent < 64 * MB:
            sent += peer.socket.send(data[sent % len(data) :])
    except TimeoutError:
        pass
    peer.socket.settimeout(PATIENCE_S)
    return sent


def test_frames_behind_a_call_in_progress_are_bounded(served: Served, encryption: bool) -> None:
    with served.peer() as peer:
        peer.send(dequeue("first"))
        served.until(lambda: len(served.held) == 1)
        frame = enqueue(1000)
        sent = send_until_full(peer, frame)
        assert sent < 64 * MB
        assert served.budget.used_bytes <= BEHIND_BYTES + 1000 + 4096 * encryption  # TLS reads whole records
        served.on_loop(served.release)
        peer.answer("Dequeue")
        for _ in range(sent // len(frame)):
            assert peer.answer("Enqueue")[1].outcomes[0].id == 1000


def test_a_slow_reader_gets_everything_and_blocks_no_peer(served: Served) -> None:
    with served.peer() as peer, served.peer() as neighbour:
        peer.send(dequeue("a") + dequeue("b"))
        served.until(lambda: len(served.held) == 1)
        served.on_loop(lambda: served.release(15 * MB))
        # What the kernel did not take is held, and counted; the next request is not begun until it is taken.
        assert served.budget.used_bytes > MB
        assert served.held == []
        assert neighbour.call("GetItem", idl.GetItemRequest(1)).retry_after_ms == 5
        head = peer.read(4)
        content = bytearray()
        while len(content) < struct.unpack(">I", head)[0]:
            content += peer.read(min(256 * 1024, struct.unpack(">I", head)[0] - len(content)))
        assert content.count(b"p") >= 15 * MB
        served.until(lambda: len(served.held) == 1)
        served.on_loop(served.release)
        assert peer.answer("Dequeue")[1].items[0].ns == "b"
        served.until(lambda: served.budget.used_bytes == 0)


def test_a_reader_that_takes_nothing_is_closed(serve: Serve) -> None:
    served = serve()
    with served.peer() as peer:
        peer.send(dequeue("a"))
        served.until(lambda: len(served.held) == 1)
        served.server.bound(5000, None, frame_timeout_s=0.3, idle_timeout_s=3600.0)  # not for a handshake
        served.on_loop(lambda: served.release(15 * MB))
        served.until(lambda: served.server.counters.connections == 0)
    assert served.server.counters.closed == {"slow reader": 1}
    assert served.budget.used_bytes == 0


def test_a_reader_that_disconnects_gives_back_its_bytes(served: Served) -> None:
    peer = served.peer()
    peer.send(dequeue("a") + enqueue(10))
    served.until(lambda: len(served.held) == 1)
    served.on_loop(lambda: served.release(15 * MB))
    assert served.budget.used_bytes > MB
    peer.close()
    served.until(lambda: served.server.counters.connections == 0)
    assert served.budget.used_bytes == 0
    assert served.lost == []


def test_many_small_calls_leave_turns_to_other_peers(served: Served) -> None:
    gate = threading.Event()
    with served.peer() as greedy, served.peer() as neighbour:
        small = enqueue(1)
        assert len(small) * 600 < BEHIND_BYTES
        served.until(lambda: served.server.counters.connections == 2)
        served.loop.call_soon_threadsafe(gate.wait)
        greedy.send(small * 600)
        neighbour.send(framed(message("GetItem", idl.GetItemRequest(1))))
        gate.set()
        neighbour.answer("GetItem")
        assert served.calls_before_look <= 200
        for _ in range(600):
            assert greedy.answer("Enqueue")[1].outcomes[0].id == 1
