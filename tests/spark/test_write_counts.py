"""The counts of equal rows, in memory and in the file of a large partition."""

from __future__ import annotations

import errno
import os
import tempfile
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from foqs.spark import write_rows
from foqs.spark.write_rows import RowCounts

# Few hashes with equal low bits, so that slots collide, also at the end of the table.
HASHES = st.integers(0, 5) | st.integers(0, 3).map(lambda n: (n << 60) + (1 << 40) - 1) | st.integers(0, (1 << 64) - 1)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "add", "add", "forget"]), HASHES), max_size=80)


@given(STEPS, st.integers(0, 20))
def test_counts_are_those_of_a_dictionary(steps: list[tuple[str, int]], in_memory_rows: int) -> None:
    counts, expected = RowCounts(in_memory_rows), Counter[int]()
    for step, row in steps:
        if step == "add":
            assert counts.add(row) == expected[row]
            expected[row] += 1
        else:
            counts.forget(row)
            expected.pop(row, None)
    hashes = array("Q")
    hashes.frombytes(counts.hashes())
    assert sorted(hashes) == sorted(+expected)
    assert counts.repeats() == {row: count for row, count in expected.items() if count > 1}
    counts.close()


def test_many_runs_of_a_file() -> None:
    counts = RowCounts(10)
    rows = [(n * 0x9E3779B97F4A7C15) % (1 << 64) for n in range(20_000)]
    assert not any(map(counts.add, rows))
    assert all(map(counts.add, rows[::100]))
    hashes = array("Q")
    hashes.frombytes(counts.hashes())
    assert sorted(hashes) == sorted(rows)
    assert counts.repeats() == dict.fromkeys(rows[::100], 2)
    counts.close()


def test_the_file_is_in_the_folder_of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'missing'},{tmp_path}")
    counts = RowCounts(1)
    counts.add(1)
    assert files_in(tmp_path) == 0, "a small partition needs no file"
    for row in range(2, 100):
        counts.add(row)
    assert files_in(tmp_path) == 1, "the smaller files are gone"
    counts.close()
    assert files_in(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def test_the_folder_for_temporary_files_without_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    counts = RowCounts(0)
    counts.add(1)
    assert files_in(tmp_path) == 1
    counts.close()


def test_a_full_disk_is_an_error_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = RowCounts(1)
    counts.add(1)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(write_rows.os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        counts.add(2)
    counts.close()


def files_in(folder: Path) -> int:
    """The open files of this process in a folder; they have no names."""
    links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if open_still(name)]
    return sum(link.startswith(f"{folder}/") for link in links)


def open_still(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")
