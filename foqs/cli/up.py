"""`foqs cluster up`: a real cluster on this machine, until Ctrl-C."""

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

from foqs.cli.errors import fail, told
from foqs.cli.interrupt import ends_at_once
from foqs.cli.lab import interruptible
from foqs.cli.operators import quietly
from foqs.cli.status import app

if TYPE_CHECKING:
    from foqs.lab.cluster import LocalCluster

_LOOK_S = 0.5


def register(_parent: typer.Typer) -> None:
    app.command("up")(up)


@told
def up(
    hosts: Annotated[int, typer.Option(min=1, max=16, help="Host processes.")] = 3,
    mysql: Annotated[int, typer.Option(min=1, max=8, help="Database servers.")] = 2,
    shards: Annotated[int, typer.Option(min=1, max=1_000, help="Shards, spread over the database servers.")] = 8,
    kind: Annotated[Literal["mariadb", "mysql"], typer.Option(help="Which database.")] = "mariadb",
    keep: Annotated[bool, typer.Option("--keep", help="Leave configuration and logs behind.")] = False,
) -> None:
    """Runs private database servers, a ZooKeeper, and hosts that share the shards; Ctrl-C takes all of it down.

    For development and tests: nothing of it outlives the command, but for what --keep leaves.
    """
    with ends_at_once():
        from foqs.lab.cluster import local_cluster
        from foqs.lab.crash.rig import make_shards
        from foqs.lab.servers import ServerSettings, ServerUnavailable, start_database_server

    quietly()
    try:
        with interruptible(), ExitStack() as stack:
            folder = stack.enter_context(_folder(keep))
            settings = ServerSettings(buffer_pool_bytes=64 << 20)
            servers = [stack.enter_context(start_database_server(kind, settings)) for _ in range(mysql)]
            made = make_shards(servers, -(-shards // mysql), "foqs")[:shards]
            cluster = stack.enter_context(local_cluster(made, folder))
            cluster.start(*(f"host-{n}" for n in range(1, hosts + 1)))
            cluster.settled()
            _tell(cluster)
            _watch(cluster)
    except ServerUnavailable as error:
        fail(str(error))
    except KeyboardInterrupt:
        print("taken down", file=sys.stderr)


def _tell(cluster: LocalCluster) -> None:
    for name, host in cluster.hosts.items():
        print(f"{name}: 127.0.0.1:{host.port}, admin http://127.0.0.1:{host.admin_port}, log {host.log}")
    print(f"zookeeper: {cluster.zookeeper.hosts}")
    for server in dict.fromkeys(shard.server for shard in cluster.shards):
        numbers = [shard.number for shard in cluster.shards if shard.server is server]
        print(f"{server.kind}: 127.0.0.1:{server.port}, shards {numbers[0]} to {numbers[-1]}")
    print(f"foqs cluster status --config {cluster.config}", flush=True)


def _watch(cluster: LocalCluster) -> None:
    """Until a signal, or until no host is left."""
    alive = dict(cluster.hosts)
    while alive:
        time.sleep(_LOOK_S)
        for name, host in list(alive.items()):
            if not host.alive:
                del alive[name]
                print(f"{name} has ended, see {host.log}", file=sys.stderr)
    fail("no host is left")


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="foqs-cluster-"))
    try:
        yield folder
    finally:
        if keep:
            print(f"left behind: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
