"""Commands on the database of a shard, by another process than its owner: create, migrate, renew, count, read, measure.

All raise StoreDown and StoreBusy when the database does not answer, and ShardRefused for a database that is not the
shard's, unless they say otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from foqs.ids import MAX_SHARD, Mark
from foqs.rows import Holding, SettingRow
from foqs.store import migrate, server, settings
from foqs.store.errors import Account, Kind, account_of, grant
from foqs.store.link import Database, Link, open_link
from foqs.store.locks import lock_of, taken_within
from foqs.store.ownership import (
    NO_SCHEMA,
    ROW_COLUMNS,
    StoredShard,
    identity_of,
    read_shard_row,
    refuse_foreign,
    refuse_other_shard,
    start_without_lock,
)
from foqs.store.protocol import ShardRefused, StoreError
from foqs.store.schema_diff import Schema, read_schema
from foqs.store.server import Finding
from foqs.store.tables import SCHEMA_VERSION, TABLES

_COUNT_TIMEOUT_S = 600.0
"""The index of a hundred million items is read once."""
_DDL_TIMEOUT_S = 30.0
"""How long a server may take for one statement: the index of a hundred thousand lanes is built within seconds."""
_SERVED_S = 5.0
"""A host that refuses a copy tries again each second, and holds the shard's lock for a moment each time."""

_OF_SCHEMA = (
    "SELECT COALESCE(SUM(data_length + index_length + data_free), 0) FROM information_schema.tables "
    "WHERE table_schema = DATABASE()"
)
_DISKS = "SELECT path, available FROM information_schema.disks"
_FRESH = "SET SESSION information_schema_stats_expiry = 0"
"""Otherwise MySQL reports numbers of up to a day ago."""
_KIB = 1_024


class Plan(NamedTuple):
    """The schema version of a database, and the SQL that brings it to this foqs's version: empty when it is there."""

    version: int
    statements: list[str]


def create_schema(url: str, shard_number: int) -> None:
    """Make the tables that are missing and the shard's row.

    On MySQL and MariaDB the database itself is made too when it is missing and the rights allow it. Raises ShardRefused
    also for a server that is too old, for tables that were there and differ, and for a missing right.
    """
    if not 1 <= shard_number <= MAX_SHARD:
        raise ShardRefused(f"shard number {shard_number} is not in 1..{MAX_SHARD}")
    database = Database(url, io_timeout_s=_DDL_TIMEOUT_S)
    with database.seam():
        database.create_if_missing()
        with closing(Link(database)) as link, granted(link):
            server.refuse_old(server.version(link.connection))
            schema = read_schema(link.connection)
            row = _row_of(link, schema, shard_number)
            if row is not None and not schema.differences():
                return  # without a lock: another process may be writing the database
        with _changing(database) as link:
            schema = read_schema(link.connection)
            row = _row_of(link, schema, shard_number)
            for name in schema.absent:
                for statement in schema.wanted[name].create():
                    link.connection.exec_driver_sql(statement)
            _refuse_first(read_schema(link.connection).differences())
            if row is None:
                _refuse_orphaned(link)
                link.execute(_first_row(shard_number))


def _refuse_orphaned(link: Link) -> None:
    """Raise ShardRefused for items without the shard's row: a first row would give their ids again."""
    if link.fetch("SELECT id FROM item LIMIT 1"):
        raise ShardRefused(
            "the database has items and no row in table shard: a restore was broken off, or the row was deleted",
            mend="run `foqs shards restore` with a dump of the shard",
        )


def migrate_schema(url: str, shard_number: int) -> int:
    """Bring the database to this foqs's schema version, and return the version that it had.

    Raises ShardRefused also while a host serves the shard.
    """
    with open_link(url, io_timeout_s=_DDL_TIMEOUT_S) as link, granted(link):
        version = _version_of(link, shard_number)
        if version != SCHEMA_VERSION:
            with unserved(link, shard_number), _changing(link.database) as changing:
                # Another migration may have ended while this one waited.
                migrate.run(changing.connection, _version_of(changing, shard_number))
        return version


def plan_migration(url: str, shard_number: int) -> Plan:
    """What `migrate_schema` would do; changes nothing. Raises as it does."""
    with open_link(url, look_only=True) as link, granted(link):
        version = _version_of(link, shard_number)
        return Plan(version, migrate.statements(link.connection, version))


@contextmanager
def _changing(database: Database) -> Iterator[Link]:
    with closing(Link(database)) as link, granted(link):
        server.refuse_old(server.version(link.connection))
        if server.is_read_only(link.connection):
            raise link.errors.read_only()
        with migrate.exclusive(link.connection, link.errors):
            yield link


def _version_of(link: Link, shard_number: int) -> int:
    """Return the schema version of a database, which is this foqs's or one that can be migrated to it.

    Raises ShardRefused also for tables of this foqs's version that differ.
    """
    server.refuse_old(server.version(link.connection))
    row = _row_of(link, read_schema(link.connection), shard_number, migrated=True)
    if row is None:
        raise ShardRefused(NO_SCHEMA)
    # The tables are read after the version, which a migration at the same time raises last.
    _refuse_first(table_findings(read_schema(link.connection), row))
    return row.version


