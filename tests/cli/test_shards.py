"""`foqs shards create`, `check` and `migrate`: the tables they make, the faults they find, and their exit codes."""

import sqlite3
from pathlib import Path

import pytest

from foqs.store.tables import SCHEMA_VERSION
from tests.api.hosts import HostProcess, foqs, until
from tests.store.version_1 import load


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "foqs.toml"
    urls = [f"sqlite:///{tmp_path}/shard-{n}.db" for n in (1, 2)]
    shards = "".join(f'[[shards]]\nid = {n}\nurl = "{url}"\n' for n, url in enumerate(urls, 1))
    path.write_text(f"[server]\nport = 0\n{shards}")
    return path


def change(config: Path, statement: str, shard: int = 2) -> None:
    with sqlite3.connect(config.with_name(f"shard-{shard}.db")) as connection:
        connection.execute(statement)


def test_create_and_check(config: Path) -> None:
    """`create` may run twice, and `check` then finds both shards good."""
    for _ in range(2):
        created = foqs("shards", "create", "--config", config)
        assert (created.returncode, created.stdout, created.stderr) == (0, "shard 1: ready\nshard 2: ready\n", "")
    checked = foqs("shards", "check", "--config", config)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "shard 1: good\nshard 2: good\n", "")


def test_create_keeps_existing_tables(config: Path) -> None:
    assert foqs("shards", "create", "--config", config).returncode == 0
    change(config, "UPDATE shard SET epoch = 77")
    assert foqs("shards", "create", "--config", config).returncode == 0
    with sqlite3.connect(config.with_name("shard-2.db")) as connection:
        assert connection.execute("SELECT epoch FROM shard").fetchone() == (77,)


def test_check_before_create(config: Path) -> None:
    """`check` exits with 1, prints a line for each shard, and creates no file."""
    checked = foqs("shards", "check", "--config", config)
    assert checked.returncode == 1
    assert checked.stdout.count("foqs shards create") == 2
    assert not list(config.parent.glob("*.db"))


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        (f"UPDATE shard SET version = {SCHEMA_VERSION + 1}, min_reader = {SCHEMA_VERSION + 1}", "upgrade"),
        ("UPDATE shard SET number = 9", "9"),
        ("DROP TABLE shard", "shard"),
        ("DELETE FROM shard", "shard"),
    ],
)
def test_check_finds_faults(config: Path, tmp_path: Path, statement: str, word: str) -> None:
    """`check` reports the other shard as good. A host serves only that one, and logs the reason."""
    assert foqs("shards", "create", "--config", config).returncode == 0
    change(config, statement)
    checked = foqs("shards", "check", "--config", config)
    assert checked.returncode == 1
    first, second = checked.stdout.splitlines()
    assert first == "shard 1: good"
    assert second.startswith("shard 2: ")
    assert word in second
    with HostProcess(tmp_path / "log", ["serve", "--config", config]) as host:
        until(lambda: "shard.not_opened" in host.said(), "a word about the shard")
        assert host.address  # the other shard is served
        assert "shards=[2]" in host.said()
        assert host.stop() == 0
        assert "Traceback" not in host.said()


def test_check_reports_all_faults_of_the_tables(config: Path) -> None:
    assert foqs("shards", "create", "--config", config).returncode == 0
    change(config, "DROP TABLE expiry", shard=1)
    change(config, "ALTER TABLE timer DROP COLUMN bytes", shard=1)
    config.with_name("shard-2.db").write_bytes(b"this is no database" * 100)
    checked = foqs("shards", "check", "--config", config)
    assert (checked.returncode, checked.stderr) == (1, "")
    *first, second = checked.stdout.splitlines()
    assert first == [
        "shard 1: table expiry is missing -> make the schema: foqs shards create",
        "shard 1: table timer lacks the column bytes -> ALTER TABLE timer ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0",
    ]
    assert "no database" in second


def test_check_finds_an_index_that_is_missing(config: Path) -> None:
    """Without this index every ack fails."""
    assert foqs("shards", "create", "--config", config).returncode == 0
    change(config, "DROP INDEX timer_of_item", shard=1)
    checked = foqs("shards", "check", "--config", config)
    assert checked.returncode == 1
    assert checked.stdout.splitlines()[0] == (
        "shard 1: table timer lacks the index timer_of_item on (id) -> CREATE UNIQUE INDEX timer_of_item ON timer (id)"
    )


