"""TLS on the port and between hosts: which peers get in, which are refused, and the cost of a handshake."""

import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from foqs.bounds import Budget
from foqs.client._sync.connection import Connection
from foqs.client.routes import Address
from foqs.client.tls import Securing, Tls
from foqs.config.load import TlsSection
from foqs.errors import Invalid, LostReply, NotSent
from foqs.idl import idl
from foqs.rpc.certificates import peer_context, server_context
from foqs.rpc.tls import names_of
from tests.rpc.calling import Calling
from tests.rpc.serving import PATIENCE_S, Peer, Served, framed, message
from tests.support.certificates import Authority, Pair

Serve = Callable[..., Served]
MB = 1 << 20
LOOK = idl.GetItemRequest(1)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("foreign"), "foreign")


@pytest.fixture(scope="module")
def own(authority: Authority) -> Pair:
    return authority.issue("127.0.0.1")


@pytest.fixture
def mutual(serve: Serve, authority: Authority, own: Pair) -> Served:
    context = server_context(authority.section(own, client_certificates="required"))
    return serve(tls=context, client_tls=authority.client(own))


def looked(peer: Peer) -> bool:
    return peer.call("GetItem", LOOK).retry_after_ms == 5


def test_a_plain_connection_to_a_tls_port_is_closed(serve: Serve, authority: Authority, own: Pair) -> None:
    served = serve(tls=server_context(authority.section(own)), client_tls=authority.client())
    with Peer(served.address) as plain, served.peer() as neighbour:
        plain.send(framed(message("GetItem", LOOK)))
        assert b"\0" not in plain.read(100)[:1]  # an alert, and the end
        assert plain.is_closed()
        assert looked(neighbour)
    served.until(lambda: served.server.counters.connections == 0)
    assert served.server.counters.closed == {"tls": 1}


def test_a_silent_handshake_takes_a_place_until_its_time_out(serve: Serve, authority: Authority, own: Pair) -> None:
    served = serve(
        max_connections=2,
        frame_timeout_s=0.5,
        tls=server_context(authority.section(own)),
        client_tls=authority.client(),
    )
    served.stop_clock()
    with Peer(served.address) as silent, Peer(served.address) as begun:
        begun.send(b"\x16\x03\x01\x02\x00")
        served.until(lambda: served.server.counters.connections == 2)
        with pytest.raises(OSError):
            served.peer()
        served.advance(0.5)
        assert silent.is_closed()
        assert begun.is_closed()
    served.until(lambda: served.server.counters.connections == 0)
    assert served.server.counters.closed == {"slow frame": 2}
    with served.peer() as later:
        assert looked(later)


def test_a_stop_waits_for_no_handshake(serve: Serve, authority: Authority, own: Pair) -> None:
    served = serve(tls=server_context(authority.section(own)), client_tls=authority.client())
    with Peer(served.address) as silent, served.peer() as peer:
        assert looked(peer)

        async def drain() -> bool:
            return await served.server.drain(served.loop.time() + PATIENCE_S)

        assert served.wait(drain()) is True
        assert silent.is_closed()
        assert peer.goodbye()


@pytest.mark.parametrize("kind", ["none", "foreign", "expired"])
def test_a_client_without_a_good_certificate_is_refused(
    mutual: Served, authority: Authority, foreign: Authority, kind: str
) -> None:
    pairs = {"none": None, "foreign": foreign.issue("c.test"), "expired": authority.issue("c.test", expired=True)}
    pair = pairs[kind]
    with mutual.peer() as good:
        assert looked(good)
    address = Address(*mutual.address)
    tls = Tls(authority.ca_file, pair and pair.cert_file, pair and pair.key_file)
    connection = Connection(address, PATIENCE_S, Securing(tls))
    try:
        with pytest.raises(NotSent, match="does not take the client's certificate"):
            connection.exchange(
                framed(message("Enqueue", idl.EnqueueRequest("n", []))), mutual.loop.time() + PATIENCE_S
            )
    finally:
        connection.close()
    mutual.until(lambda: mutual.server.counters.connections == 0)
    assert mutual.server.counters.closed == {"tls": 1}
    assert mutual.server.counters.calls == 1


