"""The rows that a task keeps for the driver: a few in its report, the rest in a file, and none beyond a full disk."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PySpark is not installed (pip install 'foqs[spark]')")

from foqs.client import Delivery, ItemSpec
from foqs.errors import Invalid
from foqs.spark import write_files
from foqs.spark.write_files import Known, folder_of_task, read_kept, remove_kept
from foqs.spark.write_rows import missing_rows
from tests.spark.test_write_equal import SCOPE, Service, task

DIGEST = "0123456789abcdef" * 2
ROW = int(DIGEST[:16], 16)


def spec(number: int = 0, **fields: Any) -> ItemSpec:
    given = {"topic": "t", "payload": b"x", "dedup_key": f"{SCOPE}:{number:016x}{'0' * 16}:0"}
    return ItemSpec(**(given | fields))


def kept_in_file(tmp_path: Path, *specs: ItemSpec, folder: str | None = None) -> dict[int, ItemSpec]:
    """Keep the specs in a file, and read it."""
    known = Known(SCOPE, folder or str(tmp_path))
    known._left_bytes = 0
    for one in specs:
        known.add(one)
    kept = known.close()
    assert (kept.rows, kept.why) == ({}, "")
    assert kept.file is not None
    return dict(read_kept(kept.file))


@pytest.mark.parametrize("size", [1_000, 100_000, 1 << 20])
def test_more_equal_rows_than_a_report_holds(tmp_path: Path, size: int) -> None:
    """4 MiB of rows or more are in two partitions, one of them twice: each row is stored three times, for every
    repetition. A report holds 1 MiB."""
    count = max(24, (4 << 20) // size)
    rows = list(range(count))
    service = Service()

    def made(parts: list[list[int]]) -> None:
        sent = []
        for part in parts:
            sent.append(task(service, part, folder=str(tmp_path), body=lambda row: (b"%d " % row).ljust(size)))
            assert sum(one.size_bytes for one in sent[-1].kept.rows.values()) <= 1 << 20
        for one in missing_rows(sent):
            service.enqueue(one)

    made([rows, rows + rows[:5], rows])
    expected = Counter({row: 3 + (row < 5) for row in rows})
    assert Counter(int(one.payload) for one in service.items.values()) == expected
    made([rows + rows, rows + rows[:5]])
    assert Counter(int(one.payload) for one in service.items.values()) == expected


def test_a_row_in_a_file_has_all_of_its_fields(tmp_path: Path) -> None:
    full = ItemSpec(
        "tö", b"\x00\xff" * 10, b"m", {"a": "é", "": "x"}, -3, 5_000_000_000_000, None, 7, 8, Delivery.AT_MOST_ONCE,
        f"{SCOPE}:{DIGEST}:0", "acme", ["db", "api"], 9, 10,
    )  # fmt: skip
    bare = spec(1)
    found = kept_in_file(tmp_path, full, bare)
    assert found == {ROW: full, 1: bare}
    assert type(found[ROW].delivery) is Delivery


def test_only_the_first_of_equal_rows_is_kept(tmp_path: Path) -> None:
    known = Known(SCOPE)
    for number in range(3):
        known.add(spec(dedup_key=f"{SCOPE}:{DIGEST}:{number * 10}"))
    assert list(known.close().rows) == [ROW]


@pytest.mark.parametrize("fault", ["full", "gone", "url"])
def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The rows go on, and only a batch that needs the missing ones fails."""
    folder = str(tmp_path / "f")
    if fault == "full":
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000))
        monkeypatch.setattr(write_files, "_FLUSH_ROWS", 1)
    elif fault == "gone":
        Path(folder).write_text("a file")
    else:
        folder = "what://ever"
    service = Service()
    monkeypatch.setattr(write_files, "_KEPT_BYTES_WITH_FILE", 400)
    sent = [task(service, [1, 2, 3], folder=folder) for _ in range(2)]
    with pytest.raises(Invalid, match=rf"(?s)2 rows are equal.*a task could not write to {folder}.*equalRowsPath"):
        for one in missing_rows(sent):
            service.enqueue(one)
    assert len(service.items) == 4, "the kept rows are stored"
    assert list(missing_rows([task(service, [7], folder=folder), task(service, [8], folder=folder)])) == []


@pytest.mark.parametrize("fault", ["missing", "cut"])
def test_a_file_that_the_driver_cannot_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(write_files, "_KEPT_BYTES_WITH_FILE", 0)
    service = Service()
    sent = [task(service, [1, 2, 3], folder=str(tmp_path)) for _ in range(2)]
    file = Path(str(sent[1].kept.file))
    if fault == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(Invalid, match=r"(?s)rows are equal.*the driver could not read what a task kept.*equalRowsPath"):
        list(missing_rows(sent))


def test_files_are_for_their_user_and_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_files, "_KEPT_BYTES_WITH_FILE", 0)
    monkeypatch.setattr(os, "chmod", None)  # a file has its mode from the beginning
    service, other = Service(), Known("query:70", str(tmp_path))
    other.add(spec(dedup_key=f"query:70:{DIGEST}:0"))
    theirs = Path(str(other.close().file))
    for _ in range(2):
        task(service, [1], folder=str(tmp_path))
    failing = Known(SCOPE, str(tmp_path))
    failing.add(spec())
    assert len(list(tmp_path.iterdir())) == 3
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    failing.discard()
    assert len(list(tmp_path.iterdir())) == 2
    remove_kept(str(tmp_path), SCOPE)
    assert list(tmp_path.iterdir()) == [theirs]
    remove_kept(None, SCOPE)
    remove_kept(str(tmp_path / "none"), SCOPE)


def test_a_task_on_another_machine_does_not_use_the_drivers_disk(tmp_path: Path) -> None:
    assert folder_of_task(str(tmp_path), given=False) == str(tmp_path)
    assert folder_of_task(str(tmp_path / "not-here"), given=False) is None
    assert folder_of_task(str(tmp_path / "not-here"), given=True) == str(tmp_path / "not-here")
    assert folder_of_task(None, given=False) is None


def test_a_url_is_a_folder_too(tmp_path: Path) -> None:
    assert kept_in_file(tmp_path, spec(3), folder=f"file://{tmp_path}/sub") == {3: spec(3)}
    assert os.listdir(tmp_path / "sub")
