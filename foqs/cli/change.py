"""`foqs delete|purge`: remove items in any state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.cli.confirm import confirm_by_name
from foqs.cli.connection import Connection
from foqs.cli.errors import fail
from foqs.cli.help import QUEUE, command
from foqs.cli.lines import Count, entries_of_lines, settle
from foqs.cli.look import State, state_of
from foqs.cli.operators import YesOption
from foqs.cli.progress import counting
from foqs.cli.streams import write_line
from foqs.cli.unknown import say_unknown
from foqs.errors import FoqsError, Invalid, NotFound
from foqs.ids import parse_id
from foqs.shardmgr.operate import count as counted
from foqs.shardmgr.operate import name

if TYPE_CHECKING:
    from foqs.client import Client

_PAGE_ITEMS = 1_000


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    examples = (
        "foqs delete 281474976710657 0x1000000000002",
        "foqs items emails --state delayed --json | foqs delete -",
    )
    command(app, *examples, group=QUEUE)(delete)
    command(app, "foqs purge emails.dlq", "foqs purge emails --state delayed --yes", group=QUEUE)(purge)


def delete(
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Ids are decimal, or hexadecimal after 0x. - reads stdin: an id or an item as JSON in each line.",
        ),
    ],
    *,
    connection: Connection,
) -> None:
    """Delete items in any state, leased ones too.

    For each item that could not be deleted the command writes a JSON line with the error. The lines on stdin may be
    those of `foqs items` and `foqs dequeue`. A wrong line fails alone; its error has the number of the line.
    """
    from foqs.client.item_copies import id_of_line

    numbers: Iterable[tuple[int, int | Invalid]]
    if ids == ["-"]:
        numbers = entries_of_lines("ids", id_of_line)
    elif "-" in ids:
        fail("- reads the ids from stdin: give it alone, or ids", 2)
    else:
        try:
            numbers = [(0, item_id) for item_id in dict.fromkeys(map(parse_id, ids))]
        except Invalid as wrong:
            fail(wrong.message, 2)
    count = Count()
    with connection.client_for_stdin() if ids == ["-"] else connection.client() as client:
        for ended in settle(numbers, client.delete_items):
            count.add(ended)
            if ended.error is not None:
                named = {} if ended.entry is None else {"id": str(ended.entry)}
                write_line({**named, "error": ended.error.code.name, "message": ended.message})
    count.report("deleted")


def purge(
    topic: Annotated[str, typer.Argument(help="The command deletes the items of this topic.")],
    state: Annotated[State | None, typer.Option(help="The command deletes items in this state only.")] = None,
    leased: Annotated[
        bool, typer.Option("--leased", help="The command deletes leased items too, which consumers work on.")
    ] = False,
    yes: YesOption = False,
    *,
    connection: Connection,
) -> None:
    """Delete the items of a topic, after the topic's name is typed.

    The command lists the items, asks, and deletes the listed ones: an item that is enqueued later stays. Leased items
    stay too, without --leased or --state leased; an item that a consumer leases after the list is deleted.
    """
    if state is not None and leased:
        fail("--leased is for all states, and --state names one: give one of them", 2)
    from foqs.client import ItemState

    with connection.client() as client:
        ids: list[int] = []
        states: Counter[str] = Counter()
        kept = 0
        for item in client.list_items(topic, state=None if state is None else state.number, page_items=_PAGE_ITEMS):
            if item.state == ItemState.LEASED and state is None and not leased:
                kept += 1
                continue
            ids.append(item.id)
            states[state_of(item)] += 1
        stay = f"; {counted(kept, 'leased item')} {'stays' if kept == 1 else 'stay'}" if kept else ""
        where = f"topic {name(topic)} in namespace {name(connection.namespace)}"
        if not ids:
            print(f"{where} has no item to delete{stay}")
            if not kept:
                say_unknown(client, topic)
            return
        listed = ", ".join(f"{states[one.value]:,} {one.value}" for one in State if states[one.value])
        print(f"{where}: {listed}{stay}", flush=True)
        confirm_by_name(topic, f"delete {counted(len(ids), 'item')}", yes=yes)
        purge_items(client, ids)


def purge_items(client: Client, ids: list[int]) -> None:
    """Delete the items and print how many; end the command with an error if one failed."""
    deleted = gone = 0
    errors: list[FoqsError] = []
    with counting("deleted") as advance:
        for ended in settle(((0, item_id) for item_id in dict.fromkeys(ids)), client.delete_items):
            if ended.error is None:
                deleted += 1
                advance(1)
            elif isinstance(ended.error, NotFound):
                gone += 1
            else:
                errors.append(ended.error)
    print(f"{counted(deleted, 'item')} deleted{f'; {gone:,} were gone before' if gone else ''}", flush=True)
    if errors:
        fail(f"{counted(len(errors), 'item')} not deleted; the first error: {errors[0]}")
