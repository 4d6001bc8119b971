"""`foqs hosts`: drain the hosts of a cluster, and undo it."""

from __future__ import annotations

from typing import Annotated

import typer

from foqs.cli.errors import told
from foqs.cli.help import OPERATE, command, commands
from foqs.cli.operators import (
    CONNECT_S,
    TIMEOUT_S,
    ConfigOption,
    ConnectOption,
    NoWaitOption,
    TimeoutOption,
    perform,
)
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
@told
def drain(
    host: HostArgument,
    config: ConfigOption,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = TIMEOUT_S,
    connect_timeout: ConnectOption = CONNECT_S,
) -> None:
    """Move all shards of a host to the other hosts, and keep it empty.

    The command waits until the host serves no shard. `foqs hosts undrain` undoes it.
    """
    perform(
        config,
        lambda facts: operate.drain_host(facts, host),
        connect_s=connect_timeout,
        timeout_s=timeout,
        wait=not no_wait,
    )


@command(app, "foqs hosts undrain host-2:7707 --config foqs.toml")
@told
def undrain(host: HostArgument, config: ConfigOption, connect_timeout: ConnectOption = CONNECT_S) -> None:
    """Let a drained host take shards again."""
    perform(config, lambda facts: operate.undrain_host(facts, host), connect_s=connect_timeout, timeout_s=TIMEOUT_S)
