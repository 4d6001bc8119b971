"""Making, verifying and refusing a schema."""

from __future__ import annotations

import re
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from foqs.store.checkup import check_shard, check_up
from foqs.store.link import Database
from foqs.store.maintenance import (
    check_tables,
    count_items,
    create_schema,
    migrate_schema,
    plan_migration,
    read_kept,
    renew_identity,
)
from foqs.store.protocol import ShardRefused, StoreDenied, StoreDown
from foqs.store.server import Finding, Version, refuse_old
from foqs.store.sql import SqlStore
from foqs.store.tables import SCHEMA_VERSION
from tests.store.asking import findings_of, run
from tests.store.test_ownership import SERVERS


def refusal(url: str, shard: int = 1) -> str:
    store = SqlStore(url, shard=shard)
    with pytest.raises(ShardRefused) as refused:
        store.open("owner", take_over=False)
    assert not refused.value.held
    return str(refused.value)


def words(url: str, shard: int = 1) -> list[str]:
    return [finding.found for finding in findings_of(url, shard)]


def test_a_made_schema_is_good(shard_url: str) -> None:
    create_schema(shard_url, 3)
    create_schema(shard_url, 3)
    assert findings_of(shard_url, 3) == []
    store = SqlStore(shard_url, shard=3)
    assert store.open("owner", take_over=False).warnings == []
    create_schema(shard_url, 3)
    store.confirm()
    store.close()


def test_a_complete_schema_needs_no_lock(tmp_path: Path) -> None:
    """`foqs dev` starts while another process writes the database, as the host before may do when it stops."""
    path = tmp_path / "shard.db"
    create_schema(f"sqlite:///{path}", 1)
    with sqlite3.connect(path, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        create_schema(f"sqlite:///{path}", 1)
    writer.close()


def test_no_schema(shard_url: str) -> None:
    assert "foqs shards create" in refusal(shard_url)
    assert any("foqs shards create" in f"{finding.found} {finding.mend}" for finding in findings_of(shard_url, 1))


def test_a_missing_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/none.db"
    assert "foqs shards create" in refusal(url)
    assert findings_of(url, 1) != []
    assert list(tmp_path.iterdir()) == []


@SERVERS
def test_a_missing_database_is_made(shard_url: str) -> None:
    name = "foqs `odd` %s name"
    url = make_url(shard_url).set(database=name).render_as_string(hide_password=False)
    assert "no such database" in refusal(url)
    assert "no such database" in findings_of(url, 1)[0].found
    try:
        create_schema(url, 1)
        assert findings_of(url, 1) == []
        store = SqlStore(url, shard=1)
        store.open("owner", take_over=False)
        store.close()
    finally:
        run(shard_url, "DROP DATABASE IF EXISTS `foqs ``odd`` %s name`")


@SERVERS
def test_a_database_that_is_dropped_is_not_a_silent_server(shard_url: str) -> None:
    url = make_url(shard_url).set(database="foqs_dropped").render_as_string(hide_password=False)
    create_schema(url, 1)
    store = SqlStore(url, shard=1)
    store.open("owner", take_over=False)
    try:
        run(shard_url, "DROP DATABASE foqs_dropped")
        with pytest.raises(StoreDenied, match=r"no such database: foqs_dropped .*put back its last dump"):
            store.reconnect()
    finally:
        store.close()
        run(shard_url, "DROP DATABASE IF EXISTS foqs_dropped")


def test_another_shards_tables(shard_url: str) -> None:
    create_schema(shard_url, 3)
    assert refusal(shard_url, 4) == "the database holds shard 3, not shard 4"
    assert words(shard_url, 4) == ["the database holds shard 3, not shard 4"]
    with pytest.raises(ShardRefused):
        create_schema(shard_url, 4)


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        (SCHEMA_VERSION + 1, "upgrade foqs"),
        (-1, "this foqs cannot migrate it: create the shard again in an empty database"),
    ],
)
def test_another_schema_version_is_refused(shard_url: str, version: int, remedy: str) -> None:
    """The error names both versions and the remedy, and no command changes the database."""
    create_schema(shard_url, 1)
    run(shard_url, f"UPDATE shard SET version = {version}", "DROP TABLE expiry")
    why = f"the schema of the database is version {version}, and this foqs needs version {SCHEMA_VERSION}"
    store = SqlStore(shard_url, shard=1)
    attempts: list[Callable[[], object]] = [
        lambda: store.open("owner", take_over=False),
        lambda: create_schema(shard_url, 1),
        lambda: migrate_schema(shard_url, 1),
        lambda: plan_migration(shard_url, 1),
        lambda: renew_identity(shard_url, 1),
        lambda: count_items(shard_url, 1),
        lambda: read_kept(shard_url, 1),
    ]
    for attempt in attempts:
        with pytest.raises(ShardRefused) as refused:
            attempt()
        assert (str(refused.value), refused.value.mend) == (why, remedy)
    assert check_shard(shard_url, 1).findings == [Finding(why, remedy)]
    assert check_tables(shard_url) == [f"{why}: {remedy}"]


