"""The migration of stored version 1 databases: its result, its interruptions and its refusals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from foqs.store import migrate
from foqs.store.checkup import check_up
from foqs.store.link import Database
from foqs.store.protocol import ShardRefused, StoreBusy
from foqs.store.schema import check_schema, check_tables, create_schema, migrate_schema, plan_migration
from foqs.store.sql import SqlStore
from foqs.store.tables import SCHEMA_VERSION, metadata, parts_since
from tests.api.hosts import HostProcess, until
from tests.api.wire import Wire, spec
from tests.conftest import NewShardUrl
from tests.store.asking import run
from tests.store.test_ownership import SERVERS
from tests.store.version_1 import NUMBER, PAYLOADS, TABLES, load

OLD = "the schema is version 1, this foqs makes version 2 and serves both"


@pytest.fixture
def old_url(shard_url: str, shard_kind: str) -> str:
    """A stored version 1 database, on SQLite, MariaDB and MySQL in turn."""
    return load(shard_url, shard_kind)


def ask(url: str, query: str) -> list[Any]:
    with Database(url).connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def is_server(url: str) -> bool:
    return url.startswith("mysql")


def definition(url: str) -> dict[str, Any]:
    """Each table as the database describes it: columns in their order, defaults, keys and indexes."""
    if is_server(url):
        names = [name for (name,) in ask(url, "SHOW TABLES")]
        return {str(name): ask(url, f"SHOW CREATE TABLE {name}")[0][1] for name in names}
    found: dict[str, Any] = {}
    for (name,) in ask(url, "SELECT name FROM sqlite_master WHERE type = 'table'"):
        indexes = {index: (unique, origin) for _, index, unique, origin, _ in ask(url, f"PRAGMA index_list({name})")}
        parts = {index: ask(url, f"PRAGMA index_info({index})") for index in indexes}
        found[name] = (ask(url, f"PRAGMA table_info({name})"), indexes, parts, ask(url, f"PRAGMA table_list({name})"))
    return found


def rows(url: str) -> dict[str, list[Any]]:
    """All rows, in the columns of version 1."""
    found = {}
    for name in TABLES:
        later = parts_since(2) | {"shard.version"}
        columns = [column.name for column in metadata.tables[name].columns if f"{name}.{column.name}" not in later]
        found[name] = ask(url, f"SELECT {', '.join(columns)} FROM {name} ORDER BY 1, 2")
    return found


def served(url: str) -> None:
    """A host's store opens the shard and finds all of its rows."""
    store = SqlStore(url, shard=NUMBER)
    opened = store.open("owner", take_over=False)
    assert sum(each.items for each in opened.backlog) + sum(count for count, _ in opened.timers.values()) == 22
    assert [lane.lane for lane in opened.lanes] == [1, 2, 3, 4, 5, 6]
    store.close(clean=True)


def test_the_dumps_are_version_1(old_url: str) -> None:
    assert ask(old_url, "SELECT version, min_reader, number FROM shard") == [(1, 1, NUMBER)]
    assert {str(name) for name in definition(old_url)} == set(TABLES)


def test_a_migrated_schema_equals_a_made_one(old_url: str, new_shard_url: NewShardUrl) -> None:
    before = rows(old_url)
    assert migrate_schema(old_url, NUMBER) == 1
    assert rows(old_url) == before
    made = new_shard_url()
    create_schema(made, NUMBER)
    assert definition(old_url) == definition(made)
    for url in (old_url, made):
        assert ask(url, "SELECT version, min_reader FROM shard") == [(2, 1)]
        assert check_schema(url, NUMBER) == []
    assert ask(old_url, "SELECT DISTINCT throttles, weight FROM lane") == [(b"", 0)]
    assert ask(old_url, "SELECT done_from_ms, indexed_to FROM shard") == [(0, 0)]
    assert migrate_schema(old_url, NUMBER) == 2


def test_creating_a_schema_migrates_too(old_url: str) -> None:
    before = rows(old_url)
    assert create_schema(old_url, NUMBER) == 1
    assert (check_schema(old_url, NUMBER), rows(old_url)) == ([], before)
    assert create_schema(old_url, NUMBER) == SCHEMA_VERSION


def test_an_older_schema_is_named_with_the_command(old_url: str) -> None:
    before = definition(old_url)
    (finding,) = check_schema(old_url, NUMBER)
    assert finding == (OLD, "migrate it: foqs shards migrate", False)
    assert finding in check_up(old_url, NUMBER, timeout_s=20, now_ms=lambda: 0.0).findings
    assert check_tables(old_url) == []
    assert definition(old_url) == before


