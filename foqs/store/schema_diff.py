"""Differences of a database's tables from `foqs.store.tables`, each with the SQL that mends it, in one line.

Columns, keys, indexes and engines are compared. Types are compared by what they store, not by how a server spells them:
MariaDB shows `int(11)` for MySQL's `int`, and SQLite's declared types count by their affinity. SQLite changes neither
types nor keys of a table: there the table is made again and its rows are copied.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection

from foqs.store.server import Finding
from foqs.store.tables import FILE_TABLES, TABLES, Column, Index, Table

MAKE_SCHEMA = "make the schema: foqs shards create"
_ROWID = " as rowid"
_WIDTH = re.compile(r"(int)\(\d+\)")


class Schema(NamedTuple):
    """The tables of foqs for this kind of database, and those that are there, by name."""

    wanted: Mapping[str, Table]
    there: Mapping[str, Table]

    @property
    def absent(self) -> list[str]:
        return [name for name in self.wanted if name not in self.there]

    def missing(self) -> list[Finding]:
        """Return the tables and columns that are not there, without the SQL that would add them."""
        found = []
        for name, table in self.wanted.items():
            if name not in self.there:
                found.append(_is_missing(name))
            elif lacking := [column for column in table.columns if column not in self.there[name].columns]:
                found.append(Finding(f"table {name} lacks {', '.join(lacking)}", "foqs shards check"))
        return found

    def differences(self, *only: str) -> list[Finding]:
        """Return what differs, in all tables or in `only` some, each with the SQL that mends it."""
        found: list[Finding] = []
        for name in only or self.wanted:
            found += _differs(self.wanted[name], self.there[name]) if name in self.there else [_is_missing(name)]
        return found


def read_schema(connection: Connection) -> Schema:
    """Read the tables of the connection's database. Raises the driver's errors."""
    if connection.dialect.name == "sqlite":
        return Schema(FILE_TABLES, _tables_of_file(connection))
    return Schema(TABLES, _tables_of_server(connection))


def _is_missing(name: str) -> Finding:
    return Finding(f"table {name} is missing", MAKE_SCHEMA)


def _differs(table: Table, there: Table) -> Iterator[Finding]:
    name = table.name
    if there.engine != table.engine:
        yield Finding(f"table {name} is kept by {there.engine}, not by InnoDB", f"ALTER TABLE {name} ENGINE = InnoDB")
    for column, wanted in table.columns.items():
        if column not in there.columns:
            yield Finding(f"table {name} lacks the column {column}", _add_column(table, column))
        elif wrong := _wrong_column(table, there, column):
            mend = f"ALTER TABLE {name} MODIFY COLUMN {column} {wanted.sql}" if table.engine else _made_again(table)
            yield Finding(f"column {name}.{column} {wrong}", mend)
    for column, extra in there.columns.items():
        if column not in table.columns and not extra.filled:
            why = f"column {name}.{column} is not in foqs's schema and has no default: every insert fails"
            yield Finding(why, f"ALTER TABLE {name} DROP COLUMN {column}")
    if there.key != table.key and set(table.key) <= there.columns.keys():
        is_now, drop = (f"({', '.join(there.key)})", "DROP PRIMARY KEY, ") if there.key else ("missing", "")
        key = ", ".join(table.key)
        mend = f"ALTER TABLE {name} {drop}ADD PRIMARY KEY ({key})" if table.engine else _made_again(table)
        yield Finding(f"the primary key of {name} is {is_now}, not ({key})", mend)
    yield from _wrong_indexes(table, there)


def _wrong_column(table: Table, there: Table, name: str) -> str:
    column, wanted = there.columns[name], table.columns[name]
    kind, wanted_kind = _stored(there, name), _stored(table, name)
    if wanted_kind not in (kind, kind.removesuffix(_ROWID)):
        return f"has the type {column.type or 'none'}, not {wanted_kind}"
    if column.nullable != wanted.nullable:
        return "allows NULL" if column.nullable else "does not allow NULL"
    return "has no default, which inserts need" if wanted.filled and not column.filled else ""


def _wrong_indexes(table: Table, there: Table) -> Iterator[Finding]:
    for name, index in sorted(table.indexes.items()):
        listed = f"({', '.join(index.columns)})"
        if name not in there.indexes:
            yield Finding(f"table {table.name} lacks the index {name} on {listed}", table.create_index(name))
        elif (found := there.indexes[name]) != index:
            # Two statements: one ALTER TABLE that drops and adds the same columns leaves an invisible index as it is.
            mend = f"{_drop_index(table, name)}; {table.create_index(name)}"
            yield Finding(f"the index {name} of {table.name} is {_shown(found)}, not {_shown(index)}", mend)
    for name, found in there.indexes.items():
        if name not in table.indexes and found.unique:
            why = f"the unique index {name} of {table.name} is not in foqs's schema: it may refuse items"
            yield Finding(why, _drop_index(table, name))


def _shown(index: Index) -> str:
    whole = "" if index.usable else ", for a part of the rows or columns, or invisible"
    return f"{'UNIQUE ' if index.unique else ''}({', '.join(index.columns)}){whole}"


def _add_column(table: Table, name: str) -> str:
    column = table.columns[name]
    if not table.engine:
        if name in table.key:
            return f"restore the table {table.name} from a backup: its key is gone"
        column = column._replace(filled=True)
    return f"ALTER TABLE {table.name} ADD COLUMN {name} {column.sql}"


def _drop_index(table: Table, name: str) -> str:
    return f"DROP INDEX {name} ON {table.name}" if table.engine else f"DROP INDEX {name}"


def _made_again(table: Table) -> str:
    columns, name = ", ".join(table.columns), table.name
    made, *indexes = table.create()
    steps = [
        "BEGIN IMMEDIATE",
        f"ALTER TABLE {name} RENAME TO {name}_before",
        made,
        f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {name}_before",
        f"DROP TABLE {name}_before",
        *indexes,
        "COMMIT",
    ]
    return "; ".join(steps)


def _stored(table: Table, name: str) -> str:
    """Return what a column stores. On a server: without display widths, and what MariaDB says of compression.

    SQLite: the affinity (https://sqlite.org/datatype3.html); the key of a table with rowids is spelled INTEGER.
    """
    kind = table.columns[name].type
    if table.engine:
        plain = re.sub(r"\s*/\*.*?\*/", "", kind.lower())
        return _WIDTH.sub(r"\1", re.sub(r"\binteger\b", "int", plain))
    upper = kind.upper()
    if table.with_rowid and table.key == (name,) and upper == "INTEGER":
        return "INTEGER" + _ROWID
    for affinity, marks in (("INTEGER", ("INT",)), ("TEXT", ("CHAR", "CLOB", "TEXT")), ("BLOB", ("BLOB",))):
        if any(mark in upper for mark in marks):
            return affinity
    return "BLOB" if not upper else "REAL" if re.search("REAL|FLOA|DOUB", upper) else "NUMERIC"


# ------------------------------------------------------------------------------------------------ present tables

_TABLES = "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE()"
_COLUMNS = """SELECT table_name, column_name, column_type, is_nullable, column_default, extra, collation_name
    FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY table_name, ordinal_position"""
_INDEXES = """SELECT table_name, index_name, column_name, non_unique, sub_part, index_type, {usable}
    FROM information_schema.statistics WHERE table_schema = DATABASE() ORDER BY table_name, index_name, seq_in_index"""


def _tables_of_server(connection: Connection) -> dict[str, Table]:
    tables = {name: Table(name, engine or "a view") for name, engine in connection.execute(text(_TABLES))}
    for table, name, kind, nullable, default, extra, collation in connection.execute(text(_COLUMNS)):
        nulls = nullable == "YES"
        filled = nulls or default is not None or "auto_increment" in extra.lower() or "GENERATED" in extra.upper()
        spelled = kind.decode() if isinstance(kind, bytes) else kind
        if collation:
            spelled += f" COLLATE {collation}"
        tables[table].columns[name] = Column(spelled, nulls, filled)
    parts: dict[tuple[str, str], list[Any]] = defaultdict(list)
    usable = "ignored = 'NO'" if getattr(connection.dialect, "is_mariadb", False) else "is_visible = 'YES'"
    for table, name, *part in connection.execute(text(_INDEXES.format(usable=usable))):
        parts[table, name].append(part)
    for (table, name), columns in parts.items():
        names = tuple(str(column) for column, *_ in columns)  # of an expression: None
        if name == "PRIMARY":
            tables[table].key = names
        else:
            usable_all = all(sub is None and kind == "BTREE" and visible for _, _, sub, kind, visible in columns)
            tables[table].indexes[name] = Index(names, not columns[0][1], usable_all)
    return tables


def _tables_of_file(connection: Connection) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    for name, sql in connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'table'").all():
        table = tables[name] = Table(name)
        table.with_rowid = re.search(r"\bWITHOUT\s+ROWID\b", sql or "", re.IGNORECASE) is None
        rows = connection.exec_driver_sql(f"PRAGMA table_info({_quoted(name)})").all()
        table.key = tuple(column for _, column in sorted((at, column) for _, column, _, _, _, at in rows if at))
        for _, column, kind, not_null, default, _ in rows:
            table.columns[column] = Column(kind, not not_null, not not_null or default is not None)
        for _, index, unique, origin, partial in connection.exec_driver_sql(
            f"PRAGMA index_list({_quoted(name)})"
        ).all():
            if origin != "pk":
                columns = connection.exec_driver_sql(f"PRAGMA index_info({_quoted(index)})").all()
                table.indexes[index] = Index(tuple(str(column) for *_, column in columns), bool(unique), not partial)
    return tables


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
