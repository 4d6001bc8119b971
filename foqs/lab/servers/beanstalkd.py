"""beanstalkd, made durable, to compare with."""

import shutil
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from foqs.lab.servers.errors import ServerUnavailable
from foqs.lab.servers.process import ServerProcess, free_port, wait_until
from foqs.lab.servers.programs import find_beanstalkd

_START_TIMEOUT_MS = 10_000
_STOP_GRACE_MS = 5_000
_PORT_ATTEMPTS = 5


class BeanstalkdServer:
    """A private beanstalkd on 127.0.0.1 whose log is written with fsync at each change (``-b DIR -f 0``)."""

    def __init__(self, *, parent: Path | None = None) -> None:
        """Starts nothing yet. `parent` is where its directory is made (default: the system's for temporary
        files)."""
        self.port = 0
        self._parent = parent
        self._directory: Path | None = None
        self._process: ServerProcess | None = None

    def start(self) -> Self:
        """Serves an empty log on a free port.

        Raises:
            ServerUnavailable: beanstalkd is not installed or did not answer within 10 s.
        """
        program = find_beanstalkd()
        self._directory = Path(tempfile.mkdtemp(prefix="foqs-beanstalkd-", dir=self._parent))
        try:
            for _ in range(_PORT_ATTEMPTS):
                self.port = free_port()
                process = self._process = self._serve(program, self._directory)
                if process.alive:
                    return self
            raise ServerUnavailable("beanstalkd did not start", log_tail=process.log_tail())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the process and removes its files. May be called twice."""
        if self._process is not None:
            self._process.stop(grace_ms=_STOP_GRACE_MS)
            self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    @property
    def pid(self) -> int:
        """The pid of beanstalkd itself."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process.pid

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

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
