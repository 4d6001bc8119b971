"""Files of refused rows: complete or absent, with names that Spark reads, and none of an earlier attempt."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="PySpark is not installed (pip install 'foqs[spark]')")

import pyarrow.parquet as pq

from foqs.client import ItemSpec
from foqs.errors import Invalid
from foqs.spark import write_files
from foqs.spark.write_files import InvalidRows, remove_others

JOB = "0f0e:7"


def rows(folder: Path, partition: int, count: int, job: str = JOB) -> InvalidRows:
    made = InvalidRows(str(folder), job, partition)
    for number in range(count):
        made.add(number, ItemSpec("t", b"%d" % number), Invalid("too long"))
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_file_gets_its_name_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_files, "_FLUSH_ROWS", 2)
    folder = tmp_path / "a" / "b"
    made = rows(folder, 3, 5)
    (name,) = names(folder)
    assert name.startswith("."), "Spark would read a file that is not whole"
    assert made.close() == "part-00003-0f0e-7.parquet"
    assert names(folder) == ["part-00003-0f0e-7.parquet"]
    table = pq.read_table(folder / "part-00003-0f0e-7.parquet").to_pylist()
    assert [(row["partition"], row["row"], row["reason"]) for row in table] == [(3, n, "too long") for n in range(5)]


def test_a_task_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_files, "_FLUSH_ROWS", 2)
    rows(tmp_path, 0, 5).discard()
    rows(tmp_path, 1, 0).discard()
    assert names(tmp_path) == []


def test_without_rows_there_is_no_file(tmp_path: Path) -> None:
    assert rows(tmp_path / "x", 0, 0).close() is None
    assert names(tmp_path / "x") == []
    remove_others(str(tmp_path / "x"), JOB, ())


def test_files_of_a_try_with_more_partitions_are_removed(tmp_path: Path) -> None:
    for partition in range(3):
        rows(tmp_path, partition, 1).close()
    rows(tmp_path, 2, 1, "1:0f0e:7").close()
    rows(tmp_path, 2, 1, "0f0e:71").close()
    (tmp_path / ".part-00001-0f0e-7.parquet.ab12.tmp").touch()
    (tmp_path / "mine.parquet").touch()
    again = rows(tmp_path, 0, 2).close()
    assert again is not None
    remove_others(str(tmp_path), JOB, {again})
    assert names(tmp_path) == [
        "mine.parquet",
        "part-00000-0f0e-7.parquet",
        "part-00002-0f0e-71.parquet",
        "part-00002-1-0f0e-7.parquet",
    ]
    assert pq.read_table(tmp_path / again).num_rows == 2


def test_large_rows_do_not_wait_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_files, "_FLUSH_BYTES", 3_000)
    made = InvalidRows(str(tmp_path), JOB, 0)
    for number in range(7):
        made.add(number, ItemSpec("t", bytes(1_000)), Invalid("too long"))
    assert made.close() == "part-00000-0f0e-7.parquet"
    file = pq.ParquetFile(tmp_path / "part-00000-0f0e-7.parquet")
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [3, 3, 1]
