"""`foqs release`: take the leased items of a topic away from workers that hang."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from foqs.checks import I64_MAX
from foqs.cli.connection import Connection
from foqs.cli.errors import fail
from foqs.cli.help import QUEUE, command


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
    *,
    connection: Connection,
) -> None:
    """End leases as if by time: the items are delivered again, and the attempts count.

    The command writes the number of ended leases as JSON. At-most-once items are removed. A worker that still runs
    learns at its next extension that the lease is lost.
    """
    with connection.client() as client:
        released, missing = client.release_leases(topic, worker=worker, held_longer_than_ms=held_longer_than_ms)
    print(json.dumps({"released": released, "missing": missing}), flush=True)
    if missing:
        fail(f"{len(missing)} of the hosts did not answer in time: leases of their shards may stand")
