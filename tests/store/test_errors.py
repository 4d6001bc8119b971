"""How a driver's errors are translated, and that none of their text gets out."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pymysql
import pytest
from pymysql import err
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from foqs.rows import Batch
from foqs.store.errors import Seam
from foqs.store.packets import Err
from foqs.store.protocol import (
    RowRejected,
    ShardRefused,
    StoreBusy,
    StoreDenied,
    StoreDown,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from foqs.store.sql import SqlStore
from foqs.store.transaction import Loss
from foqs_lab.servers import Kind, ServerSettings
from tests.conftest import NewServer
from tests.store.asking import ask
from tests.store.contract import LANE, body, insert
from tests.store.shards import ServerShard, SqliteShard, new_item
from tests.store.test_ownership import SERVERS
from tests.store.test_schema import setting
from tests.support.disks import remount, small_disk

SECRET = "INSERT INTO item VALUES ('secret')"


@pytest.mark.parametrize("code", [3, 999, 1000, 1045, 1048, 1062, 1064, 1205, 1213, 1264, 1927, 4025])
def test_a_reply_raises_what_the_driver_would(code: int) -> None:
    with pytest.raises(pymysql.Error) as raised:
        err.raise_mysql_exception(b"\xff" + code.to_bytes(2, "little") + b"#HY000no")
    made = Seam(pymysql).error_of(Err(code, "HY000", "no"))
    assert type(made) is raised.type
    assert made.args == (code, "no")


@pytest.mark.parametrize("why", Loss)
def test_a_lost_connection_is_an_error_of_the_driver(why: Loss) -> None:
    seam = Seam(pymysql)
    made = seam.error_of(why)
    assert isinstance(made, seam.error)
    assert isinstance(seam.translate(made), StoreDown)
    assert not seam.certainly_not_committed(made)


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (err.OperationalError(2006, SECRET), StoreDown),
        (err.ProgrammingError(1146, SECRET), StoreDenied),
        (err.OperationalError(2013, SECRET), StoreDown),
        (err.OperationalError(2003, SECRET), StoreDown),
        (err.OperationalError(1053, SECRET), StoreDown),
        (err.OperationalError(1927, SECRET), StoreDown),
        (err.OperationalError(4031, SECRET), StoreDown),
        (err.InterfaceError(0, ""), StoreDown),
        (err.InternalError("Packet sequence number wrong"), StoreDown),
        (err.ProgrammingError(1064, SECRET), StoreDown),
        (ConnectionResetError(104, SECRET), StoreDown),
        (err.OperationalError(1205, SECRET), StoreBusy),
        (err.OperationalError(1213, SECRET), StoreBusy),
        (err.OperationalError(1114, SECRET), StoreFull),
        (err.OperationalError(1021, SECRET), StoreFull),
        (err.OperationalError(3, f"{SECRET} (OS errno 28 - No space left on device)"), StoreFull),
        (err.OperationalError(3, f"{SECRET} (OS errno 5 - Input/output error)"), StoreDown),
        (err.InternalError(1026, f'{SECRET} (Errcode: 28 "No space left on device")'), StoreFull),
        (err.InternalError(1030, f"{SECRET} Got error 28 - 'No space left on device' from storage engine"), StoreFull),
        (err.InternalError(1030, f"{SECRET} Got error 122 from storage engine"), StoreDown),
        (err.InternalError(1290, f"{SECRET} the --read-only option"), StoreReadOnly),
        (err.InternalError(1290, f"{SECRET} Der Server läuft mit der Option --super-read-only"), StoreReadOnly),
        (err.OperationalError(1290, f"{SECRET} the --max-session-mem-used option"), StoreDown),
        (err.OperationalError(1792, SECRET), StoreReadOnly),
        (err.OperationalError(1836, SECRET), StoreReadOnly),
        (err.OperationalError(1036, SECRET), StoreReadOnly),
        (err.OperationalError(1015, f"{SECRET} (errno: 165 - Table is read only)"), StoreReadOnly),
        (err.OperationalError(1005, f'{SECRET} (errno: 165 "Table is read only")'), StoreReadOnly),
        (err.OperationalError(1015, f"{SECRET} (errno: 11 - Resource unavailable)"), StoreDown),
        (err.OperationalError(1047, SECRET), StoreReadOnly),
        (err.OperationalError(3100, SECRET), StoreReadOnly),
        (err.OperationalError(3101, SECRET), StoreReadOnly),
        (err.OperationalError(1197, SECRET), RowRejected),
        (err.OperationalError(3170, SECRET), RowRejected),
        (err.OperationalError(1969, SECRET), StoreBusy),
        (err.OperationalError(1820, SECRET), ShardRefused),
        (err.OperationalError(4151, SECRET), ShardRefused),
        (err.OperationalError(1040, SECRET), StoreBusy),
        (err.IntegrityError(1062, SECRET), RowRejected),
        (err.DataError(1264, SECRET), RowRejected),
        (err.DataError(1406, SECRET), RowRejected),
        (err.IntegrityError(1048, SECRET), RowRejected),
        (err.OperationalError(1045, SECRET), ShardRefused),
        (err.OperationalError(1049, SECRET), ShardRefused),
    ],
)
def test_errors_of_a_server(error: Exception, becomes: type[StoreError]) -> None:
    seam = Seam(pymysql)
    assert isinstance(error, seam.error)
    for each in (error, DBAPIError(SECRET, None, error)):
        made = seam.translate(each)
        assert type(made) is becomes
        assert "secret" not in str(made)


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        (sqlite3.SQLITE_BUSY, StoreBusy),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreBusy),
        (sqlite3.SQLITE_FULL, StoreFull),
        (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, RowRejected),
        (sqlite3.SQLITE_IOERR_FSYNC, StoreDown),
        (sqlite3.SQLITE_CORRUPT, StoreDown),
        (sqlite3.SQLITE_ERROR, StoreDown),
        (sqlite3.SQLITE_READONLY, StoreReadOnly),
        (sqlite3.SQLITE_READONLY_DBMOVED, StoreReadOnly),
    ],
)
def test_errors_of_sqlite(code: int, becomes: type[StoreError]) -> None:
    error = sqlite3.OperationalError(SECRET)
    error.sqlite_errorcode = code
    made = Seam(sqlite3).translate(error)
    assert type(made) is becomes
    assert "secret" not in str(made)


@pytest.mark.parametrize(
    ("error", "answered"),
    [
        (err.OperationalError(1053, SECRET), True),
        (err.OperationalError(1927, SECRET), True),
        (err.OperationalError(4031, SECRET), True),
        (err.IntegrityError(1062, SECRET), True),
        (err.OperationalError(2006, SECRET), False),
        (err.OperationalError(2013, SECRET), False),
        (err.OperationalError(5014, SECRET), False),
        (err.InterfaceError(0, ""), False),
        (err.InternalError("Packet sequence number wrong"), False),
        (ConnectionResetError(104, SECRET), False),
        (TimeoutError("timed out"), False),
    ],
)
def test_which_errors_a_server_answered(error: Exception, answered: bool) -> None:
    """After any other, a packet with COMMIT may have been carried out."""
    seam = Seam(pymysql)
    assert seam.is_answer(error) is answered
    assert seam.is_answer(DBAPIError(SECRET, None, error)) is answered


@pytest.mark.parametrize(
    ("code", "text", "undone"),
    [
        (1290, "the --read-only option", True),
        (1290, "the --skip-grant-tables option", True),
        (1792, "", True),
        (1836, "", True),
        (1047, "", True),
        (3100, "", True),
        (3101, "", True),
        (1205, "", True),
        (1213, "", True),
        (1053, "", False),
        (1180, "", False),
        (1317, "", False),
        (1927, "", False),
        (3169, "", False),
        (2013, "", False),
        (1114, "", False),
        (1064, "", False),
    ],
)
def test_which_errors_of_a_commit_say_that_nothing_was_stored(code: int, text: str, undone: bool) -> None:
    """After any other error of COMMIT the owner settles the outcome."""
    assert Seam(pymysql).certainly_not_committed(err.OperationalError(code, text)) is undone


@pytest.mark.parametrize(
    ("code", "undone"),
    [
        (sqlite3.SQLITE_READONLY_DBMOVED, True),
        (sqlite3.SQLITE_FULL, True),
        (sqlite3.SQLITE_BUSY, True),
        (sqlite3.SQLITE_IOERR_FSYNC, False),
    ],
)
def test_which_errors_of_a_commit_to_sqlite_say_so(code: int, undone: bool) -> None:
    error = sqlite3.OperationalError(SECRET)
    error.sqlite_errorcode = code
    assert Seam(sqlite3).certainly_not_committed(error) is undone


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (err.OperationalError(1969, SECRET), "max_statement_time"),
        (err.OperationalError(3024, SECRET), "max_execution_time"),
        (err.OperationalError(1175, SECRET), "sql_safe_updates"),
        (err.OperationalError(1104, SECRET), "max_join_size"),
        (err.OperationalError(1184, SECRET), "init_connect"),
        (err.OperationalError(1290, "the --max-session-mem-used option"), "the server's option max-session-mem-used"),
        (err.OperationalError(1286, SECRET), "enforce_storage_engine"),
        (err.OperationalError(1820, "You must reset your password"), "has expired"),
        (err.OperationalError(3118, "Access denied for user 'a'@'b'. Account is locked."), "'a'@'b' is locked"),
    ],
)
def test_errors_that_settings_of_a_server_cause_name_them(error: Exception, words: str) -> None:
    assert words in str(Seam(pymysql).translate(error))


def opened(shard: ServerShard | SqliteShard) -> SqlStore:
    store = shard.store()
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    return store


@pytest.mark.parametrize("on", ["the file's bound", pytest.param("the disk", marks=pytest.mark.process)])
def test_sqlite_on_a_full_disk_changes_nothing(tmp_path: Path, request: pytest.FixtureRequest, on: str) -> None:
    """A full disk fails the COMMIT, a full file the INSERT; both are certainly not committed."""
    folder = small_disk(tmp_path, request, 1 << 20) if on == "the disk" else tmp_path
    store = opened(SqliteShard(f"sqlite:///{folder}/shard.db"))
    insert(store, new_item(1))
    assert store._link is not None
    if on != "the disk":
        ((pages,),) = store._link.fetch("PRAGMA page_count")
        store._link.execute(f"PRAGMA max_page_count = {pages + 10}")
    large = [new_item(n, payload=bytes(100_000)) for n in range(2, 20)]
    with pytest.raises(StoreFull, match="the disk is full"):
        insert(store, *large)
    assert store.bodies([new_item(n).id for n in range(1, 20)]) == [body(new_item(1))]
    store._link.execute("PRAGMA max_page_count = 1000000")
    if on == "the disk":
        remount(folder, 64 << 20)
    insert(store, *large)
    assert len(store.bodies([new_item(n).id for n in range(1, 20)])) == 19
    store.close()


@pytest.mark.parametrize(
    "kind", [pytest.param("mariadb", marks=pytest.mark.mariadb), pytest.param("mysql", marks=pytest.mark.mysql)]
)
def test_a_server_without_space_changes_nothing(kind: Kind, new_server: NewServer) -> None:
    options = ("--innodb-file-per-table=OFF", "--innodb-data-file-path=ibdata1:12M:autoextend:max:32M")
    server = new_server(kind, ServerSettings(buffer_pool_bytes=64 << 20, options=options))
    shard = ServerShard(server.url(server.create_database("full")))
    store = opened(shard)
    insert(store, new_item(1))
    stored = [new_item(1).id]
    with pytest.raises(StoreFull, match="full"):
        for n in range(2, 100):
            insert(store, new_item(n, payload=bytes(1 << 20)))
            stored.append(new_item(n).id)
    assert [row.id for row in store.page(1, None, 200)] == stored
    store.confirm()
    store.close()
    shard.close()


def test_a_locked_row_is_busy(shard: ServerShard | SqliteShard) -> None:
    """Another transaction is in the way: nothing is committed, and the same call succeeds afterwards."""
    store = opened(shard)
    engine = create_engine(shard.url)
    with engine.connect() as other:
        if isinstance(shard, SqliteShard):
            other.exec_driver_sql("BEGIN IMMEDIATE")
            store._link.execute("PRAGMA busy_timeout = 200")  # type: ignore[union-attr]
        else:
            other.execute(text("SELECT * FROM shard FOR UPDATE"))
            store._link.execute("SET SESSION innodb_lock_wait_timeout = 1")  # type: ignore[union-attr]
        with pytest.raises(StoreBusy):
            insert(store, new_item())
        other.rollback()
    insert(store, new_item())
    assert store.bodies([new_item().id]) == [body(new_item())]
    store.close()
    engine.dispose()


@SERVERS
def test_numbers_out_of_range_are_rejected(shard: ServerShard) -> None:
    store = opened(shard)
    for item in (new_item(2, priority=1 << 31), new_item(3, lease_ms=1 << 31), new_item(4, deliver_after_ms=1 << 63)):
        with pytest.raises(RowRejected):
            insert(store, new_item(1), item)
    assert store.page(1, None, 5) == []
    insert(store, new_item(1))
    store.close()


@SERVERS
def test_an_item_that_no_packet_can_carry(shard: ServerShard) -> None:
    """It is refused before it is sent: a packet that is too large would drop the connection."""
    packet_bytes = 2 << 20
    (before,) = ask(shard, "SELECT @@GLOBAL.max_allowed_packet")[0]
    with setting(shard.url, "max_allowed_packet", packet_bytes, before):
        store = opened(shard)
        fits = new_item(1, payload=bytes((packet_bytes - 4096) // 2))
        with pytest.raises(RowRejected, match="max_allowed_packet"):
            insert(store, new_item(2, payload=bytes(packet_bytes // 2)), new_item(3))
        insert(store, fits)
        insert(store, *[new_item(n, payload=bytes(100_000)) for n in range(10, 40)])
        store.commit(
            Batch(
                metadata_new=[(new_item(n).id, bytes(60_000)) for n in range(10, 40)],
                next_number=1,
            )
        )
        assert store.bodies([fits.id]) == [body(fits)]
        assert len(store.bodies([new_item(n).id for n in range(10, 40)])) == 30
        assert store.mismatches == 0
        store.close()
