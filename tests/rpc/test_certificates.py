"""Certificates of a host that are replaced while it runs."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest

from foqs.config.schema import TlsSection
from foqs.errors import Invalid
from foqs.rpc.certificates import Certificates, Contexts, dates_of, load, shake_hands
from tests.support.certificates import Authority, Pair

pytestmark = pytest.mark.memory
NAME = "queue.example"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def serial(authority: Authority, context: ssl.SSLContext) -> str:
    return str(shake_hands(context, authority.client(), NAME)["serialNumber"])


def installed(authority: Authority, folder: Path, pair: Pair) -> TlsSection:
    """Copy a pair to the paths of the configuration."""
    place = Pair(folder / "host.pem", folder / "host.key")
    for source, target in zip(pair, place, strict=True):
        target.write_bytes(source.read_bytes())
    return authority.section(place)


@pytest.mark.parametrize("expired", [False, True])
def test_the_dates_of_any_certificate_are_known(authority: Authority, expired: bool) -> None:
    found = dates_of(authority.section(authority.issue(NAME, expired=expired), client_certificates="required"))
    assert found.begins_s < found.ends_s
    assert (found.ends_s < time.time()) is expired


def test_a_host_needs_a_valid_certificate_at_its_start(authority: Authority) -> None:
    """The error names the file, the date and the remedy."""
    section = authority.section(authority.issue(NAME))
    begins_s, ends_s = dates_of(section)
    assert load(section, ends_s - 1).dates == (begins_s, ends_s)
    with pytest.raises(Invalid) as over:
        load(section, ends_s)
    assert str(section.cert_file) in over.value.message
    assert f"expired on {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(ends_s))} UTC" in over.value.message
    assert str(section.key_file) in over.value.message
    with pytest.raises(Invalid, match=r"not valid before .* clock is at .* or set the clock"):
        load(section, begins_s - 1)


def test_new_files_are_used_for_new_connections(authority: Authority, tmp_path: Path) -> None:
    took: list[Contexts] = []
    section = installed(authority, tmp_path, authority.issue(NAME))
    certificates = Certificates(section, time.time, took.append)
    assert certificates.server is not None
    before = serial(authority, certificates.server)
    installed(authority, tmp_path, authority.issue(NAME))
    certificates.take(certificates.read_again(section))
    assert took == [certificates.contexts]
    assert serial(authority, certificates.server) != before
    assert certificates.note == ""


@pytest.mark.parametrize("fault", ["expired", "another key", "no file"])
def test_a_bad_new_certificate_changes_nothing(authority: Authority, tmp_path: Path, fault: str) -> None:
    took: list[Contexts] = []
    section = installed(authority, tmp_path, authority.issue(NAME))
    certificates = Certificates(section, time.time, took.append)
    before = certificates.contexts
    if fault == "expired":
        installed(authority, tmp_path, authority.issue(NAME, expired=True))
    elif fault == "another key":
        section.key_file.write_bytes(authority.issue(NAME).key_file.read_bytes())
    else:
        section.cert_file.unlink()
    certificates.take(certificates.read_again(section))
    assert (certificates.contexts, took) == (before, [])
    assert "the host keeps its certificate" in certificates.note
    assert "tls.cert_file" in certificates.note
    installed(authority, tmp_path, authority.issue(NAME))
    certificates.take(certificates.read_again(section))
    assert (certificates.note, len(took)) == ("", 1)


def test_a_certificate_that_expires_while_the_host_runs_is_noted(authority: Authority) -> None:
    section = authority.section(authority.issue(NAME))
    now_s = dates_of(section).ends_s - 1
    certificates = Certificates(section, lambda: now_s, lambda _: None)
    assert certificates.note == ""
    now_s += 1
    assert certificates.note.startswith("the certificate expired on ")


def test_a_host_without_tls_has_no_certificate() -> None:
    certificates = Certificates(None, time.time, lambda _: None)
    assert (certificates.server, certificates.peer, certificates.note) == (None, None, "")
