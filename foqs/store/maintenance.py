"""The commands that make, migrate and verify a shard's schema.

How many items a shard's database holds, for an operator: a shard that no host serves has no owner to ask.

What a shard's database keeps of a lone host or a cluster: copies of settings, and slots of deduplication keys.

A command and a starting host read it without being the shard's owner.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

from sqlalchemy.engine import Connection

from foqs.ids import MAX_SHARD
from foqs.rows import Holding, SettingRow
from foqs.store import migrate, schema_diff, server, settings
from foqs.store.dialect import MYSQL, SQLITE
from foqs.store.errors import Kind, Seam, account_of, grant
from foqs.store.link import Database, Link
from foqs.store.ownership import NO_SCHEMA, ROW_COLUMNS, lock_of, read_shard_row, refuse_foreign, refuse_other_shard
from foqs.store.protocol import ShardRefused
from foqs.store.schema_diff import TableShape, differences, missing, read_shapes
from foqs.store.server import Finding, is_read_only
from foqs.store.tables import SCHEMA_VERSION, metadata, shard

_DDL_TIMEOUT_S = 30.0
"""How long a server may take for one statement: the index of a hundred thousand lanes is built within seconds."""

_SERVED_S = 5.0
"""A host that refuses a copy tries again each second, and holds the shard's lock for a moment each time."""
_ASK_AGAIN_S = 0.02


class Plan(NamedTuple):
    """The schema version of a database, and the SQL that brings it to this foqs's version: empty when it is there."""

    version: int
    statements: list[str]


def create_schema(url: str, shard_number: int) -> None:
    """Make the tables that are missing and the shard's row.

    On MySQL and MariaDB the database itself is made too when it is missing and the rights allow it. Raises ShardRefused
    (the server is too old, the schema has another version, the database holds another shard, tables that were there
    differ, or a right is missing), StoreDown, StoreBusy.
    """
    if not 1 <= shard_number <= MAX_SHARD:
        raise ShardRefused(f"shard number {shard_number} is not in 1..{MAX_SHARD}")
    database = Database(url, io_timeout_s=_DDL_TIMEOUT_S)
    with database.seam():
        database.create_if_missing()
        with database.connect() as connection, granted(connection, database):
            server.refuse_old(server.version(connection))
            if _is_up_to_date(connection, database.seam_errors, shard_number):
                return  # without a lock: another process may be writing the database
        with _changing(database) as connection:
            shapes = read_shapes(connection)
            row = _row_of(connection, database.seam_errors, shapes)
            if row is not None:
                refuse_foreign(row, shard_number)
            _make_tables(connection, shapes)
            if row is None:
                connection.execute(shard.insert().values(_first_row(shard_number)))
            _refuse_first(differences(connection, metadata.sorted_tables, read_shapes(connection)))


def _is_up_to_date(connection: Connection, errors: Seam, shard_number: int) -> bool:
    shapes = read_shapes(connection)
    row = _row_of(connection, errors, shapes)
    if row is None:
        return False
    refuse_foreign(row, shard_number)
    return not differences(connection, metadata.sorted_tables, shapes)


def _make_tables(connection: Connection, shapes: Mapping[str, TableShape]) -> None:
    """Make the tables that `shapes` lacks. Raises the driver's errors."""
    for table in metadata.sorted_tables:
        if table.name not in shapes:
            for statement in schema_diff.create_table(connection.dialect, table):
                connection.exec_driver_sql(statement)


def migrate_schema(url: str, shard_number: int) -> int:
    """Bring the database to this foqs's schema version, and return the version that it had.

    Raises ShardRefused (as `create_schema`, for a database without a schema, and while a host serves the shard),
    StoreDown, StoreBusy.
    """
    database = Database(url, io_timeout_s=_DDL_TIMEOUT_S)
    with database.seam():
        database.refuse_missing()
        with closing(Link(database)) as link, granted(link.connection, database):
            version = _version_of(link.connection, database.seam_errors, shard_number)
            if version != SCHEMA_VERSION:
                with unserved(link, database, shard_number), _changing(database) as connection:
                    migrate.run(connection, version)
            return version


