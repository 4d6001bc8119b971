"""`foqs hosts`: list the hosts of a cluster, drain one, and undo it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from foqs.cli.errors import piped
from foqs.cli.help import OPERATE, command, commands
from foqs.cli.look import JsonOption
from foqs.cli.operators import ClusterOptions, WaitOptions, perform
from foqs.shardmgr import operate

HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="The host has this id in `foqs hosts list`.")]

app = commands(
    "hosts",
    "List the hosts of a cluster, move all shards off one, or let it take shards again.",
    "foqs hosts drain host-2:7707 --config foqs.toml",
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, rich_help_panel=OPERATE)


@command(app, "foqs hosts list --config foqs.toml", name="list")
@piped
def list_(cluster: ClusterOptions, as_json: JsonOption = False) -> None:
    """List the hosts of a cluster: a table on a terminal, else JSON lines.

    `foqs cluster status` shows the shards, too.
    """
    from foqs.cli.status import ask_cluster, document, hosts_table
    from foqs.cli.streams import write_line
    from foqs.cli.tables import show

    facts, answers = ask_cluster(cluster)
    if as_json or not sys.stdout.isatty():
        for row in document(facts, True, answers)["hosts"]:
            write_line(row)
    else:
        show(hosts_table(facts, answers))


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
