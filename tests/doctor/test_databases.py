"""What the doctor finds in real databases; that it changes nothing and takes nothing from a living owner."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from foqs.doctor.check import Check, Verdict
from foqs.doctor.examine import Outcome, Wanted, database_checks, examine_databases
from foqs.store.checkup import Checkup, check_up
from foqs.store.maintenance import create_schema
from foqs.store.server import Finding
from foqs.store.sql import SqlStore
from foqs.store.tables import SCHEMA_VERSION, TABLES
from foqs_lab.relay import Relay
from foqs_lab.servers import ServerSettings
from tests.conftest import NewServer, Server
from tests.store.asking import findings_of
from tests.store.test_ownership import SERVERS, run

WANTED = Wanted(item_bytes=1 << 20, clock_jump_ms=500)


def now_ms() -> float:
    return time.time() * 1000


def look(url: str, shard: int = 1) -> Checkup:
    return check_up(url, shard, timeout_s=20, now_ms=now_ms)


def found(url: str, shard: int = 1) -> list[str]:
    return [one.found for one in look(url, shard).findings]


def dump(url: str) -> list[Any]:
    """Every row of every table."""
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = [connection.execute(text(f"SELECT * FROM {name}")).all() for name in TABLES]
    engine.dispose()
    assert sum(map(len, rows)) > 0
    return rows


def test_a_good_shard_with_a_living_owner(shard_url: str) -> None:
    """Everything is as it was, and the owner goes on."""
    create_schema(shard_url, 3)
    store = SqlStore(shard_url, shard=3)
    opened = store.open("host-a", take_over=False)
    before = dump(shard_url)
    checkup = look(shard_url, 3)
    assert checkup.findings == []
    assert (checkup.owner, checkup.epoch) == ("host-a", opened.epoch)
    assert dump(shard_url) == before
    store.confirm()
    store.close(clean=True)
    assert look(shard_url, 3).owner == ""


def test_the_servers_clock(shard_url: str, shard_kind: str) -> None:
    """The bounds hold whatever the answer took: its own clock is this machine's."""
    create_schema(shard_url, 1)
    if shard_kind == "sqlite":
        assert look(shard_url).clock_ms is None
        return
    least, most = look(shard_url).clock_ms or (1, -1)
    assert least <= 1  # a clock that is read in whole milliseconds
    assert most >= -1
    late = check_up(shard_url, 1, timeout_s=20, now_ms=lambda: now_ms() - 3_600_000)
    assert late.clock_ms is not None
    assert late.clock_ms[1] >= 3_600_000 - 1
    (warning,) = [check for check in database_checks("db", {1: late}, WANTED) if check.verdict is not Verdict.OK]
    assert warning.verdict is Verdict.WARNING
    assert "ahead of" in warning.found


def test_no_schema_and_another_ones(shard_url: str, shard_kind: str) -> None:
    if shard_kind == "sqlite":
        assert ["no database file" in words for words in found(shard_url)] == [True]
        sqlite3.connect(shard_url.removeprefix("sqlite:///")).close()
    else:
        assert found(shard_url) == ["the database has no foqs schema"]
    create_schema(shard_url, 1)
    assert found(shard_url, 4) == ["the database holds shard 1, not shard 4"]
    run(shard_url, f"UPDATE shard SET version = {SCHEMA_VERSION + 1}")
    assert [one.mend for one in look(shard_url).findings] == ["upgrade foqs"]
    run(shard_url, f"UPDATE shard SET version = {SCHEMA_VERSION}", "DROP TABLE expiry")
    assert found(shard_url) == ["table expiry is missing"]


def test_a_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "shard.db"
    create_schema(f"sqlite:///{path}", 1)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    before = path.read_bytes()
    (finding,) = look(f"sqlite:///{path}").findings
    assert "journal_mode is delete" in finding.found
    assert not finding.wrong
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_this_user_cannot_write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        url = f"sqlite:///{folder}/shard.db"
        create_schema(url, 1)
        os.seteuid(65_534)
        try:
            words = found(url)
        finally:
            os.seteuid(0)
        assert words == [
            f"{folder}/shard.db cannot be written by this user",
            f"{folder} cannot be written by this user",
        ]


