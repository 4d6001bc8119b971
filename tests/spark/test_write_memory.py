"""The memory of a writing task: it does not grow with the rows of its partition."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="PySpark is not installed (pip install 'foqs[spark]')")

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from foqs.client import Duplicate, ItemSpec
from foqs.errors import Invalid
from foqs.spark import write, write_files, write_rows
from foqs.spark.write import BatchWriter, Written
from foqs.spark.write_rows import RowCounts

ROWS_OF_A_BATCH = 500
ROWS = 1_500
SLACK_BYTES = 64 << 10
"""Two requests may be in flight at the peak, or none: far less than one object for each row."""
SCHEMA = StructType([StructField("payload", BinaryType()), StructField("topic", StringType())])
OTHER = ItemSpec("t", b"")


class Service:
    """A service that refuses every eleventh row, and knows every seventh."""

    waits = (0, 0.0)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.stored = 0

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def enqueue_many(self, specs: list[ItemSpec], **_: Any) -> list[Any]:
        return [self._enqueue(spec) for spec in specs]

    def _enqueue(self, spec: ItemSpec) -> Any:
        self.stored += 1
        if self.stored % 7 == 0:
            return Duplicate(self.stored)
        return Invalid("no") if self.stored % 11 == 0 else self.stored


class Task:
    def partitionId(self) -> int:
        return 3

    def getLocalProperty(self, _name: str) -> None:
        return None


def rows(number: int) -> Iterator[pa.RecordBatch]:
    """Distinct rows, with two equal ones here and there."""
    for start in range(0, number, ROWS_OF_A_BATCH):
        payloads = [b"%d" % (n - n % 2 if n % 50 < 2 else n) for n in range(start, start + ROWS_OF_A_BATCH)]
        yield pa.RecordBatch.from_pydict({"payload": payloads, "topic": ["t"] * ROWS_OF_A_BATCH})
        gc.collect(1)  # up to 400 KiB of Arrow's wrappers wait for it


def written(number: int, options: dict[str, str]) -> Written:
    given = {"endpoints": "unused:1", "namespace": "n", "batchRows": "100", "inFlight": "2"}
    writer = BatchWriter(given | options, SCHEMA, overwrite=False)
    return writer.write(rows(number))


def peak_bytes(number: int, options: dict[str, str]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        assert written(number, options).totals.rows > number // 2
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.client.Client", Service)
    monkeypatch.setattr(write.TaskContext, "get", Task)
    # Bounds that the smaller number of rows reaches.
    monkeypatch.setattr(write_rows, "RowCounts", lambda: RowCounts(ROWS // 4))
    monkeypatch.setattr(write_rows, "_RUN_BYTES", 1 << 12)
    monkeypatch.setattr(write_files, "_FLUSH_ROWS", 20)
    monkeypatch.setattr(write_files, "KEPT_BYTES", 40_000)
    monkeypatch.setattr(write_files, "_KEPT_BYTES_WITH_FILE", 40_000)
    monkeypatch.setattr(write_files, "_FLUSH_ROWS", 20)


@pytest.mark.parametrize("keys", ["partition", "none"])
def test_memory_does_not_grow_with_rows(keys: str, tmp_path: Any) -> None:
    options = {"dedupKeys": keys, "onInvalid": "collect", "invalidPath": str(tmp_path)}
    written(ROWS, options)  # imports and caches
    # Python keeps up to 2,000 freed tuples of a size, such as the arguments of an ItemSpec: twice ROWS make them.
    few, many = peak_bytes(2 * ROWS, options), peak_bytes(20 * ROWS, options)
    assert many - few < SLACK_BYTES, (few, many)


@pytest.mark.parametrize("path", [None, "equal"])
def test_a_job_with_an_id_adds_the_hashes_that_it_reports(tmp_path: Any, path: str | None) -> None:
    """The driver needs 8 bytes of each row: the task joins them once, when its last row is stored. Rows that the
    service knew are in a file, if there is a folder for it."""
    options = {"jobId": "j", "onInvalid": "collect", "invalidPath": str(tmp_path)}
    if path is not None:
        options["equalRowsPath"] = str(tmp_path / path)
    written(ROWS, options)
    few, many = peak_bytes(ROWS, options), peak_bytes(10 * ROWS, options)
    # Up to 400 KiB of Arrow's wrappers wait for the garbage collector.
    slack = SLACK_BYTES if path is None else 8 * SLACK_BYTES
    assert many - few < 9 * ROWS * 2 * 8 + slack, (few, many)
