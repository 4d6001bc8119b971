"""The third way to a MariaDB or MySQL: a container, when Docker answers and testcontainers is installed."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from foqs_lab.servers.endpoint import SqlEndpoint
from foqs_lab.servers.errors import ServerUnavailable
from foqs_lab.servers.process import free_port, wait_until
from foqs_lab.servers.programs import Kind

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

IMAGES: dict[Kind, str] = {"mariadb": "mariadb:10.11", "mysql": "mysql:8.4"}
_START_TIMEOUT_MS = 120_000
_STOP_GRACE_S = 30


class ContainerServer(SqlEndpoint):
    """A database server in a container, with the methods of a `DatabaseServer`."""

    def __init__(self, kind: Kind, *, options: tuple[str, ...] = ()) -> None:
        super().__init__(kind)
        self._options = ("--innodb-flush-log-at-trx-commit=1", "--skip-name-resolve", *options)
        self._container: DockerContainer | None = None
        self.version = ""

    def start(self) -> Self:
        """Starts it on a free port.

        Raises:
            ServerUnavailable: testcontainers is not installed, Docker does not answer or has no such
                image, or the server did not answer within two minutes.
        """
        try:
            import docker.errors
            import requests
            from testcontainers.core.container import DockerContainer
        except ImportError as error:
            raise ServerUnavailable("testcontainers is not installed (pip install 'foqs[lab]')") from error
        # A port that Docker picks would be another one after a restart.
        self.port = free_port()
        try:
            self._container = (
                DockerContainer(IMAGES[self.kind])
                .with_env("MYSQL_ALLOW_EMPTY_PASSWORD", "1")
                .with_env("MARIADB_ALLOW_EMPTY_ROOT_PASSWORD", "1")
                .with_bind_ports(3306, self.port)
                .with_command(list(self._options))
                .start()
            )
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise ServerUnavailable(f"Docker does not answer ({type(error).__name__})") from error
        try:
            self._wait()
            self.version = str(self.query("SELECT VERSION()")[0][0])
        except BaseException:
            self.close()
            raise
        return self

    def restart(self) -> None:
        """Starts again on the same data and port. Raises `ServerUnavailable` when it does not answer."""
        self._wrapped().restart(timeout=_STOP_GRACE_S)
        self._wait()

    def kill(self) -> None:
        """SIGKILL."""
        self._wrapped().kill()

    def pause(self) -> None:
        """Freezes every process of the container."""
        self._wrapped().pause()

    def resume(self) -> None:
        """Undoes `pause`."""
        self._wrapped().unpause()

    def close(self) -> None:
        """Removes the container and its data. May be called twice."""
        if self._container is not None:
            self._container.stop(force=True)
            self._container = None

    @property
    def pid(self) -> int:
        """The server's pid as the Docker host sees it."""
        self._wrapped().reload()
        return int(self._wrapped().attrs["State"]["Pid"])

    @property
    def alive(self) -> bool:
        """Whether the container runs or is paused."""
        if self._container is None:
            return False
        self._wrapped().reload()
        return bool(self._wrapped().attrs["State"]["Running"])

    def __enter__(self) -> Self:
        return self if self._container is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self) -> None:
        if not wait_until(self.answers, timeout_ms=_START_TIMEOUT_MS):
            raise ServerUnavailable(f"{IMAGES[self.kind]} did not answer in time")

    def _wrapped(self) -> Any:
        if self._container is None:
            raise RuntimeError("the server was not started")
        return self._container.get_wrapped_container()
