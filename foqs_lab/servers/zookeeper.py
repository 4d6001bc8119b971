"""A ZooKeeper of our own, alone in its ensemble."""

import os
from pathlib import Path

from foqs_lab.servers.process import PrivateServer
from foqs_lab.servers.programs import JavaProgram, find_zookeeper

_TICK_MS = 200


class ZookeeperServer(PrivateServer):
    """A private ZooKeeper on 127.0.0.1 that grants sessions from 0.4 s to 10 minutes.

    It is ready for what a process's death may do to it, not for a power failure: its log is not flushed.
    """

    name = "zookeeper"
    question = b"srvr"
    answer = (b"Zookeeper version",)
    _program: JavaProgram

    def __init__(self, *, java_options: tuple[str, ...] = (), parent: Path | None = None) -> None:
        """Start nothing yet. `java_options` come before ours."""
        super().__init__(parent=parent)
        self._java_options = java_options

    @property
    def hosts(self) -> str:
        """The `host:port` of a client's configuration."""
        return f"127.0.0.1:{self.port}"

    def prepare(self, directory: Path) -> None:
        self._program = find_zookeeper()
        self.version = self._program.version

    def argv(self, directory: Path) -> list[str]:
        settings = {
            "tickTime": _TICK_MS,
            "minSessionTimeout": 2 * _TICK_MS,
            "maxSessionTimeout": 600_000,
            "dataDir": directory / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,  # all of them come from one address
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        (directory / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return [
            self._program.java,
            *self._java_options,
            *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-Dlog4j2.level=WARN"),
            *("-Dzookeeper.preAllocSize=256", "-Dzookeeper.forceSync=no"),
            *("-cp", f"{self._program.jars}{os.sep}*", "org.apache.zookeeper.server.ZooKeeperServerMain"),
            str(directory / "zoo.cfg"),
        ]
