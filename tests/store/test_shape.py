"""What differs from the schema is found, column by column and index by index, and the SQL of each finding mends it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from foqs.store.maintenance import create_schema
from foqs.store.server import Finding
from foqs.store.tables import TABLES, Column, Table
from tests.store.asking import findings_of, run
from tests.store.test_ownership import SERVERS

INDEXES = sorted((table.name, name) for table in TABLES.values() for name in table.indexes)
OTHER_TYPES = {
    "TINYINT": "INT", "INTEGER": "BIGINT", "BIGINT": "INT", "BLOB": "TEXT CHARACTER SET utf8mb4", "MEDIUMBLOB": "BLOB",
    "BINARY(16)": "VARBINARY(16)", "VARBINARY(128)": "VARBINARY(64)", "VARBINARY(64)": "VARBINARY(32)",
    "VARBINARY(16)": "BINARY(16)", "VARBINARY(512)": "VARBINARY(8)", "VARBINARY(1024)": "VARBINARY(512)",
    "VARBINARY(768)": "VARBINARY(2)", "VARBINARY(800)": "VARBINARY(255)", "VARBINARY(25)": "VARBINARY(24)",
    "VARBINARY(255)": "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
}  # fmt: skip


def mended(url: str, findings: list[Finding]) -> None:
    """Runs what the findings say until nothing is wrong."""
    for _ in range(4):
        for finding in findings:
            run(url, *finding.mend.split("; "))
        findings = findings_of(url, 1)
        if not findings:
            return
    raise AssertionError(findings)


def names(findings: list[Finding]) -> list[str]:
    return [finding.found for finding in findings]


def remake(url: str, table: str, change: Callable[[str], str]) -> None:
    """A table of a SQLite file, empty, from its CREATE TABLE after `change`; with its indexes."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        rows = connection.execute("SELECT * FROM shard").fetchall() if table == "shard" else []
        query = "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY type DESC"
        made, *indexes = [sql for (sql,) in connection.execute(query, (table,))]
        connection.execute(f"DROP TABLE {table}")
        connection.execute(change(made))
        for sql in indexes:
            connection.execute(sql)
        if rows and len(connection.execute("PRAGMA table_info(shard)").fetchall()) == len(rows[0]):
            connection.executemany(f"INSERT INTO shard VALUES ({','.join('?' * len(rows[0]))})", rows)
    connection.close()


def altered(url: str, table: Table, columns: list[str], how: Callable[[Column], str]) -> None:
    """MODIFY on a server, for each of `columns`."""
    changes = [f"MODIFY COLUMN {name} {how(table.columns[name])}" for name in columns]
    run(url, f"ALTER TABLE {table.name} {', '.join(changes)}")


def is_server(url: str) -> bool:
    return url.startswith("mysql")


@pytest.fixture
def made(shard_url: str) -> str:
    """A fresh schema of shard 1."""
    create_schema(shard_url, 1)
    assert findings_of(shard_url, 1) == []
    return shard_url


@pytest.mark.parametrize(("table", "name"), INDEXES)
def test_an_index_that_is_missing_or_different(made: str, table: str, name: str) -> None:
    index = TABLES[table].indexes[name]
    unique = "" if index.unique else "UNIQUE "
    columns = ", ".join(index.columns)
    drop = f"DROP INDEX {name} ON {table}" if is_server(made) else f"DROP INDEX {name}"
    others = [column for column in TABLES[table].columns if column not in index.columns]
    other = next(iter(others), index.columns[-1])
    run(made, drop)
    (finding,) = found = findings_of(made, 1)
    assert finding.found == f"table {table} lacks the index {name} on ({columns})"
    mended(made, found)
    for damage in (f"{unique}INDEX {name} ON {table} ({columns})", f"INDEX {name} ON {table} ({other})"):
        run(made, drop, f"CREATE {damage}")
        (finding,) = found = findings_of(made, 1)
        assert finding.found.startswith(f"the index {name} of {table} is ")
        mended(made, found)


@pytest.mark.parametrize("name", TABLES)
def test_columns_of_another_type(made: str, name: str) -> None:
    table = TABLES[name]
    columns = list(table.columns)
    if is_server(made):
        null = {True: "NULL", False: "NOT NULL"}
        altered(made, table, columns, lambda c: f"{OTHER_TYPES[c.type]} {null[c.nullable]}")
    else:
        remake(made, name, lambda sql: re.sub(r"\b(?:BIGINT|INTEGER|TINYINT|BLOB)\b", "TEXT", sql))
    findings = findings_of(made, 1)
    assert {words.split(" has the type ")[0] for words in names(findings)} >= {
        f"column {name}.{column}" for column in columns
    }
    mended(made, findings if is_server(made) else findings[:1])


