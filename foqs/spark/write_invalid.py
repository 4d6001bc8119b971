"""Refused rows with the reason, as Parquet."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from foqs.client import ItemSpec
from foqs.errors import FoqsError

SCHEMA = pa.schema([
    ("partition", pa.int32()),
    ("row", pa.int64()),
    ("reason", pa.string()),
    ("topic", pa.string()),
    ("payload", pa.binary()),
    ("priority", pa.int32()),
    ("metadata", pa.binary()),
    ("dedup_key", pa.string()),
])  # fmt: skip
_ROWS = 1_000
_BYTES = 4 << 20


class InvalidRows:
    """One file of a task, created with the first row. `path` is a path, or a URL of a file system that pyarrow knows.

    The file gets its name when it is complete. Before that its name begins with a dot, so Spark does not read it. A
    repeated task replaces the file.
    """

    def __init__(self, path: str, job: str, partition: int) -> None:
        self._path = path
        self._partition = partition
        self._rows: list[dict[str, Any]] = []
        self._size_bytes = 0
        self._writer: Any = None
        self._temporary = ""
        self.name = f"part-{partition:05d}-{_plain(job)}.parquet"

    def add(self, row: int, spec: ItemSpec | None, error: FoqsError) -> None:
        """Add a row. `spec` is None if the row could not be made into an item."""
        given = {} if spec is None else {name: getattr(spec, name) for name in SCHEMA.names[3:]}
        self._rows.append({"partition": self._partition, "row": row, "reason": error.message, **given})
        self._size_bytes += 0 if spec is None else spec.size_bytes
        if len(self._rows) >= _ROWS or self._size_bytes >= _BYTES:
            self._flush()

    def close(self) -> str | None:
        """Give the file its name and return it, or None if no row was added."""
        if self._rows:
            self._flush()
        if self._writer is None:
            return None
        self._writer.close()
        files, folder = file_system(self._path)
        files.move(self._temporary, f"{folder}/{self.name}")
        return self.name

    def discard(self) -> None:
        """Remove the unfinished file, because the task fails."""
        if self._writer is not None:
            self._writer.close()
            files, _ = file_system(self._path)
            files.delete_file(self._temporary)

    def _flush(self) -> None:
        if self._writer is None:
            files, folder = file_system(self._path)
            files.create_dir(folder, recursive=True)
            self._temporary = f"{folder}/.{self.name}.{uuid4().hex}.tmp"
            self._writer = pq.ParquetWriter(self._temporary, SCHEMA, filesystem=files)
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=SCHEMA))
        self._rows, self._size_bytes = [], 0


def remove_others(path: str, job: str, names: Collection[str]) -> None:
    """Remove the files of earlier attempts of `job`, which had other partitions: all except `names`, and unfinished
    ones."""
    files, folder = file_system(path)
    ours = re.compile(rf"\.?part-[0-9]+-{re.escape(_plain(job))}\.parquet(\.[0-9a-f]+\.tmp)?")
    for found in files.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True)):
        if found.base_name not in names and ours.fullmatch(found.base_name):
            with suppress(FileNotFoundError):
                files.delete_file(found.path)


def _plain(job: str) -> str:
    """Return a path without colons: Spark reads the part before a colon as the scheme of a URL."""
    return job.replace(":", "-")


def file_system(path: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it."""
    if "://" in path:
        return pyarrow.fs.FileSystem.from_uri(path)  # type: ignore[no-any-return]
    return pyarrow.fs.LocalFileSystem(), path.removeprefix("file:")
