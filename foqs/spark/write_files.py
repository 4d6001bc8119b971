"""The files that the tasks of a write leave: refused rows with the reason, and rows that the driver may need.

The service knew some rows before. The driver may need the body of any of them, and cannot compute a row again. A report
goes through the memory of the driver, so it has few bytes, and the rest is in a file. The file is in a folder that the
tasks and the driver see.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from foqs.client import Delivery, ItemSpec
from foqs.client.rules import rules_json, rules_of_json
from foqs.errors import FoqsError

KEPT_BYTES = 8 << 20
"""Bytes of rows in the report of a task that has no folder for a file."""
_KEPT_BYTES_WITH_FILE = 256 << 10
_FREE_BYTES = 256 << 20
"""Free bytes of a disk at which a task writes no more rows to it."""
_FLUSH_ROWS = 1_000
_FLUSH_BYTES = 4 << 20
_KEY = re.compile(r"(?P<digest>[0-9a-f]{32}):[0-9]+", re.ASCII)
_HASH_DIGITS = 16
_SUFFIX = ".rows"
_SCHEMA = pa.schema([
    ("row", pa.uint64()), ("topic", pa.string()), ("payload", pa.binary()), ("metadata", pa.binary()),
    ("headers", pa.map_(pa.string(), pa.string())), ("priority", pa.int32()), ("deliver_after_ms", pa.int64()),
    ("delay_ms", pa.int64()), ("lease_ms", pa.int64()), ("ttl_ms", pa.int64()), ("delivery", pa.int8()),
    ("dedup_key", pa.string()), ("fairness_key", pa.string()), ("throttle_keys", pa.list_(pa.string())),
    ("weight", pa.int32()), ("expires_at_ms", pa.int64()), ("rules", pa.string()),
])  # fmt: skip
"""The row's hash, and the fields of an ItemSpec in their order."""
INVALID_SCHEMA = pa.schema([
    ("partition", pa.int32()),
    ("row", pa.int64()),
    ("reason", pa.string()),
    ("topic", pa.string()),
    ("payload", pa.binary()),
    ("priority", pa.int32()),
    ("metadata", pa.binary()),
    ("dedup_key", pa.string()),
])  # fmt: skip


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
        given = {} if spec is None else {name: getattr(spec, name) for name in INVALID_SCHEMA.names[3:]}
        self._rows.append({"partition": self._partition, "row": row, "reason": error.message, **given})
        self._size_bytes += 0 if spec is None else spec.size_bytes
        if len(self._rows) >= _FLUSH_ROWS or self._size_bytes >= _FLUSH_BYTES:
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
            self._writer = pq.ParquetWriter(self._temporary, INVALID_SCHEMA, filesystem=files)
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=INVALID_SCHEMA))
        self._rows, self._size_bytes = [], 0


def remove_others(path: str, job: str, names: Collection[str]) -> None:
    """Remove the files of earlier attempts of `job`, which had other partitions: all except `names`, and unfinished
    ones."""
    for files, found in _named(path, rf"\.?part-[0-9]+-{re.escape(_plain(job))}\.parquet(\.[0-9a-f]+\.tmp)?"):
        if found.base_name not in names:
            with suppress(FileNotFoundError):
                files.delete_file(found.path)


def _plain(job: str) -> str:
    """Return a path without colons: Spark reads the part before a colon as the scheme of a URL."""
    return job.replace(":", "-")


