"""`foqs batch`: items that end together."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.bounds import YEAR_MS
from foqs.checks import counted
from foqs.cli.conditions import batch_id
from foqs.cli.connection import Connection
from foqs.cli.main import JsonOption, command, commands
from foqs.cli.terminal import duration, fail, in_table, piped, set_fields, write_line
from foqs.errors import Invalid

if TYPE_CHECKING:
    from foqs.client import Batch, ItemSpec

Id = Annotated[str, typer.Argument(metavar="ID", help="The batch has this id: decimal, or hexadecimal after 0x.")]

_ONE = "foqs batch show 281474976710657"
app = typer.Typer()
batches = commands(app, "batch", "Create, close, cancel and show batches, which enqueue an item when they end.", _ONE)


@command(
    batches,
    """foqs batch create --on-success '{"topic": "done", "payload": "all"}'""",
    "foqs batch create --ttl-ms 3600000 --parent 281474976710657",
)
def create(
    on_success: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="This item is enqueued when each member was acked, as `foqs enqueue` reads it."
        ),
    ] = None,
    on_end: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="This item is enqueued when each member has ended in any way."),
    ] = None,
    ttl_ms: Annotated[
        int | None,
        typer.Option(min=1_000, max=YEAR_MS, help="The batch ends after this time at the latest. Default: 7 days."),
    ] = None,
    parent: Annotated[str | None, typer.Option(metavar="ID", help="The batch becomes a member of this one.")] = None,
    *,
    connection: Connection,
) -> None:
    """Create a batch, and write its id as JSON.

    `foqs enqueue --batch ID` adds members. After `foqs batch close ID` it ends with the last one.
    """
    success, end = _callback("--on-success", on_success), _callback("--on-end", on_end)
    of = None if parent is None else batch_id(parent)
    with connection.client() as client:
        made = client.create_batch(on_success=success, on_end=end, ttl_ms=ttl_ms, parent=of)
    write_line({"id": str(made)})


@command(batches, "foqs batch close 281474976710657")
def close(batch: Id, *, connection: Connection) -> None:
    """Let a batch end with its last member: at once, if all have ended."""
    number = batch_id(batch)
    with connection.client() as client:
        client.close_batch(number)
    print(f"batch {number} is closed")


@command(batches, "foqs batch cancel 281474976710657")
def cancel(batch: Id, *, connection: Connection) -> None:
    """Remove the members that no consumer has, and refuse new ones.

    The batch ends when the other members have ended. One that has ended stays as it is.
    """
    number = batch_id(batch)
    with connection.client() as client:
        client.cancel_batch(number)
        found = client.get_batch(number)
    state = _state(found)
    print(f"batch {number} is cancelled" if state == "CANCELLED" else f"batch {number} had ended before: {state}")


@command(batches, _ONE, f"{_ONE} --json")
@piped
def show(batch: Id, as_json: JsonOption = False, *, connection: Connection) -> None:
    """Show the state of a batch, and how its members have ended: lines on a terminal, else JSON."""
    with connection.client() as client:
        found = client.get_batch(batch_id(batch))
        now_ms = client.server_info().now_ms if in_table(as_json) else 0
    if in_table(as_json):
        print("\n".join(lines(found, now_ms)))
    else:
        write_line(batch_json(found))


def lines(found: Batch, now_ms: int) -> list[str]:
    """Return what a terminal shows of a batch. `now_ms` is the server's time."""
    counts = found.counts
    members = counted(counts.members, "member", "has", "have")
    if found.ended_at_ms is not None:
        time = f"it ended {duration(now_ms - found.ended_at_ms)} ago"
    else:
        time = f"it ends in {duration(found.expires_at_ms - now_ms)} at the latest"
    made = [f"batch {found.id} is {_state(found)}: {time}", f"{counts.ended:,} of {members} ended"]
    made += [f"  {name.replace('_', ' ')}: {count:,}" for name, count in _ends(found).items() if count]
    if found.failed_ids:
        made.append(f"failed: {', '.join(map(str, found.failed_ids))}")
    told = {"parent": found.parent, "on_success is item": found.success_id, "on_end is item": found.end_id}
    return made + [f"{what} {number}" for what, number in told.items() if number is not None]


def batch_json(found: Batch) -> dict[str, Any]:
    """Return what `foqs batch show` writes. Fields that are not set are left out."""
    made = set_fields(asdict(found)) | {"state": _state(found), "counts": found.counts._asdict()}
    for name in ("id", "parent", "success_id", "end_id"):
        if name in made:
            made[name] = str(made[name])
    return made | {"failed_ids": list(map(str, found.failed_ids))}


def _state(found: Batch) -> str:
    """Return the name of the state, or the number of one that a newer host gave."""
    return getattr(found.state, "name", str(found.state))


def _ends(found: Batch) -> dict[str, int]:
    ends = found.counts._asdict()
    del ends["members"]
    return ends


def _callback(option: str, text: str | None) -> ItemSpec | None:
    """Return the item of an option, or end the command."""
    from foqs.client.item_copies import spec_of_line

    if text is None:
        return None
    try:
        made = spec_of_line(text.encode(), topic="")
    except Invalid as error:
        fail(f"{option}: {error.message}", 2)
    if not made.topic:
        fail(f"{option}: topic is missing", 2)
    return made