# ------------------------------------------------------------------------------------------------ servers


@contextmanager
def account(server: Server, name: str, database: str, rights: str) -> Iterator[str]:
    server.query(f"CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 'pw'")
    server.query(f"GRANT {rights} ON `{database}`.* TO {name}@'127.0.0.1'")
    try:
        yield f"mysql+pymysql://{name}:pw@127.0.0.1:{server.port}/{database}"
    finally:
        server.query(f"DROP USER {name}@'127.0.0.1'")


@SERVERS
def test_rights(shard_url: str, shard_kind: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(shard_kind)
    database = shard_url.rpartition("/")[2]
    with account(server, "reader", database, "SELECT, INSERT") as url:
        assert found(url) == [
            "the database has no foqs schema",
            "the account 'reader'@'127.0.0.1' lacks rights: CREATE on all tables",
        ]
        create_schema(shard_url, 1)
        before = dump(shard_url)
        (finding,) = look(url).findings
        assert finding.found == (
            "the account 'reader'@'127.0.0.1' lacks rights: UPDATE on all tables; DELETE on all tables"
        )
        assert finding.mend == (
            f"an administrator runs: GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX ON `{database}`.* "
            "TO 'reader'@'127.0.0.1';"
        )
        wrong = url.replace("pw@", "hunter2@")
        assert ["denies access to 'reader'@'127.0.0.1'" in words for words in found(wrong)] == [True]
        assert dump(shard_url) == before
    with account(server, "worker", database, "SELECT, INSERT, UPDATE, DELETE") as url:
        assert found(url) == []


@SERVERS
def test_an_owner_that_cannot_be_taken_over_from(
    shard_url: str, shard_kind: str, request: pytest.FixtureRequest
) -> None:
    """KILL of another account's connections needs a right."""
    server: Server = request.getfixturevalue(shard_kind)
    create_schema(shard_url, 1)
    with (
        account(server, "first", database := shard_url.rpartition("/")[2], "ALL") as url,
        account(server, "second", database, "ALL") as other,
    ):
        store = SqlStore(url, shard=1)
        store.open("host-a", take_over=False)
        assert found(url) == []
        (finding,) = look(other).findings
        assert "belongs to another account" in finding.found
        assert not finding.wrong
        right = "CONNECTION_ADMIN" if shard_kind == "mysql" else "CONNECTION ADMIN"
        server.query(f"GRANT {right} ON *.* TO second@'127.0.0.1'")
        assert found(other) == []
        store.close()


@SERVERS
def test_settings(shard_url: str, shard_kind: str) -> None:
    """Those that can be changed while the server runs; the other ones have tests of their own below."""
    create_schema(shard_url, 1)
    unsafe = {"innodb_flush_log_at_trx_commit": (2, 1), "max_allowed_packet": (1 << 20, 64 << 20)}
    for name, (value, _) in unsafe.items():
        run(shard_url, f"SET GLOBAL {name} = {value}")
    try:
        checkup = look(shard_url)
    finally:
        for name, (_, good) in unsafe.items():
            run(shard_url, f"SET GLOBAL {name} = {good}")
    assert [(name in finding.found, finding.wrong) for name, finding in zip(unsafe, checkup.findings, strict=True)] == [
        (True, True),
        (True, False),
    ]
    told = database_checks("db", {1: checkup}, WANTED)
    assert any("items of more than 524288 bytes are refused" in check.found for check in told)
    few = Checkup(server="MySQL 8.4", max_connections=3)
    assert any("max_connections is 3" in check.found for check in database_checks("db", {1: few, 2: few}, WANTED))


_UNSAFE = (
    "--innodb-doublewrite=OFF",
    "--innodb-flush-method=nosync",
    "--log-bin=log",
    "--server-id=1",
    "--sync-binlog=0",
    "--binlog-format=STATEMENT",
    "--read-only=ON",
)
_WORDS = ("innodb_doublewrite", "innodb_flush_method", "sync_binlog", "binlog_format", "read-only")


@pytest.mark.mariadb
def test_mariadb_with_all_that_is_unsafe(new_server: NewServer) -> None:
    server = new_server("mariadb", ServerSettings(buffer_pool_bytes=64 << 20, options=_UNSAFE))
    _is_unsafe(server, _WORDS)


@pytest.mark.mysql
def test_mysql_with_all_that_is_unsafe(new_server: NewServer) -> None:
    server = new_server("mysql", ServerSettings(buffer_pool_bytes=64 << 20, options=_UNSAFE))
    server.query("ALTER INSTANCE DISABLE INNODB REDO_LOG")
    _is_unsafe(server, (*_WORDS[:2], "redo log", *_WORDS[2:]))


def _is_unsafe(server: Server, words: tuple[str, ...]) -> None:
    url = server.url(server.create_database("foqs"))
    findings = [one for one in look(url).findings if "schema" not in one.found]
    assert [word in one.found for word, one in zip(words, findings, strict=True)] == [True] * len(words)
    assert all(one.wrong and one.mend for one in findings)
    assert findings == findings_of(url, 1)[-len(findings) :]


# ------------------------------------------------------------------------------------------------ several shards


def checked(urls: dict[int, str], timeout_s: float = 20) -> list[Check]:
    return asyncio.run(examine_databases(urls, WANTED, timeout_s))


def test_shards_with_one_fault_share_a_line(tmp_path: Path) -> None:
    urls = {number: f"sqlite:///{tmp_path}/{number}.db" for number in (1, 2, 3, 5)}
    for number, url in urls.items():
        create_schema(url, number)
    (good,) = checked(urls)
    assert good.verdict is Verdict.OK
    assert "shards 1-3, 5" in good.found
    for number in (2, 5):
        run(urls[number], "DROP TABLE lane")
    _, wrong = checked(urls)
    assert wrong.found == "shards 2, 5: table lane is missing"
    assert "foqs shards create" in wrong.mend
    assert wrong.verdict is Verdict.WRONG


def test_a_server_that_hangs_is_waited_for_once(mariadb: Server, tmp_path: Path) -> None:
    """Its other shards are not asked; other servers' are."""
    relay = Relay(mariadb.port)
    relay.hold()
    good = f"sqlite:///{tmp_path}/good.db"
    create_schema(good, 9)
    try:
        urls = {n: f"mysql+pymysql://root:hunter2@127.0.0.1:{relay.port}/none_{n}" for n in range(1, 30)} | {9: good}
        silent, skipped, fine = checked(urls, timeout_s=4)
    finally:
        relay.close()
    assert (silent.verdict, skipped.verdict, fine.verdict) == (Verdict.WRONG, Verdict.SKIPPED, Verdict.OK)
    assert silent.found.startswith("shard 1: ")
    assert skipped.found.startswith("shards 2-8, 10-29: ")
    assert "hunter2" not in repr([silent, skipped])


def test_no_server_listens(tmp_path: Path) -> None:
    (silent,) = checked({1: "mysql+pymysql://root:hunter2@127.0.0.1:1/foqs"})
    assert silent.verdict is Verdict.WRONG
    assert silent.found == "shard 1: cannot connect to MySQL at 127.0.0.1:1: connection refused"
    (refused,) = checked({1: "mysql+pymysql//root:hunter2@127.0.0.1"})
    assert refused.verdict is Verdict.WRONG
    assert "hunter2" not in repr([silent, refused])


def test_a_finding_of_every_shard_names_none() -> None:
    finding = Finding("the server is read-only", "make it writable")
    both: dict[int, Outcome] = {n: Checkup([finding], server="MySQL 8.4", owner="a", epoch=n) for n in (1, 2)}
    good, wrong = database_checks("db", both, WANTED)
    assert good.found == "MySQL 8.4; shards 1-2; owners: 1: a (epoch 1), 2: a (epoch 2)"
    assert wrong.found == "the server is read-only"
    one = both | {3: Checkup(server="MySQL 8.4")}
    assert database_checks("db", one, WANTED)[1].found == "shards 1-2: the server is read-only"


def test_a_slow_database_is_not_taken_for_a_dead_one() -> None:
    (late,) = database_checks("db", {1: "the database does not answer in time"}, WANTED)
    (dead,) = database_checks("db", {1: "Connection refused"}, WANTED)
    assert late.mend.startswith(dead.mend) and "if it is slow: look at its locks" in late.mend
