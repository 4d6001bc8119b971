"""What users would otherwise pick, on the same work: durable, same payloads, random priorities, lease then ack."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

import pymysql
from sqlalchemy import Engine, create_engine, make_url

from foqs.lab.bench.load import drive, run_together
from foqs.lab.bench.workloads import Shape
from foqs.lab.servers import BeanstalkdServer

Answer = TypeVar("Answer")
_DEADLOCK = 1213
_EMPTY_S = 0.001

# ------------------------------------------------------------------------------------------ SKIP LOCKED


def skip_locked(url: str, shape: Shape) -> float:
    """Cycles a second of the queue that one writes by hand: a table, an index, SELECT ... FOR UPDATE SKIP LOCKED."""
    _execute(url, ["DROP TABLE IF EXISTS rival_queue", _TABLE])
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        consumed = pool.submit(_threads, _consume, url, shape, shape.consumers)
        produced = pool.submit(_threads, _produce, url, shape, shape.producers)
        rate = shape.items / (consumed.result()[1] - produced.result()[0])
    _execute(url, ["DROP TABLE rival_queue"])
    return rate


_TABLE = """CREATE TABLE rival_queue (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, priority INT NOT NULL, run_at BIGINT NOT NULL, leased_until BIGINT NOT NULL,
    payload LONGBLOB NOT NULL, KEY by_priority (priority, id, leased_until)) ENGINE=InnoDB"""


def _engine(url: str) -> Engine:
    return create_engine(make_url(url).set(drivername="mysql+pymysql"))


def _execute(url: str, statements: list[str]) -> None:
    connection = _engine(url).raw_connection()
    for statement in statements:
        connection.cursor().execute(statement)
    connection.close()


def _threads(work: Callable[[str, Shape, int], None], url: str, shape: Shape, connections: int) -> tuple[float, float]:
    share = shape.items // connections
    threads = [threading.Thread(target=work, args=(url, shape, share)) for _ in range(connections)]
    began = time.monotonic()
    run_together(threads)
    return began, time.monotonic()


def _produce(url: str, shape: Shape, share: int) -> None:
    connection: Any = _engine(url).raw_connection()
    cursor, rng = connection.cursor(), random.Random(share)
    payload = rng.randbytes(shape.payload_bytes)
    for _ in range(share // shape.batch):
        rows = [(rng.randrange(1000), 0, 0, payload) for _ in range(shape.batch)]
        cursor.executemany("INSERT INTO rival_queue (priority,run_at,leased_until,payload) VALUES (%s,%s,%s,%s)", rows)
        connection.commit()


def _consume(url: str, shape: Shape, share: int) -> None:
    connection: Any = _engine(url).raw_connection()
    done = 0
    connection.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    while done < share:
        ids = _again_after_deadlocks(connection, partial(_lease, connection, min(shape.batch, share - done)))
        if not ids:
            time.sleep(_EMPTY_S)
            continue
        _again_after_deadlocks(connection, partial(_delete, connection, ids))
        done += len(ids)


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


# ------------------------------------------------------------------------------------------ beanstalkd


def beanstalkd(shape: Shape) -> float:
    """Cycles a second of beanstalkd with fsync at every write; one item a call, as its protocol has it."""
    with BeanstalkdServer() as server, ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        consumed = pool.submit(_beans, server.port, shape, shape.consumers, consume=True)
        produced = pool.submit(_beans, server.port, shape, shape.producers, consume=False)
        return shape.items / (consumed.result()[1] - produced.result()[0])


class _Bean:
    """One connection to beanstalkd with one command under way."""

    def __init__(self, port: int, step: Callable[[_Bean, bytes], bytes | None]) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.open = False
        self._step = step
        self._got = b""

    def start(self) -> None:
        self._next(b"")

    def _next(self, reply: bytes) -> None:
        command = self._step(self, reply)
        self.open = command is not None
        if command is not None:
            self.sock.sendall(command)

    def readable(self) -> None:
        self._got += self.sock.recv(1 << 16)
        line, end, rest = self._got.partition(b"\r\n")
        if not end:
            return
        if line.startswith(b"RESERVED") and len(rest) < int(line.rsplit(b" ", 1)[1]) + 2:
            return
        self._got = b""
        self._next(line)


def _beans(port: int, shape: Shape, connections: int, *, consume: bool) -> tuple[float, float]:
    rng, left = random.Random(connections), shape.items
    payload = b"x" * shape.payload_bytes

    def produced(_: _Bean, reply: bytes) -> bytes | None:
        nonlocal left
        if reply and not reply.startswith(b"INSERTED"):
            raise RuntimeError(f"beanstalkd refused a put: {reply.decode()}")
        left -= 1
        return b"put %d 0 60 %d\r\n%b\r\n" % (rng.randrange(1000), len(payload), payload) if left >= 0 else None

    def consumed(_: _Bean, reply: bytes) -> bytes | None:
        nonlocal left
        if reply.startswith(b"RESERVED"):
            return b"delete %b\r\n" % reply.split(b" ")[1]
        left -= 1
        return b"reserve\r\n" if left >= 0 else None

    began = time.monotonic()
    drive([_Bean(port, consumed if consume else produced) for _ in range(connections)])
    return began, time.monotonic()
