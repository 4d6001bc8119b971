"""What differs between the databases in the text of statements.

Where a statement says which index to use: InnoDB's statistics count live rows only, and in a queue that consumers keep
short the tables are full of deleted rows that were not purged yet. The optimizer then takes reading the whole table
for cheaper than finding a few hundred rows by key, and reads all of those (measured with 100,000 of them: 20 rows
deleted in 33 ms instead of 0.4). Each server listens to something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from foqs.rows import LOG_BYTES

ROWS = 1_000
"""Rows of a statement: MySQL reads the whole table for an IN list of 10,000 row tuples."""
Statement = tuple[str | bytes, int | None]
"""Its text, or the command of a prepared one, and the rows that it must match. None: any number of them will do."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Fragments of SQL, and whether several statements may travel as one packet.

    `prepared_inserts`: they cost the server less than text does. `deleted_alone`: the most rows that cost less with a
    DELETE for each than with one for all. `delete_...` are templates of a DELETE by a column, `ready_...` and
    `ordered_...` of one by the key of that table, and `..._key` is a key in a list. `ordered_join` joins from left to
    right; `for_update` makes a read wait for the writers before it; `read_only` is a server's switch for that.
    `add_progress` ends an INSERT into `progress`: a column that is NULL in a new row stays as it is, and its log is
    added. `free_keys` is a template of a DELETE of the rows in `dedup` that name one of the items, `take_keys` ends an
    INSERT of keys that counts only for keys that are free: they have expired by a time, or name the same item.
    `add_members` ends an INSERT into `batch_count` that adds new members. `count_members` is a template of an UPDATE
    of a count there, by the number of rows of `member` with those ids and `dead`.
    """

    name: str
    one_packet: bool
    prepared_inserts: bool
    deleted_alone: int
    delete_one: str
    delete_listed: str
    ready_one: str
    ready_listed: str
    ready_key: str
    ordered_one: str
    ordered_listed: str
    ordered_key: str
    begin: str
    clock_ms: str
    connection_id: str
    ordered_join: str
    for_update: str
    read_only: str
    add_progress: str
    free_keys: str
    take_keys: str
    add_members: str
    count_members: str

    def forced(self, table: str, alias: str = "", index: str = "PRIMARY") -> str:
        """The table in a FROM or an UPDATE, read by that index."""
        return f"{table} {alias} FORCE INDEX ({index})"

    def delete_ready(self, made: list[Statement], keys: Sequence[tuple[int, int, int, int]]) -> None:
        """Append statements to `made` that delete the rows of `ready` with those keys."""
        if len(keys) <= self.deleted_alone:
            made += [(self.ready_one % key, 1) for key in keys]
            return
        for at in range(0, len(keys), ROWS):
            piece = keys[at : at + ROWS]
            values = ",".join(map(self.ready_key.__mod__, piece))
            made.append((self.ready_listed.format(values=values), len(piece)))

    def delete_ordered(self, made: list[Statement], keys: Sequence[tuple[bytes, int, int]]) -> None:
        """Append statements to `made` that delete the rows of `ordered` with those keys."""
        texts = [(digest.hex(), standing, place) for digest, standing, place in keys]
        if len(keys) <= self.deleted_alone:
            made += [(self.ordered_one % key, 1) for key in texts]
            return
        for at in range(0, len(keys), ROWS):
            piece = texts[at : at + ROWS]
            values = ",".join(map(self.ordered_key.__mod__, piece))
            made.append((self.ordered_listed.format(values=values), len(piece)))

    def delete(
        self,
        made: list[Statement],
        table: str,
        column: str,
        values: Sequence[int],
        index: str = "PRIMARY",
        *,
        all_there: bool = True,
        also: str = "",
    ) -> None:
        """Append statements to `made` that delete the rows with those values in a column that `index` is unique on, as
        far as `also` holds."""
        alone = len(values) <= self.deleted_alone
        template, count = (self.delete_one, 1) if alone else (self.delete_listed, ROWS)
        for at in range(0, len(values), count):
            piece = values[at : at + count]
            text = template.format(table=table, index=index, column=column, values=",".join(map(str, piece)))
            made.append((f"{text}{also}", len(piece) if all_there else None))

    def behind(self, columns: tuple[str, ...], bounds: tuple[int | str, ...]) -> str:
        """Rows whose `columns` are, as a tuple, greater than `bounds`.

        Spelled as a ladder: neither server reads `(a, b) > (1, 2)` as a range of an index.
        """
        ladder = f"{columns[-1]} > {bounds[-1]}"
        for column, bound in zip(columns[-2::-1], bounds[-2::-1], strict=True):
            ladder = f"{column} > {bound} OR ({column} = {bound} AND ({ladder}))"
        return f"{columns[0]} >= {bounds[0]} AND ({ladder})"

    def up_to(self, columns: tuple[str, ...], bounds: tuple[int | str, ...]) -> str:
        """Rows whose `columns` are, as a tuple, at most `bounds`; spelled as in `behind`."""
        ladder = f"{columns[-1]} <= {bounds[-1]}"
        for column, bound in zip(columns[-2::-1], bounds[-2::-1], strict=True):
            ladder = f"{column} < {bound} OR ({column} = {bound} AND ({ladder}))"
        return f"{columns[0]} <= {bounds[0]} AND ({ladder})"


class SqliteDialect(Dialect):
    """Row values are ranges here and ladders are not."""

    __slots__ = ()

    def forced(self, table: str, alias: str = "", index: str = "PRIMARY") -> str:
        return f"{table} {alias}"

    def behind(self, columns: tuple[str, ...], bounds: tuple[int | str, ...]) -> str:
        return f"({', '.join(columns)}) > ({', '.join(map(str, bounds))})"

    def up_to(self, columns: tuple[str, ...], bounds: tuple[int | str, ...]) -> str:
        return f"({', '.join(columns)}) <= ({', '.join(map(str, bounds))})"


# A server assigns from left to right: `done` tells whether the progress is new until it is assigned itself.
_ADD_PROGRESS = (
    "ON DUPLICATE KEY UPDATE checkpoint = COALESCE(VALUES(checkpoint), checkpoint), "
    "total = IF(VALUES(done) IS NULL, total, VALUES(total)), said = IF(VALUES(done) IS NULL, said, VALUES(said)), "
    f"done = COALESCE(VALUES(done), done), log = RIGHT(CONCAT(log, VALUES(log)), {LOG_BYTES})"
)
_ADD_PROGRESS_TO_FILE = (
    "ON CONFLICT (id) DO UPDATE SET checkpoint = COALESCE(excluded.checkpoint, checkpoint), "
    "total = IIF(excluded.done IS NULL, total, excluded.total), "
    "said = IIF(excluded.done IS NULL, said, excluded.said), "
    "done = COALESCE(excluded.done, done), "
    # SUBSTR of an empty blob is NULL.
    f"log = IFNULL(SUBSTR(CAST(log || excluded.log AS BLOB), -{LOG_BYTES}), x'')"
)
_FREE_KEYS = (
    "DELETE d FROM held_key AS h FORCE INDEX (PRIMARY) STRAIGHT_JOIN dedup AS d FORCE INDEX (PRIMARY) "
    "ON d.digest = h.digest AND d.id = h.id WHERE h.id IN ({ids})"
)
_FREE_KEYS_OF_FILE = (
    "DELETE FROM dedup WHERE digest IN (SELECT digest FROM held_key WHERE id IN ({ids})) AND id IN ({ids})"
)
# A server assigns from left to right: a row that keeps its expiry keeps its id.
_TAKE_KEYS = "ON DUPLICATE KEY UPDATE " + ", ".join(
    [
        f"{column} = IF(expires_at <= {{at}} OR id = VALUES(id), VALUES({column}), {column})"
        for column in ("content", "id", "expires_at")
    ]
)
_TAKE_KEYS_OF_FILE = (
    "ON CONFLICT (digest) DO UPDATE SET content = excluded.content, id = excluded.id, expires_at = excluded.expires_at "
    "WHERE expires_at <= {at} OR id = excluded.id"
)
_ADD_MEMBERS = "ON DUPLICATE KEY UPDATE members = members + VALUES(members), changes = changes + 1, unsent = 1"
_ADD_MEMBERS_TO_FILE = (
    "ON CONFLICT (batch) DO UPDATE SET members = members + excluded.members, changes = changes + 1, unsent = 1"
)
_MEMBERS = (
    "SELECT batch AS b, COUNT(*) AS n FROM member{index} WHERE id IN ({{ids}}) AND dead = {{dead}} GROUP BY batch"
)
_COUNTED = "{count} = {count} {sign} n, changes = changes + 1, unsent = 1"
_COUNT_MEMBERS = (
    f"UPDATE ({_MEMBERS.format(index=' FORCE INDEX (PRIMARY)')}) AS m "
    f"STRAIGHT_JOIN batch_count FORCE INDEX (PRIMARY) ON batch = b SET {_COUNTED}"
)
_COUNT_MEMBERS_OF_FILE = f"UPDATE batch_count SET {_COUNTED} FROM ({_MEMBERS.format(index='')}) WHERE batch = b"
_KEY = "(lane,priority,deliver_after,id)"
_TUPLE = "(%d,%d,%d,%d)"
_HINTED = "DELETE /*+ INDEX({table} {index}) */ FROM {table} WHERE {column} IN ({values})"
_READY_HINTED = f"DELETE /*+ INDEX(ready PRIMARY) */ FROM ready WHERE {_KEY} IN ("
_ORDER_KEY, _ORDER_TUPLE = "(digest,standing,place)", "(x'%s',%d,%d)"
_ORDERED_HINTED = f"DELETE /*+ INDEX(ordered PRIMARY) */ FROM ordered WHERE {_ORDER_KEY} IN ("
MYSQL = Dialect(
    name="MySQL",
    one_packet=True,
    prepared_inserts=False,
    deleted_alone=1,
    delete_one=_HINTED,
    delete_listed=_HINTED,
    ready_one=f"{_READY_HINTED}{_TUPLE})",
    ready_listed=f"{_READY_HINTED}{{values}})",
    ready_key=_TUPLE,
    ordered_one=f"{_ORDERED_HINTED}{_ORDER_TUPLE})",
    ordered_listed=f"{_ORDERED_HINTED}{{values}})",
    ordered_key=_ORDER_TUPLE,
    begin="BEGIN",
    clock_ms="CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
    connection_id="SELECT CONNECTION_ID()",
    ordered_join="STRAIGHT_JOIN",
    for_update=" FOR UPDATE",
    read_only="@@GLOBAL.read_only",
    add_progress=_ADD_PROGRESS,
    free_keys=_FREE_KEYS,
    take_keys=_TAKE_KEYS,
    add_members=_ADD_MEMBERS,
    count_members=_COUNT_MEMBERS,
)

# No hint works in a DELETE of MariaDB, and a single row tuple in an IN list is no search by the key at all. Rows joined
# to a list are always found by their key. That costs 75 us a statement, so few rows have statements of their own.
MARIADB = replace(
    MYSQL,
    name="MariaDB",
    prepared_inserts=True,
    deleted_alone=2,
    delete_one="DELETE FROM {table} WHERE {column} = {values}",
    delete_listed=(
        "DELETE t FROM JSON_TABLE('[{values}]', '$[*]' COLUMNS (c0 BIGINT PATH '$')) AS gone "
        "STRAIGHT_JOIN {table} AS t FORCE INDEX ({index}) ON t.{column} = c0"
    ),
    ready_one="DELETE FROM ready WHERE lane = %d AND priority = %d AND deliver_after = %d AND id = %d",
    ready_listed=(
        "DELETE t FROM JSON_TABLE('[{values}]', '$[*]' COLUMNS (c0 BIGINT PATH '$[0]', c1 BIGINT PATH '$[1]', "
        "c2 BIGINT PATH '$[2]', c3 BIGINT PATH '$[3]')) AS gone STRAIGHT_JOIN ready AS t FORCE INDEX (PRIMARY) "
        "ON t.lane = c0 AND t.priority = c1 AND t.deliver_after = c2 AND t.id = c3"
    ),
    ready_key="[%d,%d,%d,%d]",
    ordered_one="DELETE FROM ordered WHERE digest = x'%s' AND standing = %d AND place = %d",
    ordered_listed=(
        "DELETE t FROM JSON_TABLE('[{values}]', '$[*]' COLUMNS (c0 CHAR(32) PATH '$[0]', c1 TINYINT PATH '$[1]', "
        "c2 BIGINT PATH '$[2]')) AS gone STRAIGHT_JOIN ordered AS t FORCE INDEX (PRIMARY) "
        "ON t.digest = UNHEX(c0) AND t.standing = c1 AND t.place = c2"
    ),
    ordered_key='["%s",%d,%d]',
)

_LISTED = "DELETE FROM {table} WHERE {column} IN ({values})"
# A VALUES list is searched by the key only as a SELECT.
_READY_LISTED = f"DELETE FROM ready WHERE {_KEY} IN (SELECT * FROM (VALUES "
_ORDERED_LISTED = f"DELETE FROM ordered WHERE {_ORDER_KEY} IN (SELECT * FROM (VALUES "
SQLITE = SqliteDialect(
    name="SQLite",
    one_packet=False,
    prepared_inserts=False,
    deleted_alone=1,
    delete_one=_LISTED,
    delete_listed=_LISTED,
    ready_one=f"{_READY_LISTED}{_TUPLE}))",
    ready_listed=f"{_READY_LISTED}{{values}}))",
    ready_key=_TUPLE,
    ordered_one=f"{_ORDERED_LISTED}{_ORDER_TUPLE}))",
    ordered_listed=f"{_ORDERED_LISTED}{{values}}))",
    ordered_key=_ORDER_TUPLE,
    begin="BEGIN IMMEDIATE",
    clock_ms="CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
    connection_id="SELECT 0",
    ordered_join="CROSS JOIN",
    for_update="",
    read_only="0",
    add_progress=_ADD_PROGRESS_TO_FILE,
    free_keys=_FREE_KEYS_OF_FILE,
    take_keys=_TAKE_KEYS_OF_FILE,
    add_members=_ADD_MEMBERS_TO_FILE,
    count_members=_COUNT_MEMBERS_OF_FILE,
)


def dialect_of(product: str) -> Dialect:
    """`product` is what a server says it is (`server.Version`)."""
    return {"MySQL": MYSQL, "MariaDB": MARIADB, "SQLite": SQLITE}[product]
