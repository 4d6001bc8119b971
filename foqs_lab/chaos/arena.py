"""A local cluster whose every connection can be cut or held: to the databases, to ZooKeeper, between hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from foqs_lab.cluster import LocalCluster
from foqs_lab.crash.rig import make_shards
from foqs_lab.relay import Relay
from foqs_lab.servers import (
    ContainerServer,
    DatabaseServer,
    Kind,
    ServerSettings,
    SqlEndpoint,
    ZookeeperServer,
    start_database_server,
)
from foqs_lab.servers.process import free_port

SESSION_MS = 3_000
SETTINGS = {"zookeeper": {"session_timeout_ms": SESSION_MS, "settle_ms": 2_000, "balance_every_ms": 10_000}}


class Arena:
    """`to_zookeeper` and `to_host` are the ways of, and to, each host; `to_database` that of all hosts to a server."""

    def __init__(
        self,
        cluster: LocalCluster,
        databases: Sequence[DatabaseServer | ContainerServer],
        to_database: Sequence[Relay],
        to_zookeeper: dict[str, Relay],
        to_host: dict[str, Relay],
    ) -> None:
        self.cluster = cluster
        self.databases = databases
        self.to_database = to_database
        self.to_zookeeper = to_zookeeper
        self.to_host = to_host

    @property
    def ports(self) -> list[int]:
        return [host.port for host in self.cluster.hosts.values()]

    def said(self, text: str) -> int:
        """How often the logs of all hosts hold it."""
        return sum(host.log.read_bytes().count(text.encode()) for host in self.cluster.hosts.values())


@contextmanager
def arena(kind: Kind, folder: Path, *, hosts: int, databases: int, shards: int) -> Iterator[Arena]:
    """Hosts that serve all shards; everything is ended at the end."""
    with ExitStack() as stack:

        def relay(target: int) -> Relay:
            made = Relay(target)
            stack.callback(made.close)
            return made

        settings = ServerSettings(buffer_pool_bytes=64 << 20)
        servers: list[DatabaseServer | ContainerServer] = []
        for _ in range(databases):
            servers.append(start_database_server(kind, settings))
            stack.enter_context(servers[-1])
        ways: dict[SqlEndpoint, Relay] = {server: relay(server.port) for server in servers}
        zookeeper = stack.enter_context(ZookeeperServer())
        direct = make_shards(servers, -(-shards // databases), "chaos")[:shards]
        detours = [replace(shard, server=SqlEndpoint(kind, ways[shard.server].port)) for shard in direct]
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
        yield Arena(cluster, servers, list(ways.values()), to_zookeeper, to_host)