def plan_migration(url: str, shard_number: int) -> Plan:
    """What `migrate_schema` would do; changes nothing. Raises as it does."""
    database = Database(url, look_only=True)
    with database.seam():
        database.refuse_missing()
        with database.connect() as connection, granted(connection, database):
            server.refuse_old(server.version(connection))
            version = _version_of(connection, database.seam_errors, shard_number)
            return Plan(version, migrate.statements(connection, version))


@contextmanager
def _changing(database: Database) -> Iterator[Connection]:
    with database.connect() as connection, granted(connection, database):
        server.refuse_old(server.version(connection))
        if server.is_read_only(connection):
            raise database.seam_errors.read_only()
        with migrate.exclusive(connection, database.seam_errors):
            yield connection


def _version_of(connection: Connection, errors: Seam, shard_number: int) -> int:
    """Return the schema version of a database, which is this foqs's or one that can be migrated to it."""
    server.refuse_old(server.version(connection))
    row = _row_of(connection, errors, read_shapes(connection))
    if row is None:
        raise ShardRefused(NO_SCHEMA)
    if migrate.pending(row.version):
        refuse_other_shard(row.number, shard_number)
    else:
        refuse_foreign(row, shard_number)
    return int(row.version)


def _row_of(connection: Connection, errors: Seam, shapes: Mapping[str, TableShape]) -> Any:
    """Return the shard's row, None when there is none yet. Raises ShardRefused for a table `shard` that differs."""
    if shard.name not in shapes:
        return None
    _refuse_first(unreadable_row(connection, shapes))
    return read_shard_row(connection, errors)


def _first_row(shard_number: int) -> dict[str, Any]:
    return {
        "one": 1, "version": SCHEMA_VERSION, "number": shard_number,
        "epoch": 0, "seq": 0, "owner": b"", "connection_id": 0, "server": b"",
        "next_number": 1, "due_from_ms": 0, "expiry_from_ms": 0,
        "dedup_from_ms": 0, "slots_stamp": 0, "slots": b"", "identity": uuid4().bytes,
    }  # fmt: skip


@contextmanager
def granted(connection: Connection, database: Database) -> Iterator[None]:
    """Name the account that lacks a right: the error has the address of the connection, not the account's host."""
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


def table_findings(connection: Connection, shapes: Mapping[str, TableShape], row: Any) -> list[Finding]:
    """Return the differences from the tables of this foqs; none for a database of another schema version.

    `row` is None when the table is missing or empty.
    """
    if row is not None and row.version != SCHEMA_VERSION:
        return []
    return differences(connection, metadata.sorted_tables, shapes)


def unreadable_row(connection: Connection, shapes: Mapping[str, TableShape]) -> list[Finding]:
    """Return what keeps the row of `shard` from being read, whatever its version."""
    shape = shapes.get(shard.name)
    if shape is not None and shape.columns.keys() >= ROW_COLUMNS:
        return []
    return differences(connection, [shard], shapes)


def check_schema(url: str, shard_number: int | None = None) -> list[Finding]:
    """Return the differences of the shard's database from a good one.

    Look at the tables with their columns, keys and indexes, the versions, the shard's number (when one is given) and
    the settings that the promises rest on. Raises StoreDown and StoreBusy when the database does not answer.
    """
    try:
        database = Database(url)
        with database.seam():
            database.refuse_missing()
            with database.connect() as connection, granted(connection, database):
                facts = server.facts(connection)
                server.refuse_old(facts.version)
                shapes = read_shapes(connection)
                if unreadable_row(connection, shapes):
                    return table_findings(connection, shapes, None) + facts.unsafe
                row = read_shard_row(connection, database.seam_errors)
                return table_findings(connection, shapes, row) + _wrong_row(row, shard_number) + facts.unsafe
    except ShardRefused as refused:
        return [Finding(str(refused), refused.mend)]


def _wrong_row(row: Any, shard_number: int | None) -> list[Finding]:
    try:
        refuse_foreign(row, shard_number)
    except ShardRefused as refused:
        return [Finding(str(refused), refused.mend)]
    return []


class Restore(NamedTuple):
    """When a host found that a shard's database is an older copy, and how many leases it ended; 0 for never."""

    at_ms: int
    leases_ended: int


def restore_of(url: str) -> Restore:
    """Return the last restore of a shard. Raises StoreError when its database does not answer or refuses."""
    database = Database(url)
    with database.seam():
        database.refuse_missing()
        with closing(Link(database)) as link:
            return Restore(*map(int, link.fetch("SELECT restored_ms, leases_ended FROM shard WHERE one = 1")[0]))


