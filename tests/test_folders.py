"""Locks of folders, and files that are replaced whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foqs.errors import Invalid
from foqs.folders import held_folder, replace_file


def test_a_held_folder_is_refused_until_its_holder_ends(tmp_path: Path) -> None:
    """It is made, with its parents, for its owner alone."""
    folder = tmp_path / "a" / "b"
    refusal = rf"--state-dir {folder}: another `foqs console` runs on this folder \(process {os.getpid()}\)"
    with held_folder(folder, "--state-dir", "console"):
        assert [one.stat().st_mode & 0o777 for one in (folder, folder.parent)] == [0o700] * 2
        with pytest.raises(Invalid, match=refusal), held_folder(folder, "--state-dir", "console"):
            pass
    with held_folder(folder, "--state-dir", "console"):
        pass


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(Invalid, match=f"--state-dir {tmp_path}/file/below: File exists"),
        held_folder(tmp_path / "file" / "below", "--state-dir", "console"),
    ):
        pass


def test_a_replaced_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said = tmp_path / "one", list[str]()
    replace_file(path, b"old")
    fsync, replace = os.fsync, Path.replace

    def synced(number: int) -> None:
        said.append(f"fsync {os.path.basename(os.readlink(f'/proc/self/fd/{number}'))}: {path.read_text()}")
        fsync(number)

    def replaced(new: Path, target: Path) -> Path:
        said.append("replace")
        return replace(new, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    replace_file(path, b"new")
    assert said == ["fsync one.tmp: old", "replace", f"fsync {tmp_path.name}: new"]
    assert [one.name for one in tmp_path.iterdir()] == ["one"]
    assert path.stat().st_mode & 0o777 == 0o600
