"""A TCP proxy before a MySQL or MariaDB server that breaks a connection at a chosen statement."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass

_QUERY = b"\3"  # the command byte of COM_QUERY
PREPARED = "\x17"
"""The statement of a `Break` at the run of a prepared statement."""


@dataclass(frozen=True)
class Break:
    """Breaks at the first query that begins with `statement`.

    `arrives`: the server gets it, and only its reply is lost. `missed`: the server does not notice that its client is
    gone. `silent`: neither does the client, which waits for a reply.
    """

    statement: str
    arrives: bool = False
    missed: bool = False
    silent: bool = False


class Proxy:
    """Listens on 127.0.0.1:`port`."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._break: Break | None = None
        self._held: tuple[socket.socket, bytes] | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, at: Break) -> None:
        """Breaks once; connections made afterwards are passed on."""
        self._break = at

    def deliver(self) -> None:
        """Lets the server have the query that did not arrive, after all."""
        assert self._held is not None
        server, packet = self._held
        server.sendall(packet)

    def cut(self) -> None:
        """Ends all connections."""
        for each in self._sockets:
            _end(each)

    def close(self) -> None:
        _end(self._listener)
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._upstream_port))
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, server]
            swallow = threading.Event()
            broken = threading.Event()
            for pump in (self._from_server, self._from_client):
                threading.Thread(target=pump, args=(client, server, swallow, broken), daemon=True).start()

    def _from_client(
        self, client: socket.socket, server: socket.socket, swallow: threading.Event, broken: threading.Event
    ) -> None:
        at = None
        with contextlib.suppress(OSError):
            at = self._until_broken(client, server, swallow)
        if at is not None and at.arrives:
            broken.wait(10)
        if at is None or not at.silent:
            _end(client)
        if at is None or not at.missed:
            _end(server)

    def _until_broken(self, client: socket.socket, server: socket.socket, swallow: threading.Event) -> Break | None:
        waiting = b""
        while data := client.recv(1 << 16):
            waiting += data
            while (packet := _first_packet(waiting)) is not None:
                waiting = waiting[len(packet) :]
                at = self._breaks(packet)
                if at is not None and not at.arrives:
                    self._held = (server, packet)
                    return at
                if at is not None:
                    swallow.set()
                server.sendall(packet)
                if at is not None:
                    return at
        return None

    def _from_server(
        self, client: socket.socket, server: socket.socket, swallow: threading.Event, broken: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if swallow.is_set():
                    broken.set()
                else:
                    client.sendall(data)
            _end(client)

    def _breaks(self, packet: bytes) -> Break | None:
        with self._lock:
            at = self._break
            if at is None or not packet[4:].removeprefix(_QUERY).startswith(at.statement.encode()):
                return None
            self._break = None
            return at


def _first_packet(data: bytes) -> bytes | None:
    if len(data) < 5:
        return None
    size = int.from_bytes(data[:3], "little") + 4
    return data[:size] if len(data) >= size else None


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
