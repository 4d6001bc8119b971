"""MariaDB and MySQL servers of our own, with settings that lose nothing they committed.

A server is a process; or a container, if no program is installed, Docker answers and testcontainers is installed.
"""

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pymysql

from foqs.extras import missing
from foqs_lab.servers.process import PrivateServer, ServerUnavailable, free_port, initialise, wait_until
from foqs_lab.servers.programs import Kind, find_mariadb, find_mysql

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

IMAGES: dict[Kind, str] = {"mariadb": "mariadb:10.11", "mysql": "mysql:8.4"}
_CONNECT_TIMEOUT_S = 5
_QUERY_TIMEOUT_S = 60
_CONTAINER_START_MS = 120_000
_STOP_GRACE_S = 30
_MIB = 1 << 20
# Without name resolution 127.0.0.1 is not the `localhost` that MySQL's first root may come from.
_MYSQL_ACCOUNTS = """\
CREATE USER root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
"""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The differences between a test's server and a benchmark's. All of them flush each commit.

    Benchmarks want a redo log of 1 GiB, so that they do not measure checkpoints. `options`: further options of the
    command line, such as ``--max-allowed-packet=64M``.
    """

    buffer_pool_bytes: int = 512 * _MIB
    redo_log_bytes: int = 128 * _MIB
    options: tuple[str, ...] = ()


DEFAULT_SETTINGS = ServerSettings()


class SqlEndpoint:
    """Where a database server listens (127.0.0.1), as `root` without a password."""

    def __init__(self, kind: Kind, port: int = 0) -> None:
        self.kind: Kind = kind
        self.port = port

    def url(self, database: str = "", *, driver: str = "pymysql") -> str:
        """Return a SQLAlchemy URL. `driver`: ``pymysql``, or ``mysqldb`` (mysqlclient)."""
        return f"mysql+{driver}://root@127.0.0.1:{self.port}/{database}"

    def query(self, sql: str, *parameters: Any, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own, and commit.

        Raises pymysql.MySQLError if it cannot be reached, does not answer within 60 s, or refuses the statement.
        """
        with closing(self._connect(database, timeout_s=_QUERY_TIMEOUT_S)) as connection:
            cursor = connection.cursor()
            cursor.execute(sql, parameters or None)
            return list(cursor.fetchall())

    def named(self, sql: str) -> list[dict[str, Any]]:
        """Run a statement as `query` does, and return rows by the names of columns."""
        with closing(self._connect(None, timeout_s=_QUERY_TIMEOUT_S)) as connection:
            cursor = connection.cursor(pymysql.cursors.DictCursor)
            cursor.execute(sql)
            return list(cursor.fetchall())

    def create_database(self, name: str) -> str:
        """Make an empty database, and return its name. Raises pymysql.MySQLError if it exists."""
        self.query(f"CREATE DATABASE `{name}`")
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database if it is there. Connections to it end first: their locks would hold it up."""
        for (connection_id,) in self.query("SELECT id FROM information_schema.processlist WHERE db = %s", name):
            try:
                self.query(f"KILL {connection_id:d}")
            except pymysql.MySQLError:  # the connection ended by itself; the DROP fails if one is left
                continue
        self.query(f"DROP DATABASE IF EXISTS `{name}`")

    def answers(self, *, datadir: str | None = None) -> bool:
        """Return True if it serves now. With `datadir`, the server that answers has that folder."""
        try:
            with closing(self._connect(None, timeout_s=_CONNECT_TIMEOUT_S)) as connection:
                cursor = connection.cursor()
                cursor.execute("SELECT @@datadir")
                (answer,) = cursor.fetchone() or ("",)
        except pymysql.MySQLError:
            return False
        return datadir is None or str(answer).rstrip("/") == datadir.rstrip("/")

    def _connect(
        self, database: str | None, *, timeout_s: int
    ) -> "pymysql.connections.Connection[pymysql.cursors.Cursor]":
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S, read_timeout=timeout_s, write_timeout=timeout_s,
        )  # fmt: skip


class SqliteFiles:
    """SQLite databases in a folder, in place of a server. They are part of the host."""

    kind = "sqlite"
    port = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def url(self, database: str) -> str:
        """Return a SQLAlchemy URL."""
        return f"sqlite:///{self._folder}/{database}.db"

    def query(self, sql: str, *parameters: Any, database: str) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own, and commit. Raises sqlite3.Error if it is refused."""
        with closing(sqlite3.connect(self._folder / f"{database}.db", timeout=_QUERY_TIMEOUT_S)) as connection:
            rows = connection.execute(sql, parameters).fetchall()
            connection.commit()
            return rows

    def create_database(self, name: str) -> str:
        """Return the name. The file is made when it is opened."""
        return name


