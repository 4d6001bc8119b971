"""TLS between a socket and one of this package's protocols: a protocol for the socket, a transport for the protocol.

The event loop's own TLS hides the socket's write buffer, so an answer that the peer does not read would count as sent;
it cannot close its sending side alone, and it reports a connection only after the handshake. Here every write goes to
the socket at once, the socket says how much of it is left, and received bytes are decrypted only as far as the protocol
wants to read.
"""

from __future__ import annotations

import asyncio
import ssl
from array import array
from contextlib import suppress
from fcntl import ioctl
from termios import FIONREAD
from typing import Any

_RECORD_BYTES = 16 * 1024
_SLICE_BYTES = 4 * 1024
"""OpenSSL's buffers for input and output never shrink, so no more than a record goes through them at a time."""
_AROUND_BYTES = {"TLSv1.3": 22}
_AROUND_MOST_BYTES = 29
"""Bytes that a record has around its content."""
_LEAST_BYTES = 2 * 1024
_SHAKE_BYTES = 16 * 1024
"""Bytes that a handshake may hold: part of the memory that each connection with TLS takes."""
LINGER_S = 0.25
"""From the alert of a failed handshake to the close, so the peer can read the alert."""


class TlsTransport(asyncio.BufferedProtocol):
    """States: handshake; open; ended (nothing more is read). `protocol` gets `connection_made` after the handshake.

    Without `server_hostname` this is the server's side, whose protocol gets more: `accepted(self)` before the
    handshake, which closes a connection that it refuses; `shaking(bytes)`, the size of a handshake beyond
    `_SHAKE_BYTES`, as OpenSSL may hold all of it; `encrypted(bytes)`, the undecrypted bytes after each event; and
    `connection_lost` also after a failed handshake, then with an ssl.SSLError. `shaken` gets None after the handshake,
    or its failure (an OSError). `scratch` is shared by the connections of a loop: bytes received there are copied at
    once.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        protocol: Any,
        scratch: memoryview,
        *,
        server_hostname: str | None = None,
        shaken: asyncio.Future[None] | None = None,
    ) -> None:
        self._protocol = protocol
        self._scratch = scratch
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._serves = server_hostname is None
        self._shake_bytes = 0  # received in the handshake
        self._shaken = shaken
        self._encrypted = memoryview(b"")  # received, and not with OpenSSL yet
        self._received = ssl.MemoryBIO()
        self._sent = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._received, self._sent, server_side=self._serves, server_hostname=server_hostname
        )
        self._tcp: Any = None
        self._open = False
        self._ended = False
        self._paused = False
        self._error: Exception | None = None

    # ------------------------------------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: Any) -> None:
        self._tcp = transport
        if self._serves and not self._protocol.accepted(self):
            self._ended = True
            return
        self._shake()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return no more room than the protocol has: the rest would be held here."""
        if not self._open:
            return self._scratch[:_SLICE_BYTES]
        if not self._buffered:
            return self._scratch
        return self._scratch[: max(_LEAST_BYTES, len(self._protocol.get_buffer(-1)))]

    def buffer_updated(self, size: int) -> None:
        if self._ended:
            return
        new = bytes(self._scratch[:size])
        self._encrypted = memoryview(bytes(self._encrypted) + new if self._encrypted else new)
        if not self._open:
            self._shake_bytes += size
            self._shake()
        if self._open:
            self._read()
        elif self._serves and self._shake_bytes > _SHAKE_BYTES:
            self._protocol.shaking(self._shake_bytes - _SHAKE_BYTES)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._open:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._open:
            self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        protocol, self._protocol = self._protocol, None  # they refer to each other
        error = self._error or error
        self._tell(error if isinstance(error, OSError) else ConnectionResetError("the connection was lost"))
        if self._open or self._serves:
            protocol.connection_lost(error)

    # ------------------------------------------------------------------------------------- what the protocol calls

    def write(self, data: bytes) -> None:
        """Write bytes. They are dropped before the end of the handshake, and after `write_eof`."""
        if not self._open or self._ended:
            return
        left = memoryview(data)
        records = []
        try:
            while left:
                left = left[self._tls.write(left[:_RECORD_BYTES]) :]
                records.append(self._sent.read())
        except ssl.SSLError as error:
            self._fail(error)
        else:
            self._tcp.write(b"".join(records))

    def write_eof(self) -> None:
        """Close the sending side; received bytes are dropped from now on."""
        if not self._open:
            self._tcp.close()
            return
        self._say_closed()
        self._tcp.write_eof()

    def close(self) -> None:
        if self._open:
            self._say_closed()
        self._tcp.close()

    def abort(self) -> None:
        self._ended = True
        self._tcp.abort()

    def is_closing(self) -> bool:
        return bool(self._tcp.is_closing())

    def pause_reading(self) -> None:
        self._paused = True
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self._tcp.resume_reading()
        # Bytes received before wait here and in no socket. Not at once: this is called amid the protocol's work.
        asyncio.get_running_loop().call_soon(self._read)

    def get_write_buffer_size(self) -> int:
        """Return the size of the socket's buffer: a little more than the bytes written."""
        return int(self._tcp.get_write_buffer_size())

    @property
    def held_bytes(self) -> int:
        """Number of bytes received and not decrypted yet."""
        return len(self._encrypted) + self._received.pending

    @property
    def unread_bytes(self) -> int:
        """Number of received bytes that the protocol does not have: decrypted, encrypted here, and in the socket. It is
        too high for a peer that sends short records."""
        encrypted_bytes = self.held_bytes + unread_bytes(self._tcp)
        around_bytes = _AROUND_BYTES.get(self._tls.version() or "", _AROUND_MOST_BYTES)
        records = -(-encrypted_bytes // (_RECORD_BYTES + around_bytes))
        return self._tls.pending() + encrypted_bytes - records * around_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._tcp.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peercert":
            return self._tls.getpeercert() or default
        return self._tcp.get_extra_info(name, default)

    # ------------------------------------------------------------------------------------- inside

    def _shake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                if not self._feed():
                    self._flush()
                    return
            except ssl.SSLError as error:
                self._fail(error)
                return
        self._flush()
        self._open = True
        self._protocol.connection_made(self)
        self._tell(None)

    def _tell(self, error: OSError | None) -> None:
        if self._shaken is None or self._shaken.done():
            return
        if error is None:
            self._shaken.set_result(None)
        else:
            self._shaken.set_exception(error)

    def _read(self) -> None:
        while self._open and not self._paused and not self._ended:
            try:
                size = self._read_some()
            except ssl.SSLWantReadError:
                if self._feed():
                    continue
                break
            except ssl.SSLError as error:
                if not isinstance(error, ssl.SSLZeroReturnError):
                    self._fail(error)
                    return
                size = 0
            if not size:  # it closed in order
                self._ended = True
                self._tcp.close()
                return
        if self._sent.pending:  # an answer of TLS's own
            self._flush()
        if self._serves and self._protocol is not None:  # None after the loss of the connection
            self._protocol.encrypted(self.held_bytes)

    def _read_some(self) -> int:
        if not self._buffered:
            data = self._tls.read(_RECORD_BYTES)
            if data:
                self._protocol.data_received(data)
            return len(data)
        buffer = self._protocol.get_buffer(-1)
        size = int(self._tls.read(len(buffer), buffer))
        if size:
            self._protocol.buffer_updated(size)
        return size

    def _feed(self) -> bool:
        """Give OpenSSL some received bytes; return False when there are none."""
        if not self._encrypted:
            return False
        self._received.write(self._encrypted[:_SLICE_BYTES])
        self._encrypted = self._encrypted[_SLICE_BYTES:]
        return True

    def _flush(self) -> None:
        data = self._sent.read()
        if data and not self._tcp.is_closing():
            self._tcp.write(data)

    def _say_closed(self) -> None:
        if not self._ended:
            self._ended = True
            with suppress(ssl.SSLError):  # the peer's close_notify is not waited for
                self._tls.unwrap()
            self._flush()

    def _fail(self, error: ssl.SSLError) -> None:
        """Send the peer the alert that OpenSSL has, in most cases, and leave it a moment to read that. (A close with
        unread bytes would reset the connection.)"""
        self._ended = True
        self._error = error
        self._tell(error)
        if self._tcp.is_closing():
            return
        self._flush()
        if self._paused:
            self._tcp.resume_reading()
        self._tcp.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self._tcp.close)


def unread_bytes(transport: Any) -> int:
    """Return how many bytes the kernel has received on a transport's socket and keeps until they are read."""
    number = transport.get_extra_info("socket").fileno()
    if number < 0:
        return 0  # it is closed
    count = array("i", [0])
    ioctl(number, FIONREAD, count)
    return count[0]


def names_of(certificate: Any) -> tuple[str, ...]:
    """Return the names in a certificate, a result of `SSLSocket.getpeercert`: its subject's CN and alternative
    names."""
    if not certificate:
        return ()
    subject = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    others = [value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str)]
    return tuple(dict.fromkeys((*subject, *others)))
