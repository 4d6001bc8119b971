"""One socket to one host: a frame out, a frame in; with TLS if asked for.

The two ways to fail differ in what the caller may do next, so they are two errors: `NotSent` when the server
cannot have seen the whole request, `LostReply` when it may have. A peer that speaks HTTP, or TLS against the
expectation, is a third: `WrongPeer`.
"""

from __future__ import annotations

import _socket
import os
import select
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from ssl import SSLSocket, SSLWantReadError, SSLWantWriteError
from time import monotonic

from foqs.bounds import DEFAULT_PORT
from foqs.checks import check_text, refuse
from foqs.client.guard import renew_after_fork
from foqs.client.methods import SERVER_INFO
from foqs.client.per_worker import Ask
from foqs.client.routes import Address
from foqs.errors import FoqsError, Invalid, LostReply, NotSent, Unreachable
from foqs.idl import idl
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import FRAME_HEAD_BYTES, end_wait

MAX_REPLY_BYTES = 64 << 20
"""More than a server may be configured to send: beyond it the peer is something else."""
PROBE_S = 1.0
"""At most this long for one look at a peer that did not answer as expected."""
SOON_S = 0.005
"""A read of a plain socket waits this long by itself: one call of the kernel in place of two. Then `poll` takes over:
Python repeats a read that a signal has interrupted, with the same time. Few signals come in shorter intervals."""
_SOON = struct.pack("@ll", 0, int(SOON_S * 1e6))
_PROBE_BYTES = 6
_END_WAIT = end_wait()
_FIRST_READ_BYTES = 1 << 16
_NEXT_READ_BYTES = 1 << 18
_WOULD_BLOCK = (BlockingIOError, SSLWantReadError, SSLWantWriteError)


class ClientClosed(FoqsError):
    """The client was closed."""


class _Closed(OSError):
    """The peer closed the connection instead of a reply."""


class _NoFrame(OSError):
    """The first bytes received, `head`, do not begin a reply."""

    def __init__(self, head: bytes) -> None:
        length = int.from_bytes(head, "big")
        super().__init__(f"a reply of {length} bytes was announced; it has at most {MAX_REPLY_BYTES}")
        self.head = head