@pytest.mark.parametrize("url", ["postgresql://u:hunter2@h/db", "mysql+aiomysql://u:hunter2@h/db", "u:hunter2@h/db"])
def test_an_unknown_database_or_driver_is_refused(url: str, tmp_path: Path) -> None:
    path = tmp_path / "foqs.toml"
    path.write_text(f'[[shards]]\nid = 1\nurl = "{url}"\n')
    for command in (("config", "check"), ("shards", "create"), ("shards", "check"), ("serve",), ("doctor",)):
        ran = foqs(*command, "--config", path)
        assert ran.returncode != 0
        assert "mysql+pymysql://, mysql+mysqldb://, sqlite://" in ran.stdout + ran.stderr
        assert "hunter2" not in ran.stdout + ran.stderr


def test_a_newer_schema_is_refused_with_a_clear_line(config: Path, tmp_path: Path) -> None:
    """`create` and `serve` refuse it. A host serves a newer schema that older hosts may still use."""
    assert foqs("shards", "create", "--config", config).returncode == 0
    change(config, f"UPDATE shard SET version = {SCHEMA_VERSION + 1}, min_reader = {SCHEMA_VERSION + 1}")
    created = foqs("shards", "create", "--config", config)
    assert created.returncode == 1
    assert "shard 2: " in created.stderr
    assert "upgrade foqs" in created.stderr
    assert "Traceback" not in created.stderr
    with HostProcess(tmp_path / "log", ["serve", "--config", config]) as host:
        until(lambda: "shard.not_opened" in host.said(), "a word about the shard")
        line = next(line for line in host.said().splitlines() if "shard.not_opened" in line)
        assert "upgrade foqs" in line
        assert "shards=[2]" in line
    change(config, f"UPDATE shard SET version = {SCHEMA_VERSION + 1}, min_reader = {SCHEMA_VERSION}")
    with HostProcess(tmp_path / "log2", ["serve", "--config", config]) as host:
        assert host.address
        until(lambda: host.said().count("shard.serving") == 2, "the second shard, which it does not wait for")


def older(config: Path) -> None:
    """Put the stored version 1 database in the place of shard 2."""
    assert foqs("shards", "create", "--config", config).returncode == 0
    config.with_name("shard-2.db").unlink()
    load(f"sqlite:///{config.with_name('shard-2.db')}", "sqlite")
    change(config, "UPDATE shard SET number = 2")


def test_migrate_shows_its_plan_and_runs_it(config: Path) -> None:
    older(config)
    found = foqs("shards", "check", "--config", config)
    assert (found.returncode, found.stdout.splitlines()[1]) == (
        1,
        "shard 2: the schema is version 1, this foqs makes version 2 and serves both "
        "-> migrate it: foqs shards migrate",
    )
    for _ in range(2):
        planned = foqs("shards", "migrate", "--dry-run", "--config", config)
        first, heading, *statements = planned.stdout.splitlines()
        assert first == "shard 1: schema version 2, nothing to do"
        assert heading == "shard 2: schema version 1; to make it version 2:"
        assert "    ALTER TABLE lane ADD COLUMN weight INTEGER DEFAULT 0 NOT NULL;" in statements
        assert statements[-1] == "    UPDATE shard SET version = 2 WHERE one = 1 AND version < 2;"
    for line in ("migrated from schema version 1 to 2", "schema version 2, nothing to do"):
        ran = foqs("shards", "migrate", "--config", config)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.splitlines() == ["shard 1: schema version 2, nothing to do", f"shard 2: {line}"]
    assert foqs("shards", "check", "--config", config).stdout == "shard 1: good\nshard 2: good\n"


def test_create_says_that_it_migrated(config: Path) -> None:
    older(config)
    created = foqs("shards", "create", "--config", config)
    assert created.stdout == "shard 1: ready\nshard 2: ready, migrated from schema version 1\n"


def test_migrate_continues_after_a_shard_that_fails(config: Path) -> None:
    older(config)
    config.with_name("shard-1.db").unlink()
    ran = foqs("shards", "migrate", "--config", config)
    assert ran.returncode == 1
    assert ran.stderr == "foqs: shard 1: there is no database file: create it with `foqs shards create`\n"
    assert ran.stdout == "shard 2: migrated from schema version 1 to 2\n"
