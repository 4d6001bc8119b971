"""Dumps of a shard: one consistent copy of its tables in a file, made while its owner continues.

A server's dump is the SQL text of its own tool. Table `shard` is last, so a partial load has no row for a host to open.
A SQLite file is copied by the online backup of SQLite. Both are compressed. The manifest, a JSON document, has the name
of the dump and `.json`. It is written last: a dump without it is not complete.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from foqs.ids import MAX_SHARD
from foqs.store import dump_tools, migrate, server
from foqs.store.errors import Kind, account_of, grant
from foqs.store.link import Link, open_link, place_of
from foqs.store.ownership import NO_SCHEMA, StoredShard, read_shard_row, refuse_other_shard, refuse_unfinished
from foqs.store.protocol import ShardRefused, StoreDown, StoreError, StoreFull
from foqs.store.schema_diff import read_schema
from foqs.store.tables import SCHEMA_VERSION, TABLES

FORMAT = 1
_CHUNK_BYTES = 1 << 20
_COMPRESSION = 3
_TAIL_BYTES = 4_096
_END = b"-- Dump completed"
_SQLITE_WAIT_S = 60.0


class DumpCut(StoreError):
    """The dump ended early, or the manifest of a dump describes another file."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a dump is. `epoch`, `seq` and `next_number` are from the shard's row right before the dump, which may
    have later ones. `place`: the server and database, without an account. `bytes` and `sha256` are the file's; `began`
    and `ended` are times in UTC as ISO 8601 has them."""

    shard: int
    identity: str
    epoch: int
    seq: int
    next_number: int
    schema_version: int
    product: str
    server: str
    place: str
    tool: str
    foqs: str
    began: str
    ended: str
    bytes: int
    sha256: str

    def encoded(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"


def decode_manifest(text: str) -> Manifest:
    """Raises DumpCut for a text that is no manifest, ShardRefused for one of a later foqs."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise DumpCut("not JSON, or not all of it") from None
    if not isinstance(document, dict) or "format" not in document:
        raise DumpCut("not a manifest of `foqs shards backup`")
    if document["format"] != FORMAT:
        raise ShardRefused(f"format {document['format']!r}, and this foqs reads format {FORMAT}", mend="upgrade foqs")
    values = {field.name: document.get(field.name) for field in fields(Manifest)}
    for field in fields(Manifest):
        if type(values[field.name]).__name__ != field.type:
            raise DumpCut(f"{field.name} is missing, or of another type than {field.type}")
    made = Manifest(**values)  # type: ignore[arg-type]
    if not 1 <= made.shard <= MAX_SHARD:
        raise DumpCut(f"{made.shard} is no shard number")
    return made


def manifest_path(dump: Path) -> Path:
    return dump.with_name(f"{dump.name}.json")


