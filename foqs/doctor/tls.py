"""Checks certificates, keys and credentials with the same handshake that clients and other hosts make."""

from __future__ import annotations

import ssl
from pathlib import Path

from foqs.config import access
from foqs.config.load import Config
from foqs.config.schema import AuthSection, TlsSection
from foqs.doctor.check import Check, Group, Verdict
from foqs.doctor.configuration import is_open
from foqs.errors import Invalid
from foqs.rpc.tls import peer_context, server_context

_SOON_S = 30 * 86_400
_MOST_ROUNDS = 10


def examine(config: Config, name: str, now_s: float) -> list[Check]:
    """Check TLS and principals. Clients connect to `name`."""
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
        return [_check(Verdict.WRONG, "tls", error.message, "correct the file, or give this user the right to read it")]
    assert server is not None
    assert client is not None
    try:
        ends_s = _shake(server, client, name)
    except ssl.SSLCertVerificationError as error:
        return [_refused(error, name)]
    except ssl.SSLError as error:
        return [
            _check(
                Verdict.WRONG, "tls.cert_file", f"a handshake with it fails: {error.reason}", "use another certificate"
            )
        ]
    left_s = ends_s - now_s
    if left_s < _SOON_S:
        why = f"the certificate expires in {left_s / 86_400:.0f} days"
        return [_check(Verdict.WARNING, "tls.cert_file", why, "renew it")]
    return [_check(Verdict.OK, "tls.cert_file", f"valid for {name}, for {left_s / 86_400:.0f} days")]


def _shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> float:
    """Return the expiry of the certificate in epoch seconds. Raises ssl.SSLError."""
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
    """Return OpenSSL's reason (expired, another name, unknown authority, wrong purpose) and its remedy."""
    mend = {
        10: "renew the certificate",  # X509_V_ERR_CERT_HAS_EXPIRED
        62: f"use a certificate for {name}, or set server.advertise to a name in this one",
        64: f"use a certificate for {name}, or set server.advertise to a name in this one",
    }.get(error.verify_code, "append the intermediate certificates to the file, or correct tls.ca_file")
    return _check(Verdict.WRONG, "tls.cert_file", f"clients refuse it: {error.verify_message}", mend)


def _credentials(section: AuthSection) -> list[Check]:
    checks = []
    if (file := section.principals_file) is not None:
        try:
            count = len(access.read(file).by_name)
        except Invalid as error:
            checks.append(_check(Verdict.WRONG, "auth.principals_file", error.message, "correct the file"))
        else:
            if count:
                checks.append(_check(Verdict.OK, "auth.principals_file", f"{count} principals"))
            else:
                why = "it has no principals: every call is refused"
                checks.append(
                    _check(
                        Verdict.WARNING, "auth.principals_file", why, "add one: `foqs auth token NAME` prints its entry"
                    )
                )
    return checks


def _closed(key: str, path: Path) -> list[Check]:
    """Check that other users cannot read a secret."""
    if not is_open(path):
        return []
    return [_check(Verdict.WARNING, key, f"every user of this machine can read {path}", f"chmod o-r {path}")]


def _check(verdict: Verdict, name: str, found: str, mend: str = "") -> Check:
    return Check(Group.TLS, name, verdict, found, mend)
