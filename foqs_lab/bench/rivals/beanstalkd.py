"""beanstalkd with fsync at each write; one item a call, as its protocol has it. It has no batches."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from foqs_lab.bench.clients import Client, PythonClient, Run, Shape
from foqs_lab.bench.load import drive
from foqs_lab.bench.rivals.rival import Rival, priority
from foqs_lab.servers import BeanstalkdServer


class Beanstalkd(Rival):
    name = "beanstalkd"
    title = "beanstalkd with fsync"
    has_batches = False

    def __init__(self) -> None:
        self._server = BeanstalkdServer()

    def start(self) -> None:
        self._server.start()
        self.version = self._server.version

    def close(self) -> None:
        self._server.close()

    def servers(self) -> dict[str, int]:
        return {"server": self._server.pid}

    def pair(self, shape: Shape) -> Sequence[Client]:
        port = self._server.port
        return [
            PythonClient(partial(_beans, port, shape, shape.producers, consume=False)),
            PythonClient(partial(_beans, port, shape, shape.consumers, consume=True)),
        ]

    def callers(self, shape: Shape) -> Sequence[Client]:
        return [PythonClient(partial(_caller, self._server.port, part)) for part in shape.parts()]


class _Bean:
    """One connection to beanstalkd with one command in flight."""

    def __init__(self, port: int, step: Callable[[bytes], bytes | None]) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.open = False
        self._step = step
        self._got = b""

    def start(self) -> None:
        self._next(b"")

    def _next(self, reply: bytes) -> None:
        command = self._step(reply)
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


def _put(payload: bytes) -> bytes:
    return b"put %d 0 60 %d\r\n%b\r\n" % (priority(), len(payload), payload)


def _delete(reserved: bytes) -> bytes:
    return b"delete %b\r\n" % reserved.split(b" ")[1]


def _beans(port: int, shape: Shape, connections: int, *, consume: bool) -> Run:
    left, payload = shape.items, b"x" * shape.payload_bytes

    def produced(reply: bytes) -> bytes | None:
        nonlocal left
        if reply and not reply.startswith(b"INSERTED"):
            raise RuntimeError(f"beanstalkd refused a put: {reply.decode()}")
        left -= 1
        return _put(payload) if left >= 0 else None

    def consumed(reply: bytes) -> bytes | None:
        nonlocal left
        if reply.startswith(b"RESERVED"):
            return _delete(reply)
        left -= 1
        return b"reserve\r\n" if left >= 0 else None

    beans = [_Bean(port, consumed if consume else produced) for _ in range(connections)]

    def run() -> list[float]:
        drive(beans)
        return []

    return run


def _caller(port: int, shape: Shape) -> Run:
    payload = b"x" * shape.payload_bytes
    took_ms: list[float] = []
    began, done = 0.0, 0

    def step(reply: bytes) -> bytes | None:
        nonlocal began, done
        if reply.startswith(b"INSERTED"):
            took_ms.append(1000 * (time.perf_counter() - began))
            return b"reserve\r\n"
        if reply.startswith(b"RESERVED"):
            return _delete(reply)
        done += reply == b"DELETED"
        if done >= shape.items:
            return None
        began = time.perf_counter()
        return _put(payload)

    bean = _Bean(port, step)

    def run() -> list[float]:
        drive([bean])
        return took_ms

    return run
