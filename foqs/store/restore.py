"""Load a dump into a shard's database.

A server: the shard's row says that a restore is not complete (`RESTORING`), the other tables are dropped, and the tool
loads the dump, with table `shard` last. The row of that table is stored at the end, by the connection that has the
shard's lock. Wherever that ends, no host opens a part of a shard. A SQLite file is replaced in one transaction: it has
the old content or the new one.

In both cases the row comes with the mark that a dump was put back (`PUT_BACK_MS`), so no host opens it without.
"""

from __future__ import annotations

import gzip
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from foqs.checks import printable
from foqs.store import dump_tools, server
from foqs.store.dump import DumpCut, Manifest, disk_errors
from foqs.store.errors import Kind, account_of, grant
from foqs.store.link import Database, Link, open_link, place_of
from foqs.store.maintenance import unserved
from foqs.store.migrate import pending, remedy
from foqs.store.ownership import PUT_BACK_MS, StoredShard, read_shard_row, refuse_other_shard
from foqs.store.protocol import ShardRefused
from foqs.store.schema_diff import read_schema
from foqs.store.tables import RESTORING, SCHEMA_VERSION, TABLES

_CHUNK_BYTES = 1 << 20
_LINE_BYTES = 4_096
_MOST_ROW_BYTES = 1 << 20
_ROW_OF_SHARD = b"\nINSERT INTO `shard` "
"""In a dump a line begins with a statement: line ends of values are escaped."""
_DDL_TIMEOUT_S = 600.0
"""A server removes the files of large tables."""
_PUT_BACK = f"UPDATE shard SET restored_ms = {PUT_BACK_MS:d} WHERE one = 1"


class Target(NamedTuple):
    """A database that a dump may be loaded into. `items` is the number of its items, up to `MOST_COUNTED`; `used`: it
    has items, or a host has served it. `broken`: a restore was broken off there."""

    items: int
    used: bool
    broken: bool
    place: str


MOST_COUNTED = 100_000


def look_at_target(url: str, manifest: Manifest) -> Target:
    """Look at a database before a dump is loaded into it. Changes nothing.

    Raises ShardRefused for another shard's database, another product than the dump's, a dump of a later schema, and a
    server that is read-only or too old; StoreDown and StoreBusy.
    """
    version = manifest.schema_version
    if version != SCHEMA_VERSION and not pending(version):
        why = f"the dump has schema version {version}, and this foqs needs version {SCHEMA_VERSION}"
        raise ShardRefused(why, mend=remedy(version))
    place = "/".join(place_of(url) or ())
    if _is_missing(Database(url, look_only=True)):
        return Target(0, False, False, place)
    with open_link(url, io_timeout_s=_DDL_TIMEOUT_S, look_only=True) as link:
        facts = server.facts(link.connection)
        server.refuse_old(facts.version)
        if facts.read_only:
            raise link.errors.read_only()
        _refuse_other_product(facts.version.product, manifest)
        row = _row(link, manifest.shard)
        if row is None or row.version == RESTORING:
            return Target(0, _has_items(link), row is not None, place)
        counted = f"SELECT COUNT(*) FROM (SELECT 1 FROM item LIMIT {MOST_COUNTED:d}) AS i"
        items = int(link.fetch(counted)[0][0])
        return Target(items, items > 0 or row.epoch > 0, False, place)


def restore(url: str, dump: Path, manifest: Manifest, *, replace: bool) -> None:
    """Load a dump that was verified into the database, which is made if it is missing and the rights allow it.

    `replace`: the database may have items. Raises StoreError: as `look_at_target`; ShardRefused while a host serves the
    shard there, and for a missing right (`mend` has the GRANT); ToolMissing, ToolFailed, DumpCut, StoreFull.
    """
    target = look_at_target(url, manifest)
    if target.used and not target.broken and not replace:
        raise ShardRefused(f"the database {target.place} is not empty", mend="give --replace to replace its shard")
    database = Database(url, io_timeout_s=_DDL_TIMEOUT_S)
    with database.seam():
        database.create_if_missing()
    if database.file is not None:
        _restore_file(database, dump, manifest)
    else:
        _restore_server(url, database, dump, manifest)


def _is_missing(database: Database) -> bool:
    if database.file is not None:
        return not database.file.exists()
    with database.seam():
        try:
            database.connect().close()
        except database.seam_errors.error as error:
            if not database.seam_errors.is_missing_database(error):
                raise
            return True
    return False


def _refuse_other_product(product: str, manifest: Manifest) -> None:
    if (product == "SQLite") != (manifest.product == "SQLite"):
        raise ShardRefused(f"the dump is one of {printable(manifest.product)}, and the database is {product}'s")


def _row(link: Link, shard: int) -> StoredShard | None:
    """Return the shard's row, None if there is none. Raises ShardRefused for another shard's."""
    if "shard" not in read_schema(link.connection).there:
        return None
    row = read_shard_row(link)
    if row is not None:
        refuse_other_shard(row.number, shard)
    return row


def _has_items(link: Link) -> bool:
    return "item" in read_schema(link.connection).there and bool(link.fetch("SELECT id FROM item LIMIT 1"))


# ------------------------------------------------------------------------------------------------ servers


