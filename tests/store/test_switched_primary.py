"""A planned switch: the old primary stays alive and read-only, and its name leads to the new one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foqs.policies.settings import Settings
from foqs.rows import Batch
from foqs.store.checkup import check_up
from foqs.store.link import reachable
from foqs.store.maintenance import create_schema, discard_settings
from foqs.store.migrate import exclusive
from foqs.store.packets import query
from foqs.store.protocol import StoreDown, StoreError, StoreReadOnly
from foqs.store.sql import SqlStore
from foqs_lab.servers import Kind
from tests.conftest import NewServer
from tests.store.contract import LANE, body, insert
from tests.store.loop_store import BinaryStore, LoopStore
from tests.store.primaries import Primaries
from tests.store.shards import NUMBER, SqliteShard, new_item, send_commit_apart

WAYS = {"thread": SqlStore, "loop": LoopStore, "parameters": BinaryStore}
STAYS = "read-only: is it a replica, or no longer the primary"


@pytest.fixture(
    params=[pytest.param("mariadb", marks=pytest.mark.mariadb), pytest.param("mysql", marks=pytest.mark.mysql)],
    scope="module",
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def primaries(kind: Kind, new_server: NewServer) -> Iterator[Primaries]:
    made = Primaries(kind, new_server)
    yield made
    made.close()


def opened(primaries: Primaries, way: str) -> SqlStore:
    store = WAYS[way](primaries.url, shard=NUMBER, io_timeout_s=20.0)
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    return store


def close(store: SqlStore) -> None:
    store.close()
    if isinstance(store, LoopStore):
        store.transactions.close()
        store.loop.close()


def before_commit(store: SqlStore, do: Callable[[], None]) -> None:
    """Run `do` once, when all statements of a transaction but COMMIT were carried out."""
    calls = [do]

    def once(text: object) -> None:
        if text in ("COMMIT", query("COMMIT")) and calls:
            calls.pop()()

    send_commit_apart(store)
    if isinstance(store, LoopStore):
        send: Any = store.transactions._send

        def sending(transaction: Any, packet: bytes) -> None:
            once(packet)
            send(transaction, packet)

        store.transactions._send = sending  # type: ignore[method-assign]
    else:
        assert store._link is not None
        execute = store._link.execute

        def executing(statement: str) -> None:
            once(statement)
            execute(statement)

        store._link.execute = executing  # type: ignore[method-assign]


def fails(call: Callable[[], object]) -> None:
    with pytest.raises(StoreReadOnly, match=STAYS):
        call()


def test_refused_items_are_stored_on_the_new_primary(primaries: Primaries) -> None:
    """The fence fails, or COMMIT does: both times the connection ends, and nothing was stored for certain."""
    for at, (way, point) in enumerate([(way, point) for way in WAYS for point in ("fence", "commit")]):
        store = opened(primaries, way) if at == 0 else reopened(primaries, way)
        first, second = new_item(10 * at + 1), new_item(10 * at + 2)
        insert(store, first)
        if point == "fence":
            primaries.close_old()
        else:
            before_commit(store, primaries.close_old)
        fails(lambda: insert(store, second))  # noqa: B023
        with pytest.raises(StoreDown, match="not connected"):
            insert(store, second)
        for _ in range(2):  # the name still leads there
            fails(store.reconnect)
        primaries.switch()
        assert store.reconnect() is False
        insert(store, second)
        assert store.bodies([first.id, second.id]) == [body(first), body(second)]
        close(store)
        assert primaries.connections(primaries.old) == 0
        primaries.new.query("SET GLOBAL read_only = 0")
        primaries.old, primaries.new = primaries.new, primaries.old
        primaries.new.query("SET GLOBAL read_only = 0")


def reopened(primaries: Primaries, way: str) -> SqlStore:
    store = WAYS[way](primaries.url, shard=NUMBER, io_timeout_s=20.0)
    store.open("owner", take_over=False)
    return store


def test_every_way_to_a_read_only_server_says_so(primaries: Primaries) -> None:
    """Also for an administrator, whose writes it takes: the new primary would never get them."""
    for url in (primaries.url, primaries.root_url):
        primaries.old.query("SET GLOBAL read_only = 0")
        store = SqlStore(url, shard=NUMBER)
        store.open("owner", take_over=True)
        primaries.close_old()
        fails(lambda: store.change_settings("shop", lambda _: Settings("shop", 1)))  # noqa: B023
        fails(store.confirm)
        fails(store.reconnect)
        store.close()
        fails(lambda: store.open("owner", take_over=True))  # noqa: B023
        assert not reachable(url, connect_timeout_s=3, io_timeout_s=3)
        checkup = check_up(url, NUMBER, timeout_s=3, now_ms=lambda: 0)
        assert any(STAYS in finding.found and finding.wrong for finding in checkup.findings)
        fails(lambda: discard_settings(url, NUMBER, ["shop"]))  # noqa: B023
    primaries.relay.lead_to(primaries.new.port)
    primaries.new.query("SET GLOBAL read_only = 1")
    fails(lambda: create_schema(primaries.root_url, NUMBER))
    with pytest.raises(StoreError, match="read-only"):
        create_schema(primaries.url, NUMBER)


def test_a_transaction_of_a_session_that_became_read_only(primaries: Primaries) -> None:
    store = opened(primaries, "thread")
    assert store._link is not None
    store._link.execute("SET SESSION TRANSACTION READ ONLY")
    with pytest.raises(StoreReadOnly, match="1792"):
        insert(store, new_item())
    assert store.reconnect() is False
    insert(store, new_item())
    close(store)


def test_a_migration_does_not_wait_for_a_read_only_server(primaries: Primaries) -> None:
    primaries.close_old()
    store = SqlStore(primaries.url, shard=NUMBER)
    database = store._database
    errors = database.seam_errors
    with database.connect() as made, pytest.raises(StoreReadOnly), database.seam(), exclusive(made, errors):
        made.exec_driver_sql("ALTER TABLE shard ADD COLUMN odd INT")


def test_each_connection_asks_for_the_address(primaries: Primaries, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    resolve = socket.getaddrinfo

    def resolving(host: Any, *rest: Any, **options: Any) -> Any:
        asked.append(host)
        return resolve("127.0.0.1" if host == "primary.invalid" else host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolving)
    store = SqlStore(primaries.url.replace("127.0.0.1", "primary.invalid"), shard=NUMBER)
    store.open("owner", take_over=False)
    for _ in range(3):
        before = asked.count("primary.invalid")
        store.reconnect()
        assert asked.count("primary.invalid") == before + 1
    store.close()


def sqlite_store(tmp_path: Path) -> SqlStore:
    store = SqliteShard(f"sqlite:///{tmp_path}/shard.db").store()
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], next_number=1))
    return store


def test_a_sqlite_file_that_takes_no_writes(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)
    assert store._link is not None
    store._link.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreReadOnly, match="the database is read-only, or its file was moved"):
        insert(store, new_item())
    assert store.reconnect() is False
    insert(store, new_item())
    assert store.bodies([new_item().id]) == [body(new_item())]
    store.close()


def test_a_sqlite_file_that_lost_its_name(tmp_path: Path) -> None:
    """Another file has the name: the owner finds that out when it confirms, and opens that one."""
    store = sqlite_store(tmp_path)
    store.confirm()
    for suffix in ("", "-wal", "-shm"):
        file = tmp_path / f"shard.db{suffix}"
        (tmp_path / f"copy.db{suffix}").write_bytes(file.read_bytes())
        file.rename(tmp_path / f"gone.db{suffix}")
        (tmp_path / f"copy.db{suffix}").rename(file)
    with pytest.raises(StoreReadOnly, match="its file was moved"):
        store.confirm()
    assert store.reconnect() is False
    insert(store, new_item())
    assert store.confirm().db_now_ms
    store.close()
    again = SqliteShard(f"sqlite:///{tmp_path}/shard.db").store()
    again.open("next", take_over=False)
    assert again.bodies([new_item().id]) == [body(new_item())]
    again.close()