class DatabaseServer(SqlEndpoint, PrivateServer):
    """A MariaDB or MySQL process with its data in a temporary directory.

    A benchmark of commits wants a directory on a real disk. Raises ServerUnavailable if no program is installed.
    """

    grace_ms = 30_000

    def __init__(self, kind: Kind, settings: ServerSettings = DEFAULT_SETTINGS, *, parent: Path | None = None) -> None:
        PrivateServer.__init__(self, parent=parent)
        SqlEndpoint.__init__(self, kind)
        self.name = kind
        self.program = find_mariadb() if kind == "mariadb" else find_mysql()
        self.version = self.program.version
        self.settings = settings

    def restart(self) -> None:
        """Start again on the same data and port. A server that still runs is first stopped in good order.

        Raises ServerUnavailable if it did not answer in time.
        """
        self.start()

    @property
    def data(self) -> Path:
        """The directory of its data. It must be started first."""
        assert self._directory is not None
        return self._directory / "data"

    def copy_data(self, to: Path) -> None:
        """Copy its data as of one moment: it is frozen for that time. The copy has all that it had committed."""
        self.pause()
        try:
            shutil.copytree(self.data, to, ignore=shutil.ignore_patterns("socket*"))
        finally:
            self.resume()

    def put_back(self, copy: Path) -> None:
        """Replace the data of a server that was killed by a copy, which is gone then."""
        shutil.rmtree(self.data)
        copy.rename(self.data)

    def prepare(self, directory: Path) -> None:
        """Make an empty data directory whose root needs no password from 127.0.0.1."""
        argv = self._mysql_installer(directory) if self.kind == "mysql" else self._mariadb_installer(directory)
        initialise(self.kind, argv, directory)

    def _mysql_installer(self, directory: Path) -> list[str]:
        accounts = directory / "accounts.sql"
        accounts.write_text(_MYSQL_ACCOUNTS)
        own = ["--initialize-insecure", f"--init-file={accounts}", "--skip-log-bin"]
        log = f"--innodb-redo-log-capacity={16 * _MIB}"
        return [*self.program.argv, *self._common(directory), *self._of_mysql(), *own, log]

    def _mariadb_installer(self, directory: Path) -> list[str]:
        places = [self.program.prefix / "bin", self.program.prefix / "scripts"]
        installer = next((path for place in places if (path := place / "mariadb-install-db").exists()), None)
        if installer is None:
            raise ServerUnavailable(f"no mariadb-install-db next to {self.program.argv[-1]}")
        own = ["--auth-root-authentication-method=normal", "--skip-name-resolve", "--skip-test-db"]
        return [str(installer), *self._common(directory), *own, f"--innodb-log-file-size={16 * _MIB}"]

    def argv(self, directory: Path) -> list[str]:
        settings = self.settings
        if self.kind == "mariadb":
            own = [f"--innodb-log-file-size={settings.redo_log_bytes}"]
        else:
            own = [*self._of_mysql(), f"--innodb-redo-log-capacity={settings.redo_log_bytes}"]
        return [
            *self.program.argv,
            *self._common(directory),
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            # Relative to the data directory: an absolute path may be longer than a socket's may be.
            "--socket=socket",
            f"--pid-file={directory}/pid",
            # Another process that looks for a free port holds each one that it tries for an instant.
            "--port-open-timeout=3",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--performance-schema=OFF",
            # Drivers that prefer TLS would be measured with it; an empty list of versions turns it off.
            "--tls-version=" if self.kind == "mysql" else "--skip-ssl",
            "--innodb-flush-log-at-trx-commit=1",
            f"--innodb-buffer-pool-size={settings.buffer_pool_bytes}",
            "--max-connections=500",
            *own,
            *settings.options,
        ]

    def _common(self, directory: Path) -> list[str]:
        # Both servers refuse to run as root without this option.
        user = ["--user=root"] if os.geteuid() == 0 else []
        paths = [f"--basedir={self.program.prefix}", f"--datadir={directory}/data", f"--tmpdir={directory}"]
        return ["--no-defaults", *user, *paths]

    def _of_mysql(self) -> list[str]:
        # The X protocol wants a port of its own, and the default folder for files belongs to the system's server.
        return [f"--lc-messages-dir={self.program.prefix}/share/mysql", "--secure-file-priv=NULL", "--mysqlx=OFF"]

    def _is_up(self) -> bool:
        return self.answers(datadir=f"{self._directory}/data")

    def _serve(self, directory: Path) -> bool:
        """Return False only if another program has the port. Raises ServerUnavailable if it fails otherwise."""
        log = directory / "log"
        seen_bytes = log.stat().st_size if log.exists() else 0
        if super()._serve(directory):
            return True
        with log.open(errors="replace") as output:
            output.seek(seen_bytes)
            if "Address already in use" in output.read():
                return False
        reason = f"{self.kind} {self.version} ended while starting, or did not answer in time"
        raise ServerUnavailable(reason, log_tail=self._started().log_tail())


