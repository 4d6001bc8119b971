"""A ZooKeeper of our own, alone or as one of an ensemble."""

import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from foqs_lab.servers.process import PrivateServer, free_port
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

    def __init__(
        self,
        *,
        java_options: tuple[str, ...] = (),
        parent: Path | None = None,
        number: int = 0,
        ensemble: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        """Start nothing yet. `java_options` come before ours. `ensemble`: the ports for other servers and for elections
        of all servers, by number; `number` is this one's."""
        super().__init__(parent=parent)
        self._java_options = java_options
        self._number = number
        self._ensemble = ensemble or {}

    @property
    def hosts(self) -> str:
        """The `host:port` of a client's configuration."""
        return f"127.0.0.1:{self.port}"

    @property
    def _main(self) -> str:
        return "quorum.QuorumPeerMain" if self._ensemble else "ZooKeeperServerMain"

    @property
    def data(self) -> Path:
        """The directory of its records. It must be started first."""
        assert self._directory is not None
        return self._directory / "data"

    def lose(self) -> None:
        """Stop it and remove its data."""
        self.stop()
        shutil.rmtree(self.data)

    def copy_data(self, to: Path) -> None:
        """Copy its data while it runs. A copy of a running server is good: ZooKeeper replays its log."""
        shutil.copytree(self.data, to)

    def put_back(self, copy: Path) -> None:
        """Stop it and replace its data by a copy."""
        self.lose()
        shutil.copytree(copy, self.data)

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
        if self._ensemble:
            settings |= {"initLimit": 50, "syncLimit": 25}
            settings |= {f"server.{n}": f"127.0.0.1:{at}:{elect}" for n, (at, elect) in self._ensemble.items()}
            self.data.mkdir(exist_ok=True)
            (self.data / "myid").write_text(str(self._number))
        (directory / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return [
            self._program.java,
            *self._java_options,
            *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-Dlog4j2.level=WARN"),
            *("-Dzookeeper.preAllocSize=256", "-Dzookeeper.forceSync=no"),
            *("-cp", self._program.classes, f"org.apache.zookeeper.server.{self._main}"),
            str(directory / "zoo.cfg"),
        ]


@contextmanager
def zookeeper_ensemble(servers: int = 3) -> Iterator[list[ZookeeperServer]]:
    """Servers of one ensemble, all started."""
    ports = {number: (free_port(), free_port()) for number in range(1, servers + 1)}
    with ExitStack() as stack:
        made = [ZookeeperServer(number=number, ensemble=ports) for number in ports]
        for server in made:
            stack.callback(server.close)
        with ThreadPoolExecutor(servers) as pool:  # none answers before a majority runs
            list(pool.map(ZookeeperServer.start, made))
        yield made
