"""SQL that mends a table which differs from `foqs.store.schema`: for an administrator to run, in one line each.

SQLite changes neither types nor keys of a table: there the table is made again and its rows are copied.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Column, Index, Table
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

# SQLAlchemy takes a hex literal for an expression. Neither SQLite nor MySQL adds a column with one at once.
_LITERAL_IN_BRACKETS = re.compile(r"DEFAULT \((x'[0-9a-f]*')\)")


def add_column(dialect: Dialect, column: Column[Any]) -> str:
    spelled = _column(dialect, column)
    if dialect.name == "sqlite" and column.primary_key:
        return f"restore the table {column.table.name} from a backup: its key is gone"
    if dialect.name == "sqlite" and not column.nullable and column.server_default is None:
        spelled += " DEFAULT x''" if "BLOB" in spelled.upper() else " DEFAULT 0"
    return f"ALTER TABLE {column.table.name} ADD COLUMN {spelled}"


def change_column(dialect: Dialect, column: Column[Any]) -> str:
    if dialect.name == "sqlite":
        return _made_again(dialect, column.table)
    return f"ALTER TABLE {column.table.name} MODIFY COLUMN {_column(dialect, column)}"


def drop_column(table: str, column: str) -> str:
    return f"ALTER TABLE {table} DROP COLUMN {column}"


def change_key(dialect: Dialect, table: Table, *, there: bool) -> str:
    if dialect.name == "sqlite":
        return _made_again(dialect, table)
    key = ", ".join(column.name for column in table.primary_key)
    return f"ALTER TABLE {table.name} {'DROP PRIMARY KEY, ' if there else ''}ADD PRIMARY KEY ({key})"


def add_index(index: Index) -> str:
    return flat(str(CreateIndex(index)))


def change_index(dialect: Dialect, index: Index) -> str:
    """Two statements: one ALTER TABLE that drops and adds the same columns leaves an invisible index as it is."""
    assert index.table is not None
    return f"{drop_index(dialect, index.table.name, str(index.name))}; {add_index(index)}"


def drop_index(dialect: Dialect, table: str, index: str) -> str:
    return f"DROP INDEX {index}" if dialect.name == "sqlite" else f"DROP INDEX {index} ON {table}"


def create_table(dialect: Dialect, table: Table) -> list[str]:
    """The statements that make a missing table and its indexes.

    On MySQL and MariaDB one statement makes all of it: it needs no right but CREATE, and the indexes are there as soon
    as the table is.
    """
    made = _compiled(dialect, CreateTable(table, if_not_exists=True)).strip()
    if dialect.name == "sqlite":
        return [made, *sorted(add_index(index) for index in table.indexes)]
    indexes = [
        f"\t{'UNIQUE ' if index.unique else ''}INDEX {index.name} ({', '.join(c.name for c in index.columns)})"
        for index in sorted(table.indexes, key=lambda index: str(index.name))
    ]
    body, bracket, options = made.rpartition("\n)")
    return ["".join([body, *(f", \n{line}" for line in indexes), bracket, options])]


def _made_again(dialect: Dialect, table: Table) -> str:
    columns, name = ", ".join(column.name for column in table.columns), table.name
    made = flat(_compiled(dialect, CreateTable(table)))
    steps = [
        "BEGIN IMMEDIATE",
        f"ALTER TABLE {name} RENAME TO {name}_before",
        made,
        f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {name}_before",
        f"DROP TABLE {name}_before",
        *sorted(add_index(index) for index in table.indexes),
        "COMMIT",
    ]
    return "; ".join(steps)


def _column(dialect: Dialect, column: Column[Any]) -> str:
    return flat(_compiled(dialect, CreateColumn(column)))


def _compiled(dialect: Dialect, element: CreateColumn | CreateTable) -> str:
    return _LITERAL_IN_BRACKETS.sub(r"DEFAULT \1", str(element.compile(dialect=dialect)))


def flat(sql: str) -> str:
    """Return the statement in one line."""
    return re.sub(r"\s+", " ", sql).replace("( ", "(").replace(" )", ")").strip()
