"""The tables of a shard, and the commands that make and verify them.

Every item has one row in `item` (its body) and exactly one in `ready` or `timer`; with a TTL also one in `expiry`.
`dedup` has the keys that items were enqueued with, for as long as they are remembered.
Rows that move are narrow, and each table is clustered on the order in which it is scanned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, SmallInteger, Table
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeEngine

from foqs.dedup import DIGEST_BYTES, SLOTS
from foqs.ids import MAX_SHARD
from foqs.store import server
from foqs.store.errors import Kind, Seam
from foqs.store.link import Database
from foqs.store.protocol import ShardRefused
from foqs.store.remedies import create_table
from foqs.store.rights import account_of, grant
from foqs.store.server import Finding
from foqs.store.shape import TableShape, differences, missing, read_shapes

SCHEMA_VERSION = 1
"""What this version of foqs makes and knows. A shard says which version a host must know at least (`min_reader`)."""
TIMER_OF_ITEM = "timer_of_item"
LANE_OF_NAMES = "lane_of_names"
EXPIRY_OF_ITEM = "expiry_of_item"
DEDUP_BY_EXPIRY = "dedup_by_expiry"

_SQL_FAMILY = ("mysql", "mariadb")
metadata = MetaData()


def _variant(kind: TypeEngine[Any], own: TypeEngine[Any]) -> TypeEngine[Any]:
    return kind.with_variant(own, *_SQL_FAMILY)


I8 = _variant(SmallInteger(), mysql.TINYINT())
I32 = Integer()
I64 = BigInteger()
# SQLite's rowid has to be spelled so; its table of bodies is no WITHOUT ROWID one, which is slow for long rows.
ID = BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
# A default collation would make `A` equal `a`.
NAME = _variant(LargeBinary(255), mysql.VARBINARY(255))
SMALL_BYTES = _variant(LargeBinary(65_535), mysql.BLOB())
PAYLOAD = _variant(LargeBinary(), mysql.MEDIUMBLOB())
DIGEST = _variant(LargeBinary(DIGEST_BYTES), mysql.BINARY(DIGEST_BYTES))
BITS = _variant(LargeBinary(SLOTS // 8), mysql.VARBINARY(SLOTS // 8))
TEXT = _variant(LargeBinary(255), mysql.VARBINARY(255))


def _table(name: str, *columns: Column[Any] | Index, clustered: bool = True) -> Table:
    own: dict[str, Any] = {}
    for family in _SQL_FAMILY:
        own |= {f"{family}_engine": "InnoDB", f"{family}_row_format": "DYNAMIC", f"{family}_charset": "binary"}
    return Table(name, metadata, *columns, sqlite_with_rowid=not clustered, **own)


def _key(name: str, kind: TypeEngine[Any]) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _value(name: str, kind: TypeEngine[Any], *, null: bool = False) -> Column[Any]:
    return Column(name, kind, nullable=null)


item = _table(
    "item",
    _key("id", ID),
    _value("lane", I32),
    _value("priority", I32),
    _value("deliver_after", I64),
    _value("enqueued_at", I64),
    _value("expires_at", I64),
    _value("lease_ms", I32),
    _value("delivery", I8),
    _value("metadata", SMALL_BYTES, null=True),
    _value("headers", SMALL_BYTES, null=True),
    _value("payload", PAYLOAD),
    clustered=False,
)

ready = _table(
    "ready",
    _key("lane", I32),
    _key("priority", I32),
    _key("deliver_after", I64),
    _key("id", I64),
    _value("attempt", I32),
    _value("lease", I64),
    _value("bytes", I32),
)

timer = _table(
    "timer",
    _key("due", I64),
    _key("id", I64),
    _value("lane", I32),
    _value("lease", I64),
    _value("attempt", I32),
    _value("lease_ms", I32),
    _value("bytes", I32),
    Index(TIMER_OF_ITEM, "id", unique=True),
)

expiry = _table(
    "expiry",
    _key("at_ms", I64),
    _key("id", I64),
    Index(EXPIRY_OF_ITEM, "id", unique=True),
)

lane = _table(
    "lane",
    _key("lane", I32),
    _value("ns", NAME),
    _value("topic", NAME),
    _value("fairness", NAME),
    Index(LANE_OF_NAMES, "ns", "topic", "fairness", unique=True),
)

dedup = _table(
    "dedup",
    _key("digest", DIGEST),
    _value("content", I64),
    _value("id", I64),
    _value("expires_at", I64),
    Index(DEDUP_BY_EXPIRY, "expires_at"),
)

shard = _table(
    "shard",
    _key("one", I8),  # always 1
    _value("version", I32),
    _value("min_reader", I32),
    _value("number", I32),
    _value("epoch", I64),
    _value("seq", I64),
    _value("owner", TEXT),
    _value("connection_id", I64),
    _value("server", TEXT),
    _value("next_number", I64),
    _value("due_from_ms", I64),
    _value("expiry_from_ms", I64),
    _value("dedup_from_ms", I64),
    _value("slots_stamp", I64),
    _value("slots", BITS),
)


def create_schema(url: str, shard_number: int) -> None:
    """Makes the tables and the shard's row; what is there already stays as it is.

    On MySQL and MariaDB the database itself is made too when it is missing and the rights allow it. Raises
    ShardRefused (the server is too old, the schema is newer than this version knows, the database holds another shard,
    tables that were there differ, or a right is missing), StoreDown, StoreBusy.
    """
    if not 1 <= shard_number <= MAX_SHARD:
        raise ShardRefused(f"shard number {shard_number} is not in 1..{MAX_SHARD}")
    database = Database(url)
    with database.seam():
        database.create_if_missing()
        with database.connect() as connection, _granted(connection, database):
            server.refuse_old(server.version(connection))
            shapes = _make_tables(connection)
            _refuse_first(differences(connection, [shard], shapes))
            row = read_shard_row(connection, database.seam_errors)
            if row is None:
                first = {
                    "one": 1, "version": SCHEMA_VERSION, "min_reader": SCHEMA_VERSION, "number": shard_number,
                    "epoch": 0, "seq": 0, "owner": b"", "connection_id": 0, "server": b"",
                    "next_number": 1, "due_from_ms": 0, "expiry_from_ms": 0,
                    "dedup_from_ms": 0, "slots_stamp": 0, "slots": b"",
                }  # fmt: skip
                connection.execute(shard.insert().values(first))
            else:
                refuse_foreign(row, shard_number)
            _refuse_first(differences(connection, metadata.sorted_tables, shapes))


def _make_tables(connection: Connection) -> dict[str, TableShape]:
    """Makes the tables that are missing; returns all as they are then. Raises the driver's errors."""
    there = read_shapes(connection)
    for table in metadata.sorted_tables:
        if table.name not in there:
            connection.exec_driver_sql(create_table(connection.dialect, table))
            if connection.dialect.name == "sqlite":
                for index in table.indexes:
                    index.create(connection, checkfirst=True)
    return read_shapes(connection)


