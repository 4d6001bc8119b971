"""Rows that were refused, with the reason, as Parquet."""

from __future__ import annotations

from typing import Any

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


class InvalidRows:
    """One file a task, made with the first row: a path, or a URL of a file system that pyarrow knows. A task that is
    tried again writes the same file."""

    def __init__(self, path: str, job: str, partition: int) -> None:
        self._path = path
        self._name = f"part-{partition:05d}-{job}.parquet"
        self._partition = partition
        self._rows: list[dict[str, Any]] = []
        self._writer: Any = None

    def add(self, row: int, spec: ItemSpec | None, error: FoqsError) -> None:
        """`spec` is None for what could not be made an item."""
        given = {} if spec is None else {name: getattr(spec, name) for name in SCHEMA.names[3:]}
        self._rows.append({"partition": self._partition, "row": row, "reason": error.message, **given})
        if len(self._rows) >= _ROWS:
            self._flush()

    def close(self) -> None:
        if self._rows:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        if self._writer is None:
            files, folder = _file_system(self._path)
            files.create_dir(folder, recursive=True)
            self._writer = pq.ParquetWriter(f"{folder}/{self._name}", SCHEMA, filesystem=files)
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=SCHEMA))
        self._rows = []


def _file_system(path: str) -> tuple[Any, str]:
    if "://" in path:
        return pyarrow.fs.FileSystem.from_uri(path)  # type: ignore[no-any-return]
    return pyarrow.fs.LocalFileSystem(), path.removeprefix("file:")
