"""beanstalkd, made durable, to compare with."""

import socket
from pathlib import Path
from typing import Self

from foqs_lab.servers.errors import ServerUnavailable
from foqs_lab.servers.private import PrivateServer
from foqs_lab.servers.process import ServerProcess, free_port, wait_until
from foqs_lab.servers.programs import find_beanstalkd, version_of

_START_TIMEOUT_MS = 10_000
_PORT_ATTEMPTS = 5


class BeanstalkdServer(PrivateServer):
    """A private beanstalkd on 127.0.0.1 whose log is written with fsync at each change (``-b DIR -f 0``)."""

    def __init__(self, *, parent: Path | None = None) -> None:
        super().__init__("beanstalkd", parent)
        self.version = ""

    def start(self) -> Self:
        """Serves an empty log on a free port.

        Raises:
            ServerUnavailable: beanstalkd is not installed or did not answer within 10 s.
        """
        program = find_beanstalkd()
        self.version = version_of(program, "-v")
        directory = self._make_directory()
        try:
            for _ in range(_PORT_ATTEMPTS):
                self.port = free_port()
                process = self._process = self._serve(program, directory)
                if process.alive:
                    return self
            raise ServerUnavailable("beanstalkd did not start", log_tail=process.log_tail())
        except BaseException:
            self.close()
            raise

    def _serve(self, program: str, directory: Path) -> ServerProcess:
        argv = [program, "-l", "127.0.0.1", "-p", str(self.port), "-b", str(directory), "-f", "0"]
        process = ServerProcess(argv, log=directory / "log")
        if not wait_until(lambda: not process.alive or self._answers(), timeout_ms=_START_TIMEOUT_MS):
            process.kill()
        return process

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                client.sendall(b"list-tube-used\r\n")
                return client.recv(64).startswith(b"USING")
        except OSError:
            return False
