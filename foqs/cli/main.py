"""The command line: each module registers its own commands."""

from __future__ import annotations

from typing import Annotated

import typer

from foqs import __version__, build
from foqs.cli import (
    apply,
    auth,
    bench,
    chaos,
    config,
    dead,
    doctor,
    explain,
    hook,
    hosts,
    items,
    lab,
    logs,
    release,
    serve,
    settings,
    shard_settings,
    shards,
    spark,
    status,
    throttle,
    topic,
    up,
)
from foqs.cli.errors import report_errors
from foqs.cli.help import top

app = typer.Typer(
    name="foqs",
    pretty_exceptions_enable=False,
    add_completion=False,
    **top(
        "A priority queue service over many MySQL shards.",
        "foqs dev",
        "foqs enqueue emails hello",
        "foqs dequeue emails --ack",
    ),
)
# The order of the groups in `foqs --help`, and of the commands in each.
EVERY = (
    serve,
    items,
    dead,
    release,
    explain,
    spark,
    doctor,
    config,
    shards,
    apply,
    shard_settings,
    hosts,
    settings,
    topic,
    throttle,
    hook,
    status,
    up,
    auth,
    bench,
    chaos,
    lab,
)
for commands in EVERY:
    commands.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"foqs {__version__} ({build()})")
        raise typer.Exit


@app.callback()
@report_errors
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="The command prints its version and exits."),
    ] = False,
) -> None:
    """Set up logging to stderr as FOQS_LOG__LEVEL (default info) and FOQS_LOG__FORMAT (console or json) say."""
    logs.from_environment()
