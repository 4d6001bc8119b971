"""MariaDB and MySQL servers of our own, with settings that lose nothing they committed."""

from pathlib import Path
from typing import Self

from foqs_lab.servers.containers import ContainerServer
from foqs_lab.servers.endpoint import SqlEndpoint
from foqs_lab.servers.errors import ServerUnavailable
from foqs_lab.servers.options import DEFAULT_SETTINGS, ServerSettings, initialise, serving_argv
from foqs_lab.servers.private import PrivateServer
from foqs_lab.servers.process import ServerProcess, free_port, wait_until
from foqs_lab.servers.programs import Kind, find_mariadb, find_mysql

_PORT_ATTEMPTS = 5


class DatabaseServer(PrivateServer, SqlEndpoint):
    """A MariaDB or MySQL process with its data in a temporary directory.

    A benchmark of commits wants a directory on a real disk. Raises ServerUnavailable if no program is installed.
    """

    _grace_ms = 30_000

    def __init__(self, kind: Kind, settings: ServerSettings = DEFAULT_SETTINGS, *, parent: Path | None = None) -> None:
        PrivateServer.__init__(self, kind, parent)
        SqlEndpoint.__init__(self, kind)
        self.program = find_mariadb() if kind == "mariadb" else find_mysql()
        self.settings = settings

    def start(self) -> Self:
        """Makes an empty data directory and serves it on a free port.

        Raises:
            ServerUnavailable: it could not be initialised or did not answer within `start_timeout_ms`.
        """
        if self._directory is not None:
            raise RuntimeError("the server was started before; restart() starts it again")
        directory = self._make_directory()
        try:
            initialise(self.program, directory)
            self._serve_on_a_free_port()
        except BaseException:
            self.close()
            raise
        return self

    def restart(self) -> None:
        """Starts again on the same data and port; one that still runs is first stopped in good order.

        Raises:
            ServerUnavailable: it did not answer within `start_timeout_ms`.
        """
        self._started().stop(grace_ms=self._grace_ms)
        if not self._serve():
            raise ServerUnavailable(f"port {self.port} was taken", log_tail=self._started().log_tail())

    @property
    def version(self) -> str:
        """Such as ``10.11.11-MariaDB-0+deb12u1`` or ``9.7.4``."""
        return self.program.version

    def __repr__(self) -> str:
        state = f"pid={self._process.pid}" if self._process and self._process.alive else "not running"
        return f"<{type(self).__name__} {self.version} port={self.port} {state}>"

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


def start_database_server(
    kind: Kind, settings: ServerSettings = DEFAULT_SETTINGS, *, parent: Path | None = None
) -> DatabaseServer | ContainerServer:
    """A running server: an installed or unpacked program, else a container when Docker answers.

    Raises:
        ServerUnavailable: neither way worked; the reason names both.
    """
    try:
        return DatabaseServer(kind, settings, parent=parent).start()
    except ServerUnavailable as no_program:
        try:
            return ContainerServer(kind, options=settings.options).start()
        except ServerUnavailable as no_docker:
            raise ServerUnavailable(
                f"{no_program.reason}; {no_docker.reason}", log_tail=no_program.log_tail
            ) from no_program
