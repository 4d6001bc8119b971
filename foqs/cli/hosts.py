"""`foqs hosts`: which hosts are to be emptied."""

from __future__ import annotations

from typing import Annotated

import typer

from foqs.cli.errors import told
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

HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="The host's id, as `foqs cluster status` shows it.")]

app = typer.Typer(help="Empty the hosts of a cluster, and fill them again.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="hosts")


@app.command("drain")
@told
def drain(
    host: HostArgument,
    config: ConfigOption,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = TIMEOUT_S,
    connect_timeout: ConnectOption = CONNECT_S,
) -> None:
    """Moves all shards of a host to others, and keeps it empty; waits until it serves nothing."""
    perform(
        config,
        lambda facts: operate.drain_host(facts, host),
        connect_s=connect_timeout,
        timeout_s=timeout,
        wait=not no_wait,
    )


@app.command("undrain")
@told
def undrain(host: HostArgument, config: ConfigOption, connect_timeout: ConnectOption = CONNECT_S) -> None:
    """Lets a host have shards again."""
    perform(config, lambda facts: operate.undrain_host(facts, host), connect_s=connect_timeout, timeout_s=TIMEOUT_S)