def test_tables_that_are_not_as_they_should_be(shard_url: str) -> None:
    create_schema(shard_url, 1)
    run(shard_url, "DROP TABLE expiry", "ALTER TABLE ready DROP COLUMN bytes", "DROP TABLE lane")
    run(shard_url, "CREATE TABLE lane (lane INTEGER NOT NULL PRIMARY KEY, ns int)")
    column, *rest = sorted(words(shard_url))
    assert column.lower().startswith("column lane.ns has the type int")
    assert rest == [
        "table expiry is missing",
        "table lane lacks the column fairness",
        "table lane lacks the column rules",
        "table lane lacks the column throttles",
        "table lane lacks the column topic",
        "table lane lacks the column weight",
        "table lane lacks the index lane_of_names on (ns, topic, fairness, throttles, rules)",
        "table ready lacks the column bytes",
    ]


def test_tables_that_differ_get_no_row(shard_url: str) -> None:
    create_schema(shard_url, 1)
    run(shard_url, "DELETE FROM shard", "ALTER TABLE ready DROP COLUMN bytes")
    with pytest.raises(ShardRefused, match="table ready lacks the column bytes"):
        create_schema(shard_url, 1)
    with Database(shard_url).connect() as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM shard")).scalar_one() == 0


def test_a_row_that_has_no_key_is_not_read(shard_url: str) -> None:
    """There may be two of it, with numbers that are missing."""
    create_schema(shard_url, 1)
    run(shard_url, "CREATE TABLE copied AS SELECT * FROM shard", "INSERT INTO copied SELECT * FROM shard")
    run(shard_url, "DROP TABLE shard", "ALTER TABLE copied RENAME TO shard")
    assert "the primary key of shard is missing, not (one)" in words(shard_url)
    found = [one.found for one in check_up(shard_url, 1, timeout_s=20, now_ms=lambda: 0.0).findings]
    assert "the primary key of shard is missing, not (one)" in found
    for attempt in (create_schema, migrate_schema, plan_migration):
        with pytest.raises(ShardRefused, match="shard"):
            attempt(shard_url, 1)


@contextmanager
def setting(url: str, name: str, value: Any, before: Any) -> Iterator[None]:
    run(url, f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        run(url, f"SET GLOBAL {name} = {before}")


@SERVERS
def test_settings_that_endanger_the_promises(shard_url: str) -> None:
    create_schema(shard_url, 1)
    with setting(shard_url, "innodb_flush_log_at_trx_commit", 2, 1):
        (finding,) = words(shard_url)
        assert "innodb_flush_log_at_trx_commit is 2" in finding
        store = SqlStore(shard_url, shard=1)
        assert store.open("owner", take_over=False).warnings == [finding]
        store.close()


def test_old_servers_are_refused() -> None:
    for good in (("MySQL", 8, 4), ("MariaDB", 10, 6), ("MariaDB", 12, 0), ("SQLite", 3, 40)):
        refuse_old(Version(good[0], (good[1], good[2])))
    for bad in (("MySQL", 8, 3), ("MariaDB", 10, 5), ("SQLite", 3, 31)):
        with pytest.raises(ShardRefused, match=re.escape(f"{bad[1]}.{bad[2]} is too old")):
            refuse_old(Version(bad[0], (bad[1], bad[2])))


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "postgresql://host:1/db",
        "mysql+aiomysql://user:secret@host/db",
        "mysql://user:secret@host",
        "mysql://user:secret@host:port/db",
        "no url: secret",
    ],
)
def test_urls_that_cannot_be_used(url: str) -> None:
    with pytest.raises(ShardRefused) as refused:
        SqlStore(url, shard=1)
    assert "secret" not in "".join(traceback.format_exception(refused.value))
    assert words(url) == [str(refused.value)]


@pytest.mark.threads
def test_a_server_that_is_not_there() -> None:
    store = SqlStore("mysql://user:secret@127.0.0.1:1/db", shard=1, connect_timeout_s=1)
    with pytest.raises(StoreDown) as down:
        store.open("owner", take_over=False)
    assert "secret" not in "".join(traceback.format_exception(down.value))
    assert str(down.value) == "cannot connect to MySQL at 127.0.0.1:1: connection refused"


@SERVERS
def test_a_wrong_password(shard_url: str) -> None:
    url = make_url(shard_url).set(username="stranger", password="secret").render_as_string(hide_password=False)
    words = refusal(url)
    assert "denies access to 'stranger'@'127.0.0.1'" in words or "cryptography" in words
    assert "secret" not in words
