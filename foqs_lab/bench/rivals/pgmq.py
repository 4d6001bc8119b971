"""pgmq: functions in PostgreSQL, called through psycopg. It has no priorities: the oldest item comes first."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from foqs_lab.bench.clients import Client, PythonClient, Run, Shape
from foqs_lab.bench.rivals.rival import Rival, in_threads
from foqs_lab.servers import PostgresqlServer
from foqs_lab.servers.programs import find_rival_package

_EMPTY_S = 0.001
_LEASE_S = 60
_FOLDER = f"python{sys.version_info[0]}.{sys.version_info[1]}"


class Pgmq(Rival):
    name = "pgmq"
    title = "pgmq (no priorities)"

    def __init__(self) -> None:
        self._server = PostgresqlServer()
        self._queues = 0

    def start(self) -> None:
        sql = find_rival_package(_FOLDER, "pgmq") / "sql"
        self._server.start()
        with _connect(self._server.url()) as connection:
            connection.execute((sql / "pgmq.sql").read_text())
        self.version = f"{(sql / 'VERSION').read_text().strip()} on {self._server.version}"

    def close(self) -> None:
        self._server.close()

    def servers(self) -> dict[str, int]:
        return {"server": self._server.pid}

    def pair(self, shape: Shape) -> Sequence[Client]:
        url, queue = self._server.url(), self._fresh()
        return [
            PythonClient(partial(in_threads, partial(_producer, url, queue), shape, shape.producers)),
            PythonClient(partial(in_threads, partial(_consumer, url, queue), shape, shape.consumers)),
        ]

    def callers(self, shape: Shape) -> Sequence[Client]:
        url, queue = self._server.url(), self._fresh()
        return [PythonClient(partial(_caller, url, queue, part)) for part in shape.parts()]

    def _fresh(self) -> str:
        with _connect(self._server.url()) as connection:
            if self._queues:
                connection.execute("SELECT pgmq.drop_queue(%s)", (f"bench_{self._queues}",))
            self._queues += 1
            connection.execute("SELECT pgmq.create(%s)", (f"bench_{self._queues}",))
        return f"bench_{self._queues}"


def _connect(url: str) -> Any:
    # After the packages of foqs: a psycopg that is installed beside foqs is used.
    folder = str(find_rival_package(_FOLDER, "psycopg").parent)
    if folder not in sys.path:
        sys.path.append(folder)
    import psycopg

    return psycopg.connect(url, autocommit=True)


def _message(payload_bytes: int) -> str:
    """A JSON document of about that size: pgmq stores nothing else."""
    return json.dumps(random.randbytes(payload_bytes // 2).hex())


def _producer(url: str, queue: str, shape: Shape, share: int) -> Run:
    connection, message = _connect(url), _message(shape.payload_bytes)

    def run() -> list[float]:
        for left in range(share, 0, -shape.batch):
            if shape.batch == 1:
                _send(connection, queue, message)
            else:
                messages = [message] * min(shape.batch, left)
                connection.execute("SELECT pgmq.send_batch(%s::text, %s::jsonb[])", (queue, messages))
        return []

    return run


def _consumer(url: str, queue: str, shape: Shape, share: int) -> Run:
    connection = _connect(url)

    def run() -> list[float]:
        done = 0
        while done < share:
            done += _read_and_delete(connection, queue, min(shape.batch, share - done))
        return []

    return run


def _caller(url: str, queue: str, shape: Shape) -> Run:
    connection, message = _connect(url), _message(shape.payload_bytes)

    def run() -> list[float]:
        took_ms = []
        for _ in range(shape.items):
            began = time.perf_counter()
            _send(connection, queue, message)
            took_ms.append(1000 * (time.perf_counter() - began))
            while not _read_and_delete(connection, queue, 1):
                pass
        return took_ms

    return run


def _send(connection: Any, queue: str, message: str) -> None:
    connection.execute("SELECT pgmq.send(%s::text, %s::jsonb)", (queue, message))


def _read_and_delete(connection: Any, queue: str, count: int) -> int:
    """Return how many items it took: 0 after a short pause if there was none."""
    read = "SELECT msg_id, message FROM pgmq.read(%s::text, %s::integer, %s::integer)"
    ids = [row[0] for row in connection.execute(read, (queue, _LEASE_S, count)).fetchall()]
    if not ids:
        time.sleep(_EMPTY_S)
    elif count == 1:
        connection.execute("SELECT pgmq.delete(%s::text, %s::bigint)", (queue, ids[0]))
    else:
        connection.execute("SELECT pgmq.delete(%s::text, %s::bigint[])", (queue, ids))
    return len(ids)