def _row_of(link: Link, schema: Schema, shard_number: int, *, migrated: bool = False) -> StoredShard | None:
    """Return the shard's row, None when there is none yet. `migrated`: an older version may be migrated.

    Raises ShardRefused for a table `shard` that differs, another shard's, and another schema version.
    """
    if "shard" in schema.absent:
        return None
    _refuse_first(unreadable_row(schema))
    row = read_shard_row(link)
    if row is None:
        return None
    if migrated and migrate.pending(row.version):
        refuse_other_shard(row.number, shard_number)
    else:
        refuse_foreign(row, shard_number)
    return row


def _first_row(shard_number: int) -> str:
    row = {
        "one": 1, "version": SCHEMA_VERSION, "number": shard_number,
        "epoch": 0, "seq": 0, "owner": "x''", "connection_id": 0, "server": "x''",
        "next_number": 1, "due_from_ms": 0, "expiry_from_ms": 0,
        "dedup_from_ms": 0, "slots_stamp": 0, "slots": "x''", "identity": f"x'{uuid4().hex}'",
    }  # fmt: skip
    return f"INSERT INTO shard ({', '.join(row)}) VALUES ({', '.join(map(str, row.values()))})"


@contextmanager
def granted(link: Link) -> Iterator[None]:
    """Name the account that lacks a right: the error has the address of the connection, not the account's host."""
    try:
        yield
    except link.errors.error as error:
        if link.errors.kind(error) is not Kind.REFUSED:
            raise
        raise ShardRefused(link.errors.words(error), mend=granting(link)[1]) from error


def granting(link: Link) -> tuple[Account, str]:
    """Return the account of a connection, and what gives it the rights of a host."""
    account = account_of(str(link.connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()))
    return account, f"an administrator runs: {grant(account, link.database.url.database or '')}"


def _refuse_first(findings: list[Finding]) -> None:
    for finding in findings[:1]:
        raise ShardRefused(finding.found, mend=finding.mend)


def table_findings(schema: Schema, row: StoredShard | None) -> list[Finding]:
    """Return the differences from the tables of this foqs; none for a database of another schema version.

    `row` is None when the table is missing or empty.
    """
    return schema.differences() if row is None or row.version == SCHEMA_VERSION else []


def unreadable_row(schema: Schema) -> list[Finding]:
    """Return what keeps the row of `shard` from being read, whatever its version."""
    there = schema.there.get("shard")
    if (
        there is not None
        and there.key == TABLES["shard"].key
        and there.columns.keys() >= ROW_COLUMNS
        and not any(there.columns[name].nullable for name in ROW_COLUMNS)
    ):
        return []
    return schema.differences("shard")


def wrong_row(row: StoredShard | None, shard_number: int | None) -> list[Finding]:
    """Return why the row is not the shard's."""
    try:
        refuse_foreign(row, shard_number)
    except ShardRefused as refused:
        return [Finding(str(refused), refused.mend or "correct the shard's id or url")]
    return []


def renew_identity(url: str, shard_number: int) -> str:
    """Give a copy of a shard an identity of its own, and return it in hex.

    Raises ShardRefused also while a host serves the copy.
    """
    identity = uuid4().hex
    with open_link(url) as link:
        refuse_foreign(read_shard_row(link), shard_number)
        with unserved(link, shard_number):
            link.execute(f"UPDATE shard SET identity = x'{identity}' WHERE one = 1")
    return identity


@contextmanager
def unserved(link: Link, shard_number: int) -> Iterator[None]:
    """Keep hosts from the shard. Raises ShardRefused while a host or a command has it, and the driver's errors."""
    lock = lock_of(link.database, shard_number)
    if not taken_within(_SERVED_S, partial(lock.take, link)):
        raise ShardRefused(
            "a host serves the shard, or another command changes it",
            mend="stop the host or disable the shard, or wait for the end of the command, and try again",
        )
    try:
        yield
    finally:
        lock.release(link)


def check_tables(url: str) -> list[str]:
    """Name what a host lacks in the database: the schema version, tables, and columns."""
    with open_link(url) as link:
        schema = read_schema(link.connection)
        if not unreadable_row(schema):
            row = read_shard_row(link)
            if row is not None and row.version != SCHEMA_VERSION:
                return [f"{finding.found}: {finding.mend}" for finding in wrong_row(row, None)]
        return [one.found for one in schema.missing()]


class Stored(NamedTuple):
    """The items of a shard in any state, how many of them have ended and are kept, and the batches that have their home
    there and have not ended."""

    items: int
    kept: int
    batches: int


