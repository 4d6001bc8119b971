"""The command line: each module registers its own commands."""

from __future__ import annotations

from typing import Annotated

import typer

from foqs import __version__
from foqs.cli import (
    apply,
    auth,
    bench,
    chaos,
    config,
    doctor,
    hosts,
    items,
    lab,
    logs,
    serve,
    shards,
    spark,
    status,
    up,
)
from foqs.cli.errors import told

app = typer.Typer(
    name="foqs",
    help="A priority queue service over many MySQL shards.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
serve.register(app)
shards.register(app)
doctor.register(app)
apply.register(app)
hosts.register(app)
config.register(app)
status.register(app)
auth.register(app)
up.register(app)
chaos.register(app)
items.register(app)
bench.register(app)
lab.register(app)
spark.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
@told
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Logs go to stderr; FOQS_LOG__LEVEL (default info) says how much, FOQS_LOG__FORMAT (console, json) how."""
    logs.from_environment()
