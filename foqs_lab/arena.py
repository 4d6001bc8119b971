"""The cluster of a chaos run: every connection passes a relay, and each database may get a successor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from foqs_lab.cluster import LocalCluster, Settings, make_shards
from foqs_lab.crash.history import Loss
from foqs_lab.relay import Relay
from foqs_lab.servers import (
    ContainerServer,
    DatabaseServer,
    Kind,
    ServerSettings,
    ServerUnavailable,
    SqlEndpoint,
    ZookeeperServer,
)
from foqs_lab.servers import start_database_server as start_server
from foqs_lab.servers.process import free_port
from foqs_lab.servers.programs import find_mariadb, find_mysql
from foqs_lab.servers.replicas import replicated

SESSION_MS = 3_000
FIRST_SECRET = "secret of the cluster, the first one"
SETTINGS: Settings = {
    "zookeeper": {"session_timeout_ms": SESSION_MS, "settle_ms": 2_000, "balance_every_ms": 10_000},
    "auth": {"cluster_secret": FIRST_SECRET},
}
ACCOUNTS = ("first", "second")
"""Accounts of the databases besides `root`."""
_REDO_LOG_BYTES = 32 << 20
_BUFFER_POOL_BYTES = 64 << 20


class Place(SqlEndpoint):
    """A relay with the database server that is behind it now. Another one may take its place."""

    def __init__(self, server: DatabaseServer | ContainerServer, relay: Relay) -> None:
        super().__init__(server.kind, server.port)
        self.server = server
        self.relay = relay
        self.ways = [relay]
        """All relays that lead here."""
        self.passwords = dict.fromkeys(ACCOUNTS, "one")
        self.give_accounts()

    @property
    def private(self) -> DatabaseServer:
        """The server, whose data can be copied. Raises TypeError if it is a container."""
        if not isinstance(self.server, DatabaseServer):
            raise TypeError("the data of a container cannot be copied")
        return self.server

    def give_accounts(self) -> None:
        """Give the accounts their passwords, also in a copy that was made before these."""
        for user, password in self.passwords.items():
            self.query(f"CREATE USER IF NOT EXISTS {user}@'127.0.0.1' IDENTIFIED BY '{password}'")
            self.query(f"ALTER USER {user}@'127.0.0.1' IDENTIFIED BY '{password}'")
            self.query(f"GRANT ALL ON *.* TO {user}@'127.0.0.1'")

    def lead_to(self, server: DatabaseServer) -> None:
        """Let another server take the place, and end the connections to the former one."""
        self.server = server
        self.port = server.port
        for relay in self.ways:
            relay.lead_to(server.port)
            relay.cut()


@dataclass
class Arena:
    """A relay is before each host, before ZooKeeper for each host, and before each database for all hosts.

    `losses`: of faults that put an older copy in the place of a database. `secret`: the present one of the cluster.
    `zookeeper_copy`: an older copy of ZooKeeper's data."""

    cluster: LocalCluster
    places: list[Place]
    to_zookeeper: dict[str, Relay]
    to_host: dict[str, Relay]
    folder: Path
    close_later: Callable[[Callable[[], None]], object]
    losses: list[Loss] = field(default_factory=list)
    secret: str = FIRST_SECRET
    zookeeper_copy: Path | None = None
    numbers: Iterator[int] = field(default_factory=lambda: count(100))
    """For names that were never used: of files, secrets and replicas."""

    @property
    def ports(self) -> list[int]:
        return [host.port for host in self.cluster.hosts.values()]

    @property
    def of_processes(self) -> bool:
        """True if all database servers are processes with a log of changes: they can be copied, and have replicas."""
        return all(
            isinstance(place.server, DatabaseServer)
            and any("--log-bin" in one for one in place.server.settings.options)
            for place in self.places
        )

    def said(self, text: str) -> int:
        """Return the number of times that the logs of all hosts hold it."""
        return sum(host.log.read_bytes().count(text.encode()) for host in self.cluster.hosts.values())

    def shards_of(self, place: Place) -> list[int]:
        """Return the numbers of the shards in a database server."""
        return [shard.number for shard in self.cluster.shards if shard.server is place]

    def relay(self, target: int) -> Relay:
        """Make a relay that ends with the run."""
        made = Relay(target)
        self.close_later(made.close)
        return made


def _start(kind: Kind, number: int) -> DatabaseServer | ContainerServer:
    settings = ServerSettings(buffer_pool_bytes=_BUFFER_POOL_BYTES, redo_log_bytes=_REDO_LOG_BYTES)
    try:
        program = find_mariadb() if kind == "mariadb" else find_mysql()
        settings = replicated(program, settings, number)
    except ServerUnavailable:  # a container, then, or the error that says why there is none
        pass
    return start_server(kind, settings)


@contextmanager
def arena(kind: Kind, folder: Path, *, hosts: int, databases: int, shards: int) -> Iterator[Arena]:
    """Start hosts that serve all shards, and end everything at the end."""
    with ExitStack() as stack:

        def relay(target: int) -> Relay:
            made = Relay(target)
            stack.callback(made.close)
            return made

        places: list[Place] = []
        for number in range(1, databases + 1):
            server = _start(kind, number)
            stack.callback(server.close)
            places.append(Place(server, relay(server.port)))
        zookeeper = stack.enter_context(ZookeeperServer())
        direct = make_shards(places, -(-shards // databases), "chaos")[:shards]
        ways: dict[object, int] = {place: place.relay.port for place in places}
        detours = [replace(shard, server=SqlEndpoint(kind, ways[shard.server])) for shard in direct]
        cluster = LocalCluster(zookeeper, detours, folder, SETTINGS)
        stack.callback(cluster.stop)
        cluster.shards = direct  # the checks of rows bypass the relays
        names, to_zookeeper, to_host = [f"host-{n}" for n in range(1, hosts + 1)], {}, {}
        for name in names:
            port = free_port()
            to_zookeeper[name], to_host[name] = relay(zookeeper.port), relay(port)
            ways_of_host = {
                "zookeeper": {"hosts": f"127.0.0.1:{to_zookeeper[name].port}"},
                "server": {"advertise": f"127.0.0.1:{to_host[name].port}"},
            }
            cluster.add(name, port, ways_of_host)
        cluster.start(*names)
        cluster.settled()
        yield Arena(cluster, places, to_zookeeper, to_host, folder, stack.callback)
