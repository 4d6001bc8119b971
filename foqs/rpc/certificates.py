"""The certificates of a host: contexts for both ends of a connection, made of files that a running host reads again.

A host starts with valid certificates only. A host that runs keeps its certificate when the new files cannot be used.
The log, `/readyz` and the metrics say so.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import structlog

from foqs.config.schema import TlsSection
from foqs.errors import Invalid
from foqs.travel import bare

log = structlog.get_logger("foqs.rpc")

_MOST_ROUNDS = 10
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for."""
_REMEDY = "install a valid certificate with its key"


class Dates(NamedTuple):
    """The validity of a certificate, in epoch seconds."""

    begins_s: float
    ends_s: float


class Contexts(NamedTuple):
    """`server`: for incoming connections. `peer`: for calls to other hosts."""

    server: ssl.SSLContext
    peer: ssl.SSLContext
    dates: Dates


def load(section: TlsSection, now_s: float) -> Contexts:
    """Read the files. Raises Invalid, which names the key and the file, for files that cannot be used, and for a
    certificate that is not valid at `now_s` (epoch seconds)."""
    server, peer = server_context(section), peer_context(section)
    assert server is not None
    assert peer is not None
    dates = dates_of(section)
    where, remedy = f"tls.cert_file: {section.cert_file}", f"{_REMEDY} (tls.key_file: {section.key_file})"
    if now_s >= dates.ends_s:
        raise Invalid(f"{where}: the certificate expired on {shown(dates.ends_s)}: {remedy}")
    if now_s < dates.begins_s:
        begins, now = shown(dates.begins_s), shown(now_s)
        raise Invalid(
            f"{where}: the certificate is not valid before {begins}, and this machine's clock is at {now}: {remedy}, "
            "or set the clock"
        )
    return Contexts(server, peer, dates)


class Certificates:
    """The contexts that a host uses for new connections. `took(contexts)` is called for each new pair."""

    def __init__(
        self, section: TlsSection | None, clock_s: Callable[[], float], took: Callable[[Contexts], None]
    ) -> None:
        """`clock_s` has epoch seconds. Raises Invalid, as `load` does."""
        self._clock_s = clock_s
        self._took = took
        self.contexts = None if section is None else load(section, clock_s())
        self._kept_for = ""

    @property
    def server(self) -> ssl.SSLContext | None:
        return None if self.contexts is None else self.contexts.server

    @property
    def peer(self) -> ssl.SSLContext | None:
        return None if self.contexts is None else self.contexts.peer

    @property
    def note(self) -> str:
        """Return the fault of the certificate that the host shows; empty if it has none."""
        if self.contexts is None:
            return ""
        ends_s = self.contexts.dates.ends_s
        if self._kept_for:
            return f"the host keeps its certificate, valid until {shown(ends_s)}: {self._kept_for}"
        return f"the certificate expired on {shown(ends_s)}" if self._clock_s() >= ends_s else ""

    def read_again(self, section: TlsSection) -> Contexts | Invalid:
        """Read the files, on any thread; `take` takes the outcome."""
        try:
            return load(section, self._clock_s())
        except Invalid as error:
            return bare(error)

    def take(self, found: Contexts | Invalid) -> None:
        """Use the new contexts for new connections; after a failure keep the present ones."""
        if isinstance(found, Invalid):
            self._kept_for = found.message
            assert self.contexts is not None
            log.error("certificates.not_reloaded", reason=found.message, kept_until=shown(self.contexts.dates.ends_s))
            return
        self._kept_for, self.contexts = "", found
        self._took(found)
        log.info("certificates.reloaded", valid_until=shown(found.dates.ends_s))


def shown(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def dates_of(section: TlsSection) -> Dates:
    """Return the dates of the certificate, also of an expired one. Raises Invalid.

    Python decodes certificates of peers only: so the certificate is shown in a handshake in memory, where it is its own
    authority."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    try:
        server.load_cert_chain(section.cert_file, section.key_file, password=_no_password)
        client.load_verify_locations(section.cert_file)
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
        certificate = shake_hands(server, client)
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", None) or error.reason or "unknown"
        raise Invalid(f"tls.cert_file: {section.cert_file}: a handshake with it fails ({why})") from None
    begins, ends = str(certificate["notBefore"]), str(certificate["notAfter"])
    return Dates(ssl.cert_time_to_seconds(begins), ssl.cert_time_to_seconds(ends))


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = None) -> Mapping[str, Any]:
    """Shake hands in memory, and return the server's certificate as the client sees it. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_MOST_ROUNDS):
        waiting = [side for side in (ours, theirs) if not _done(side)]
        if not waiting:
            break
    return ours.getpeercert() or {}


def _done(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def server_context(config: TlsSection | None) -> ssl.SSLContext | None:
    """Return the context for incoming connections; None without TLS. Raises Invalid, which names the key."""
    if config is None:
        return None
    context = _context(ssl.PROTOCOL_TLS_SERVER, config)
    context.num_tickets = 0  # sessions are not resumed: connections live long, and each shows its certificate
    modes = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    context.verify_mode = modes[config.client_certificates]
    return context


def peer_context(config: TlsSection | None) -> ssl.SSLContext | None:
    """Return the context for calls to other hosts, whose names are checked; None without TLS. Raises Invalid, which
    names the key."""
    if config is None:
        return None
    context = _context(ssl.PROTOCOL_TLS_CLIENT, config)
    if config.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _context(protocol: int, config: TlsSection) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    for key, path in (("cert_file", config.cert_file), ("key_file", config.key_file), ("ca_file", config.ca_file)):
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            raise Invalid(f"tls.{key}: {path}: {error.strerror}") from None
    try:
        # A password would be asked for on the terminal, for ever.
        context.load_cert_chain(config.cert_file, config.key_file, password=_no_password)
    except ssl.SSLError as error:
        what = "they do not belong together" if error.reason == "KEY_VALUES_MISMATCH" else "not PEM, or not readable"
        files = f"{config.cert_file}, {config.key_file}"
        raise Invalid(f"tls.cert_file, tls.key_file: {what} ({error.reason or 'unknown'}): {files}") from None
    if config.ca_file is not None:
        try:
            context.load_verify_locations(config.ca_file)
        except ssl.SSLError as error:
            what = f"no certificates in PEM ({error.reason or 'unknown'})"
            raise Invalid(f"tls.ca_file: {config.ca_file}: {what}") from None
    return context


def _no_password() -> str:
    raise Invalid("tls.key_file: the key has a password: give one without, which only the service's user may read")
