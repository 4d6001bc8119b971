"""One socket to one host: a frame out, a frame in.

The two ways to fail differ in what the caller may do next, so they are two errors: `NotSent` when the server
cannot have seen the whole request, `LostReply` when it may have.
"""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from ipaddress import IPv6Address
from ssl import SSLSocket, SSLWantReadError, SSLWantWriteError
from time import monotonic
from typing import NamedTuple

from foqs.checks import host_port, shown
from foqs.client.forks import renew_after_fork
from foqs.client.places import Ask
from foqs.client.tls import Securing, refused
from foqs.client.wrong_peer import (
    PROBE_S,
    Speaks,
    asked_plainly,
    asked_with_tls,
    spoken,
    why_no_handshake,
)
from foqs.errors import FoqsError, Invalid, LostReply, NotSent, Unreachable
from foqs.wire.protocol import FRAME_HEAD_BYTES, end_wait

MAX_REPLY_BYTES = 64 << 20
"""More than a server may be configured to send: beyond it the peer is something else."""

_END_WAIT = end_wait()
_FIRST_READ_BYTES = 1 << 16
_NEXT_READ_BYTES = 1 << 18
_WOULD_BLOCK = (BlockingIOError, SSLWantReadError, SSLWantWriteError)
DEFAULT_PORT = 7707


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


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)


def parse_addresses(text: str) -> list[Address]:
    """`host:port,host:port`; the port may be left out, and an IPv6 address with a port stands in brackets.

    >>> [str(a) for a in parse_addresses("db1:7000, db2, [::1]:7001")]
    ['db1:7000', 'db2:7707', '[::1]:7001']
    """
    addresses = [_parse(part.strip()) for part in text.split(",") if part.strip()]
    if not addresses:
        raise Invalid("no address given: give host:port, or several with commas")
    return addresses


def _parse(text: str) -> Address:
    if "://" in text:
        scheme, _, rest = text.partition("://")
        tls = " and turn TLS on with tls (--tls on)" if scheme in ("https", "tls", "ssl") else ""
        plain = rest.partition("/")[0].rpartition("@")[2]
        raise Invalid(f"an address of foqs is no URL ({scheme}://...): give host:port alone ({plain}){tls}")
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
        if not _is_ipv6(host):
            raise Invalid(f"address {text!r} is neither host:port nor an IPv6 address")
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and len(port) < 10 and 0 < int(port) < 65536)):
        raise Invalid(f"address {shown(text)} is not host:port, with a port from 1 to 65535")
    return Address(host, int(port) if port else DEFAULT_PORT)


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


class Connection:
    """Used by one thread at a time. Times are of the monotonic clock, in seconds."""

    def __init__(self, address: Address, timeout_s: float, securing: Securing | None = None) -> None:
        """Raises NotSent (Unreachable, unless time ran out), or WrongPeer if the peer does not speak TLS though
        `securing` asks for it."""
        self.address = address
        self.idle_since = 0.0  # set when it is kept for another request, so after a reply
        self.authenticated = False  # a request of this connection was answered
        self._ended = False  # GOAWAY came behind a reply
        self._asked: Ask | None = None  # may end the wait for a reply
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
        self._socket.setblocking(False)  # a time-out of the socket costs system calls in each request
        self._tls = self._socket if isinstance(self._socket, SSLSocket) else None
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        renew_after_fork(self)

    def after_fork(self) -> None:
        """The connection is the parent's, and a thread there may use it just now. This process closes its copy. That
        sends nothing, and the copy keeps no host from seeing the end of the parent."""
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
                    sent = self._socket.send(left)
                except _WOULD_BLOCK as blocked:
                    self._wait(blocked, select.POLLOUT, deadline)
                else:
                    left = memoryview(left)[sent:] if sent < len(left) else b""
        except OSError as error:
            self._raise_wrong_peer(error, deadline)
            raise NotSent(f"sending to {self.address} failed: {_said(error)}") from error

    def receive(self, deadline: float, asked: Ask | None = None) -> bytes:
        """Return the frame that answers the sent request, whose wait `asked` may end. Raises LostReply or WrongPeer;
        then it must be closed."""
        self._asked = asked
        try:
            return self._receive(deadline)
        except OSError as error:
            if refused(error):
                raise Unreachable(f"{self.address} does not take the client's certificate: {_said(error)}") from error
            self._raise_wrong_peer(error, deadline)
            raise LostReply(f"no reply from {self.address}: {_said(error)}") from error
        finally:
            self._asked = None

    def _receive(self, deadline: float) -> bytes:
        data = b""
        while len(data) < FRAME_HEAD_BYTES:
            more = self._read(_FIRST_READ_BYTES, deadline)
            if not more:
                raise _Closed("the connection was closed")
            data = data + more if data else more
        head = data[:FRAME_HEAD_BYTES]
        length = int.from_bytes(head, "big")
        if length > MAX_REPLY_BYTES:
            raise _NoFrame(head)
        end = FRAME_HEAD_BYTES + length
        if len(data) == end:
            return data[FRAME_HEAD_BYTES:]
        if len(data) > end:
            self._ended = True
            return data[FRAME_HEAD_BYTES:end]
        return self._rest(data, length, deadline)

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
            if self._asked is not None:
                self._wait_or_end(self._asked, deadline)
            left_s = deadline - monotonic()
            if not self._readable.poll(left_s * 1000 if left_s > 0 else 0):
                raise TimeoutError("timed out")
        while True:
            try:
                return self._socket.recv(most_bytes)
            except _WOULD_BLOCK as blocked:
                if self._asked is not None and isinstance(blocked, SSLWantReadError):  # TLS had bytes for itself
                    self._wait_or_end(self._asked, deadline)
                self._wait(blocked, select.POLLIN, deadline)

    def _wait_or_end(self, asked: Ask, deadline: float) -> None:
        """Wait until bytes come. End the wait of the request when `asked` says so, and return."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(asked, select.POLLIN)
        while found := poll.poll(max(0.0, deadline - monotonic()) * 1000):
            if any(number != asked.fileno() for number, _ in found):
                return
            if asked.cuts():
                self._asked = None
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
        if self.idle_since or self.authenticated:
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
        """Ends what another thread waits for; that one closes it."""
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
