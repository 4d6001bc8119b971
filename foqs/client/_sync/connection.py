"""One socket to one host: a frame out, a frame in; with TLS if asked for.

The two ways to fail differ in what the caller may do next, so they are two errors: `NotSent` when the server
cannot have seen the whole request, `LostReply` when it may have. A peer that speaks HTTP, or TLS against the
expectation, is a third: `WrongPeer`.
"""

from __future__ import annotations

import _socket
import select
import socket
import struct
from contextlib import suppress
from ssl import SSLSocket, SSLWantReadError, SSLWantWriteError
from time import monotonic

from foqs.client.guard import renew_after_fork
from foqs.client.methods import SERVER_INFO
from foqs.client.per_worker import Ask
from foqs.client.routes import Address
from foqs.client.tls import Securing
from foqs.client.wrong_peer import (
    MAX_REPLY_BYTES,
    PROBE_S,
    Closed,
    NoFrame,
    Speaks,
    asked_plainly,
    asked_with_tls,
    refuses_certificate,
    said,
    spoken,
    why_no_handshake,
)
from foqs.errors import LostReply, NotSent, Unreachable
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import FRAME_HEAD_BYTES, end_wait

SOON_S = 0.005
"""A read of a plain socket waits this long by itself: one call of the kernel in place of two. Then `poll` takes over:
Python repeats a read that a signal has interrupted, with the same time. Few signals come in shorter intervals."""
_SOON = struct.pack("@ll", 0, int(SOON_S * 1e6))
_END_WAIT = end_wait()
_FIRST_READ_BYTES = 1 << 16
_NEXT_READ_BYTES = 1 << 18
_WOULD_BLOCK = (BlockingIOError, SSLWantReadError, SSLWantWriteError)


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
            raise kind(f"cannot connect to {address}: {said(error)}") from error
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
            raise NotSent(f"sending to {self.address} failed: {said(error)}") from error

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
                    raise Closed("the connection was closed")
                data += more
            head = data[:FRAME_HEAD_BYTES]
            length = int.from_bytes(head, "big")
            if length > MAX_REPLY_BYTES:
                raise NoFrame(head)
            end = FRAME_HEAD_BYTES + length
            if len(data) < end:
                return self._rest(data, length, deadline)
            if len(data) > end:
                self._ended = True
            return data[FRAME_HEAD_BYTES:end]
        except OSError as error:
            if refuses_certificate(error):
                raise Unreachable(f"{self.address} does not take the client's certificate: {said(error)}") from error
            self._raise_wrong_peer(error, deadline)
            raise LostReply(f"no reply from {self.address}: {said(error)}") from error
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
        if isinstance(error, NoFrame):
            found = spoken(error.head)
        elif isinstance(error, Closed | ConnectionError) and self._tls is None:
            # A host with TLS closes a connection that does not begin with a handshake, and says nothing. The answer of
            # an HTTP server is lost if it closes while a large request is sent.
            for ask in (asked_with_tls, asked_plainly)[: 1 if isinstance(error, Closed) else 2]:
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


def open_connection(address: Address, timeout_s: float, securing: Securing | None = None) -> Connection:
    """Return a new connection. Raises as the class."""
    return Connection(address, timeout_s, securing)
