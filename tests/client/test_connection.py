"""One socket: large frames, late reads, and ports that do not speak what the client speaks."""

import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from foqs.client import Client, Invalid, OutcomeUnknown, Worker
from foqs.client._sync.connection import SOON_S, Connection
from foqs.client.per_worker import Waker
from foqs.client.routes import Address, parse_addresses
from foqs.client.tls import Securing, Tls
from foqs.client.wrong_peer import Speaks, WrongPeer, spoken, why_no_handshake
from foqs.errors import LostReply, NotSent
from foqs.idl import idl
from foqs.wire.protocol import end_wait
from tests.client.peer import LATER, Act, encode_reply, eventually, script
from tests.support.certificates import Authority


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


def test_an_aborted_wait_does_not_look_for_another_protocol(ends, monkeypatch):
    """Each client that was closed sent a TLS handshake to its host, which counted an oversized frame."""
    connection, _ = ends
    monkeypatch.setattr("foqs.client._sync.connection.asked_with_tls", lambda *_: pytest.fail("asked"))
    connection.send(b"hello", monotonic() + LATER)
    connection.abort()
    with pytest.raises(LostReply):
        connection.receive(monotonic() + LATER)


def test_late_and_nothing_there_is_a_lost_reply(ends):
    connection, _ = ends
    with pytest.raises(LostReply, match="timed out"):
        connection.receive(monotonic() - 1)


@pytest.mark.parametrize("every_s", [0, 3 * SOON_S])
def test_a_silent_peer_gets_no_more_time_because_of_signals(ends, every_s):
    connection, _ = ends
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        begun = monotonic()
        with pytest.raises(LostReply, match="timed out"):
            connection.receive(begun + 0.3)
        assert 0.3 <= monotonic() - begun < LATER / 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_socket_of_another_library_never_waits(monkeypatch):
    class Elsewhere:
        def __init__(self, inside: socket.socket) -> None:
            self.inside = inside

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inside, name)

    ours, other = socket.socketpair()
    monkeypatch.setattr(Elsewhere, "setsockopt", lambda *_: None, raising=False)
    monkeypatch.setattr("foqs.client._sync.connection.socket.create_connection", lambda *_: Elsewhere(ours))
    connection = Connection(Address("127.0.0.1", 1), LATER)
    assert not ours.getblocking()
    with pytest.raises(LostReply, match="timed out"):
        connection.exchange(b"hello", monotonic() + 0.05)
    other.sendall(b"\0\0\0\2ok")
    assert connection.exchange(b"hello", monotonic() + LATER) == b"ok"
    connection.close()
    other.close()


def test_a_handler_of_a_signal_ends_the_wait_for_a_reply(ends):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    connection, _ = ends
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for after_s in (SOON_S / 2, 10 * SOON_S):
            signal.setitimer(signal.ITIMER_REAL, after_s)
            with pytest.raises(KeyboardInterrupt):
                connection.receive(monotonic() + LATER)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("after_s", [0, 4 * SOON_S])
def test_a_reply_that_comes_sooner_or_later_is_read(ends, after_s):
    connection, other = ends
    answer = threading.Timer(after_s, other.sendall, (b"\0\0\0\2ok",))
    answer.start()
    assert connection.receive(monotonic() + LATER) == b"ok"
    answer.join(LATER)


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


PATIENT_MS = int(LATER * 1000)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr("foqs.client._sync.connection.PROBE_S", LATER)


def refused_with(address, text, **options):
    """A single address: each kind of call fails at once."""
    with Client(address, timeout_ms=PATIENT_MS, routing=False, **options) as client:
        for call in (
            lambda: client.enqueue("t", b"x"),
            lambda: client.enqueue("t", b"x", dedup_key="a"),
            lambda: client.dequeue("t"),
            lambda: client.enqueue("t", b"x" * 4_000_000),
        ):
            with pytest.raises(WrongPeer, match=text) as raised:
                call()
            assert address in str(raised.value)
            assert isinstance(raised.value, Invalid)
        assert client.waits == (0, 0.0), "it was not tried again"


@pytest.mark.parametrize("token", [None, "secret"])
def test_an_http_port_is_named(http, token):
    refused_with(http, "speaks HTTP.*admin port.*by default 7707", token=token)


def test_an_http_port_is_named_by_a_client_with_tls(http):
    refused_with(http, "speaks HTTP", tls="on")


@pytest.mark.parametrize("says_why", [False, True])
@pytest.mark.parametrize("token", [None, "secret"])
def test_a_port_with_tls_is_named(tls_port, says_why, token):
    refused_with(tls_port(says_why), "speaks TLS, and this client does not: turn TLS on.*--tls", token=token)


def test_a_port_without_tls_is_named(peer, authority):
    refused_with(peer.address, "speaks foqs without TLS.*turn TLS off.*--tls", tls=Tls(authority.ca_file))


def test_a_certificate_that_is_not_trusted_is_no_wrong_port(tls_port):
    (address,) = parse_addresses(tls_port(True))
    with pytest.raises(NotSent, match="its certificate is not trusted"):
        Connection(address, LATER, Securing(Tls()))


def test_other_addresses_are_tried_if_one_is_a_wrong_port(http, peer):
    with Client(f"{http},{peer.address}", timeout_ms=PATIENT_MS, routing=False) as client:
        ids = [client.enqueue("t", b"x") for _ in range(6)]
    assert sorted(ids) == sorted(peer.items)


def test_a_lost_reply_of_a_host_stays_a_lost_reply(new_peer, client_of):
    client = client_of(new_peer(script("Enqueue", Act.CLOSE_AFTER)), routing=False)
    with pytest.raises(OutcomeUnknown):
        client.enqueue("t", b"x")


def test_a_worker_on_a_wrong_port_ends(http):
    with Client(http, routing=False) as client:
        worker = Worker(client, "t", lambda item: None)
        worker.start()
        with pytest.raises(WrongPeer):
            worker.join(PATIENT_MS)


def test_what_the_first_bytes_of_a_reply_say():
    reply = encode_reply("GetServerInfo", idl.GetServerInfoResponse(version="1", limits={}), 1)
    assert spoken(reply[:6]) is Speaks.PLAIN
    for head in (b"HTTP/1.0 400", b"<!DOCT"):
        assert spoken(head) is Speaks.HTTP
    assert spoken(bytes.fromhex("1503030002")) is Speaks.TLS
    for head in (b"", b"\0\0", b"SSH-2.0", b"\0\0\0\x08\xff\xff"):
        assert spoken(head) is None


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionRefusedError(), ssl.SSLCertVerificationError()])
def test_a_handshake_that_failed_otherwise_asks_nothing(error):
    assert why_no_handshake(error, lambda: pytest.fail("asked")) is None


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("http://db1:7707", r"is no URL \(http://...\): give host:port alone \(db1:7707\)$"),
        ("a:1, https://user:secret@db1:7707/path", r"\(db1:7707\) and turn TLS on"),
        ("http://localhost", r"\(localhost\)"),
        ("a:b:c", "neither host:port nor an IPv6 address"),
    ],
)
def test_a_url_is_no_address_and_the_error_shows_one(text, advice):
    with pytest.raises(Invalid, match=advice):
        parse_addresses(text)
