"""The queue that one writes by hand: a table, an index, SELECT ... FOR UPDATE SKIP LOCKED, on the shards' server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import pymysql
from sqlalchemy import create_engine, make_url

from foqs_lab.bench.clients import Client, PythonClient, Run, Shape
from foqs_lab.bench.rig import Rig
from foqs_lab.bench.rivals.rival import Rival, in_threads

Answer = TypeVar("Answer")
_DEADLOCK = 1213
_EMPTY_S = 0.001
_TABLE = """CREATE TABLE rival_queue (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, priority INT NOT NULL, run_at BIGINT NOT NULL, leased_until BIGINT NOT NULL,
    payload LONGBLOB NOT NULL, KEY by_priority (priority, id, leased_until)) ENGINE=InnoDB"""


class SkipLocked(Rival):
    name = "skip_locked"
    title = "SKIP LOCKED by hand"

    def __init__(self, rig: Rig) -> None:
        self._url = rig.urls[0]
        self._pid = rig.server_pid
        self.version = rig.version

    def start(self) -> None:
        """Do nothing: the shards' server runs."""

    def close(self) -> None:
        _execute(self._url, ["DROP TABLE IF EXISTS rival_queue"])

    def servers(self) -> dict[str, int]:
        return {"server": self._pid}

    def pair(self, shape: Shape) -> Sequence[Client]:
        self._fresh()
        return [
            PythonClient(partial(in_threads, partial(_producer, self._url), shape, shape.producers)),
            PythonClient(partial(in_threads, partial(_consumer, self._url), shape, shape.consumers)),
        ]

    def callers(self, shape: Shape) -> Sequence[Client]:
        self._fresh()
        return [PythonClient(partial(_caller, self._url, part)) for part in shape.parts()]

    def _fresh(self) -> None:
        _execute(self._url, ["DROP TABLE IF EXISTS rival_queue", _TABLE])


def _connect(url: str) -> Any:
    connection = create_engine(make_url(url).set(drivername="mysql+pymysql")).raw_connection()
    connection.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    return connection


def _execute(url: str, statements: list[str]) -> None:
    connection = _connect(url)
    for statement in statements:
        connection.cursor().execute(statement)
    connection.close()


def _producer(url: str, shape: Shape, share: int) -> Run:
    connection, rng = _connect(url), random.Random(share)
    payload = rng.randbytes(shape.payload_bytes)

    def run() -> list[float]:
        for left in range(share, 0, -shape.batch):
            _insert(connection, rng, payload, min(shape.batch, left))
        return []

    return run


def _consumer(url: str, shape: Shape, share: int) -> Run:
    connection = _connect(url)

    def run() -> list[float]:
        done = 0
        while done < share:
            done += _lease_and_delete(connection, min(shape.batch, share - done))
        return []

    return run


def _caller(url: str, shape: Shape) -> Run:
    connection, rng = _connect(url), random.Random(shape.items)
    payload = rng.randbytes(shape.payload_bytes)

    def run() -> list[float]:
        took_ms = []
        for _ in range(shape.items):
            began = time.perf_counter()
            _insert(connection, rng, payload, 1)
            took_ms.append(1000 * (time.perf_counter() - began))
            while not _lease_and_delete(connection, 1):
                pass
        return took_ms

    return run


def _insert(connection: Any, rng: random.Random, payload: bytes, count: int) -> None:
    rows = [(rng.randrange(1000), 0, 0, payload) for _ in range(count)]
    insert = "INSERT INTO rival_queue (priority,run_at,leased_until,payload) VALUES (%s,%s,%s,%s)"
    connection.cursor().executemany(insert, rows)
    connection.commit()


def _lease_and_delete(connection: Any, count: int) -> int:
    """Return how many items it took: 0 after a short pause if there was none."""
    ids = _again_after_deadlocks(connection, partial(_lease, connection, count))
    if not ids:
        time.sleep(_EMPTY_S)
        return 0
    _again_after_deadlocks(connection, partial(_delete, connection, ids))
    return len(ids)


def _lease(connection: Any, count: int) -> list[int]:
    cursor = connection.cursor()
    cursor.execute(
        "SELECT id, payload FROM rival_queue WHERE leased_until < %s ORDER BY priority, id LIMIT %s"
        " FOR UPDATE SKIP LOCKED",
        (int(time.time()), count),
    )
    ids = [row[0] for row in cursor.fetchall()]
    if ids:
        cursor.execute("UPDATE rival_queue SET leased_until = %s WHERE id IN %s", (int(time.time()) + 60, ids))
    connection.commit()
    return ids


def _delete(connection: Any, ids: list[int]) -> None:
    connection.cursor().execute("DELETE FROM rival_queue WHERE id IN %s", (ids,))
    connection.commit()


def _again_after_deadlocks(connection: Any, transaction: Callable[[], Answer]) -> Answer:
    while True:
        try:
            return transaction()
        except pymysql.err.OperationalError as error:
            if error.args[0] != _DEADLOCK:
                raise
            connection.rollback()