class Connection:
    """Used by one thread at a time. Times are of the monotonic clock, in seconds."""

    def __init__(self, address: Address, timeout_s: float, securing: Securing | None = None) -> None:
        """Raises NotSent (Unreachable, unless time ran out), or WrongPeer if the peer does not speak TLS though
        `securing` asks for it."""
        self.address = address
        self.idle_since = 0.0  # set when it is kept for another request, so after a reply
        self.authenticated = False  # a request of this connection was answered
        # The request that was sent here last, and when its answer is given up.
        self.method: RemoteMethod = SERVER_INFO
        self.sequence = 0
        self.request_id = ""
        self.until = 0.0
        self._ended = False  # GOAWAY came behind a reply, or this process ended it
        self._places: Ask | None = None  # may end the wait for a reply
        try:
            self._socket = socket.create_connection(address, timeout_s)
            if securing is not None:
                self._socket = securing.wrap(self._socket, address.host)
        except OSError as error:
            if securing is not None and (
                found := why_no_handshake(error, lambda: asked_plainly(address, min(PROBE_S, timeout_s)))
            ):
                raise found.error(address) from error
            kind = NotSent if isinstance(error, TimeoutError) else Unreachable
            raise kind(f"cannot connect to {address}: {_said(error)}") from error
        except UnicodeError as error:
            raise Unreachable(f"cannot connect to {address}: not the name of a host") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._tls = self._socket if isinstance(self._socket, SSLSocket) else None
        # Libraries such as gevent put a class of their own in place of the system's sockets. It would wait for ever.
        self._waits = self._tls is None and isinstance(self._socket, _socket.socket)
        self._socket.setblocking(self._waits)  # a time-out of Python's costs calls of the kernel in each request
        if self._waits:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SOON)
        self._send_flags = socket.MSG_DONTWAIT if self._waits else 0
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        renew_after_fork(self)

    def after_fork(self) -> None:
        """The parent may use the connection just now, so this process closes its copy only. That sends nothing, and
        without the copy hosts see the end of the parent."""
        self._ended = True
        with suppress(OSError):
            self.close()

    def usable(self) -> bool:
        """False when the server closed it, or sent bytes without a request, while it was idle."""
        return not self._ended and not self._readable.poll(0) and (self._tls is None or not self._tls.pending())

    def exchange(self, frame: bytes, deadline: float) -> bytes:
        """Send `frame` and return the reply's, without its length. Raises NotSent, LostReply or WrongPeer; then the
        connection must be closed."""
        self.send(frame, deadline)
        return self.receive(deadline)

    def send(self, frame: bytes, deadline: float) -> None:
        """Send `frame`, its length included. Raises NotSent or WrongPeer; then the connection must be closed."""
        left: bytes | memoryview = frame
        try:
            # Not sendall: how much went out decides whether the server can have seen the request.
            while left:
                if deadline <= monotonic():
                    raise TimeoutError("timed out")
                try:
                    sent = self._socket.send(left, self._send_flags)
                except _WOULD_BLOCK as blocked:
                    self._wait(blocked, select.POLLOUT, deadline)
                else:
                    left = memoryview(left)[sent:] if sent < len(left) else b""
        except OSError as error:
            self._raise_wrong_peer(error, deadline)
            raise NotSent(f"sending to {self.address} failed: {_said(error)}") from error

    def receive(self, deadline: float, places: Ask | None = None) -> bytes:
        """Return the frame that answers the sent request, whose wait `places` may end. Raises LostReply or WrongPeer;
        then it must be closed."""
        self._places = places
        try:
            if self._waits and places is None and deadline - monotonic() > SOON_S:
                try:
                    data = self._socket.recv(_FIRST_READ_BYTES)
                except BlockingIOError:
                    data = self._read(_FIRST_READ_BYTES, deadline)
            else:
                data = self._read(_FIRST_READ_BYTES, deadline)
            while len(data) < FRAME_HEAD_BYTES:
                if not data or not (more := self._read(_FIRST_READ_BYTES, deadline)):
                    raise _Closed("the connection was closed")
                data += more
            head = data[:FRAME_HEAD_BYTES]
            length = int.from_bytes(head, "big")
            if length > MAX_REPLY_BYTES:
                raise _NoFrame(head)
            end = FRAME_HEAD_BYTES + length
            if len(data) < end:
                return self._rest(data, length, deadline)
            if len(data) > end:
                self._ended = True
            return data[FRAME_HEAD_BYTES:end]
        except OSError as error:
            if _refuses_certificate(error):
                raise Unreachable(f"{self.address} does not take the client's certificate: {_said(error)}") from error
            self._raise_wrong_peer(error, deadline)
            raise LostReply(f"no reply from {self.address}: {_said(error)}") from error
        finally:
            self._places = None

    def _rest(self, begun: bytes, length: int, deadline: float) -> bytes:
        parts = [begun[FRAME_HEAD_BYTES:]]
        missing = length - len(parts[0])
        while missing:
            _remaining(deadline)
            data = self._read(min(missing, _NEXT_READ_BYTES), deadline)
            if not data:
                raise OSError("the connection was closed within the reply")
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def _read(self, most_bytes: int, deadline: float) -> bytes:
        """Return received bytes, after a wait for the first of them; empty at the end of the connection."""
        # A thread that looks late still reads a received reply, which may have come in time.
        if self._tls is None or not self._tls.pending():
            if self._places is not None:
                self._wait_or_end(self._places, deadline)
            left_s = deadline - monotonic()
            if not self._readable.poll(left_s * 1000 if left_s > 0 else 0):
                raise TimeoutError("timed out")
        while True:
            try:
                return self._socket.recv(most_bytes)
            except _WOULD_BLOCK as blocked:
                if self._places is not None and isinstance(blocked, SSLWantReadError):  # TLS had bytes for itself
                    self._wait_or_end(self._places, deadline)
                self._wait(blocked, select.POLLIN, deadline)

    def _wait_or_end(self, places: Ask, deadline: float) -> None:
        """Wait until bytes come. End the wait of the request when `places` says so, and return."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(places, select.POLLIN)
        while found := poll.poll(max(0.0, deadline - monotonic()) * 1000):
            if any(number != places.fileno() for number, _ in found):
                return
            if places.cuts():
                self._places = None
                try:
                    self.send(_END_WAIT, deadline)
                except NotSent as error:
                    raise OSError(error.message) from error
                return

    def _wait(self, blocked: OSError, event: int, deadline: float) -> None:
        """Wait until the socket has `event`, or what TLS said that it needs first."""
        if isinstance(blocked, SSLWantReadError):
            event = select.POLLIN
        elif isinstance(blocked, SSLWantWriteError):
            event = select.POLLOUT
        poll = select.poll()
        poll.register(self._socket, event)
        if not poll.poll(_remaining(deadline) * 1000):
            raise TimeoutError("timed out")

    def _raise_wrong_peer(self, error: OSError, deadline: float) -> None:
        """Raise WrongPeer if the first request here failed with `error` as the peer speaks another protocol."""
        if self._ended or self.idle_since or self.authenticated:
            return
        found = None
        if isinstance(error, _NoFrame):
            found = spoken(error.head)
        elif isinstance(error, _Closed | ConnectionError) and self._tls is None:
            # A host with TLS closes a connection that does not begin with a handshake, and says nothing. The answer of
            # an HTTP server is lost if it closes while a large request is sent.
            for ask in (asked_with_tls, asked_plainly)[: 1 if isinstance(error, _Closed) else 2]:
                left = min(PROBE_S, deadline - monotonic())
                found = found or (ask(self.address, left) if left > 0 else None)
        if found not in (None, Speaks.PLAIN):
            raise found.error(self.address) from error

    def abort(self) -> None:
        """End the wait of another thread, which closes the connection."""
        self._ended = True  # else that thread would look for another protocol of the peer
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def _remaining(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _said(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Tls:
    """How to talk to a service with TLS. Paths of PEM files.

    ca_file      authorities that must have signed the hosts' certificates; default: the system's
    cert_file    the client's own certificate (and key_file, unless the file holds the key too), where hosts ask for one
    server_name  the name that the hosts' certificates have to hold; default: the host part of each one's address, as
                 given or, with routing, as the cluster tells it
    """

    ca_file: str | os.PathLike[str] | None = None
    cert_file: str | os.PathLike[str] | None = None
    key_file: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        """Raises Invalid for a value that is no path, or no text."""
        for name in ("ca_file", "cert_file", "key_file"):
            path = getattr(self, name)
            if path is not None and (not isinstance(path, str | os.PathLike) or not os.fspath(path)):
                refuse(f"tls: {name}", path, "it must be the path of a file")
        check_text("tls: server_name", self.server_name, none=True)

    @classmethod
    def parse(cls, text: str) -> Tls:
        """`on`, or fields with commas between. Raises Invalid.

        >>> Tls.parse("ca_file=/etc/ca.pem, server_name=foqs.test")
        Tls(ca_file='/etc/ca.pem', cert_file=None, key_file=None, server_name='foqs.test')
        """
        if text.strip() == "on":
            return cls()
        parts = [part.strip().partition("=") for part in text.split(",")]
        fields = {name: value for name, _, value in parts}
        if len(fields) != len(parts) or not all(fields.values()) or not fields.keys() <= set(cls.__slots__):
            raise Invalid(f"tls: neither `on` nor a list of {', '.join(f'{name}=...' for name in cls.__slots__)}")
        return cls(**fields)

    def context(self) -> ssl.SSLContext:
        """Raises Invalid: a file cannot be read, or has the wrong content."""
        if self.key_file is not None and self.cert_file is None:
            raise Invalid("tls: key_file needs cert_file")
        for path in (self.ca_file, self.cert_file, self.key_file):
            if path is not None and not os.access(path, os.R_OK):
                raise Invalid(f"tls: cannot read {os.fspath(path)}")
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except ssl.SSLError as error:
            raise Invalid(f"tls: ca_file: no certificates in PEM ({error.reason or 'unknown'})") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
            except ssl.SSLError as error:
                raise Invalid(f"tls: cert_file, key_file: no pair in PEM ({error.reason or 'unknown'})") from None
        return context


class Securing:
    """Makes sockets secure. Raises Invalid."""

    def __init__(self, tls: Tls) -> None:
        self._context = tls.context()
        self._server_name = tls.server_name

    def wrap(self, plain: socket.socket, host: str) -> ssl.SSLSocket:
        """`plain` is closed where it fails. Raises OSError (an ssl.SSLError) when the peer's certificate does not
        verify."""
        return self._context.wrap_socket(plain, server_hostname=self._server_name or host)


def _no_password() -> str:
    raise Invalid("tls: key_file: the key has a password; one without is needed")


class WrongPeer(Invalid):
    """The address belongs to a port that does not speak what the client speaks. It did nothing of the request."""


class Speaks(Enum):
    """What a peer speaks, and what to do about it; `{}` is its address."""

    HTTP = (
        "{} speaks HTTP, so it is no port for clients (perhaps the admin port): give the port that `[server] port` "
        f"names, by default {DEFAULT_PORT}"
    )
    TLS = (
        "{} speaks TLS, and this client does not: turn TLS on (`tls=` of Client, --tls or FOQS_CLIENT_TLS: `on`, or "
        "ca_file=FILE for an authority of your own)"
    )
    PLAIN = (
        "{} speaks foqs without TLS, and this client wants TLS: turn TLS off (`tls=` of Client, --tls or "
        "FOQS_CLIENT_TLS), or give the address of a host that has it"
    )

    def error(self, address: object) -> WrongPeer:
        return WrongPeer(self.value.format(address))


def spoken(head: bytes) -> Speaks | None:
    """Return the protocol of the first bytes of an answer, None if it is unknown. PLAIN is the protocol of foqs.

    >>> spoken(b"HTTP/1.1 400 Bad Request").name, spoken(bytes.fromhex("15030100020246")).name
    ('HTTP', 'TLS')
    """
    if head.startswith((b"HTTP", b"<")):  # "<": a page without a status line, for a request that is no HTTP
        return Speaks.HTTP
    if head.startswith(b"\x15\x03"):  # an alert
        return Speaks.TLS
    if head.startswith(b"\0") and head[4:6] == b"\x80\x01":  # a frame below 16 MiB, and Thrift's strict binary protocol
        return Speaks.PLAIN
    return None


def why_no_handshake(error: OSError, probe: Callable[[], Speaks | None]) -> Speaks | None:
    """Return what the peer speaks in place of TLS, after a handshake that failed; `probe` asks it without TLS."""
    if isinstance(error, ssl.SSLCertVerificationError) or "ALERT" in (getattr(error, "reason", None) or ""):
        return None
    if not isinstance(error, ssl.SSLError | ConnectionResetError):
        return None
    found = probe()
    return None if found is Speaks.TLS else found


def asked_plainly(address: tuple[str, int], timeout_s: float) -> Speaks | None:
    """Return the protocol in which a peer answers a foqs request without TLS. It carries no token."""
    frame = SERVER_INFO.encode(idl.GetServerInfoRequest(), 1)
    head = b""
    try:
        with socket.create_connection(address, timeout_s) as peer:
            peer.sendall(frame)
            while len(head) < _PROBE_BYTES and (data := peer.recv(_PROBE_BYTES)):
                head += data
    except OSError:
        pass
    return spoken(head)


def asked_with_tls(address: tuple[str, int], timeout_s: float) -> Speaks | None:
    """Return TLS if the peer takes part in a handshake, whatever its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection(address, timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=address[0]),
        ):
            return Speaks.TLS
    except ssl.SSLError as error:
        return Speaks.TLS if "ALERT" in (error.reason or "") else None
    except (OSError, ValueError):  # ValueError: no name that a handshake could tell
        return None


def _refuses_certificate(error: OSError) -> bool:
    """Return True if the server said that it does not take the client's certificate. With TLS 1.3 it does so only when
    the client has begun to talk. No request is begun then."""
    reason = getattr(error, "reason", None) or ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)
