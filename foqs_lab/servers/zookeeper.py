"""A ZooKeeper of our own, alone in its ensemble."""

import os
import socket
from pathlib import Path
from typing import Self

from foqs_lab.servers.errors import ServerUnavailable
from foqs_lab.servers.private import PrivateServer
from foqs_lab.servers.process import ServerProcess, free_port, wait_until
from foqs_lab.servers.programs import find_zookeeper

_START_TIMEOUT_MS = 60_000
_PORT_ATTEMPTS = 5
_TICK_MS = 200
_MIN_SESSION_MS = 2 * _TICK_MS


class ZookeeperServer(PrivateServer):
    """A private ZooKeeper on 127.0.0.1 that grants sessions from 0.4 s to 10 minutes.

    It is ready for what a process's death may do to it, not for a power failure: its log is not flushed.
    """

    def __init__(self, *, java_options: tuple[str, ...] = (), parent: Path | None = None) -> None:
        """Start nothing yet. `java_options` come before ours."""
        super().__init__("zookeeper", parent)
        self.version = ""
        self._java_options = java_options

    def start(self) -> Self:
        """Serves: at first with no data on a free port, after `stop` or `kill` the same data on the same port.

        Raises:
            ServerUnavailable: there is no Java or no ZooKeeper, or it did not answer within a minute.
        """
        program = find_zookeeper()
        self.version = program.version
        first = self._directory is None
        directory = self._directory or self._make_directory()
        argv = [
            program.java,
            *self._java_options,
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xmx512m",
            "-Dlog4j2.level=WARN",
            "-Dzookeeper.preAllocSize=256",
            "-Dzookeeper.forceSync=no",
            "-cp",
            f"{program.jars}{os.sep}*",
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(directory / "zoo.cfg"),
        ]
        try:
            for _ in range(_PORT_ATTEMPTS if first else 1):
                if first:
                    self.port = free_port()
                if self._serve(argv, directory):
                    return self
            raise ServerUnavailable(f"zookeeper {program.version} did not start", log_tail=self._started().log_tail())
        except BaseException:
            self.close() if first else self.stop()
            raise

    def stop(self) -> None:
        """Ends the process, paused or not, and keeps its data. May be called twice."""
        if self._process is not None:
            self._process.stop(grace_ms=self._grace_ms)

    def answers(self) -> bool:
        """Whether it serves clients now."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                client.sendall(b"srvr")
                return client.recv(64).startswith(b"Zookeeper version")
        except OSError:
            return False

    @property
    def hosts(self) -> str:
        """What a client's configuration needs: host:port."""
        return f"127.0.0.1:{self.port}"

    def _serve(self, argv: list[str], directory: Path) -> bool:
        """Start the process and wait for it. False if it ended, for example because another program has the port."""
        self.stop()
        settings = {
            "tickTime": _TICK_MS,
            "minSessionTimeout": _MIN_SESSION_MS,
            "maxSessionTimeout": 600_000,
            "dataDir": directory / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,  # all of them come from one address
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        (directory / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        process = self._process = ServerProcess(argv, log=directory / "log")
        up = wait_until(lambda: not process.alive or self.answers(), timeout_ms=_START_TIMEOUT_MS)
        return up and process.alive
