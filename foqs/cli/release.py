"""`foqs release`: take the leased items of a topic away from workers that hang."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from foqs.checks import I64_MAX
from foqs.cli.connection import Connection
from foqs.cli.errors import fail
from foqs.cli.help import QUEUE, command
from foqs.cli.look import JsonOption
from foqs.cli.streams import json_text
from foqs.cli.tables import plain_table, show
from foqs.cli.unknown import say_unknown
from foqs.shardmgr.operate import name


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    examples = (
        "foqs release emails --worker host-3:4711",
        "foqs release emails --held-longer-than-ms 3600000",
    )
    command(app, *examples, group=QUEUE)(release)


def release(
    topic: Annotated[str, typer.Argument(help="The command ends leases of this topic.")],
    worker: Annotated[
        str | None, typer.Option(help="The command ends the leases of this worker only. Workers are named host:pid.")
    ] = None,
    held_longer_than_ms: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=I64_MAX >> 1,
            help="The command ends only leases that were given more than this many milliseconds ago; 0: all of them.",
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """End leases as if by time: the items are delivered again, and the attempts count.

    The command shows the number of ended leases: a table on a terminal, else JSON. At-most-once items are removed. A
    worker that still runs learns at its next extension that the lease is lost.
    """
    with connection.client() as client:
        released, missing = client.release_leases(topic, worker=worker, held_longer_than_ms=held_longer_than_ms)
        if not released:
            say_unknown(client, topic)
    if as_json or not sys.stdout.isatty():
        print(json_text({"released": released, "missing": missing}))
    else:
        table = plain_table("topic", "worker", "released", numbers=("released",), folded=("topic", "worker"))
        table.add_row(name(topic), "(all)" if worker is None else name(worker), f"{released:,}")
        show(table)
    if missing:
        fail(f"these hosts did not answer in time, and leases of their shards may stand: {', '.join(missing)}")
