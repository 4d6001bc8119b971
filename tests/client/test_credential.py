"""Tokens and certificates of a client that are replaced while the program runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foqs.client.credential import LOOK_S, Token
from foqs.client.tls import Securing, Tls
from foqs.errors import Invalid
from tests.support.certificates import Authority, Pair

pytestmark = pytest.mark.memory


def write(path: Path, text: str) -> None:
    """Replace the file, as `mv` and Kubernetes do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


@pytest.mark.parametrize("given", [None, "secret"])
def test_a_token_that_is_no_file_stays(given: str | None) -> None:
    token = Token(given)
    assert (token.value, token.look(0.0)) == (given, False)
    assert token.due_s > 1e18


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write(path, "first\n")
    token = Token(f"@{path}")
    assert (token.value, token.look(100.0)) == ("first", False)
    assert token.due_s == 100.0 + LOOK_S
    write(path, "second\n")
    assert token.look(110.0)
    assert (token.value, token.look(120.0)) == ("second", False)


def test_a_file_that_cannot_be_read_leaves_the_token(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"
    write(path, "first")
    token = Token(f"@{path}")
    path.unlink()
    assert not token.look(1.0)
    write(path, "")
    assert not token.look(2.0)
    assert token.value == "first"
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "first" not in "".join(record.getMessage() for record in caplog.records)
    with pytest.raises(Invalid, match="is empty"):
        Token(f"@{path}")


def test_certificates_are_read_again_for_a_new_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    mine = Pair(tmp_path / "mine.pem", tmp_path / "mine.key")

    def install(pair: Pair, *, key: bool = True) -> None:
        for source, target in zip(pair if key else pair[:1], mine, strict=False):
            write(target, source.read_text())

    install(authority.issue("client.test"))
    securing = Securing(Tls(authority.ca_file, *mine))
    first = securing.context
    assert securing.context is first
    other = authority.issue("client.test")
    install(other, key=False)
    assert securing.context is first, "the key is that of the old certificate"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    install(other)
    second = securing.context
    assert second is not first
    write(authority.ca_file, authority.ca_file.read_text() + Authority(tmp_path, "new").ca_file.read_text())
    assert len(securing.context.get_ca_certs()) == 2
