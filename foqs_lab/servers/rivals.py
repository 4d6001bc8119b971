"""Servers to compare with, made durable: beanstalkd, Redis and PostgreSQL."""

import os
import pwd
import shutil
import signal
import struct
from pathlib import Path

from foqs_lab.servers.process import PrivateServer, ServerUnavailable, initialise
from foqs_lab.servers.programs import find_beanstalkd, find_postgresql, find_redis, version_of


class BeanstalkdServer(PrivateServer):
    """A private beanstalkd on 127.0.0.1 whose log is written with fsync at each change (``-b DIR -f 0``)."""

    name = "beanstalkd"
    question = b"list-tube-used\r\n"
    answer = (b"USING",)
    start_ms = 10_000

    def prepare(self, directory: Path) -> None:
        self._program = find_beanstalkd()
        self.version = version_of(self._program, "-v")

    def argv(self, directory: Path) -> list[str]:
        return [self._program, "-l", "127.0.0.1", "-p", str(self.port), "-b", str(directory), "-f", "0"]


class RedisServer(PrivateServer):
    """A private Redis on 127.0.0.1 whose append-only file is written with fsync before each answer."""

    name = "redis"
    question = b"PING\r\n"
    answer = (b"+PONG",)
    start_ms = 10_000

    def prepare(self, directory: Path) -> None:
        self._program = find_redis()
        self.version = f"Redis {version_of(self._program)}"

    def argv(self, directory: Path) -> list[str]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(directory),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            # BullMQ refuses a server that may evict its keys.
            "maxmemory-policy": "noeviction",
        }
        return [self._program, *(word for name, value in options.items() for word in (f"--{name}", value))]


class PostgresqlServer(PrivateServer):
    """A private PostgreSQL on 127.0.0.1; its user `postgres` needs no password.

    PostgreSQL refuses to run as root. Started by root it runs as another user of the system.
    """

    name = "postgresql"
    question = struct.pack("!II", 8, 80877103)  # asks for TLS
    answer = (b"N", b"S")

    def prepare(self, directory: Path) -> None:
        self._programs = find_postgresql()
        self.version = f"PostgreSQL {version_of(f'{self._programs}/postgres')}"
        self._user = _user_for(directory)
        options = ["-U", "postgres", "--auth=trust", "--locale=C", "--encoding=UTF8"]
        initialise(self.name, [*self._user, f"{self._programs}/initdb", "-D", f"{directory}/data", *options], directory)

    def argv(self, directory: Path) -> list[str]:
        # The same memory and log as a benchmark's MariaDB. Commits are durable by the server's defaults.
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "shared_buffers": "1GB",
            "max_wal_size": "2GB",
            "max_connections": "300",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [*self._user, f"{self._programs}/postgres", "-D", f"{directory}/data", *options]

    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def stop(self) -> None:
        """End the process and all its connections."""
        if self._process is not None:
            self._process.signal(signal.SIGINT)  # SIGTERM waits until the clients have left
        super().stop()

    def _is_up(self) -> bool:
        """Return True once the server has recovered: before, it refuses every start of a session."""
        parameters = b"user\0postgres\0database\0postgres\0\0"
        start = struct.pack("!II", 8 + len(parameters), 3 << 16) + parameters
        return self.answers() and self.says(start, (b"R",))


def _user_for(directory: Path) -> list[str]:
    """Return the words before a command that run it as another user, the owner of `directory`, if this one is root."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ServerUnavailable("postgresql refuses to run as root, and setpriv is not installed")
    users = {user.pw_name: user for user in pwd.getpwall()}
    user = users.get("postgres") or users["nobody"]
    os.chown(directory, user.pw_uid, user.pw_gid)
    # A change of the user clears the signal that the outer setpriv asked for.
    ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return [setpriv, *ids, "--pdeathsig", "KILL", "--"]