def read_manifest(dump: Path) -> Manifest:
    """Read the manifest of a dump. Raises DumpCut, with the file's name; ShardRefused."""
    path = manifest_path(dump)
    try:
        return decode_manifest(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        why = "there is no manifest: the dump was broken off, or the manifest was not copied"
        raise DumpCut(f"{path}: {why}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DumpCut(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    except ShardRefused as error:
        raise ShardRefused(f"{path}: {error}", mend=error.mend) from None
    except DumpCut as error:
        raise DumpCut(f"{path}: {error}") from None


def verify(dump: Path, manifest: Manifest) -> None:
    """Raise DumpCut unless the file has the size and the hash of its manifest. Reads all of it."""
    digest, size = sha256(), 0
    try:
        with dump.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise DumpCut(f"{dump}: {error.strerror}") from None
    if size != manifest.bytes:
        raise DumpCut(f"{dump} has {size:,} bytes, and its manifest says {manifest.bytes:,}: it was cut or replaced")
    if digest.hexdigest() != manifest.sha256:
        raise DumpCut(f"{dump} has another sha256 than its manifest says: it was damaged or replaced")


# ------------------------------------------------------------------------------------------------ backup


def back_up(url: str, shard: int, folder: Path, *, now: Callable[[], datetime], foqs: str) -> tuple[Path, Manifest]:
    """Dump a shard into a new file of the folder, and return it. `foqs` is the version.

    Raises StoreError: ToolMissing, ToolFailed, DumpCut, ShardRefused for a missing right (`mend` has the GRANT) or
    another shard's database, StoreFull for a full disk, StoreDown and StoreBusy.
    """
    with open_link(url) as link, _granted(link):
        version = server.version(link.connection)
        row, facts = _row(link, shard), _facts(link)
        began = now()
        tables = _tables(link, row)
        ending = "sqlite.gz" if link.database.is_file else "sql.gz"
        dump = folder / f"shard-{shard}-{began.astimezone(UTC):%Y%m%dT%H%M%SZ}.{ending}"
        # Without a name and a time, the same tables give the same bytes.
        with _writing(dump) as sink, gzip.GzipFile("", "wb", _COMPRESSION, sink, mtime=0) as out:
            if link.database.file is not None:
                tool = f"SQLite {sqlite3.sqlite_version}"
                _copy_of_file(link.database.file, out, dump.with_name(f".{dump.name}.copy"))
            else:
                found = dump_tools.find(dump_tools.DUMP, version.product)
                tool = found.version
                _dump_of_server(link, url, found, tables, out)
        made = Manifest(
            shard=shard, **facts, schema_version=row.version, product=version.product,
            server=".".join(map(str, version.number)), place="/".join(place_of(url) or ()), tool=tool, foqs=foqs,
            began=_spelled(began), ended=_spelled(now()), bytes=sink.size, sha256=sink.digest.hexdigest(),
        )  # fmt: skip
    try:
        with _writing(manifest_path(dump)) as sink:
            sink.write(made.encoded().encode())
    except BaseException:
        dump.unlink(missing_ok=True)
        raise
    return dump, made


def _row(link: Link, shard: int) -> StoredShard:
    row = read_shard_row(link)
    if row is None:
        raise ShardRefused(NO_SCHEMA)
    refuse_other_shard(row.number, shard)
    refuse_unfinished(row)
    if row.version != SCHEMA_VERSION and not migrate.pending(row.version):
        why = f"the schema of the database is version {row.version}, and this foqs knows {SCHEMA_VERSION}"
        raise ShardRefused(why, mend=migrate.remedy(row.version))
    return row


def _facts(link: Link) -> dict[str, Any]:
    identity, epoch, seq, number = link.fetch("SELECT identity, epoch, seq, next_number FROM shard WHERE one = 1")[0]
    identity = identity.encode() if isinstance(identity, str) else bytes(identity)
    return {"identity": identity.hex(), "epoch": int(epoch), "seq": int(seq), "next_number": int(number)}


def _tables(link: Link, row: StoredShard) -> list[str]:
    """Return the tables in the order of the dump. Raises ShardRefused if one is missing."""
    schema = read_schema(link.connection)
    if row.version == SCHEMA_VERSION and schema.absent:
        why = f"the database lacks tables of foqs, or the account sees none of them: {', '.join(schema.absent)}"
        raise ShardRefused(why, mend="run `foqs shards check`")
    return [*(name for name in TABLES if name in schema.there and name != "shard"), "shard"]


def _dump_of_server(link: Link, url: str, tool: dump_tools.Tool, tables: list[str], out: gzip.GzipFile) -> None:
    tail = b""
    with dump_tools.running(link, url, tool, dump_tools.dump_options(tool), tables) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            out.write(chunk)
            tail = (tail + chunk)[-_TAIL_BYTES:]
    if not tail.rstrip(b"\n").rpartition(b"\n")[2].startswith(_END):
        raise DumpCut(f"{os.path.basename(tool.path)} ended early: its last line is not {_END.decode()}")


def _copy_of_file(file: Path, out: gzip.GzipFile, copy: Path) -> None:
    """Copy a SQLite file in one step, which is one snapshot: a writer continues in the write-ahead log."""
    try:
        with disk_errors(copy):
            copy.unlink(missing_ok=True)
            os.close(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with (
            closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=_SQLITE_WAIT_S)) as source,
            closing(sqlite3.connect(copy, isolation_level=None)) as target,
        ):
            source.backup(target)
            # Without a write-ahead log the file is all there is.
            target.execute("PRAGMA journal_mode = DELETE")
        with disk_errors(copy), copy.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                out.write(chunk)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:  # the copy's: the shard's is only read
            raise StoreFull(f"{copy}: the disk is full") from error
        raise
    finally:
        for path in copy.parent.glob(f"{copy.name}*"):
            path.unlink(missing_ok=True)


@contextmanager
def _granted(link: Link) -> Iterator[None]:
    """Name the right that reading needs."""
    try:
        yield
    except link.errors.error as error:
        if link.database.is_file or link.errors.kind(error) is not Kind.REFUSED:
            raise
        account = account_of(str(link.connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()))
        mend = f"an administrator runs: {grant(account, link.database.url.database or '', dump_tools.DUMP_RIGHTS)}"
        raise ShardRefused(link.errors.words(error), mend=mend) from error


def _spelled(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds")


class _Sink:
    """A file, with the size and hash of its content."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.digest, self.size = sha256(), 0
        self._file, self._path = file, path

    def write(self, data: bytes) -> int:
        with disk_errors(self._path):
            self._file.write(data)
        self.digest.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """GzipFile calls it."""

    def finish(self) -> None:
        with disk_errors(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of a file into StoreFull and StoreDown, with its path: they are none of the database's."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"{path}: the disk is full") from error
        raise StoreDown(f"{path}: {error.strerror}") from error


@contextmanager
def _writing(path: Path) -> Iterator[_Sink]:
    """Yield a file that gets the name `path` when the block ends, and is removed if the block raises."""
    part = path.with_name(f".{path.name}.part")
    with disk_errors(path):
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if path.exists():
            raise StoreDown(f"{path} exists: another backup began in the same second")
        part.unlink(missing_ok=True)
        number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(number, "wb", buffering=0) as file:
            sink = _Sink(file, path)
            yield sink
            sink.finish()
        with disk_errors(path):
            part.rename(path)
            _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _sync(folder: Path) -> None:
    """Make the new name last."""
    number = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
