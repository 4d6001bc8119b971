"""`foqs delete|purge`: remove items in any state."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

import typer

from foqs.cli.confirm import confirm_by_name
from foqs.cli.connection import BATCH_ITEMS, Connection, stdin_lines, write_line
from foqs.cli.errors import fail
from foqs.cli.look import State, state_of
from foqs.cli.operators import YesOption
from foqs.cli.progress import counting
from foqs.client import Client, FoqsError, ItemState, NotFound
from foqs.client.json_lines import id_of_line
from foqs.errors import Invalid
from foqs.ids import parse_id
from foqs.shardmgr.change import count, name

_PAGE_ITEMS = 1_000


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
    those of `foqs items` and `foqs dequeue`.
    """
    numbers: Iterator[int]
    if ids == ["-"]:
        numbers = (id_of_line(line, at) for at, line in stdin_lines("ids") if line.strip())
    else:
        try:
            numbers = iter([parse_id(one) for one in ids])
        except Invalid as wrong:
            fail(wrong.message, 2)
    total = failed = 0
    with connection.client() as client:
        for item_id, error in _deleted(client, numbers):
            total += 1
            if error is not None:
                failed += 1
                write_line({"id": str(item_id), "error": error.code.name, "message": error.message})
    if failed:
        sys.stdout.flush()
        fail(f"{failed} of {total} items were not deleted")


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
        stay = f"; {count(kept, 'leased item')} {'stays' if kept == 1 else 'stay'}" if kept else ""
        where = f"topic {name(topic)} in namespace {name(connection.namespace)}"
        if not ids:
            print(f"{where} has no item to delete{stay}")
            return
        listed = ", ".join(f"{states[one.value]:,} {one.value}" for one in State if states[one.value])
        print(f"{where}: {listed}{stay}", flush=True)
        confirm_by_name(topic, f"delete {count(len(ids), 'item')}", yes=yes)
        purge_items(client, ids)


def purge_items(client: Client, ids: list[int]) -> None:
    """Delete the items and print how many; end the command with an error if one failed."""
    deleted = gone = 0
    errors: list[FoqsError] = []
    with counting("deleted") as advance:
        for _, error in _deleted(client, ids):
            if error is None:
                deleted += 1
                advance(1)
            elif isinstance(error, NotFound):
                gone += 1
            else:
                errors.append(error)
    print(f"{count(deleted, 'item')} deleted{f'; {gone:,} were gone before' if gone else ''}", flush=True)
    if errors:
        fail(f"{count(len(errors), 'item')} not deleted; the first error: {errors[0]}")


def _deleted(client: Client, ids: Iterable[int]) -> Iterator[tuple[int, FoqsError | None]]:
    """Delete the items, each once in a request. Yield the outcome of each."""
    left = iter(ids)
    while chunk := list(dict.fromkeys(islice(left, BATCH_ITEMS))):
        yield from zip(chunk, client.delete_items(chunk), strict=True)
