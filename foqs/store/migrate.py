"""Bring the database of a shard to the schema version of this foqs, by numbered steps.

No host serves the shard during a migration: a host serves only databases of its own schema version. A server commits
each `ALTER TABLE` by itself, so a step finds out which of its changes the database still lacks. An interrupted
migration continues there.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy import inspect
from sqlalchemy.engine import Connection

from foqs.store.errors import Seam
from foqs.store.protocol import StoreBusy
from foqs.store.tables import FILE_TABLES, LANE_OF_NAMES, SCHEMA_VERSION, TABLES

_LOCK_S = 60
_TABLE_S = 20
"""Time for which an `ALTER TABLE` waits for the transactions that use its table."""


class Step(NamedTuple):
    """The changes from schema version `version` - 1 to `version`. `lacking` returns the SQL that a database still
    needs, and raises the driver's errors."""

    version: int
    lacking: Callable[[Connection], list[str]]


def _rules(connection: Connection) -> list[str]:
    """Lanes of items with rules, and the rules of dead letters."""
    found = inspect(connection)
    tables = FILE_TABLES if connection.dialect.name == "sqlite" else TABLES
    made = [
        f"ALTER TABLE {table} ADD COLUMN rules {tables[table].columns['rules'].sql}"
        for table in ("lane", "failure")
        if "rules" not in [column["name"] for column in found.get_columns(table)]
    ]
    index = next(one for one in found.get_indexes("lane") if one["name"] == LANE_OF_NAMES)
    if "rules" not in index["column_names"]:
        names = ", ".join(tables["lane"].indexes[LANE_OF_NAMES].columns)
        if connection.dialect.name == "sqlite":
            made += [f"DROP INDEX {LANE_OF_NAMES}", tables["lane"].create_index(LANE_OF_NAMES)]
        else:
            made.append(f"ALTER TABLE lane DROP INDEX {LANE_OF_NAMES}, ADD UNIQUE INDEX {LANE_OF_NAMES} ({names})")
    return made


def _progress(connection: Connection) -> list[str]:
    """Checkpoints, progress and logs of items."""
    tables = FILE_TABLES if connection.dialect.name == "sqlite" else TABLES
    return [] if inspect(connection).has_table("progress") else tables["progress"].create()


def _held_keys(connection: Connection) -> list[str]:
    """Keys that items hold until they start or are done."""
    tables = FILE_TABLES if connection.dialect.name == "sqlite" else TABLES
    return [] if inspect(connection).has_table("held_key") else tables["held_key"].create()


def _last_failures(connection: Connection) -> list[str]:
    """The last failed attempt of an item, and the worker of a dead letter's failure."""
    found = inspect(connection)
    tables = FILE_TABLES if connection.dialect.name == "sqlite" else TABLES
    return [
        f"ALTER TABLE {table} ADD COLUMN {name} {tables[table].columns[name].sql}"
        for table, name in (("item", "last_failure"), ("failure", "worker"))
        if name not in [column["name"] for column in found.get_columns(table)]
    ]


def _orders(connection: Connection) -> list[str]:
    """The order keys of items, and their order."""
    found = inspect(connection)
    tables = FILE_TABLES if connection.dialect.name == "sqlite" else TABLES
    there = [column["name"] for column in found.get_columns("item")]
    made = [
        f"ALTER TABLE item ADD COLUMN {name} {tables['item'].columns[name].sql}"
        for name in ("order_key", "order_at")
        if name not in there
    ]
    for name in ("ordered", "order_home"):
        made += [] if found.has_table(name) else tables[name].create()
    return made


def _batches(connection: Connection) -> list[str]:
    """Batches, and the members of each."""
    found = inspect(connection)
    tables = FILE_TABLES if connection.dialect.name == "sqlite" else TABLES
    there = [column["name"] for column in found.get_columns("item")]
    made = [] if "batch" in there else [f"ALTER TABLE item ADD COLUMN batch {tables['item'].columns['batch'].sql}"]
    for name in ("member", "batch_count", "item_batch", "batch_part"):
        made += [] if found.has_table(name) else tables[name].create()
    return made


STEPS: tuple[Step, ...] = (
    Step(2, _rules), Step(3, _progress), Step(4, _held_keys), Step(5, _last_failures), Step(6, _orders),
    Step(7, _batches),
)  # fmt: skip
"""In order, one for each schema version after the oldest supported one."""


def pending(version: int) -> Sequence[Step]:
    """Return the steps for a database of `version`; empty if there are none, or no longer all of them."""
    later = [step for step in STEPS if version < step.version <= SCHEMA_VERSION]
    return later if len(later) == SCHEMA_VERSION - version else ()


def remedy(version: int) -> str:
    """Return what an operator does about a database of another schema version."""
    if version > SCHEMA_VERSION:
        return "upgrade foqs"
    if pending(version):
        return "stop the hosts, and run `foqs shards migrate`"
    return "this foqs cannot migrate it: create the shard again in an empty database"


def statements(connection: Connection, version: int) -> list[str]:
    """Return the SQL that `run` would execute, one line each. Raises the driver's errors."""
    return [text for step in pending(version) for text in (*step.lacking(connection), _raised(step))]


def run(connection: Connection, version: int) -> None:
    """Run the pending steps of a database; call it inside `exclusive`. Raises the driver's errors."""
    for step in pending(version):
        for statement in (*step.lacking(connection), _raised(step)):
            connection.exec_driver_sql(statement)


def _raised(step: Step) -> str:
    return f"UPDATE shard SET version = {step.version} WHERE one = 1"


@contextmanager
def exclusive(connection: Connection, errors: Seam) -> Iterator[None]:
    """Keep out other processes that change the schema of this database. Raises StoreBusy, the driver's errors.

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
    connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {_TABLE_S}")
    schema = str(connection.exec_driver_sql("SELECT DATABASE()").scalar_one())
    name = "foqs-schema-" + hashlib.sha256(schema.encode()).hexdigest()[:40]  # not a name of `locks.ServerLock`
    deadline = time.monotonic() + _LOCK_S
    while not connection.exec_driver_sql(f"SELECT GET_LOCK('{name}', 1)").scalar_one():
        if time.monotonic() > deadline:
            raise StoreBusy(f"another process has changed the schema for {_LOCK_S} s: try again when it has ended")
    try:
        yield
    finally:
        try:
            connection.exec_driver_sql(f"DO RELEASE_LOCK('{name}')")
        except errors.error:
            connection.invalidate()  # the lock ends with the connection
