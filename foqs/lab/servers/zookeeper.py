"""A ZooKeeper of our own, alone in its ensemble."""

import os
import shutil
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from foqs.lab.servers.errors import ServerUnavailable
from foqs.lab.servers.process import ServerProcess, free_port, wait_until
from foqs.lab.servers.programs import find_zookeeper

_START_TIMEOUT_MS = 60_000
_STOP_GRACE_MS = 10_000
_PORT_ATTEMPTS = 5
_TICK_MS = 200
_MIN_SESSION_MS = 2 * _TICK_MS


class ZookeeperServer:
    """A private ZooKeeper on 127.0.0.1 that grants sessions from 0.4 s to 10 minutes.

    It is ready for what a process's death may do to it, not for a power failure: its log is not flushed.
    """

    def __init__(self, *, java_options: tuple[str, ...] = (), parent: Path | None = None) -> None:
        """Starts nothing yet. `java_options` come before ours; `parent` is where its directory is made (default: the
        system's for temporary files)."""
        self.port = 0
        self.version = ""
        self._java_options = java_options
        self._parent = parent
        self._directory: Path | None = None
        self._process: ServerProcess | None = None

    def start(self) -> Self:
        """Serves: at first with no data on a free port, after `stop` or `kill` the same data on the same port.

        Raises:
            ServerUnavailable: there is no Java or no ZooKeeper, or it did not answer within a minute.
        """
        program = find_zookeeper()
        self.version = program.version
        first = self._directory is None
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="foqs-zookeeper-", dir=self._parent))
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
            str(self._directory / "zoo.cfg"),
        ]
        try:
            for _ in range(_PORT_ATTEMPTS if first else 1):
                if first:
                    self.port = free_port()
                if self._serve(argv, self._directory):
                    return self
            raise ServerUnavailable(f"zookeeper {program.version} did not start", log_tail=self._started().log_tail())
        except BaseException:
            self.close() if first else self.stop()
            raise

    def stop(self) -> None:
        """Ends the process, paused or not, and keeps its data. May be called twice."""
        if self._process is not None:
            self._process.stop(grace_ms=_STOP_GRACE_MS)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._started().kill()

    def pause(self) -> None:
        """SIGSTOP: hangs with all its connections open."""
        self._started().pause()

    def resume(self) -> None:
        """Send SIGCONT. Sessions whose time-out is over expire then."""
        self._started().resume()

    def close(self) -> None:
        """Ends the process and removes its data. May be called twice."""
        self.stop()
        self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

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

    @property
    def pid(self) -> int:
        """The pid of the Java process."""
        return self._started().pid

    @property
    def alive(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process is not None and self._process.alive

    def __enter__(self) -> Self:
        return self if self._directory is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _started(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

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