class ContainerServer(SqlEndpoint):
    """A database server in a container, with the methods of a `DatabaseServer`."""

    def __init__(self, kind: Kind, *, options: tuple[str, ...] = ()) -> None:
        super().__init__(kind)
        self._arguments = ["--innodb-flush-log-at-trx-commit=1", "--skip-name-resolve", *options]
        self._container: DockerContainer | None = None
        self.version = ""

    def start(self) -> Self:
        """Start it on a free port.

        Raises ServerUnavailable if testcontainers is not installed, Docker does not answer or has no such image, or the
        server did not answer within two minutes.
        """
        try:
            import docker.errors
            import requests
            from testcontainers.core.container import DockerContainer
        except ImportError as error:
            raise ServerUnavailable(missing("testcontainers", "lab")) from error
        # A port that Docker picks would be another one after a restart.
        self.port = free_port()
        try:
            self._container = (
                DockerContainer(IMAGES[self.kind])
                .with_env("MYSQL_ALLOW_EMPTY_PASSWORD", "1")
                .with_env("MARIADB_ALLOW_EMPTY_ROOT_PASSWORD", "1")
                .with_bind_ports(3306, self.port)
                .with_command(self._arguments)
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
        """Start again on the same data and port. Raises ServerUnavailable if it does not answer."""
        self._wrapped().restart(timeout=_STOP_GRACE_S)
        self._wait()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._wrapped().kill()

    def pause(self) -> None:
        """Freeze every process of the container."""
        self._wrapped().pause()

    def resume(self) -> None:
        """Undo `pause`."""
        self._wrapped().unpause()

    def close(self) -> None:
        """Remove the container and its data. May be called twice."""
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
        """True if the container runs or is paused."""
        if self._container is None:
            return False
        self._wrapped().reload()
        return bool(self._wrapped().attrs["State"]["Running"])

    def __enter__(self) -> Self:
        return self if self._container is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self) -> None:
        if not wait_until(self.answers, timeout_ms=_CONTAINER_START_MS):
            raise ServerUnavailable(f"{IMAGES[self.kind]} did not answer in time")

    def _wrapped(self) -> Any:
        if self._container is None:
            raise RuntimeError("the server was not started")
        return self._container.get_wrapped_container()


def start_database_server(
    kind: Kind, settings: ServerSettings = DEFAULT_SETTINGS, *, parent: Path | None = None
) -> DatabaseServer | ContainerServer:
    """Return a running server: an installed or unpacked program, else a container if Docker answers.

    Raises ServerUnavailable if neither way worked; the reason names both.
    """
    try:
        return DatabaseServer(kind, settings, parent=parent).start()
    except ServerUnavailable as no_program:
        try:
            return ContainerServer(kind, options=settings.options).start()
        except ServerUnavailable as no_docker:
            reason = f"{no_program.reason}; {no_docker.reason}"
            raise ServerUnavailable(reason, log_tail=no_program.log_tail) from no_program
