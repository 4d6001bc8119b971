"""A TLS end in front of a server that has none: each connection is passed on."""

import contextlib
import socket
import ssl
import threading


class TlsFront:
    """Listens on 127.0.0.1 with `context`. Also a context manager."""

    def __init__(self, context: ssl.SSLContext, port: int) -> None:
        self._context = context
        self._behind = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.accepted = 0
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def use(self, context: ssl.SSLContext) -> None:
        """End all connections, and take new ones with another context."""
        self._context = context
        ended, self._open = self._open, []
        for end in ended:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                plain.settimeout(10)
                try:
                    front: socket.socket = self._context.wrap_socket(plain, server_side=True)
                except OSError:
                    plain.close()
                    continue
                self.accepted += 1
                front.settimeout(None)
                back = socket.create_connection(("127.0.0.1", self._behind))
                self._open += [front, back]
                for source, target in ((front, back), (back, front)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            # Large reads, so that several answers go on as one record.
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> "TlsFront":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