@pytest.mark.parametrize("name", TABLES)
def test_columns_that_allow_null_or_do_not(made: str, name: str) -> None:
    table = TABLES[name]
    columns = [column for column in table.columns if column not in table.key]
    if not columns:
        return
    if is_server(made):
        altered(made, table, columns, lambda c: f"{c.type} {'NOT NULL' if c.nullable else 'NULL'}")
    else:
        parts = re.compile(rf"\b({'|'.join(columns)}) ([A-Z]+)( NOT NULL)?")
        swap = lambda m: f"{m[1]} {m[2]}{'' if m[3] else ' NOT NULL'}"  # noqa: E731
        remake(made, name, lambda sql: parts.sub(swap, sql))
    findings = findings_of(made, 1)
    allows = {True: "does not allow NULL", False: "allows NULL"}
    assert set(names(findings)) == {
        f"column {name}.{column} {allows[table.columns[column].nullable]}" for column in columns
    }
    mended(made, findings if is_server(made) else findings[:1])


@pytest.mark.parametrize("name", TABLES)
def test_columns_that_are_missing(made: str, name: str) -> None:
    """All that are in no key and no index."""
    table = TABLES[name]
    used = {column for index in table.indexes.values() for column in index.columns} | set(table.key)
    gone = [column for column in table.columns if column not in used]
    if not gone:
        return
    run(made, *(f"ALTER TABLE {name} DROP COLUMN {column}" for column in gone))
    findings = findings_of(made, 1)
    assert names(findings) == [f"table {name} lacks the column {column}" for column in gone]
    for finding in findings:
        run(made, finding.mend)
    left = findings_of(made, 1)
    if name == "shard":  # its version is 0 now
        assert names(left) == ["a restore of the shard is not complete"]
    else:
        assert left == []


@SERVERS
@pytest.mark.parametrize("name", TABLES)
def test_a_primary_key_that_is_missing_or_different(made: str, name: str) -> None:
    table = TABLES[name]
    other = next(name for name, c in reversed(table.columns.items()) if not (c.nullable or "BLOB" in c.type))
    damages = ["DROP PRIMARY KEY", f"DROP PRIMARY KEY, ADD PRIMARY KEY ({other})"]
    if table.key == (other,):
        damages.pop()
    for damage in damages:
        run(made, f"ALTER TABLE {name} {damage}")
        (finding,) = found = findings_of(made, 1)
        assert finding.found.startswith(f"the primary key of {name} is ")
        mended(made, found)


@pytest.mark.parametrize("name", ["ready", "timer"])
def test_a_primary_key_of_a_file_that_is_different(name: str, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/shard.db"
    create_schema(url, 1)
    remake(url, name, lambda sql: re.sub(r"PRIMARY KEY \(.*?\)", "PRIMARY KEY (id)", sql))
    (finding,) = found = findings_of(url, 1)
    assert finding.found.startswith(f"the primary key of {name} is (id), not (")
    mended(url, found)


@SERVERS
@pytest.mark.parametrize("name", TABLES)
def test_an_engine_that_is_not_innodb(made: str, name: str) -> None:
    long_keys = {"lane": "DROP INDEX lane_of_names, "}  # longer than MyISAM allows
    run(made, f"ALTER TABLE {name} {long_keys.get(name, '')}ENGINE = MyISAM")
    found = findings_of(made, 1)
    assert names(found)[0] == f"table {name} is kept by MyISAM, not by InnoDB"
    assert len(found) == (2 if name in long_keys else 1)
    mended(made, found)


@SERVERS
def test_an_index_that_statements_may_not_name(made: str, shard_kind: str) -> None:
    """Invisible to MySQL's optimiser, or ignored by MariaDB's: naming it is an error."""
    hidden = "INVISIBLE" if shard_kind == "mysql" else "IGNORED"
    run(made, f"ALTER TABLE timer ALTER INDEX timer_of_item {hidden}")
    (finding,) = found = findings_of(made, 1)
    assert "invisible" in finding.found
    mended(made, found)


def test_foreign_columns_and_indexes(made: str) -> None:
    """Only those that make an INSERT fail are wrong."""
    run(made, "ALTER TABLE item ADD COLUMN note INTEGER", "CREATE INDEX by_lane ON item (lane)")
    assert findings_of(made, 1) == []
    run(made, "CREATE UNIQUE INDEX once ON item (lane)")
    if is_server(made):
        run(made, "ALTER TABLE ready ADD COLUMN must INT NOT NULL")
    found = findings_of(made, 1)
    words = ["the unique index once of item is not in foqs's schema: it may refuse items"]
    if is_server(made):
        words.append("column ready.must is not in foqs's schema and has no default: every insert fails")
    assert names(found) == words
    mended(made, found)


def test_making_a_schema_again_names_the_damage(made: str) -> None:
    from foqs.store.protocol import ShardRefused

    run(made, "DROP INDEX timer_of_item" + (" ON timer" if is_server(made) else ""))
    with pytest.raises(ShardRefused, match="lacks the index timer_of_item") as refused:
        create_schema(made, 1)
    assert refused.value.mend == "CREATE UNIQUE INDEX timer_of_item ON timer (id)"
