"""What later schema versions add to a database, as steps that run while hosts of the version before serve it.

A step looks whether it is done before it runs, so a migration that was interrupted continues where it stopped. No step
rewrites a table that holds items: columns are added with ALGORITHM=INSTANT, which makes the server refuse a copy.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from sqlalchemy import Column, Index, Inspector, Table, inspect
from sqlalchemy.engine import Connection, Dialect

from foqs.store import remedies
from foqs.store.errors import Kind, Seam
from foqs.store.protocol import ShardRefused, StoreBusy
from foqs.store.tables import SCHEMA_VERSION, metadata, since

ALTER_PROBE = "ALTER TABLE {table} DROP COLUMN foqs_no_such_column"
"""Fails on every database, with another error where the account lacks the right ALTER."""
_COPY_FREE = ", ALGORITHM=INSTANT"
_ONLINE = ", ALGORITHM=INPLACE, LOCK=NONE"
_LOCK_S = 60
_BUSY_S = 60
_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Step:
    """`is_done` raises the driver's errors; `statements` have no effect when they run twice or fail half-way.

    `table`: the one that an ALTER TABLE changes, empty for other steps.
    """

    version: int
    is_done: Callable[[Inspector], bool]
    statements: Callable[[Inspector], list[str]]
    table: str = ""


def steps(dialect: Dialect) -> list[Step]:
    """All steps in order: for each version tables, columns, indexes, then the number in `shard.version`."""
    made: list[Step] = []
    for version in range(2, SCHEMA_VERSION + 1):
        tables = [table for table in metadata.sorted_tables if since(table) <= version]
        old = [table for table in tables if since(table) < version]
        made += [_add_table(dialect, table) for table in tables if since(table) == version]
        made += [_add_column(dialect, one) for table in old for one in table.columns if since(one) == version]
        indexes = chain.from_iterable(sorted(table.indexes, key=lambda one: str(one.name)) for table in old)
        made += [_change_index(dialect, index) for index in indexes if since(index) == version]
        made.append(_set_version(version))
    return made


def pending(connection: Connection, version: int) -> list[Step]:
    """Return the steps that a database of `version` lacks. Raises the driver's errors."""
    later = [step for step in steps(connection.dialect) if step.version > version]
    return [step for step in later if not step.is_done(inspect(connection))]


def run(connection: Connection, errors: Seam, version: int) -> None:
    """Run what a database of `version` lacks; call it inside `exclusive`.

    Raises StoreBusy when a transaction uses a table for too long, ShardRefused when the server would copy a table, and
    the driver's errors. The account's right ALTER is checked before the first change.
    """
    lacking = pending(connection, version)
    refuse_without_alter(connection, errors, lacking)
    for step in lacking:
        for statement in step.statements(inspect(connection)):
            _run_patiently(connection, errors, statement)


def statements(connection: Connection, version: int) -> list[str]:
    """Return the SQL that `run` would execute, one line each. Raises the driver's errors."""
    lacking = pending(connection, version)
    return [remedies.flat(text) for step in lacking for text in step.statements(inspect(connection))]


def refuse_without_alter(connection: Connection, errors: Seam, lacking: list[Step]) -> None:
    """Raise the driver's error when the account lacks the right ALTER that a step needs."""
    if connection.dialect.name == "sqlite":
        return
    for table in dict.fromkeys(step.table for step in lacking if step.table):
        try:
            connection.exec_driver_sql(ALTER_PROBE.format(table=table))
        except errors.error as error:
            if not errors.is_missing_column(error):
                raise


@contextmanager
def exclusive(connection: Connection, errors: Seam) -> Iterator[None]:
    """Keep other migrations of this database out; its owner host continues. Raises StoreBusy, the driver's errors.

    SQLite: one transaction, which an error rolls back. On a server each statement commits by itself.
    """
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")
        return
    # A host's statements queue behind an ALTER TABLE that waits for a table: for a second at most, then it gives way.
    connection.exec_driver_sql("SET SESSION lock_wait_timeout = 1")
    schema = str(connection.exec_driver_sql("SELECT DATABASE()").scalar_one())
    name = "foqs-schema-" + hashlib.sha256(schema.encode()).hexdigest()[:40]  # not a name of `ownership.ServerLock`
    deadline = time.monotonic() + _LOCK_S
    while not connection.exec_driver_sql(f"SELECT GET_LOCK('{name}', 1)").scalar_one():
        if time.monotonic() > deadline:
            raise StoreBusy(f"another migration of the database has run for {_LOCK_S} s: try again when it has ended")
    try:
        yield
    finally:
        try:
            connection.exec_driver_sql(f"DO RELEASE_LOCK('{name}')")
        except errors.error:
            connection.invalidate()  # the lock ends with the connection


def _run_patiently(connection: Connection, errors: Seam, statement: str) -> None:
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.exec_driver_sql(statement)
        except errors.error as error:
            if errors.would_copy(error):
                mend = f"an administrator runs: {statement.removesuffix(_COPY_FREE)}; then foqs shards migrate again"
                raise ShardRefused(errors.words(error), mend=mend) from error
            # DATA: an online index build may meet a lane's old row and its new one at once.
            if errors.kind(error) not in (Kind.BUSY, Kind.DATA):
                raise
            if time.monotonic() > deadline:
                why = f"`{remedies.flat(statement)}` waited {_BUSY_S} s for other transactions"
                raise StoreBusy(f"{why} ({errors.words(error)}): end the long ones, and migrate again") from error
        else:
            return
        time.sleep(_PAUSE_S)


def _add_table(dialect: Dialect, table: Table) -> Step:
    return Step(
        since(table),
        lambda found: found.has_table(table.name),
        lambda _: remedies.create_table(dialect, table),
    )


def _add_column(dialect: Dialect, column: Column[object]) -> Step:
    table, copy_free = column.table.name, "" if dialect.name == "sqlite" else _COPY_FREE
    return Step(
        since(column),
        lambda found: column.name in [one["name"] for one in found.get_columns(table)],
        lambda _: [remedies.add_column(dialect, column) + copy_free],
        table,
    )


def _change_index(dialect: Dialect, index: Index) -> Step:
    assert index.table is not None
    table, name, columns = index.table.name, str(index.name), [column.name for column in index.columns]

    def there(found: Inspector) -> dict[str, tuple[list[str | None], bool]]:
        return {str(one["name"]): (one["column_names"], bool(one["unique"])) for one in found.get_indexes(table)}

    def changed(found: Inspector) -> list[str]:
        if dialect.name == "sqlite":
            return [*([f"DROP INDEX {name}"] if name in there(found) else []), remedies.add_index(index)]
        drop = f"DROP INDEX {name}, " if name in there(found) else ""
        kind = "UNIQUE INDEX" if index.unique else "INDEX"
        # One statement: hosts of the version before name this index, and it is never missing.
        return [f"ALTER TABLE {table} {drop}ADD {kind} {name} ({', '.join(columns)}){_ONLINE}"]

    return Step(
        since(index),
        lambda found: there(found).get(name) == (columns, bool(index.unique)),
        changed,
        table,
    )


def _set_version(version: int) -> Step:
    def is_done(found: Inspector) -> bool:
        assert isinstance(found.bind, Connection)
        behind = f"SELECT COUNT(*) FROM shard WHERE version < {version}"
        return int(found.bind.exec_driver_sql(behind).scalar_one()) == 0

    raised = f"UPDATE shard SET version = {version} WHERE one = 1 AND version < {version}"
    return Step(version, is_done, lambda _: [raised])