@contextmanager
def _granted(connection: Connection, database: Database) -> Iterator[None]:
    """Names the account that lacks a right: the error has the address of the connection, not the account's host."""
    errors = database.seam_errors
    try:
        yield
    except errors.error as error:
        if errors.kind(error) is not Kind.REFUSED:
            raise
        account = account_of(str(connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()))
        mend = f"an administrator runs: {grant(account, database.url.database or '')}"
        raise ShardRefused(errors.words(error), mend=mend) from error


def _refuse_first(findings: list[Finding]) -> None:
    for finding in findings[:1]:
        raise ShardRefused(finding.found, mend=finding.mend)


def check_schema(url: str, shard_number: int | None = None) -> list[Finding]:
    """What is wrong with the shard's database; empty when nothing is.

    Looks at the tables with their columns, keys and indexes, the versions, the shard's number (when one is given) and
    the settings that the promises rest on. Raises StoreDown and StoreBusy when the database cannot be asked.
    """
    try:
        database = Database(url)
        with database.seam():
            database.refuse_missing()
            with database.connect() as connection, _granted(connection, database):
                facts = server.facts(connection)
                server.refuse_old(facts.version)
                shapes = read_shapes(connection)
                findings = differences(connection, metadata.sorted_tables, shapes)
                if not differences(connection, [shard], shapes):
                    findings += _wrong_row(connection, database.seam_errors, shard_number)
                return findings + facts.unsafe
    except ShardRefused as refused:
        return [Finding(str(refused), refused.mend)]


def _wrong_row(connection: Connection, errors: Seam, shard_number: int | None) -> list[Finding]:
    try:
        refuse_foreign(read_shard_row(connection, errors), shard_number)
    except ShardRefused as refused:
        return [Finding(str(refused), refused.mend)]
    return []


def check_tables(url: str) -> list[str]:
    """The tables and columns that this version needs and the database lacks, in words.

    Raises StoreError when it cannot be asked, or refuses.
    """
    database = Database(url)
    with database.seam():
        database.refuse_missing()
        with database.connect() as connection:
            return [one.found for one in missing(metadata.sorted_tables, read_shapes(connection))]


def read_shard_row(connection: Connection, errors: Seam) -> Any:
    """The row of `shard`, None if there is none. Raises ShardRefused when there is no such table."""
    try:
        return connection.execute(shard.select()).one_or_none()
    except errors.error as error:
        if errors.is_missing_table(error):
            raise ShardRefused("the database has no foqs schema: create it with `foqs shards create`") from error
        raise


def refuse_foreign(row: Any, shard_number: int | None) -> None:
    """Raises ShardRefused for no row, a schema newer than this version knows, and another shard's tables."""
    if row is None:
        raise ShardRefused("the shard's row is missing: create the schema")
    if row.min_reader > SCHEMA_VERSION:
        raise ShardRefused(
            f"the schema is version {row.version} and needs a host that knows {row.min_reader}; "
            f"this one knows {SCHEMA_VERSION}: upgrade foqs"
        )
    if shard_number is not None and row.number != shard_number:
        raise ShardRefused(f"the database holds shard {row.number}, not shard {shard_number}")