def count_items(url: str, shard_number: int) -> Stored:
    """Count the items, for an operator: a shard that no host serves has no owner to ask."""
    with open_link(url, io_timeout_s=_COUNT_TIMEOUT_S, look_only=True) as link:
        refuse_foreign(read_shard_row(link), shard_number)
        counts = ("FROM item", "FROM done", "FROM item_batch WHERE ended_at = 0")
        columns = ", ".join(f"(SELECT COUNT(*) {count})" for count in counts)
        return Stored(*map(int, link.fetch(f"SELECT {columns}")[0]))


class Kept(NamedTuple):
    """What the database keeps of a lone host or a cluster: copies of settings, and slots of deduplication keys."""

    settings: list[SettingRow]
    slots: Holding


def read_kept(url: str, shard_number: int, *, connect_timeout_s: float = 3.0, io_timeout_s: float = 10.0) -> Kept:
    timeouts = {"connect_timeout_s": connect_timeout_s, "io_timeout_s": io_timeout_s}
    with open_link(url, **timeouts, look_only=True) as link:
        refuse_foreign(read_shard_row(link), shard_number)
        stored = link.fetch(settings.ALL)
        stamp, bits = link.fetch("SELECT slots_stamp, slots FROM shard WHERE one = 1")[0]
        return Kept([SettingRow(bytes(ns), bytes(doc)) for ns, doc in stored], Holding(int(stamp), bytes(bits)))


class Standing(NamedTuple):
    """How far a copy of a shard is. `identity` is in hex, empty before the first owner. `place` tells
    databases apart. `number`: that of the next item."""

    identity: str
    place: str
    epoch: int
    seq: int
    number: int
    read_only: bool

    def behind(self, mark: Mark) -> bool:
        """Return True if the database is an older copy of what the mark speaks of, as a new owner will find."""
        return self.epoch < mark.epoch or self.number < mark.number or self.seq < mark.seq


def read_standing(url: str, shard_number: int) -> Standing:
    with open_link(url, look_only=True) as link, granted(link):
        refuse_foreign(read_shard_row(link), shard_number)
        stored, start = start_without_lock(link, shard_number)
        facts = server.facts(link.connection)
        place = f"{facts.identity.decode(errors='replace')} {link.database.url.database}"
        identity = identity_of(link).hex()
        return Standing(identity, place, stored.epoch, stored.seq, start.next_number, facts.read_only)


def discard_settings(url: str, shard_number: int, namespaces: Collection[str]) -> None:
    """Remove the copies of the settings of `namespaces`, and the row that says that the shard has all copies."""
    with open_link(url) as link:
        refuse_foreign(read_shard_row(link), shard_number)
        if server.is_read_only(link.connection):
            raise link.errors.read_only()
        names = ", ".join(f"x'{ns.encode().hex()}'" for ns in ("", *namespaces))
        link.execute(link.database.dialect.begin)
        link.execute(f"DELETE FROM setting WHERE ns IN ({names})")
        link.execute("COMMIT")


# --------------------------------------------------------------------------------------------- sizes


class Size(NamedTuple):
    """Bytes; None where the database does not report them."""

    used: int | None = None
    free: int | None = None


def read_sizes(urls: Mapping[int, str], found: MutableMapping[int, Size], *, timeout_s: float) -> None:
    """Put the size of each shard whose database answers into `found`, one after the other: a slow database delays its
    own. `timeout_s` bounds each wait for a server; after a server did not answer, its other shards are left out."""
    silent: set[tuple[str | None, int | None]] = set()
    for number, url in urls.items():
        try:
            database = Database(url, look_only=True)
        except StoreError:
            continue
        server = (database.url.host, database.url.port)
        try:
            if database.file is not None:
                found[number] = _of_file(database.file)
            elif server in silent:
                found.pop(number, None)
            else:
                with open_link(url, connect_timeout_s=timeout_s, io_timeout_s=timeout_s, look_only=True) as link:
                    found[number] = _of_server(link)
        except (StoreError, OSError):
            silent.add(server)
            found.pop(number, None)


def _of_file(path: Path) -> Size:
    used = sum([one.stat().st_size for one in (path, path.with_name(f"{path.name}-wal")) if one.exists()])
    disk = os.statvfs(path.parent)
    return Size(used, disk.f_bavail * disk.f_frsize)


def _of_server(link: Link) -> Size:
    with suppress(*link.errors.error):  # MariaDB has no such variable
        link.fetch(_FRESH)
    ((used,),) = link.fetch(_OF_SCHEMA)
    free = None
    with suppress(*link.errors.error):  # MySQL, or MariaDB without the plugin, or no right
        ((folder,),) = link.fetch("SELECT @@datadir")
        free = free_of(folder, link.fetch(_DISKS))
    return Size(int(used), free)


def free_of(folder: str, disks: Iterable[tuple[str, int]]) -> int | None:
    """Return the free bytes of the file system of a folder. `disks` has a path and the free KiB of each."""
    holding = [(len(path), available) for path, available in disks if f"{folder}/".startswith(f"{path.rstrip('/')}/")]
    return max(holding)[1] * _KIB if holding else None
