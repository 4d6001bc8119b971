"""Certificates, keys and credentials: found good by the very handshake that clients and other hosts will make."""

from __future__ import annotations

import ssl
from pathlib import Path

from foqs import principals
from foqs.config import Config
from foqs.doctor.check import Check, Group, Verdict
from foqs.doctor.configuration import is_open
from foqs.errors import Invalid
from foqs.rpc.tls import peer_context, server_context
from foqs.sections import AuthSection, TlsSection

_SOON_S = 30 * 86_400
_MOST_ROUNDS = 10


def examine(config: Config, name: str, now_s: float) -> list[Check]:
    """`name`: what others are told to connect to."""
    checks = (
        []
        if config.tls is None
        else [*_certificate(config.tls, name, now_s), *_closed("tls.key_file", config.tls.key_file)]
    )
    if config.auth is not None:
        checks += _credentials(config.auth)
    return checks


def _certificate(section: TlsSection, name: str, now_s: float) -> list[Check]:
    try:
        server, client = server_context(section), peer_context(section)
    except Invalid as error:
        return [_check(Verdict.WRONG, "tls", error.message, "correct the file, or the right to read it")]
    assert server is not None
    assert client is not None
    try:
        ends_s = _shake(server, client, name)
    except ssl.SSLCertVerificationError as error:
        return [_refused(error, name)]
    except ssl.SSLError as error:
        return [
            _check(Verdict.WRONG, "tls.cert_file", f"a handshake fails: {error.reason}", "take another certificate")
        ]
    left_s = ends_s - now_s
    if left_s < _SOON_S:
        why = f"the certificate expires in {left_s / 86_400:.0f} days"
        return [_check(Verdict.WARNING, "tls.cert_file", why, "renew it")]
    return [_check(Verdict.OK, "tls.cert_file", f"good for {name}, for {left_s / 86_400:.0f} days")]


def _shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> float:
    """When the certificate expires, in epoch seconds. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_MOST_ROUNDS):
        waiting = [side for side in (ours, theirs) if not _done(side)]
        if not waiting:
            break
    certificate = ours.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(certificate["notAfter"]))


def _done(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _refused(error: ssl.SSLCertVerificationError, name: str) -> Check:
    """OpenSSL's own words: expired, another name, no such authority, not for this purpose."""
    mend = {
        10: "renew the certificate",  # X509_V_ERR_CERT_HAS_EXPIRED
        62: f"take a certificate for {name}, or set server.advertise to a name in this one",
        64: f"take a certificate for {name}, or set server.advertise to a name in this one",
    }.get(error.verify_code, "put the certificates between it and its authority behind it; correct tls.ca_file")
    return _check(Verdict.WRONG, "tls.cert_file", f"others refuse it: {error.verify_message}", mend)


def _credentials(section: AuthSection) -> list[Check]:
    checks = []
    if (file := section.principals_file) is not None:
        try:
            count = len(principals.read(file).by_name)
        except Invalid as error:
            checks.append(_check(Verdict.WRONG, "auth.principals_file", error.message, "correct it"))
        else:
            if count:
                checks.append(_check(Verdict.OK, "auth.principals_file", f"{count} principals"))
            else:
                why = "it has no principals: nobody may do anything"
                checks.append(
                    _check(Verdict.WARNING, "auth.principals_file", why, "foqs auth token NAME prints the lines")
                )
    return checks


def _closed(key: str, path: Path) -> list[Check]:
    """A secret that others can read is none."""
    if not is_open(path):
        return []
    return [_check(Verdict.WARNING, key, f"every user of this machine can read {path}", f"chmod o-r {path}")]


def _check(verdict: Verdict, name: str, found: str, mend: str = "") -> Check:
    return Check(Group.TLS, name, verdict, found, mend)
