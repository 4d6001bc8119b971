"""PostgreSQL, to compare with: each commit is flushed."""

import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
from pathlib import Path
from typing import Self

from foqs_lab.servers.errors import ServerUnavailable
from foqs_lab.servers.private import PrivateServer
from foqs_lab.servers.process import ServerProcess, free_port, wait_until
from foqs_lab.servers.programs import find_postgresql, version_of

_START_TIMEOUT_MS = 60_000
_INITIALISE_TIMEOUT_S = 120
_PORT_ATTEMPTS = 5
# Memory and log like those of a benchmark's MariaDB. Commits are durable by the server's defaults.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "2GB",
    "max_connections": "300",
}
_SSL_REQUEST = struct.pack("!II", 8, 80877103)


class PostgresqlServer(PrivateServer):
    """A private PostgreSQL on 127.0.0.1; its user `postgres` needs no password.

    PostgreSQL refuses to run as root. Started by root it runs as another user of the system.
    """

    def __init__(self, *, parent: Path | None = None) -> None:
        super().__init__("postgresql", parent)
        self.version = ""

    def start(self) -> Self:
        """Make an empty data directory and serve it on a free port.

        Raises:
            ServerUnavailable: PostgreSQL is not installed, made no data directory, or did not answer within a minute.
        """
        folder = find_postgresql()
        self.version = f"PostgreSQL {version_of(f'{folder}/postgres')}"
        directory = self._make_directory()
        try:
            user = _user_for(directory)
            _initialise([*user, f"{folder}/initdb"], directory)
            for _ in range(_PORT_ATTEMPTS):
                self.port = free_port()
                settings = {**_SETTINGS, "port": str(self.port)}
                options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
                argv = [*user, f"{folder}/postgres", "-D", f"{directory}/data", *options]
                process = self._process = ServerProcess(argv, log=directory / "log")
                if wait_until(lambda: not self.alive or self._answers(), timeout_ms=_START_TIMEOUT_MS) and self.alive:
                    return self
                process.kill()
            raise ServerUnavailable("postgresql did not start", log_tail=self._started().log_tail())
        except BaseException:
            self.close()
            raise

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def close(self) -> None:
        """End the process and all its connections, and remove its files. May be called twice."""
        if self._process is not None:
            self._process.signal(signal.SIGINT)  # SIGTERM waits until the clients have left
        super().close()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                client.sendall(_SSL_REQUEST)
                return client.recv(1) in (b"N", b"S") and self._accepts()
        except OSError:
            return False

    def _accepts(self) -> bool:
        """True once the server has recovered: before, it refuses every start of a session."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
            parameters = b"user\0postgres\0database\0postgres\0\0"
            client.sendall(struct.pack("!II", 8 + len(parameters), 3 << 16) + parameters)
            return client.recv(1) == b"R"


def _user_for(directory: Path) -> list[str]:
    """The words before a command that run it as another user, the owner of `directory`, if this user is root."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ServerUnavailable("postgresql refuses to run as root, and setpriv is not installed")
    users = {user.pw_name: user for user in pwd.getpwall()}
    user = users.get("postgres") or users["nobody"]
    os.chown(directory, user.pw_uid, user.pw_gid)
    # A change of the user clears the signal that the outer setpriv asked for.
    return [
        setpriv,
        f"--reuid={user.pw_uid}",
        f"--regid={user.pw_gid}",
        "--clear-groups",
        "--pdeathsig",
        "KILL",
        "--",
    ]


def _initialise(initdb: list[str], directory: Path) -> None:
    argv = [*initdb, "-D", f"{directory}/data", "-U", "postgres", "--auth=trust", "--locale=C", "--encoding=UTF8"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=_INITIALISE_TIMEOUT_S, cwd=directory
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailable(f"postgresql cannot make a data directory: {error}") from error
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ServerUnavailable(f"postgresql made no data directory (exit status {done.returncode})", log_tail=tail)