def short_hash(digest: bytes) -> int:
    """Digest of a row in memory: its first 8 bytes."""
    return int.from_bytes(digest[: _HASH_DIGITS // 2], "big")


@dataclass
class Kept:
    """What a task kept: an item by the hash of its row, in `rows` and in the file named `file`. `why` the task did not
    keep further rows, or ""."""

    rows: dict[int, ItemSpec] = field(default_factory=dict)
    file: str | None = None
    why: str = ""


class Known:
    """Collects in a task the rows that the service knew before: one for each content."""

    def __init__(self, scope: str, folder: str | None = None) -> None:
        """`scope`: how the made keys begin, the job. Rows with keys of the frame's own are not collected."""
        self._scope = scope
        self._prefix = f"{scope}:"
        self._folder = folder
        self._left_bytes = KEPT_BYTES if folder is None else _KEPT_BYTES_WITH_FILE
        self._file: _File | None = None
        self._kept = Kept()

    def hash_of(self, spec: ItemSpec) -> int | None:
        """None when the key of `spec` was not made."""
        key = spec.dedup_key
        if key is None or not key.startswith(self._prefix):
            return None
        found = _KEY.fullmatch(key, len(self._prefix))
        return None if found is None else int(found["digest"][:_HASH_DIGITS], 16)

    def add(self, spec: ItemSpec) -> None:
        """Keep the first of equal rows. Of two tasks with equal rows, at least one sees that its first row is known."""
        row = self.hash_of(spec)
        if row is None or not str(spec.dedup_key).endswith(":0"):
            return
        if self._folder is None or spec.size_bytes <= self._left_bytes:
            if spec.size_bytes <= self._left_bytes:
                self._left_bytes -= spec.size_bytes
                self._kept.rows[row] = spec
            else:
                self._kept.why = "the tasks and the driver have no folder in common"
        elif not self._kept.why:
            try:
                self._file = self._file or _File(self._folder, self._scope)
                self._file.add(row, spec)
            except (OSError, ValueError) as error:  # pyarrow refuses a URL that it does not know by a ValueError
                self._kept.why = f"a task could not write to {self._folder}: {error}"

    def close(self) -> Kept:
        """Return the kept rows."""
        if self._file is not None:
            try:
                self._kept.file = self._file.close()
            except OSError as error:
                self._kept.why = f"a task could not write to {self._folder}: {error}"
        return self._kept

    def discard(self) -> None:
        """Remove the file, because the task fails."""
        if self._file is not None:
            self._file.discard()


def read_kept(path: str) -> Iterator[tuple[int, ItemSpec]]:
    """Yield the rows of a file with their hashes. Raises OSError."""
    files, name = file_system(path)
    try:
        with files.open_input_stream(name) as file, pa.ipc.open_stream(file) as batches:
            for batch in batches:
                for row, *values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    yield row, _spec(values)
    except pa.ArrowInvalid as error:
        raise OSError(f"{path} is damaged: {error}") from None


def folder_of_task(folder: str | None, *, given: bool) -> str | None:
    """Return the driver's folder if a task can use it. A folder that is not `given` is on the disk of the driver's
    machine, and exists on that machine alone."""
    return folder if folder is not None and (given or os.path.isdir(folder)) else None


def remove_kept(folder: str | None, job: str) -> None:
    """Remove the files of all attempts of `job`."""
    with suppress(OSError):
        for files, found in () if folder is None else _named(folder, f"{_prefix(job)}[0-9a-f]{{32}}{_SUFFIX}"):
            files.delete_file(found.path)


def _named(path: str, pattern: str) -> Iterator[tuple[Any, Any]]:
    """Yield the files of a folder whose whole names match, each with its file system."""
    files, folder = file_system(path)
    for found in files.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True)):
        if re.fullmatch(pattern, found.base_name):
            yield files, found


def _prefix(job: str) -> str:
    return f"foqs-{blake2b(job.encode(), digest_size=16).hexdigest()}-"


class _File:
    """A file of one attempt of a task. It has bodies of items, so on a disk only its user may read it."""

    def __init__(self, folder: str, job: str) -> None:
        self._files, place = file_system(folder)
        self._files.create_dir(place, recursive=True)
        self._disk = place if isinstance(self._files, pyarrow.fs.LocalFileSystem) else None
        name = f"{_prefix(job)}{uuid4().hex}{_SUFFIX}"
        self._place, self._path = f"{place}/{name}", f"{folder}/{name}"
        if self._disk is not None:  # with its mode from the beginning: another user may watch the folder
            os.close(os.open(self._place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        self._file = self._files.open_output_stream(self._place)
        codec = "zstd" if pa.Codec.is_available("zstd") else None
        self._writer = pa.ipc.new_stream(self._file, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression=codec))
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def add(self, row: int, spec: ItemSpec) -> None:
        headers = None if spec.headers is None else list(spec.headers.items())
        self._rows.append((
            row, spec.topic, spec.payload, spec.metadata, headers, spec.priority, spec.deliver_after_ms, spec.delay_ms,
            spec.lease_ms, spec.ttl_ms, int(spec.delivery), spec.dedup_key, spec.fairness_key, spec.throttle_keys,
            spec.weight, spec.expires_at_ms, None if spec.rules is None else json.dumps(rules_json(spec.rules)),
        ))  # fmt: skip
        self._bytes += spec.size_bytes
        if len(self._rows) >= _FLUSH_ROWS or self._bytes >= _FLUSH_BYTES:
            self._flush()

    def close(self) -> str:
        """Return the path."""
        self._flush()
        self._writer.close()
        self._file.close()
        return self._path

    def discard(self) -> None:
        with suppress(OSError):
            self._file.close()
            self._files.delete_file(self._place)

    def _flush(self) -> None:
        if self._disk is not None and shutil.disk_usage(self._disk).free < _FREE_BYTES:
            raise OSError(f"its disk has less than {_FREE_BYTES >> 20} MiB left")
        rows, self._rows, self._bytes = self._rows, [], 0
        columns = zip(*rows, strict=True) if rows else ([] for _ in _SCHEMA)
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))


def _spec(values: list[Any]) -> ItemSpec:
    spec = ItemSpec(*values)
    spec.headers = None if spec.headers is None else dict(spec.headers)
    spec.delivery = Delivery(spec.delivery)
    spec.rules = None if spec.rules is None else rules_of_json(json.loads(spec.rules))  # type: ignore[arg-type]
    return spec


def file_system(path: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it."""
    if "://" in path:
        return pyarrow.fs.FileSystem.from_uri(path)  # type: ignore[no-any-return]
    return pyarrow.fs.LocalFileSystem(), path.removeprefix("file:")
