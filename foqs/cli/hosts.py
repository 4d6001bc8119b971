"""`foqs hosts`: drain the hosts of a cluster, and undo it."""

from __future__ import annotations

from typing import Annotated

import typer

from foqs.cli.help import OPERATE, command, commands
from foqs.cli.operators import ClusterOptions, WaitOptions, perform
from foqs.shardmgr import operate

HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="The host has this id in `foqs cluster status`.")]

app = commands(
    "hosts",
    "Move all shards off a host of a cluster, or let it take shards again.",
    "foqs hosts drain host-2:7707 --config foqs.toml",
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, rich_help_panel=OPERATE)


@command(app, "foqs hosts drain host-2:7707 --config foqs.toml", "foqs hosts drain host-2:7707 -c foqs.toml --no-wait")
def drain(host: HostArgument, cluster: ClusterOptions, wait: WaitOptions) -> None:
    """Move all shards of a host to the other hosts, and keep it empty.

    The command waits until the host serves no shard. `foqs hosts undrain` undoes it.
    """
    perform(cluster, lambda facts: operate.drain_host(facts, host), wait)


@command(app, "foqs hosts undrain host-2:7707 --config foqs.toml")
def undrain(host: HostArgument, cluster: ClusterOptions) -> None:
    """Let a drained host take shards again."""
    perform(cluster, lambda facts: operate.undrain_host(facts, host))
