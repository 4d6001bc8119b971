"""MariaDB and MySQL servers of our own, with settings that lose nothing they committed."""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from foqs.lab.servers.containers import ContainerServer
from foqs.lab.servers.endpoint import SqlEndpoint
from foqs.lab.servers.errors import ServerUnavailable
from foqs.lab.servers.options import DEFAULT_SETTINGS, ServerSettings, initialise, serving_argv
from foqs.lab.servers.process import ServerProcess, free_port, wait_until
from foqs.lab.servers.programs import Kind, Program, find_mariadb, find_mysql

_STOP_GRACE_MS = 30_000
_PORT_ATTEMPTS = 5


class DatabaseServer(SqlEndpoint):
    """A server process with its data in a temporary directory; `MariaDbServer` or `MySqlServer`.

    One thread starts and stops it; any thread may kill, pause and resume it.
    """

    def __init__(
        self, program: Program, settings: ServerSettings = DEFAULT_SETTINGS, *, parent: Path | None = None
    ) -> None:
        """Starts nothing yet. `parent` is where its directory is made (default: the system's temporary one; a
        benchmark of commits wants a real disk)."""
        super().__init__(program.kind)
        self.program = program
        self.settings = settings
        self._parent = parent
        self._directory: Path | None = None
        self._process: ServerProcess | None = None

    def start(self) -> Self:
        """Makes an empty data directory and serves it on a free port.

        Raises:
            ServerUnavailable: it could not be initialised or did not answer within `start_timeout_ms`.
        """
        if self._directory is not None:
            raise RuntimeError("the server was started before; restart() starts it again")
        # Not resolved, a link in the path would make @@datadir differ from the requested folder.
        self._directory = Path(tempfile.mkdtemp(prefix=f"foqs-{self.kind}-", dir=self._parent)).resolve()
        try:
            initialise(self.program, self._directory)
            self._serve_on_a_free_port()
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self) -> None:
        """Starts again on the same data and port; one that still runs is first stopped in good order.

        Raises:
            ServerUnavailable: it did not answer within `start_timeout_ms`.
        """
        process = self._started()
        process.stop(grace_ms=_STOP_GRACE_MS)
        if not self._serve():
            raise ServerUnavailable(f"port {self.port} was taken", log_tail=self._started().log_tail())

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._started().kill()

    def pause(self) -> None:
        """SIGSTOP: hangs with all its connections open."""
        self._started().pause()

    def resume(self) -> None:
        """SIGCONT."""
        self._started().resume()

    def stop(self) -> None:
        """Ends the process, paused or not, and removes its data. May be called twice."""
        if self._process is not None:
            self._process.stop(grace_ms=_STOP_GRACE_MS)
            self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    @property
    def pid(self) -> int:
        """The pid of the server itself."""
        return self._started().pid

    @property
    def alive(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process is not None and self._process.alive

    @property
    def version(self) -> str:
        """Such as ``10.11.11-MariaDB-0+deb12u1`` or ``9.7.4``."""
        return self.program.version

    def __enter__(self) -> Self:
        return self if self._directory is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid={self._process.pid}" if self._process and self._process.alive else "not running"
        return f"<{type(self).__name__} {self.version} port={self.port} {state}>"

    def _started(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    @property
    def _folder(self) -> Path:
        if self._directory is None:
            raise RuntimeError("the server has no directory: it was not started, or stopped")
        return self._directory

    def _serve_on_a_free_port(self) -> None:
        for _ in range(_PORT_ATTEMPTS):
            self.port = free_port()
            if self._serve():
                return
        raise ServerUnavailable(f"other programs took {_PORT_ATTEMPTS} free ports before {self.kind} was up")

    def _serve(self) -> bool:
        """Start the process and wait for it. False if another program has the port."""
        argv = serving_argv(self.program, self._folder, self.port, self.settings)
        log = self._folder / "log"
        seen_bytes = log.stat().st_size if log.exists() else 0
        process = self._process = ServerProcess(argv, log=log)
        datadir = str(self._folder / "data")
        up = wait_until(
            lambda: not process.alive or self.answers(datadir=datadir),
            timeout_ms=self.settings.start_timeout_ms,
        )
        if up and process.alive:
            return True
        with log.open(errors="replace") as output:
            output.seek(seen_bytes)
            port_taken = "Address already in use" in output.read()
        if port_taken and not process.alive:
            return False
        process.kill()
        what = "did not answer in time" if not up else "ended while starting"
        raise ServerUnavailable(f"{self.kind} {self.version} {what}", log_tail=process.log_tail())


class MariaDbServer(DatabaseServer):
    """A private MariaDB, found by `find_mariadb` unless given."""

    def __init__(
        self,
        settings: ServerSettings = DEFAULT_SETTINGS,
        *,
        program: Program | None = None,
        parent: Path | None = None,
    ) -> None:
        super().__init__(program or find_mariadb(), settings, parent=parent)


class MySqlServer(DatabaseServer):
    """A private MySQL, found by `find_mysql` unless given."""

    def __init__(
        self,
        settings: ServerSettings = DEFAULT_SETTINGS,
        *,
        program: Program | None = None,
        parent: Path | None = None,
    ) -> None:
        super().__init__(program or find_mysql(), settings, parent=parent)


def start_database_server(
    kind: Kind, settings: ServerSettings = DEFAULT_SETTINGS, *, parent: Path | None = None
) -> "DatabaseServer | ContainerServer":
    """A running server: an installed or unpacked program, else a container when Docker answers.

    Raises:
        ServerUnavailable: neither way worked; the reason names both.
    """
    server_class = MariaDbServer if kind == "mariadb" else MySqlServer
    try:
        return server_class(settings, parent=parent).start()
    except ServerUnavailable as no_program:
        try:
            return ContainerServer(kind, options=settings.options).start()
        except ServerUnavailable as no_docker:
            raise ServerUnavailable(
                f"{no_program.reason}; {no_docker.reason}", log_tail=no_program.log_tail
            ) from no_program
