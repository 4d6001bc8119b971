"""A relay that cuts its connection at a chosen byte."""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import Enum


class Side(Enum):
    REQUEST = "to the server"
    REPLY = "from the server"


class CuttingRelay:
    """127.0.0.1:`port` leads to 127.0.0.1:`target`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._left: dict[Side, int | None] = dict.fromkeys(Side)
        self.passed: dict[Side, int] = dict.fromkeys(Side, 0)
        self._pumps: list[tuple[int, threading.Thread]] = []  # with the port of the client
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, side: Side, size: int) -> None:
        """Pass on `size` more bytes of that side, then end the connection. Ones made afterwards are not cut."""
        with self._lock:
            self._left[side] = size

    def count(self) -> None:
        """Count the bytes of both sides from 0."""
        self.passed = dict.fromkeys(Side, 0)

    @property
    def connections(self) -> int:
        """The number of connections that may still pass bytes, such as the farewell of a client that has left."""
        return len({port for port, pump in self._pumps if pump.is_alive()})

    def close(self) -> None:
        _end(self._listener)
        for each in self._sockets:
            _end(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, (_, port) = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for source, sink, side in ((client, server, Side.REQUEST), (server, client, Side.REPLY)):
                    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    pump = threading.Thread(target=self._pump, args=(source, sink, side), daemon=True)
                    pump.start()
                    self._pumps.append((port, pump))

    def _pump(self, source: socket.socket, sink: socket.socket, side: Side) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                room = self._room(side, len(data))
                self.passed[side] += room
                if room:
                    sink.sendall(data[:room])
                if room < len(data):
                    break
        _end(sink)
        _end(source)

    def _room(self, side: Side, size: int) -> int:
        with self._lock:
            left = self._left[side]
            if left is None or left > size:
                self._left[side] = left and left - size
                return size
            if left == size:
                self._left[side] = 0
                return size
            self._left[side] = None
            return left


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
