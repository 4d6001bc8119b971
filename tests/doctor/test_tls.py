"""Certificates, keys and credentials as the doctor finds them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from foqs.config.load import Config, load
from foqs.config.schema import TlsSection
from foqs.doctor.check import Check, Verdict
from foqs.doctor.host import examine_tls
from tests.support.certificates import Authority

NAME = "queue.example"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def look(section: TlsSection, now_s: float | None = None) -> Check:
    section.key_file.chmod(0o600)
    (check,) = examine_tls(with_tls(section), NAME, time.time() if now_s is None else now_s)
    return check


def with_tls(section: TlsSection) -> Config:
    return load(tls=section.model_dump(mode="json"))


@pytest.mark.parametrize("clients", ["none", "required"])
def test_a_good_certificate(authority: Authority, clients: str) -> None:
    check = look(authority.section(authority.issue(NAME), client_certificates=clients))
    assert (check.verdict, check.mend) == (Verdict.OK, "")
    assert NAME in check.found


def test_one_that_expires(authority: Authority) -> None:
    """Soon, by a clock that is a little before its end; and it has."""
    section = authority.section(authority.issue(NAME))
    good_days = int(look(section).found.split()[-2])
    soon = look(section, time.time() + (good_days - 20) * 86_400)
    assert (soon.verdict, soon.mend) == (Verdict.WARNING, "renew it")
    over = look(authority.section(authority.issue(NAME, expired=True)))
    assert over.verdict is Verdict.WRONG
    assert "expired" in over.found
    assert "renew" in over.mend


def test_another_name_and_another_authority(authority: Authority, tmp_path: Path) -> None:
    other = look(authority.section(authority.issue("other.example")))
    assert other.verdict is Verdict.WRONG
    assert "ostname mismatch" in other.found
    assert NAME in other.mend
    address = examine_tls(with_tls(authority.section(authority.issue("127.0.0.1"))), "127.0.0.2", time.time())[0]
    assert "IP address mismatch" in address.found
    stranger = Authority(tmp_path, "stranger")
    foreign = look(stranger.section(authority.issue(NAME)))
    assert foreign.verdict is Verdict.WRONG
    assert "issuer" in foreign.found
    assert "tls.ca_file" in foreign.mend


def test_files_that_are_no_pair_or_not_there(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue(NAME), authority.issue("other.example")
    mixed = look(TlsSection(cert_file=pair.cert_file, key_file=other.key_file))
    assert mixed.verdict is Verdict.WRONG
    assert "do not belong together" in mixed.found
    (missing,) = examine_tls(
        with_tls(TlsSection(cert_file=tmp_path / "none.pem", key_file=pair.key_file)), NAME, time.time()
    )
    assert "tls.cert_file" in missing.found


def test_a_key_that_everybody_can_read(authority: Authority) -> None:
    section = authority.section(authority.issue(NAME))
    section.key_file.chmod(0o644)
    good, open_ = examine_tls(with_tls(section), NAME, time.time())
    assert (good.verdict, open_.verdict) == (Verdict.OK, Verdict.WARNING)
    assert open_.name == "tls.key_file"


@pytest.mark.parametrize(("mode", "is_open"), [(0o644, True), (0o440, False)])
def test_the_key_for_zookeeper(authority: Authority, mode: int, is_open: bool) -> None:
    """0440 is what a Secret's file with the mode 0400 becomes in a pod with an fsGroup."""
    pair = authority.issue("zookeeper-client")
    pair.key_file.chmod(mode)
    files = {"tls_cert_file": str(pair.cert_file), "tls_key_file": str(pair.key_file)}
    config = load(zookeeper={"hosts": "zk:2281", "tls": True, **files})
    assert [check.name for check in examine_tls(config, NAME, time.time())] == ["zookeeper.tls_key_file"] * is_open


def test_principals(tmp_path: Path) -> None:
    file = tmp_path / "principals.toml"

    def look_at(text: str) -> Check:
        file.write_text(text)
        (check,) = examine_tls(load(auth={"principals_file": str(file)}), NAME, time.time())
        return check

    digest = "0" * 64
    good = look_at(f'[principals.shop]\ntoken_sha256 = "{digest}"\nrights = {{ shop = ["produce"] }}\n')
    assert (good.verdict, good.found) == (Verdict.OK, "1 principal")
    assert look_at("").verdict is Verdict.WARNING
    assert look_at("[principals.shop]\n").verdict is Verdict.WRONG
    file.unlink()
    (gone,) = examine_tls(load(auth={"principals_file": str(file)}), NAME, time.time())
    assert gone.verdict is Verdict.WRONG
