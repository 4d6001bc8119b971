"""One socket: frames larger than its buffers, and a reply received in time that is read late."""

import socket
import ssl
import threading
from collections.abc import Iterator
from time import monotonic

import pytest

from foqs.client.connection import Address, Connection, Securing, Tls
from foqs.client.places import Waker
from foqs.errors import LostReply, NotSent
from foqs.wire.protocol import end_wait
from tests.client.peer import LATER, eventually
from tests.support.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["plain", "tls"])
def ends(request: pytest.FixtureRequest, authority: Authority) -> Iterator[tuple[Connection, socket.socket]]:
    """The client's connection and the socket of its peer."""
    accepted: list[socket.socket] = []

    def accept() -> None:
        other, _ = listener.accept()
        if request.param == "tls":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*authority.issue("127.0.0.1"))
            other = context.wrap_socket(other, server_side=True)
        accepted.append(other)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        securing = Securing(Tls(ca_file=authority.ca_file)) if request.param == "tls" else None
        connection = Connection(Address("127.0.0.1", listener.getsockname()[1]), LATER, securing)
        accepting.join(LATER)
        with accepted[0]:
            yield connection, accepted[0]
        connection.close()


def test_a_reply_received_in_time_is_read_late(ends):
    """It was stopped in between, or had to connect to a silent host for another part of its call."""
    connection, other = ends
    other.sendall(b"\0\0\0\2ok")
    assert connection.exchange(b"hello", monotonic() + LATER) == b"ok"  # reads what TLS sends behind its handshake
    connection.send(b"hello", monotonic() + LATER)
    other.sendall(b"\0\0\0\2ok")
    eventually(lambda: not connection.usable())
    assert connection.receive(monotonic() - 1) == b"ok"


def test_late_and_nothing_there_is_a_lost_reply(ends):
    connection, _ = ends
    with pytest.raises(LostReply, match="timed out"):
        connection.receive(monotonic() - 1)


def test_a_reply_that_comes_byte_by_byte_gets_no_more_time(ends):
    connection, other = ends
    ended = threading.Event()

    def dribble() -> None:
        while not ended.wait(0.6):
            other.sendall(b"\0")

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        with pytest.raises(LostReply, match="timed out"):
            connection.receive(monotonic() + 1)
    finally:
        ended.set()
        thread.join(LATER)


LARGE = (8 << 20).to_bytes(4, "big") + bytes(8 << 20)


def received(other: socket.socket, size: int) -> int:
    while size and (data := other.recv(size)):
        size -= len(data)
    return size


def test_a_frame_larger_than_the_buffers_is_sent_whole(ends):
    connection, other = ends
    missing: list[int] = []
    reader = threading.Thread(target=lambda: (missing.append(received(other, len(LARGE))), other.sendall(LARGE)))
    reader.start()
    assert connection.exchange(LARGE, monotonic() + LATER) == LARGE[4:]
    reader.join(LATER)
    assert missing == [0]
    assert connection.usable()


def test_a_peer_that_does_not_read_has_not_seen_the_request(ends):
    connection, _ = ends
    with pytest.raises(NotSent, match="timed out"):
        connection.send(LARGE, monotonic() + 0.2)


def test_the_end_within_a_large_reply_is_a_lost_reply(ends):
    connection, other = ends
    connection.send(b"hello", monotonic() + LATER)
    other.sendall(LARGE[: 1 << 16])
    other.shutdown(socket.SHUT_WR)
    with pytest.raises(LostReply, match="closed within the reply"):
        connection.receive(monotonic() + LATER)


class Asked:
    """In place of an `Ask`."""

    def __init__(self, *cuts: bool) -> None:
        self._waker = Waker()
        self._cuts = list(cuts)
        if cuts:
            self._waker.wake()

    def fileno(self) -> int:
        return self._waker.fileno()

    def cuts(self) -> bool:
        cut = self._cuts.pop(0)
        if not self._cuts:
            self._waker.rest()
        return cut


def test_the_wait_of_a_request_is_ended(ends):
    connection, other = ends
    connection.send(b"hello", monotonic() + LATER)
    received = bytearray()

    def serve() -> None:
        while len(received) < 5 + len(end_wait()):
            received.extend(other.recv(100))
        other.sendall(b"\0\0\0\2ok")

    thread = threading.Thread(target=serve)
    thread.start()
    assert connection.receive(monotonic() + LATER, Asked(False, True)) == b"ok"
    thread.join(LATER)
    assert bytes(received) == b"hello" + end_wait()
    assert connection.usable()


def test_a_reply_that_is_there_ends_the_wait_by_itself(ends):
    connection, other = ends
    connection.send(b"hello", monotonic() + LATER)
    other.sendall(b"\0\0\0\2ok")
    eventually(lambda: not connection.usable())
    assert connection.receive(monotonic() + LATER, Asked()) == b"ok"
    assert other.recv(100) == b"hello"


def test_a_wait_that_is_not_ended_is_a_lost_reply(ends):
    connection, _ = ends
    with pytest.raises(LostReply, match="timed out"):
        connection.receive(monotonic() + 0.2, Asked(False, False))
