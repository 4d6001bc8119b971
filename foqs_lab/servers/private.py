"""What all private servers have in common: one process at a time, and files in a temporary directory."""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from foqs_lab.servers.process import ServerProcess


class Restartable:
    """A program that runs as one process, and may be started again. RuntimeError means that it was not started."""

    _process: ServerProcess | None = None

    def kill(self) -> None:
        """Send SIGKILL. Returns when the process is gone."""
        self._started().kill()

    def pause(self) -> None:
        """Send SIGSTOP: the process hangs with all its connections open."""
        self._started().pause()

    def resume(self) -> None:
        """Send SIGCONT."""
        self._started().resume()

    @property
    def pid(self) -> int:
        """The pid of the program itself."""
        return self._started().pid

    @property
    def alive(self) -> bool:
        """True if the process exists, paused or not."""
        return self._process is not None and self._process.alive

    def _started(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError(f"{self} was not started")
        return self._process


class PrivateServer(Restartable):
    """A server on a free loopback port, with its files in a temporary directory. A context manager.

    One thread starts and stops it; any thread may kill, pause and resume it.
    """

    _grace_ms = 10_000

    def __init__(self, name: str, parent: Path | None) -> None:
        """Start nothing yet. The directory is made below `parent`, by default the system's for temporary files."""
        self.port = 0
        self._name = name
        self._parent = parent
        self._directory: Path | None = None

    def start(self) -> Self:
        """Serve. Raises ServerUnavailable if the program is not installed, or does not answer in time."""
        raise NotImplementedError

    def close(self) -> None:
        """End the process, paused or not, and remove its files. May be called twice."""
        if self._process is not None:
            self._process.stop(grace_ms=self._grace_ms)
            self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _make_directory(self) -> Path:
        # Not resolved, a link in the path would make @@datadir differ from the requested folder.
        self._directory = Path(tempfile.mkdtemp(prefix=f"foqs-{self._name}-", dir=self._parent)).resolve()
        return self._directory

    def __enter__(self) -> Self:
        return self if self._directory is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