def _restore_server(url: str, database: Database, dump: Path, manifest: Manifest) -> None:
    with database.seam(), closing(Link(database)) as link, unserved(link, manifest.shard), _granted(link):
        product = server.version(link.connection).product
        # Before anything is changed: the program, and the right to drop tables, which no statement but this one shows.
        tool = dump_tools.find(dump_tools.LOAD, product)
        link.execute("DROP TABLE IF EXISTS foqs_restore")
        _begin(link, manifest.shard)
        with dump_tools.running(link, url, tool, dump_tools.LOAD_OPTIONS, loads=True) as stream, _content(dump) as file:
            stream.write(dump_tools.for_tool(tool, file.readline(_LINE_BYTES)))
            row = _feed(file, stream)
        for statement in ("START TRANSACTION", row, _PUT_BACK):
            link.execute(statement)
        _refuse_wrong(read_shard_row(link), manifest)  # which is not committed then
        link.execute("COMMIT")


def _feed(file: gzip.GzipFile, stream: IO[bytes]) -> str:
    """Write a dump into the tool, and return the statement with the row of table `shard`, which is left out."""
    kept, overlap = b"", len(_ROW_OF_SHARD) - 1
    while chunk := file.read(_CHUNK_BYTES):
        kept += chunk
        at = kept.find(_ROW_OF_SHARD)
        if at >= 0:
            stream.write(kept[: at + 1])
            row, end, rest = (kept[at + 1 :] + file.read(_MOST_ROW_BYTES)).partition(b";\n")
            stream.write(rest)
            while chunk := file.read(_CHUNK_BYTES):
                stream.write(chunk)
            if end and row.isascii():  # the tools write bytes as hexadecimal numbers
                return row.decode()
            break
        stream.write(kept[:-overlap])
        kept = kept[-overlap:]
    raise DumpCut("the dump has no row of table shard")


def _begin(link: Link, shard: int) -> None:
    """Mark the database, then drop the tables that the dump will make again. The dump replaces table `shard` itself."""
    schema = read_schema(link.connection)
    if "shard" not in schema.there:
        for statement in TABLES["shard"].create():
            link.execute(statement)
    if "shard" not in schema.there or read_shard_row(link) is None:
        row = {"one": 1, "version": RESTORING, "number": shard, "next_number": 1}
        empty = {name: "x''" if "BINARY" in one.type else 0 for name, one in TABLES["shard"].columns.items()}
        columns = {**empty, **row}
        link.execute(f"INSERT INTO shard ({', '.join(columns)}) VALUES ({', '.join(map(str, columns.values()))})")
    else:
        link.execute(f"UPDATE shard SET version = {RESTORING:d} WHERE one = 1")
    if names := [name for name in TABLES if name != "shard" and name in schema.there]:
        link.execute(f"DROP TABLE {', '.join(names)}")


@contextmanager
def _content(dump: Path) -> Iterator[gzip.GzipFile]:
    """Yield the content of a dump. Raises DumpCut for a file that changed since it was verified."""
    try:
        with gzip.open(dump, "rb") as file:
            yield file
    except BrokenPipeError:
        raise  # of the tool that is fed
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DumpCut(f"{dump} cannot be decompressed: it was cut or damaged") from error


def _refuse_wrong(row: StoredShard | None, manifest: Manifest) -> None:
    if row is None or (row.version, row.number) != (manifest.schema_version, manifest.shard):
        raise DumpCut(
            f"the dump has {'no shard' if row is None else f'shard {row.number} of schema version {row.version}'}, and "
            f"its manifest speaks of shard {manifest.shard} of version {manifest.schema_version}"
        )


@contextmanager
def _granted(link: Link) -> Iterator[None]:
    """Name the rights that loading needs."""
    try:
        yield
    except link.errors.error as error:
        if link.errors.kind(error) is not Kind.REFUSED:
            raise
        account = account_of(str(link.connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()))
        mend = f"an administrator runs: {grant(account, link.database.url.database or '', dump_tools.LOAD_RIGHTS)}"
        raise ShardRefused(link.errors.words(error), mend=mend) from error


# ------------------------------------------------------------------------------------------------ files


def _restore_file(database: Database, dump: Path, manifest: Manifest) -> None:
    assert database.file is not None
    copy = database.file.with_name(f".{database.file.name}.restoring")
    with database.seam(), closing(Link(database)) as link, unserved(link, manifest.shard):
        try:
            _unpack(dump, copy)
            with closing(sqlite3.connect(copy, isolation_level=None)) as source:
                _refuse_wrong(_row_of_copy(source), manifest)
                source.execute(_PUT_BACK)
                with closing(sqlite3.connect(database.file, isolation_level=None)) as target:
                    target.execute("PRAGMA synchronous = FULL")
                    source.backup(target)
        finally:
            for path in copy.parent.glob(f"{copy.name}*"):
                path.unlink(missing_ok=True)


def _unpack(dump: Path, copy: Path) -> None:
    with disk_errors(copy), _content(dump) as content:
        copy.unlink(missing_ok=True)
        number = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(number, "wb") as file:
            while chunk := content.read(_CHUNK_BYTES):
                file.write(chunk)


def _row_of_copy(copy: sqlite3.Connection) -> StoredShard | None:
    if copy.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise DumpCut("the dump holds a damaged SQLite file")
    try:
        row = copy.execute("SELECT version, number, owner, epoch FROM shard WHERE one = 1").fetchone()
    except sqlite3.OperationalError:
        return None
    return None if row is None else StoredShard(*row)
