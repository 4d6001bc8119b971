"""Differences of a database's tables from `foqs.store.tables`, each with the SQL that mends it, in one line.

Columns, keys, indexes and engines are compared. Types are compared by what they store, not by how a server spells them:
MariaDB shows `int(11)` for MySQL's `int`, and SQLite's declared types count by their affinity. SQLite changes neither
types nor keys of a table: there the table is made again and its rows are copied.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Column, Index, Table, text
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from foqs.store.server import Finding

# SQLAlchemy takes a hex literal for an expression. Neither SQLite nor MySQL adds a column with one at once.
_LITERAL_IN_BRACKETS = re.compile(r"DEFAULT \((x'[0-9a-f]*')\)")
_MAKE_SCHEMA = "make the schema: foqs shards create"
_ROWID = " as rowid"
_WIDTH = re.compile(r"(int)\(\d+\)")


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """`type` is normalised; `shown` is what the database says. `filled`: an INSERT without the column succeeds."""

    type: str
    nullable: bool
    shown: str = ""
    filled: bool = False


@dataclass(frozen=True, slots=True)
class IndexShape:
    """`usable`: statements may name it (it is not invisible or ignored), and it has whole columns and all rows."""

    columns: tuple[str, ...]
    unique: bool
    usable: bool = True


@dataclass(slots=True)
class TableShape:
    """`engine` is empty for SQLite."""

    engine: str = ""
    columns: dict[str, ColumnShape] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    indexes: dict[str, IndexShape] = field(default_factory=dict)


def read_shapes(connection: Connection) -> dict[str, TableShape]:
    """The tables of the connection's database, by name. Raises the driver's errors."""
    return _sqlite_shapes(connection) if connection.dialect.name == "sqlite" else _server_shapes(connection)


def missing(tables: Sequence[Table], shapes: Mapping[str, TableShape]) -> list[Finding]:
    """The tables and columns that are not there, without the SQL that would add them."""
    found = []
    for table in tables:
        shape = shapes.get(table.name)
        if shape is None:
            found.append(Finding(f"table {table.name} is missing", _MAKE_SCHEMA))
        elif lacking := [column.name for column in table.columns if column.name not in shape.columns]:
            found.append(Finding(f"table {table.name} lacks {', '.join(lacking)}", "foqs shards check"))
    return found


def differences(connection: Connection, tables: Sequence[Table], shapes: Mapping[str, TableShape]) -> list[Finding]:
    """Return what differs from `tables`, each with the SQL that mends it."""
    found: list[Finding] = []
    for table in tables:
        shape = shapes.get(table.name)
        if shape is not None:
            found += _differs(connection, table, shape)
        else:
            found.append(Finding(f"table {table.name} is missing", _MAKE_SCHEMA))
    return found


def _differs(connection: Connection, table: Table, shape: TableShape) -> Iterator[Finding]:
    name, dialect = table.name, connection.dialect
    if shape.engine not in ("", "InnoDB"):
        yield Finding(f"table {name} is kept by {shape.engine}, not by InnoDB", f"ALTER TABLE {name} ENGINE = InnoDB")
    for column in table.columns:
        there = shape.columns.get(column.name)
        if there is None:
            yield Finding(f"table {name} lacks the column {column.name}", add_column(dialect, column))
        elif wrong := _wrong_column(connection, column, there):
            yield Finding(f"column {name}.{column.name} {wrong}", change_column(dialect, column))
    for extra, there in shape.columns.items():
        if extra not in table.columns and not there.filled:
            why = f"column {name}.{extra} is not in foqs's schema and has no default: every insert fails"
            yield Finding(why, drop_column(name, extra))
    key = tuple(column.name for column in table.primary_key)
    if shape.key != key and set(key) <= shape.columns.keys():
        is_now = f"({', '.join(shape.key)})" if shape.key else "missing"
        words = f"the primary key of {name} is {is_now}, not ({', '.join(key)})"
        yield Finding(words, change_key(dialect, table, there=bool(shape.key)))
    yield from _wrong_indexes(connection, table, shape)


def _wrong_column(connection: Connection, column: Column[Any], there: ColumnShape) -> str:
    wanted = _wanted_type(connection, column)
    if wanted not in (there.type, there.type.removesuffix(_ROWID)):
        return f"has the type {there.shown}, not {wanted}"
    if there.nullable != bool(column.nullable):
        return "allows NULL" if there.nullable else "does not allow NULL"
    if column.server_default is not None and not there.filled:
        return "has no default, which inserts need"
    return ""


def _wrong_indexes(connection: Connection, table: Table, shape: TableShape) -> Iterator[Finding]:
    wanted = {str(index.name): index for index in table.indexes}
    for name, index in sorted(wanted.items()):
        there = shape.indexes.get(name)
        if there is None:
            mend = add_index(index)
            yield Finding(f"table {table.name} lacks the index {name} on ({_listed(index)})", mend)
        elif there != IndexShape(tuple(column.name for column in index.columns), bool(index.unique)):
            mend = change_index(connection.dialect, index)
            yield Finding(f"the index {name} of {table.name} is {_shown(there)}, not {_kind(index)}", mend)
    for name, there in shape.indexes.items():
        if name not in wanted and there.unique:
            why = f"the unique index {name} of {table.name} is not in foqs's schema: it may refuse items"
            yield Finding(why, drop_index(connection.dialect, table.name, name))


def _listed(index: Index) -> str:
    return ", ".join(column.name for column in index.columns)


def _kind(index: Index) -> str:
    return f"{'UNIQUE ' if index.unique else ''}({_listed(index)})"


def _shown(there: IndexShape) -> str:
    whole = "" if there.usable else ", for a part of the rows or columns, or invisible"
    return f"{'UNIQUE ' if there.unique else ''}({', '.join(there.columns)}){whole}"


def _wanted_type(connection: Connection, column: Column[Any]) -> str:
    spelled = column.type.compile(dialect=connection.dialect)
    if connection.dialect.name != "sqlite":
        return _normal(spelled)
    return _affinity(spelled, rowid=_is_rowid(column))


def _is_rowid(column: Column[Any]) -> bool:
    return bool(column.primary_key and column.table.dialect_options["sqlite"]["with_rowid"])


# ------------------------------------------------------------------------------------------------ servers

_TABLES = "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE()"
_COLUMNS = """SELECT table_name, column_name, column_type, is_nullable, column_default, extra, collation_name
    FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY table_name, ordinal_position"""
_INDEXES = """SELECT table_name, index_name, column_name, non_unique, sub_part, index_type, {usable}
    FROM information_schema.statistics WHERE table_schema = DATABASE() ORDER BY table_name, index_name, seq_in_index"""


def _server_shapes(connection: Connection) -> dict[str, TableShape]:
    shapes = {name: TableShape(engine or "a view") for name, engine in connection.execute(text(_TABLES))}
    for table, name, kind, nullable, default, extra, collation in connection.execute(text(_COLUMNS)):
        nulls = nullable == "YES"
        filled = nulls or default is not None or "auto_increment" in extra.lower() or "GENERATED" in extra.upper()
        shown = f"{_text(kind)} COLLATE {collation}" if collation else _text(kind)
        shapes[table].columns[name] = ColumnShape(_normal(shown), nulls, shown, filled)
    parts: dict[tuple[str, str], list[Any]] = defaultdict(list)
    usable = "ignored = 'NO'" if _is_mariadb(connection) else "is_visible = 'YES'"
    for table, name, *part in connection.execute(text(_INDEXES.format(usable=usable))):
        parts[table, name].append(part)
    for (table, name), columns in parts.items():
        names = tuple(str(column) for column, *_ in columns)  # of an expression: None
        if name == "PRIMARY":
            shapes[table].key = names
        else:
            usable_all = all(sub is None and kind == "BTREE" and visible for _, _, sub, kind, visible in columns)
            shapes[table].indexes[name] = IndexShape(names, not columns[0][1], usable_all)
    return shapes


def _is_mariadb(connection: Connection) -> bool:
    return bool(getattr(connection.dialect, "is_mariadb", False))


def _text(found: str | bytes) -> str:
    return found.decode() if isinstance(found, bytes) else found


def _normal(kind: str) -> str:
    """Without display widths, and what MariaDB says of compression."""
    plain = re.sub(r"\s*/\*.*?\*/", "", kind.lower())
    return _WIDTH.sub(r"\1", re.sub(r"\binteger\b", "int", plain))


# ------------------------------------------------------------------------------------------------ SQLite


def _sqlite_shapes(connection: Connection) -> dict[str, TableShape]:
    shapes: dict[str, TableShape] = {}
    statements = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'table'").all()
    for table, sql in statements:
        shape = shapes[table] = TableShape()
        without_rowid = re.search(r"\bWITHOUT\s+ROWID\b", sql or "", re.IGNORECASE) is not None
        rows = connection.exec_driver_sql(f"PRAGMA table_info({_quoted(table)})").all()
        keyed = sorted((position, name) for _, name, _, _, _, position in rows if position)
        shape.key = tuple(name for _, name in keyed)
        for _, name, kind, not_null, default, _ in rows:
            rowid = shape.key == (name,) and not without_rowid
            nullable = not not_null
            filled = nullable or default is not None
            shape.columns[name] = ColumnShape(_affinity(kind, rowid=rowid), nullable, kind or "none", filled)
        for _, name, unique, origin, partial in connection.exec_driver_sql(
            f"PRAGMA index_list({_quoted(table)})"
        ).all():
            if origin != "pk":
                columns = connection.exec_driver_sql(f"PRAGMA index_info({_quoted(name)})").all()
                names = tuple(str(column) for _, _, column in columns)
                shape.indexes[name] = IndexShape(names, bool(unique), not partial)
    return shapes


def _affinity(kind: str, *, rowid: bool) -> str:
    """What a column stores (https://sqlite.org/datatype3.html); the key of a table with rowids is spelled INTEGER."""
    upper = kind.upper()
    if rowid and upper == "INTEGER":
        return "INTEGER" + _ROWID
    for affinity, marks in (("INTEGER", ("INT",)), ("TEXT", ("CHAR", "CLOB", "TEXT")), ("BLOB", ("BLOB",))):
        if any(mark in upper for mark in marks):
            return affinity
    return "BLOB" if not upper else "REAL" if re.search("REAL|FLOA|DOUB", upper) else "NUMERIC"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# ------------------------------------------------------------------------------------------------ remedies


def add_column(dialect: Dialect, column: Column[Any]) -> str:
    spelled = _column_sql(dialect, column)
    if dialect.name == "sqlite" and column.primary_key:
        return f"restore the table {column.table.name} from a backup: its key is gone"
    if dialect.name == "sqlite" and not column.nullable and column.server_default is None:
        spelled += " DEFAULT x''" if "BLOB" in spelled.upper() else " DEFAULT 0"
    return f"ALTER TABLE {column.table.name} ADD COLUMN {spelled}"


def change_column(dialect: Dialect, column: Column[Any]) -> str:
    if dialect.name == "sqlite":
        return _made_again(dialect, column.table)
    return f"ALTER TABLE {column.table.name} MODIFY COLUMN {_column_sql(dialect, column)}"


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


def _column_sql(dialect: Dialect, column: Column[Any]) -> str:
    return flat(_compiled(dialect, CreateColumn(column)))


def _compiled(dialect: Dialect, element: CreateColumn | CreateTable) -> str:
    return _LITERAL_IN_BRACKETS.sub(r"DEFAULT \1", str(element.compile(dialect=dialect)))


def flat(sql: str) -> str:
    """Return the statement in one line."""
    return re.sub(r"\s+", " ", sql).replace("( ", "(").replace(" )", ")").strip()
