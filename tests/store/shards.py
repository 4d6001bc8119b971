"""A shard under test, and ways to break its connections."""

from __future__ import annotations

import sqlite3
from enum import Enum
from typing import Any, Protocol

from sqlalchemy import text
from sqlalchemy.engine import make_url

from foqs.ids import make_id
from foqs.rows import AT_LEAST_ONCE, NewItem
from foqs.store.link import Database, Link
from foqs.store.maintenance import create_schema
from foqs.store.protocol import ShardStore
from foqs.store.server import Facts
from foqs.store.sql import SqlStore
from tests.store.proxy import Break, Proxy

NUMBER = 7
NOW_MS = 1_700_000_000_000


class Moment(Enum):
    """When the connection of a store's next transaction is lost, one that fits a packet in the last two."""

    BEFORE_COMMIT = "before COMMIT was sent"
    COMMIT_LOST = "the database never got the COMMIT"
    REPLY_LOST = "the database committed and its reply was lost"
    PACKET_LOST = "the database never got the packet with COMMIT"
    PACKET_REPLY_LOST = "the database committed the packet and its reply was lost"

    @property
    def committed(self) -> bool:
        return self in (Moment.REPLY_LOST, Moment.PACKET_REPLY_LOST)


class Shard(Protocol):
    """A fresh, empty shard; stores made by it talk to the same tables."""

    def store(self) -> ShardStore:
        """Another store of this shard, closed."""

    def cut(self, store: ShardStore) -> None:
        """Ends the connection of an idle store, as a crash of its host does."""

    def lose_next(self, store: ShardStore, moment: Moment) -> None:
        """Has the store's next transaction lose its connection at `moment`."""

    def refused(self, stored: NewItem) -> NewItem:
        """An item that the database refuses, where `stored` is one that it holds."""

    def check_closed(self) -> None:
        """Asserts what an orderly close leaves: every item has its row, and hosts of older versions may serve it."""

    def fill(self) -> None:
        """Leaves no room for a row in `ready` to stores that are opened from now on, until `free`."""

    def free(self) -> None: ...

    def close(self) -> None: ...


class ServerShard:
    """On MySQL or MariaDB; each store has a proxy of its own before the server."""

    def __init__(self, url: str, **timeouts: float) -> None:
        self.url = url
        self._timeouts = timeouts
        self._proxies: dict[int, Proxy] = {}
        create_schema(url, NUMBER)

    def store(self, **timeouts: float) -> SqlStore:
        url = make_url(self.url)
        assert url.port is not None
        proxy = Proxy(url.port)
        store = self.make(
            url.set(port=proxy.port).render_as_string(hide_password=False), **{**self._timeouts, **timeouts}
        )
        self._proxies[id(store)] = proxy
        return store

    def make(self, url: str, **timeouts: float) -> SqlStore:
        return SqlStore(url, shard=NUMBER, **timeouts)

    def fill(self) -> None:
        self._execute(
            "CREATE TRIGGER no_room BEFORE INSERT ON ready FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114"
        )

    def free(self) -> None:
        self._execute("DROP TRIGGER no_room")

    def _execute(self, sql: str) -> None:
        with Database(self.url).connect() as connection:
            connection.execute(text(sql))

    def proxy(self, store: ShardStore) -> Proxy:
        return self._proxies[id(store)]

    def cut(self, store: ShardStore) -> None:
        self.proxy(store).cut()

    def lose_next(self, store: ShardStore, moment: Moment) -> None:
        if moment not in (Moment.PACKET_LOST, Moment.PACKET_REPLY_LOST):
            send_commit_apart(store)
        self.proxy(store).arm(
            {
                Moment.BEFORE_COMMIT: Break("BEGIN", arrives=True),
                Moment.COMMIT_LOST: Break("COMMIT"),
                Moment.REPLY_LOST: Break("COMMIT", arrives=True),
                Moment.PACKET_LOST: Break("BEGIN"),
                Moment.PACKET_REPLY_LOST: Break("BEGIN", arrives=True),
            }[moment]
        )

    def refused(self, stored: NewItem) -> NewItem:
        return new_item(payload=b"another", item_id=stored.id)

    def check_closed(self) -> None:
        check_closed(self.url)

    def close(self) -> None:
        for proxy in self._proxies.values():
            proxy.close()


