"""What differs between the databases in the text of statements.

Where a statement says which index to use: InnoDB's statistics count live rows only, and in a queue that consumers keep
short the tables are full of deleted rows that were not purged yet. The optimizer then takes reading the whole table
for cheaper than finding a few hundred rows by key, and reads all of those (measured with 100,000 of them: 20 rows
deleted in 33 ms instead of 0.4). Each server listens to something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Dialect:
    """Fragments of SQL, and whether several statements may travel as one packet.

    `prepared_inserts`: they cost the server less than text does. `deleted_alone`: the most rows that cost less with a
    DELETE for each than with one for all. `ordered_join` joins from left to right; `for_update` makes a read wait for
    the writers before it; `read_only` is a server's switch for that.
    """

    name: str
    one_packet: bool
    prepared_inserts: bool
    deleted_alone: int
    begin: str
    clock_ms: str
    connection_id: str
    ordered_join: str
    for_update: str
    read_only: str

    def forced(self, table: str, alias: str = "", index: str = "PRIMARY") -> str:
        """The table in a FROM or an UPDATE, read by that index."""
        return f"{table} {alias} FORCE INDEX ({index})"

    def delete_keys(self, table: str, columns: tuple[str, ...], keys: Sequence[tuple[int, ...]]) -> str:
        """Deletes the rows with those primary keys."""
        values = ",".join([_TUPLE[len(columns)] % key for key in keys])
        return f"DELETE /*+ INDEX({table} PRIMARY) */ FROM {table} WHERE ({','.join(columns)}) IN ({values})"

    def delete_values(self, table: str, column: str, values: Sequence[int], index: str = "PRIMARY") -> str:
        """Deletes the rows with those values in a column that `index` is unique on."""
        return f"DELETE /*+ INDEX({table} {index}) */ FROM {table} WHERE {column} IN ({_list(values)})"

    def behind(self, columns: tuple[str, ...], bounds: tuple[int, ...]) -> str:
        """Rows whose `columns` are, as a tuple, greater than `bounds`.

        Spelled as a ladder: neither server reads `(a, b) > (1, 2)` as a range of an index.
        """
        ladder = f"{columns[-1]} > {bounds[-1]}"
        for column, bound in zip(columns[-2::-1], bounds[-2::-1], strict=True):
            ladder = f"{column} > {bound} OR ({column} = {bound} AND ({ladder}))"
        return f"{columns[0]} >= {bounds[0]} AND ({ladder})"

    def up_to(self, columns: tuple[str, ...], bounds: tuple[int, ...]) -> str:
        """Rows whose `columns` are, as a tuple, at most `bounds`; spelled as in `behind`."""
        ladder = f"{columns[-1]} <= {bounds[-1]}"
        for column, bound in zip(columns[-2::-1], bounds[-2::-1], strict=True):
            ladder = f"{column} < {bound} OR ({column} = {bound} AND ({ladder}))"
        return f"{columns[0]} <= {bounds[0]} AND ({ladder})"


class MariaDialect(Dialect):
    """No hint works in a DELETE here, and a single row tuple in an IN list is no search by the key at all; rows
    joined to a list are always found by their key. That costs 75 us a statement, so few rows have statements of
    their own."""

    __slots__ = ()

    def delete_keys(self, table: str, columns: tuple[str, ...], keys: Sequence[tuple[int, ...]]) -> str:
        if len(keys) == 1:
            matches = " AND ".join([f"{column} = {value:d}" for column, value in zip(columns, keys[0], strict=True)])
            return f"DELETE FROM {table} WHERE {matches}"
        values = ",".join([_ARRAY[len(columns)] % key for key in keys])
        listed = ", ".join([f"c{at} BIGINT PATH '$[{at}]'" for at in range(len(columns))])
        matches = " AND ".join([f"t.{column} = c{at}" for at, column in enumerate(columns)])
        return _join(table, "PRIMARY", values, listed, matches)

    def delete_values(self, table: str, column: str, values: Sequence[int], index: str = "PRIMARY") -> str:
        if len(values) == 1:
            return f"DELETE FROM {table} WHERE {column} = {values[0]:d}"
        return _join(table, index, _list(values), "c0 BIGINT PATH '$'", f"t.{column} = c0")


def _join(table: str, index: str, values: str, listed: str, matches: str) -> str:
    return (
        f"DELETE t FROM JSON_TABLE('[{values}]', '$[*]' COLUMNS ({listed})) AS gone "
        f"STRAIGHT_JOIN {table} AS t FORCE INDEX ({index}) ON {matches}"
    )


class SqliteDialect(Dialect):
    """Row values are ranges here and ladders are not; a VALUES list is searched by the key only as a SELECT."""

    __slots__ = ()

    def forced(self, table: str, alias: str = "", index: str = "PRIMARY") -> str:
        return f"{table} {alias}"

    def delete_keys(self, table: str, columns: tuple[str, ...], keys: Sequence[tuple[int, ...]]) -> str:
        values = ",".join([_TUPLE[len(columns)] % key for key in keys])
        return f"DELETE FROM {table} WHERE ({','.join(columns)}) IN (SELECT * FROM (VALUES {values}))"

    def delete_values(self, table: str, column: str, values: Sequence[int], index: str = "PRIMARY") -> str:
        return f"DELETE FROM {table} WHERE {column} IN ({_list(values)})"

    def behind(self, columns: tuple[str, ...], bounds: tuple[int, ...]) -> str:
        return f"({', '.join(columns)}) > ({', '.join(map(str, bounds))})"

    def up_to(self, columns: tuple[str, ...], bounds: tuple[int, ...]) -> str:
        return f"({', '.join(columns)}) <= ({', '.join(map(str, bounds))})"


_TUPLE = {count: f"({','.join(['%d'] * count)})" for count in range(1, 8)}
_ARRAY = {count: f"[{','.join(['%d'] * count)}]" for count in range(1, 8)}


def _list(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


MYSQL = Dialect(
    name="MySQL",
    one_packet=True,
    prepared_inserts=False,
    deleted_alone=1,
    begin="BEGIN",
    clock_ms="CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
    connection_id="SELECT CONNECTION_ID()",
    ordered_join="STRAIGHT_JOIN",
    for_update=" FOR UPDATE",
    read_only="@@GLOBAL.read_only",
)
MARIADB = MariaDialect(
    **{field.name: getattr(MYSQL, field.name) for field in fields(MYSQL)}
    | {"name": "MariaDB", "prepared_inserts": True, "deleted_alone": 2}
)

SQLITE = SqliteDialect(
    name="SQLite",
    one_packet=False,
    prepared_inserts=False,
    deleted_alone=1,
    begin="BEGIN IMMEDIATE",
    clock_ms="CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
    connection_id="SELECT 0",
    ordered_join="CROSS JOIN",
    for_update="",
    read_only="0",
)


def dialect_of(product: str) -> Dialect:
    """`product` is what a server says it is (`server.Version`)."""
    return {"MySQL": MYSQL, "MariaDB": MARIADB, "SQLite": SQLITE}[product]