def test_damage_to_an_older_schema_is_found(old_url: str) -> None:
    run(old_url, "DROP INDEX timer_of_item" + (" ON timer" if is_server(old_url) else ""), "DROP TABLE expiry")
    assert [one.found for one in check_schema(old_url, NUMBER)] == [
        "table expiry is missing",
        "table timer lacks the index timer_of_item on (id)",
        OLD,
    ]
    assert check_tables(old_url) == ["table expiry is missing"]
    before = definition(old_url)
    with pytest.raises(ShardRefused, match="table expiry is missing"):
        migrate_schema(old_url, NUMBER)
    assert definition(old_url) == before


def test_the_planned_statements_are_those_that_run(old_url: str, new_shard_url: NewShardUrl) -> None:
    before = definition(old_url)
    version, statements = plan_migration(old_url, NUMBER)
    assert (version, definition(old_url)) == (1, before)
    run(old_url, *statements)
    create_schema(made := new_shard_url(), NUMBER)
    assert definition(old_url) == definition(made)
    assert plan_migration(old_url, NUMBER) == (2, [])
    hot = ("item", "ready", "timer", "expiry", "dedup")
    touched = [sql for sql in statements for table in hot if f"TABLE {table} " in sql or f" ON {table} " in sql]
    (added,) = touched
    assert added.removesuffix(", ALGORITHM=INSTANT") == "ALTER TABLE item ADD COLUMN first_at BIGINT"
    columns = [sql for sql in statements if "ADD COLUMN" in sql]
    assert len(columns) == 8
    assert not is_server(old_url) or all(sql.endswith("ALGORITHM=INSTANT") for sql in columns)


class Killed(BaseException):
    """The migration's process ended."""


def kill_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """End the next migration after its statement number `count`."""
    real, left = migrate._run_patiently, [count]

    def execute(connection: Connection, errors: Any, statement: str) -> None:
        real(connection, errors, statement)
        left[0] -= 1
        if not left[0]:
            raise Killed

    monkeypatch.setattr(migrate, "_run_patiently", execute)


