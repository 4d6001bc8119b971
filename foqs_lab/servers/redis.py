"""Redis, made durable, to compare with."""

import socket
from pathlib import Path
from typing import Self

from foqs_lab.servers.errors import ServerUnavailable
from foqs_lab.servers.private import PrivateServer
from foqs_lab.servers.process import ServerProcess, free_port, wait_until
from foqs_lab.servers.programs import find_redis, version_of

_START_TIMEOUT_MS = 10_000
_PORT_ATTEMPTS = 5
_OPTIONS = {
    "bind": "127.0.0.1",
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    # BullMQ refuses a server that may evict its keys.
    "maxmemory-policy": "noeviction",
}


class RedisServer(PrivateServer):
    """A private Redis on 127.0.0.1 whose append-only file is written with fsync before each answer."""

    def __init__(self, *, parent: Path | None = None) -> None:
        super().__init__("redis", parent)
        self.version = ""

    def start(self) -> Self:
        """Serve an empty store on a free port.

        Raises:
            ServerUnavailable: Redis is not installed or did not answer within 10 s.
        """
        program = find_redis()
        self.version = f"Redis {version_of(program)}"
        directory = self._make_directory()
        try:
            for _ in range(_PORT_ATTEMPTS):
                self.port = free_port()
                options = {**_OPTIONS, "port": str(self.port), "dir": str(directory)}
                argv = [program, *(word for name, value in options.items() for word in (f"--{name}", value))]
                process = self._process = ServerProcess(argv, log=directory / "log")
                if wait_until(lambda: not self.alive or self._answers(), timeout_ms=_START_TIMEOUT_MS) and self.alive:
                    return self
                process.kill()
            raise ServerUnavailable("redis did not start", log_tail=self._started().log_tail())
        except BaseException:
            self.close()
            raise

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith(b"+PONG")
        except OSError:
            return False