def send_commit_apart(store: ShardStore) -> None:
    """Have the store treat every transaction as a long one."""
    assert isinstance(store, SqlStore)
    store._planner = store._planner._replace(one_packet_bytes=0)


class SqliteShard:
    """In a file. Its connection cannot be cut, so the disk fails instead, as far as the store can see."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._full = False
        create_schema(url, NUMBER)

    def store(self, **_: float) -> SqlStore:
        return (_FullStore if self._full else SqlStore)(self.url, shard=NUMBER)

    def fill(self) -> None:
        self._full = True

    def free(self) -> None:
        self._full = False

    def cut(self, store: ShardStore) -> None:
        assert isinstance(store, SqlStore)
        assert store._link is not None
        store._link.close()
        store._lock.release(None)

    def lose_next(self, store: ShardStore, moment: Moment) -> None:
        assert isinstance(store, SqlStore)
        assert store._link is not None
        store._link._cursor = _FailingCursor(store._link._cursor, moment)

    def refused(self, stored: NewItem) -> NewItem:
        return new_item(payload=b"another", item_id=stored.id)

    def check_closed(self) -> None:
        check_closed(self.url)

    def close(self) -> None:
        return


def check_closed(url: str) -> None:
    lacking = "SELECT id FROM item WHERE id NOT IN (SELECT id FROM ready) AND id NOT IN (SELECT id FROM timer)"
    with Database(url).connect() as connection:
        assert connection.execute(text("SELECT indexed_to FROM shard")).all() == [(0,)]
        assert connection.execute(text(lacking)).all() == []


class _FailingCursor:
    def __init__(self, cursor: Any, moment: Moment) -> None:
        self._cursor = cursor
        self._moment = moment

    def execute(self, statement: str) -> None:
        if self._moment is Moment.BEFORE_COMMIT and statement.startswith("INSERT"):
            raise _disk_error()
        if statement == "COMMIT":
            if self._moment.committed:
                self._cursor.execute(statement)
            raise _disk_error()
        self._cursor.execute(statement)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class _FullStore(SqlStore):
    def _connect(self) -> tuple[Link, Facts, Any]:
        connected = super()._connect()
        connected[0]._cursor = _FullCursor(connected[0]._cursor, Moment.COMMIT_LOST)
        return connected


class _FullCursor(_FailingCursor):
    def execute(self, statement: str) -> None:
        if statement.startswith("INSERT INTO ready"):
            raise _disk_error(sqlite3.SQLITE_FULL)
        self._cursor.execute(statement)


def _disk_error(code: int = sqlite3.SQLITE_IOERR) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error


def new_item(
    number: int = 1,
    *,
    payload: bytes = b"payload",
    metadata: bytes | None = None,
    headers: bytes | None = None,
    priority: int = 0,
    deliver_after_ms: int = NOW_MS,
    due_ms: int = 0,
    enqueued_at_ms: int = NOW_MS,
    expires_at_ms: int = 0,
    lease_ms: int = 0,
    delivery: int = AT_LEAST_ONCE,
    lane: int = 1,
    item_id: int = 0,
) -> NewItem:
    """An item of lane 1, ready at NOW_MS; with `due_ms` a delayed one."""
    item = NewItem(
        payload,
        metadata,
        headers,
        priority,
        due_ms or deliver_after_ms,
        due_ms,
        enqueued_at_ms,
        expires_at_ms,
        lease_ms,
        delivery,
    )
    item.id = item_id or make_id(NUMBER, number)
    item.lane = lane
    return item