def test_a_handler_can_know_the_certificates_names(mutual: Served, authority: Authority) -> None:
    pair = authority.issue("worker.test", common_name="worker")
    mutual.client_tls = authority.client(pair)
    with mutual.peer() as peer:
        peer.send(framed(message("Dequeue", idl.DequeueRequest("n"))))
        mutual.until(lambda: bool(mutual.held))
        assert mutual.held[0].certified == ("worker", "worker.test")
        mutual.on_loop(mutual.release)
        peer.answer("Dequeue")
    assert names_of({}) == names_of(None) == ()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_an_old_version_is_refused(mutual: Served, authority: Authority, own: Pair) -> None:
    old = authority.client(own)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):
        Peer(mutual.address, old)
    mutual.until(lambda: mutual.server.counters.closed == {"tls": 1})


def test_plain_bytes_amid_a_tls_connection_end_it(mutual: Served) -> None:
    with mutual.peer() as peer:
        assert looked(peer)
        with socket.socket(fileno=peer.socket.detach()) as raw:
            raw.settimeout(PATIENCE_S)
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            while raw.recv(1000):
                pass
    mutual.until(lambda: mutual.server.counters.connections == 0)
    assert mutual.server.counters.closed == {"tls": 1}


def test_what_finds_no_room_stays_in_the_socket(serve: Serve, authority: Authority, own: Pair) -> None:
    """Beyond a little: bytes received of connections that wait for the budget is in no budget."""
    budget = Budget(20 * MB)
    served = serve(budget=budget, tls=server_context(authority.section(own)), client_tls=authority.client())
    frame = framed(message("Enqueue", idl.EnqueueRequest("n", [idl.ItemSpec("t", b"x" * MB)])))
    peers = [served.peer() for _ in range(4)]
    assert all(looked(peer) for peer in peers)
    served.on_loop(lambda: budget.take(20 * MB))
    senders = [threading.Thread(target=peer.send, args=(frame,)) for peer in peers]
    for sender in senders:
        sender.start()
    served.until(lambda: served.server.counters.budget_waits == 4)
    transports = [connection._transport for connection in served.server._connections]
    assert len(transports) == 4
    assert all(transport.held_bytes <= 4096 for transport in transports)
    served.on_loop(lambda: budget.give(20 * MB))
    for peer, sender in zip(peers, senders, strict=True):
        assert peer.answer("Enqueue")[1].outcomes[0].id == MB
        sender.join(PATIENCE_S)
        peer.close()
    served.until(lambda: served.server.counters.connections == 0)


# ------------------------------------------------------------------------------------------------ from host to host


def of(served: Served) -> str:
    return f"{served.address[0]}:{served.address[1]}"


def test_calls_between_hosts(start: Callable[..., Calling], mutual: Served, authority: Authority, own: Pair) -> None:
    calling = start(tls=peer_context(authority.section(own)))
    sizes = [3, 15 * MB, 0, 70_000]
    for size in sizes:
        request = idl.EnqueueRequest("n", [idl.ItemSpec("t", b"x" * size)])
        assert calling.ask(of(mutual), "Enqueue", request).outcomes[0].id == size
    future = calling.begin(of(mutual), "Dequeue", idl.DequeueRequest("n"))
    mutual.until(lambda: len(mutual.held) == 1)
    mutual.on_loop(lambda: mutual.release(15 * MB))
    assert len(future.result(PATIENCE_S).items[0].payload) == 15 * MB
    assert mutual.server.counters.connections_accepted == 1


