"""Queues in a database: SELECT ... FOR UPDATE SKIP LOCKED written by hand on the shards' server, and pgmq."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pymysql
from sqlalchemy import create_engine, make_url

from foqs_lab.bench.clients import Shape
from foqs_lab.bench.rig import Rig
from foqs_lab.bench.rivals.rival import BlockingRival, priority
from foqs_lab.servers import PostgresqlServer
from foqs_lab.servers.programs import find_rival_package

Answer = TypeVar("Answer")
_DEADLOCK = 1213
_LEASE_S = 60
_TABLE = """CREATE TABLE rival_queue (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, priority INT NOT NULL, run_at BIGINT NOT NULL, leased_until BIGINT NOT NULL,
    payload LONGBLOB NOT NULL, KEY by_priority (priority, id, leased_until)) ENGINE=InnoDB"""
_PACKAGES = f"python{sys.version_info[0]}.{sys.version_info[1]}"


class SkipLocked(BlockingRival):
    name = "skip_locked"
    title = "SKIP LOCKED by hand"

    def __init__(self, rig: Rig) -> None:
        self._url = rig.urls[0]
        self._pid = rig.server_pid
        self.version = rig.version

    def start(self) -> None:
        """Do nothing: the shards' server runs."""

    def close(self) -> None:
        self._execute("DROP TABLE IF EXISTS rival_queue")

    def servers(self) -> dict[str, int]:
        return {"server": self._pid}

    def fresh(self, shape: Shape) -> Callable[[], _Table]:
        self._execute("DROP TABLE IF EXISTS rival_queue", _TABLE)
        return partial(_Table, self._url, shape.payload_bytes)

    def _execute(self, *statements: str) -> None:
        connection = _mysql(self._url)
        for statement in statements:
            connection.cursor().execute(statement)
        connection.close()


def _mysql(url: str) -> Any:
    connection = create_engine(make_url(url).set(drivername="mysql+pymysql")).raw_connection()
    connection.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    return connection


class _Table:
    def __init__(self, url: str, payload_bytes: int) -> None:
        self._connection = _mysql(url)
        self._payload = random.randbytes(payload_bytes)

    def put(self, count: int) -> None:
        rows = [(priority(), 0, 0, self._payload) for _ in range(count)]
        insert = "INSERT INTO rival_queue (priority,run_at,leased_until,payload) VALUES (%s,%s,%s,%s)"
        self._connection.cursor().executemany(insert, rows)
        self._connection.commit()

    def take(self, count: int) -> int:
        ids = self._again_after_deadlocks(partial(self._lease, count))
        if ids:
            self._again_after_deadlocks(partial(self._delete, ids))
        return len(ids)

    def _lease(self, count: int) -> list[int]:
        cursor, now_s = self._connection.cursor(), int(time.time())
        cursor.execute(
            "SELECT id, payload FROM rival_queue WHERE leased_until < %s ORDER BY priority, id LIMIT %s"
            " FOR UPDATE SKIP LOCKED",
            (now_s, count),
        )
        ids = [row[0] for row in cursor.fetchall()]
        if ids:
            cursor.execute("UPDATE rival_queue SET leased_until = %s WHERE id IN %s", (now_s + _LEASE_S, ids))
        self._connection.commit()
        return ids

    def _delete(self, ids: list[int]) -> None:
        self._connection.cursor().execute("DELETE FROM rival_queue WHERE id IN %s", (ids,))
        self._connection.commit()

    def _again_after_deadlocks(self, transaction: Callable[[], Answer]) -> Answer:
        while True:
            try:
                return transaction()
            except pymysql.err.OperationalError as error:
                if error.args[0] != _DEADLOCK:
                    raise
                self._connection.rollback()


class Pgmq(BlockingRival):
    """Functions in PostgreSQL, called through psycopg. It has no priorities: the oldest item comes first."""

    name = "pgmq"
    title = "pgmq (no priorities)"

    def __init__(self) -> None:
        self._server = PostgresqlServer()
        self._queues = 0

    def start(self) -> None:
        sql = find_rival_package(_PACKAGES, "pgmq") / "sql"
        self._server.start()
        with _postgresql(self._server.url()) as connection:
            connection.execute((sql / "pgmq.sql").read_text())
        self.version = f"{(sql / 'VERSION').read_text().strip()} on {self._server.version}"

    def close(self) -> None:
        self._server.close()

    def servers(self) -> dict[str, int]:
        return {"server": self._server.pid}

    def fresh(self, shape: Shape) -> Callable[[], _PgmqQueue]:
        with _postgresql(self._server.url()) as connection:
            if self._queues:
                connection.execute("SELECT pgmq.drop_queue(%s)", (f"bench_{self._queues}",))
            self._queues += 1
            connection.execute("SELECT pgmq.create(%s)", (f"bench_{self._queues}",))
        return partial(_PgmqQueue, self._server.url(), f"bench_{self._queues}", shape.payload_bytes)


def _postgresql(url: str) -> Any:
    # After the packages of foqs: a psycopg that is installed with foqs is used.
    folder = str(find_rival_package(_PACKAGES, "psycopg").parent)
    if folder not in sys.path:
        sys.path.append(folder)
    import psycopg

    return psycopg.connect(url, autocommit=True)


class _PgmqQueue:
    def __init__(self, url: str, queue: str, payload_bytes: int) -> None:
        self._connection, self._queue = _postgresql(url), queue
        # A JSON document of about that size: pgmq stores nothing else.
        self._message = json.dumps(random.randbytes(payload_bytes // 2).hex())

    def put(self, count: int) -> None:
        if count == 1:
            self._connection.execute("SELECT pgmq.send(%s::text, %s::jsonb)", (self._queue, self._message))
        else:
            messages = [self._message] * count
            self._connection.execute("SELECT pgmq.send_batch(%s::text, %s::jsonb[])", (self._queue, messages))

    def take(self, count: int) -> int:
        read = "SELECT msg_id, message FROM pgmq.read(%s::text, %s::integer, %s::integer)"
        rows = self._connection.execute(read, (self._queue, _LEASE_S, count)).fetchall()
        ids = [row[0] for row in rows]
        if ids and count == 1:
            self._connection.execute("SELECT pgmq.delete(%s::text, %s::bigint)", (self._queue, ids[0]))
        elif ids:
            self._connection.execute("SELECT pgmq.delete(%s::text, %s::bigint[])", (self._queue, ids))
        return len(ids)
