"""`foqs cluster up`: run a real cluster on this machine until Ctrl-C."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from foqs.cli.errors import fail
from foqs.cli.help import command
from foqs.cli.interrupt import ends_at_once
from foqs.cli.lab import interruptible
from foqs.cli.operators import quietly
from foqs.cli.status import app

if TYPE_CHECKING:
    from foqs_lab.cluster import LocalCluster

_LOOK_S = 0.5


def register(_parent: typer.Typer) -> None:
    command(app, "foqs cluster up", "foqs cluster up --hosts 2 --shards 4 --kind mysql --keep")(up)


def up(
    hosts: Annotated[int, typer.Option(min=1, max=16, help="The cluster has this many host processes.")] = 3,
    mysql: Annotated[int, typer.Option(min=1, max=8, help="The cluster has this many database servers.")] = 2,
    shards: Annotated[
        int, typer.Option(min=1, max=1_000, help="The database servers hold this many shards together.")
    ] = 8,
    kind: Annotated[
        Literal["mariadb", "mysql"], typer.Option(help="The database servers are of this kind.")
    ] = "mariadb",
    keep: Annotated[bool, typer.Option("--keep", help="The command keeps the configuration and the logs.")] = False,
) -> None:
    """Run a private cluster for development and tests until Ctrl-C.

    The command starts database servers, a ZooKeeper, and hosts that share the shards. Ctrl-C stops all of them and
    removes their files. --keep leaves the configuration and the logs.
    """
    with ends_at_once():
        from foqs_lab.cluster import local_cluster
        from foqs_lab.crash.rig import make_shards
        from foqs_lab.servers import ServerSettings, ServerUnavailable, find_zookeeper, start_database_server

    quietly()
    try:
        find_zookeeper()  # the servers start first, which takes seconds
        with interruptible(), ExitStack() as stack:
            folder = stack.enter_context(_folder(keep))
            settings = ServerSettings(buffer_pool_bytes=64 << 20)
            servers = [stack.enter_context(start_database_server(kind, settings)) for _ in range(mysql)]
            made = make_shards(servers, -(-shards // mysql), "foqs")[:shards]
            cluster = stack.enter_context(local_cluster(made, folder))
            cluster.start(*(f"host-{n}" for n in range(1, hosts + 1)))
            cluster.settled()
            _print(cluster)
            _watch(cluster)
    except ServerUnavailable as error:
        fail(str(error))
    except KeyboardInterrupt:
        print("the cluster is stopped", file=sys.stderr)


def _print(cluster: LocalCluster) -> None:
    for name, host in cluster.hosts.items():
        print(f"{name}: 127.0.0.1:{host.port}, admin http://127.0.0.1:{host.admin_port}, log {host.log}")
    print(f"zookeeper: {cluster.zookeeper.hosts}")
    for server in dict.fromkeys(shard.server for shard in cluster.shards):
        numbers = [shard.number for shard in cluster.shards if shard.server is server]
        print(f"{server.kind}: 127.0.0.1:{server.port}, shards {numbers[0]} to {numbers[-1]}")
    print(f"export FOQS_ADDRESS={','.join(f'127.0.0.1:{host.port}' for host in cluster.hosts.values())}")
    print(f"foqs cluster status --config {cluster.config}", flush=True)


def _watch(cluster: LocalCluster) -> None:
    """Report each host that ends. Returns at a signal; fails when no host is left."""
    alive = dict(cluster.hosts)
    while alive:
        time.sleep(_LOOK_S)
        for name, host in list(alive.items()):
            if not host.alive:
                del alive[name]
                print(f"host {name} has ended: read {host.log}", file=sys.stderr)
    fail("every host of the cluster has ended: read their logs (--keep keeps them)")


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="foqs-cluster-"))
    try:
        yield folder
    finally:
        if keep:
            print(f"configuration and logs: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