def test_a_peer_with_a_wrong_certificate_gets_no_request(
    start: Callable[..., Calling], serve: Serve, authority: Authority, foreign: Authority, own: Pair
) -> None:
    calling = start(tls=peer_context(authority.section(own)), connect_timeout_ms=500)
    other_name = serve(tls=server_context(authority.section(authority.issue("elsewhere.test"))))
    other_authority = serve(tls=server_context(foreign.section(foreign.issue("127.0.0.1"))))
    expired = serve(tls=server_context(authority.section(authority.issue("127.0.0.1", expired=True))))
    plain = serve()
    for served in (other_name, other_authority, expired, plain):
        with pytest.raises(NotSent, match="cannot connect"):
            calling.ask(of(served), "GetItem", LOOK)
    assert plain.server.counters.calls == 0


def test_a_connection_between_hosts_that_is_cut(
    start: Callable[..., Calling], mutual: Served, authority: Authority, own: Pair
) -> None:
    calling = start(tls=peer_context(authority.section(own)))
    future = calling.begin(of(mutual), "Dequeue", idl.DequeueRequest("n"))
    mutual.until(lambda: bool(mutual.held))
    mutual.on_loop(mutual.server.close)
    with pytest.raises(Exception, match="no reply"):
        future.result(PATIENCE_S)


# ------------------------------------------------------------------------------------------------ the client


def test_the_client_checks_the_certificate_of_the_host(
    mutual: Served, authority: Authority, foreign: Authority, own: Pair
) -> None:
    address = Address(*mutual.address)
    good = Tls(authority.ca_file, *own)
    for tls in (Tls(foreign.ca_file, *own), Tls(authority.ca_file, *own, server_name="elsewhere.test"), Tls()):
        with pytest.raises(NotSent, match="certificate"):
            Connection(address, PATIENCE_S, Securing(tls))
    connection = Connection(address, PATIENCE_S, Securing(good))
    assert connection.usable()
    mutual.on_loop(mutual.say_goodbye)
    poll = threading.Event()
    while connection.usable():
        poll.wait(0.005)
    connection.close()


def test_a_reply_that_is_lost_stays_a_lost_reply(mutual: Served, authority: Authority, own: Pair) -> None:
    connection = Connection(Address(*mutual.address), PATIENCE_S, Securing(Tls(authority.ca_file, *own)))
    connection.send(framed(message("Dequeue", idl.DequeueRequest("n"))), mutual.loop.time() + PATIENCE_S)
    mutual.until(lambda: bool(mutual.held))
    mutual.on_loop(mutual.server.close)
    with pytest.raises(LostReply):
        connection.receive(mutual.loop.time() + PATIENCE_S)
    connection.close()


# ------------------------------------------------------------------------------------------------ files


def test_files_that_are_wrong_are_named(authority: Authority, own: Pair, tmp_path: Path) -> None:
    other = authority.issue("other.test")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    wrong = {
        "tls.cert_file: .*: No such file": {"cert_file": tmp_path / "none.pem"},
        "tls.cert_file, tls.key_file: they do not belong together": {"key_file": other.key_file},
        "tls.cert_file, tls.key_file: not PEM": {"cert_file": text},
        "tls.ca_file: .*: no certificates": {"ca_file": text},
    }
    good = authority.section(own)
    for said, change in wrong.items():
        with pytest.raises(Invalid, match=said):
            server_context(TlsSection(**(good.model_dump() | change)))
    for tls in (Tls(ca_file=text), Tls(cert_file=text), Tls(ca_file=tmp_path / "none.pem")):
        with pytest.raises(Invalid, match="tls"):
            tls.context()
    with pytest.raises(Invalid, match="key_file needs cert_file"):
        Tls(key_file=own.key_file)


def test_a_key_with_a_password_is_refused_without_a_prompt(own: Pair, authority: Authority, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(own.key_file.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(Invalid, match=r"tls\.key_file: the key has a password"):
        server_context(authority.section(Pair(own.cert_file, locked)))
    with pytest.raises(Invalid, match="key_file: the key has a password"):
        Tls(cert_file=own.cert_file, key_file=locked).context()
