"""How a client talks TLS."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass

from foqs.checks import check_text, refuse
from foqs.client.credential import log, stamp_of
from foqs.errors import Invalid


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
        """Raises Invalid for a value that is no path, or no text, and for a key_file alone."""
        for name in ("ca_file", "cert_file", "key_file"):
            path = getattr(self, name)
            if path is not None and (not isinstance(path, str | os.PathLike) or not os.fspath(path)):
                refuse(f"tls: {name}", path, "it must be the path of a file")
        check_text("tls: server_name", self.server_name, none=True)
        if self.key_file is not None and self.cert_file is None:
            raise Invalid("tls: key_file needs cert_file")

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
        self._tls = tls
        self._files = stamp_of(tls.ca_file, tls.cert_file, tls.key_file)
        self._context = tls.context()
        self._server_name = tls.server_name

    @property
    def context(self) -> ssl.SSLContext:
        """The context of a new connection, from files as they are now: their certificates may be replaced at any time.
        While they cannot be used, as between the writes of a certificate and of its key, it is the previous one."""
        files = stamp_of(self._tls.ca_file, self._tls.cert_file, self._tls.key_file)
        if files != self._files:
            self._files = files
            try:
                self._context = self._tls.context()
            except Invalid as error:
                log.warning("%s: the client keeps the certificates that it has", error.message)
        return self._context

    def name_of(self, host: str) -> str:
        """Return the name that the certificate of `host` has to hold."""
        return self._server_name or host

    def wrap(self, plain: socket.socket, host: str) -> ssl.SSLSocket:
        """`plain` is closed where it fails. Raises OSError (an ssl.SSLError) when the peer's certificate does not
        verify."""
        return self.context.wrap_socket(plain, server_hostname=self.name_of(host))


def _no_password() -> str:
    raise Invalid("tls: key_file: the key has a password; one without is needed")
