"""`foqs shards create`, `check` and `migrate`: the tables they make, the faults they find, and their exit codes."""

import sqlite3
from pathlib import Path

import pytest

from foqs.store.tables import SCHEMA_VERSION
from tests.api.hosts import HostProcess, foqs, until


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
        (f"UPDATE shard SET version = {SCHEMA_VERSION + 1}", "upgrade"),
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


@pytest.mark.parametrize("url", ["postgresql://u:hunter2@h/db", "mysql+aiomysql://u:hunter2@h/db", "u:hunter2@h/db"])
def test_an_unknown_database_or_driver_is_refused(url: str, tmp_path: Path) -> None:
    path = tmp_path / "foqs.toml"
    path.write_text(f'[[shards]]\nid = 1\nurl = "{url}"\n')
    for command in (("config", "check"), ("shards", "create"), ("shards", "check"), ("serve",), ("doctor",)):
        ran = foqs(*command, "--config", path)
        assert ran.returncode != 0
        assert "mysql+pymysql://, mysql+mysqldb://, sqlite://" in ran.stdout + ran.stderr
        assert "hunter2" not in ran.stdout + ran.stderr


@pytest.mark.parametrize(("version", "remedy"), [(SCHEMA_VERSION + 1, "upgrade foqs"), (-1, "in an empty database")])
def test_another_schema_version_is_refused_with_a_clear_line(
    config: Path, tmp_path: Path, version: int, remedy: str
) -> None:
    """The line names both versions and the remedy, and the other shard is served."""
    assert foqs("shards", "create", "--config", config).returncode == 0
    change(config, f"UPDATE shard SET version = {version}")
    versions = f"is version {version}, and this foqs needs version {SCHEMA_VERSION}"
    for name in ("create", "migrate", "check"):
        ran = foqs("shards", name, "--config", config)
        (line,) = [line for line in (ran.stdout + ran.stderr).splitlines() if "shard 2: " in line]
        assert ran.returncode == 1
        assert versions in line
        assert remedy in line
        assert "Traceback" not in ran.stderr
    with HostProcess(tmp_path / "log", ["serve", "--config", config]) as host:
        until(lambda: "shard.not_opened" in host.said(), "a word about the shard")
        line = next(line for line in host.said().splitlines() if "shard.not_opened" in line)
        assert versions in line
        assert remedy in line
        assert "shards=[2]" in line
        assert host.address


def test_migrate_without_pending_steps(config: Path) -> None:
    assert foqs("shards", "create", "--config", config).returncode == 0
    for options in ((), ("--dry-run",)):
        ran = foqs("shards", "migrate", *options, "--config", config)
        done = f"schema version {SCHEMA_VERSION}, nothing to do"
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout == f"shard 1: {done}\nshard 2: {done}\n"


def test_migrate_continues_after_a_shard_that_fails(config: Path) -> None:
    assert foqs("shards", "create", "--config", config).returncode == 0
    config.with_name("shard-1.db").unlink()
    ran = foqs("shards", "migrate", "--config", config)
    assert ran.returncode == 1
    assert ran.stderr == "foqs: shard 1: there is no database file: create it with `foqs shards create`\n"
    assert ran.stdout == f"shard 2: schema version {SCHEMA_VERSION}, nothing to do\n"