def renew_identity(url: str, shard_number: int) -> str:
    """Give a copy of a shard an identity of its own, and return it in hex.

    Raises ShardRefused while a host serves the copy, and for another schema version or another shard's tables;
    StoreError when the database does not answer.
    """
    database = Database(url)
    with database.seam():
        database.refuse_missing()
        with closing(Link(database)) as link:
            row = read_shard_row(link.connection, database.seam_errors)
            refuse_foreign(row, shard_number)
            with unserved(link, database, shard_number):
                identity = uuid4()
                link.execute(f"UPDATE shard SET identity = x'{identity.hex}' WHERE one = 1")
    return identity.hex


@contextmanager
def unserved(link: Link, database: Database, shard_number: int) -> Iterator[None]:
    """Keep hosts from the shard. Raises ShardRefused while a host serves it, and the driver's errors."""
    lock = lock_of(database, shard_number)
    deadline = time.monotonic() + _SERVED_S
    while not lock.take(link):
        if time.monotonic() > deadline:
            raise ShardRefused("a host serves the shard", mend="stop the host or disable the shard, and try again")
        time.sleep(_ASK_AGAIN_S)
    try:
        yield
    finally:
        lock.release(link)


def check_tables(url: str) -> list[str]:
    """Name what a host lacks in the database: the schema version, tables, and columns.

    Raises StoreError when the database does not answer or refuses.
    """
    database = Database(url)
    with database.seam():
        database.refuse_missing()
        with database.connect() as connection:
            shapes = read_shapes(connection)
            if not unreadable_row(connection, shapes):
                row = read_shard_row(connection, database.seam_errors)
                if row is not None and row.version != SCHEMA_VERSION:
                    return [f"{finding.found}: {finding.mend}" for finding in _wrong_row(row, None)]
            return [one.found for one in missing(metadata.sorted_tables, shapes)]


_COUNT_TIMEOUT_S = 600.0
"""The index of a hundred million items is read once."""


def count_items(url: str, shard: int) -> int:
    """Items in any state. Raises StoreError: the database does not answer, or is not this shard's."""
    database = Database(url, io_timeout_s=_COUNT_TIMEOUT_S, look_only=True)
    with database.seam():
        database.refuse_missing()
        link = Link(database)
        try:
            refuse_foreign(read_shard_row(link.connection, database.seam_errors), shard)
            return int(link.fetch("SELECT COUNT(*) FROM item")[0][0])
        finally:
            link.close()


class Kept(NamedTuple):
    settings: list[SettingRow]
    slots: Holding


def read_kept(url: str, shard: int, *, connect_timeout_s: float = 3.0, io_timeout_s: float = 10.0) -> Kept:
    """Raises StoreError: the database does not answer, has no schema, or is not this shard's."""
    database = Database(url, connect_timeout_s=connect_timeout_s, io_timeout_s=io_timeout_s, look_only=True)
    with _shard_link(database, shard) as link:
        stored = link.fetch(settings.ALL)
        stamp, bits = link.fetch("SELECT slots_stamp, slots FROM shard WHERE one = 1")[0]
        return Kept([SettingRow(bytes(ns), bytes(doc)) for ns, doc in stored], Holding(int(stamp), bytes(bits)))


def discard_settings(url: str, shard: int, namespaces: Collection[str]) -> None:
    """Remove the copies of the settings of `namespaces`, and the row that says that the shard has all copies.

    Raises StoreError, as `read_kept`."""
    database = Database(url)
    with _shard_link(database, shard) as link:
        if is_read_only(link.connection):
            raise database.seam_errors.read_only()
        names = ", ".join(f"x'{ns.encode().hex()}'" for ns in ("", *namespaces))
        link.execute((SQLITE if database.is_file else MYSQL).begin)
        link.execute(f"DELETE FROM setting WHERE ns IN ({names})")
        link.execute("COMMIT")


@contextmanager
def _shard_link(database: Database, shard: int) -> Iterator[Link]:
    """Yield a connection to the shard's database."""
    with database.seam():
        database.refuse_missing()
        with closing(Link(database)) as link:
            refuse_foreign(read_shard_row(link.connection, database.seam_errors), shard)
            yield link
