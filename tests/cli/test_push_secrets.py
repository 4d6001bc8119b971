"""Files of secrets of a push process: their modes, faults and changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foqs.cli.push_secrets import MOST_BYTES, SecretFiles, mode_error, read_secret
from foqs.errors import Invalid

pytestmark = pytest.mark.memory

SECRET = "hunter2-the-secret"


def write(path: Path, text: str | bytes, mode: int = 0o400) -> Path:
    """Replace a file as deployments do: a new one takes its name."""
    made = path.with_name(f"{path.name}.new")
    made.write_bytes(text if isinstance(text, bytes) else text.encode())
    made.chmod(mode)
    return made.replace(path)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
def test_its_owner_alone_may_read_a_file(tmp_path: Path, mode: int) -> None:
    assert read_secret(write(tmp_path / "a", f"{SECRET}\n", mode)) == SECRET


@pytest.mark.parametrize("mode", [0o440, 0o404, 0o420, 0o402, 0o410, 0o644])
def test_a_file_that_a_group_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "a", SECRET, mode)
    with pytest.raises(Invalid) as raised:
        read_secret(path)
    assert raised.value.message == (f"{path} has mode {mode:04o}: only its owner may read or change it: chmod 0400 it")


def test_a_group_may_read_files_of_root_alone() -> None:
    """Those that a platform gives to a service that is not root."""
    root, service, group = 0, 1_000, 0o440
    assert mode_error(group, root, service) is None
    for mode, owner, user in ((group, root, root), (group, service, service), (group, 2, service)):
        assert mode_error(mode, owner, user) == "0440: only its owner may read or change it: chmod 0400 it"
    for mode in (0o460, 0o450, 0o444, 0o441):
        assert mode_error(mode, root, service) is not None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"\r\n", "is empty"),
        (b"\xff" + SECRET.encode(), "is not UTF-8"),
        (SECRET.encode() + b"a" * MOST_BYTES, f"is larger than {MOST_BYTES} bytes"),
    ],
)
def test_texts_that_are_no_secret(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(Invalid, match=said) as raised:
        read_secret(write(tmp_path / "a", data))
    assert SECRET not in raised.value.message


def test_paths_of_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o400)
    for name, said in (("none", "No such file"), ("pipe", "no regular file"), (".", "no regular file")):
        with pytest.raises(Invalid, match=said):
            read_secret(tmp_path / name)
    with pytest.raises(Invalid, match="cannot read"):
        read_secret(Path("a\0b"))


def test_changes_are_read_and_a_faulty_file_keeps_its_last_text(tmp_path: Path) -> None:
    files = SecretFiles()
    a, b = write(tmp_path / "a", "one"), tmp_path / "b"
    assert files.refresh({"a": a, "b": b}) == {"a": "one"}
    assert list(files.faults) == ["b"]
    write(a, "two")
    write(b, "three")
    assert files.refresh({"a": a, "b": b}) == {"a": "two", "b": "three"}
    assert files.faults == {}
    a.chmod(0o444)
    assert files.refresh({"a": a, "b": b}) == {"a": "two", "b": "three"}
    assert "has mode 0444" in files.faults["a"]
    b.unlink()
    assert files.refresh({"a": a, "b": b})["b"] == "three"
    assert "No such file" in files.faults["b"]


def test_a_name_with_another_file_loses_its_text(tmp_path: Path) -> None:
    files = SecretFiles()
    files.refresh({"a": write(tmp_path / "a", "one"), "b": write(tmp_path / "b", "two")})
    assert files.refresh({"a": tmp_path / "none"}) == {}
    assert list(files.faults) == ["a"]
    assert files.refresh({"a": tmp_path / "a"}) == {"a": "one"}
