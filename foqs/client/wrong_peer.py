"""What a peer speaks that does not answer as a host of foqs does."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from enum import Enum

from foqs.bounds import DEFAULT_PORT
from foqs.client.methods import SERVER_INFO
from foqs.errors import Invalid
from foqs.idl import idl

MAX_REPLY_BYTES = 64 << 20
"""More than a server may be configured to send: beyond it the peer is something else."""
PROBE_S = 1.0
"""At most this long for one look at a peer that did not answer as expected."""
_PROBE_BYTES = 6


class Closed(OSError):
    """The peer closed the connection instead of a reply."""


class NoFrame(OSError):
    """The first bytes received, `head`, do not begin a reply."""

    def __init__(self, head: bytes) -> None:
        length = int.from_bytes(head, "big")
        super().__init__(f"a reply of {length} bytes was announced; it has at most {MAX_REPLY_BYTES}")
        self.head = head


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


def refuses_certificate(error: OSError) -> bool:
    """Return True if the server said that it does not take the client's certificate. With TLS 1.3 it does so only when
    the client has begun to talk. No request is begun then."""
    reason = getattr(error, "reason", None) or ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def said(error: OSError) -> str:
    """Return the words for an error of a socket."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return f"its certificate is not trusted: {why}; ca_file names its authority, and server_name its name"
    return error.strerror or str(error) or type(error).__name__