def test_a_migration_killed_after_each_statement(
    old_url: str, new_shard_url: NewShardUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host serves every state between, and another run completes it."""
    before, statements = rows(old_url), plan_migration(old_url, NUMBER).statements
    for done in range(1, len(statements)):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_after(patch, 1 if is_server(old_url) else done)
            migrate_schema(old_url, NUMBER)
        left = plan_migration(old_url, NUMBER).statements  # a file's transaction is rolled back
        assert left == (statements[done:] if is_server(old_url) else statements)
        assert [one.found for one in check_schema(old_url, NUMBER)] == [OLD]
        assert rows(old_url) == before
    served(old_url)
    assert migrate_schema(old_url, NUMBER) == 1
    served(old_url)
    create_schema(made := new_shard_url(), NUMBER)
    assert definition(old_url) == definition(made)


@pytest.mark.threads
def test_migrations_at_once_and_a_living_owner(old_url: str) -> None:
    """One migration waits for the other, and the owner keeps the shard."""
    owner = SqlStore(old_url, shard=NUMBER)
    owner.open("owner", take_over=False)
    with ThreadPoolExecutor(3) as pool:
        versions = list(pool.map(lambda _: migrate_schema(old_url, NUMBER), range(3)))
    assert sorted(versions) == [1, 2, 2]
    owner.confirm()
    with pytest.raises(ShardRefused, match="another host has the shard"):
        SqlStore(old_url, shard=NUMBER).open("other", take_over=False)
    owner.close(clean=True)
    assert check_schema(old_url, NUMBER) == []


def test_a_database_that_is_not_ours_stays(old_url: str) -> None:
    before = definition(old_url)
    for attempt in (migrate_schema, create_schema, plan_migration):
        with pytest.raises(ShardRefused, match="the database holds shard 7, not shard 8"):
            attempt(old_url, 8)
    assert definition(old_url) == before


def test_a_database_without_a_schema(shard_url: str, tmp_path: Path) -> None:
    if is_server(shard_url):
        for attempt in (migrate_schema, plan_migration):
            with pytest.raises(ShardRefused, match="no foqs schema"):
                attempt(shard_url, 1)
    else:
        with pytest.raises(ShardRefused, match="no database file"):
            migrate_schema(shard_url, 1)
        assert list(tmp_path.iterdir()) == []


def test_a_newer_schema_is_judged_by_its_reader(shard_url: str) -> None:
    """A later version may have changed an index; while it lets this version serve, nothing is wrong."""
    create_schema(shard_url, 1)
    run(shard_url, "DROP INDEX dedup_by_expiry" + (" ON dedup" if is_server(shard_url) else ""))
    run(shard_url, f"UPDATE shard SET version = {SCHEMA_VERSION + 1}")
    assert check_schema(shard_url, 1) == []
    assert create_schema(shard_url, 1) == migrate_schema(shard_url, 1) == SCHEMA_VERSION + 1


@SERVERS
def test_a_long_transaction_delays_a_migration(old_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives up with a reason, hosts' statements pass between its tries, and the next run completes it."""
    monkeypatch.setattr(migrate, "_BUSY_S", 1)
    with Database(old_url).connect() as reader:
        reader.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        reader.exec_driver_sql("SELECT * FROM lane")
        with pytest.raises(StoreBusy, match=r"`ALTER TABLE lane .*` waited 1 s for other transactions \(lock wait"):
            migrate_schema(old_url, NUMBER)
        run(old_url, "INSERT INTO lane (lane, ns, topic, fairness) VALUES (7, 'shop', 'late', '')")
        reader.exec_driver_sql("ROLLBACK")
    assert migrate_schema(old_url, NUMBER) == 1
    assert check_schema(old_url, NUMBER) == []


@pytest.mark.server
@pytest.mark.mariadb
@pytest.mark.parametrize("shard_kind", ["mariadb"], indirect=True)
def test_a_server_that_would_copy_a_table(old_url: str) -> None:
    """The statement fails, and the error has the one that an administrator may run instead."""
    run(old_url, "SET GLOBAL innodb_instant_alter_column_allowed = never")
    try:
        with pytest.raises(ShardRefused, match="cannot change the table without copying it") as refused:
            migrate_schema(old_url, NUMBER)
    finally:
        run(old_url, "SET GLOBAL innodb_instant_alter_column_allowed = add_drop_reorder")
    statement = refused.value.mend.removeprefix("an administrator runs: ").partition(";")[0]
    assert statement == "ALTER TABLE item ADD COLUMN first_at BIGINT"
    run(old_url, statement)
    migrate_schema(old_url, NUMBER)
    assert check_schema(old_url, NUMBER) == []


@pytest.mark.process
@pytest.mark.parametrize("migrated", [True, False], ids=["migrated", "not migrated"])
def test_a_host_delivers_every_item_of_a_dump(old_url: str, migrated: bool, tmp_path: Path) -> None:
    if migrated:
        migrate_schema(old_url, NUMBER)
    config = tmp_path / "foqs.toml"
    config.write_text(f'[server]\nport = 0\n[[shards]]\nid = {NUMBER}\nurl = "{old_url}"\n')
    with HostProcess(tmp_path / "log", ["serve", "--config", config]) as host:
        for (ns, topic), payloads in PAYLOADS.items():
            wire, found = Wire(host.address, ns=ns), list[Any]()

            def drained(
                wire: Wire = wire, topic: str = topic, found: list[Any] = found, wanted: int = len(payloads)
            ) -> bool:
                found += wire.drain(topic)
                return len(found) == wanted

            until(drained, f"the items of {ns}/{topic}")
            assert sorted(item.payload for item in found) == sorted(payloads)
            if topic == "mail":
                assert (found[0].payload, found[0].priority, found[0].metadata) == (b"mail-urgent", -5, b"\0meta")
            if topic == "leased":
                assert {item.attempt for item in found} == {2}
        wire, again = Wire(host.address, ns="shop"), list[Any]()

        def remembered() -> bool:
            again[:] = wire.outcomes(spec("train", b"train-keyed-0", dedup_key="order-1"))
            return again[0].error is None

        until(remembered, "the shard of the key")
        assert again[0].duplicate
        wire.put("new", b"x")
        assert [item.payload for item in wire.drain("new")] == [b"x"]
        assert host.stop() == 0
        assert host.faults() == []
    assert ask(old_url, "SELECT COUNT(*) FROM item") == [(0,)]
    assert ask(old_url, "SELECT version, min_reader FROM shard") == [(2 if migrated else 1, 1)]
