"""A TCP relay that cuts connections, delays or holds data, like a failing network, or leads elsewhere, like a name."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_CHUNK_BYTES = 1 << 16


class Relay:
    """127.0.0.1:`port` leads to 127.0.0.1:`target`. Thread-safe."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._flows = threading.Event()
        self._flows.set()
        self.delay_s = 0.0
        """Each piece of data is delivered this much later, in either direction."""
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def lead_to(self, target: int) -> None:
        """Lead new connections to another port. Open connections stay as they are."""
        self._target = target

    def cut(self) -> None:
        """Ends all connections."""
        with self._lock:
            ended, self._open = self._open, set()
        for each in ended:
            _end(each)

    def hold(self) -> None:
        """Hold all data without an error at either end; accept new connections and hold their data too."""
        self._flows.clear()

    def flow(self) -> None:
        """Deliver the held data."""
        self._flows.set()

    def close(self) -> None:
        # To close alone would leave the thread in accept, and with it the port open for one more connection.
        _end(self._listener)
        self.flow()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._flows.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            _end(client)
            return
        with self._lock:
            self._open |= {client, server}
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._pump, args=(client, server), daemon=True).start()
        self._pump(server, client)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                self._flows.wait()
                if self.delay_s:
                    time.sleep(self.delay_s)
                sink.sendall(data)
        self._flows.wait()  # hold the end of a connection, too
        with self._lock:
            self._open -= {source, sink}
        _end(source)
        _end(sink)


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
