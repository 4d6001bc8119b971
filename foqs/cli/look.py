"""`foqs topics|items|item`: commands that change nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.cli.connection import Connection
from foqs.cli.dead_filter import shown_cause
from foqs.cli.errors import fail, piped
from foqs.cli.help import QUEUE, command
from foqs.cli.streams import write_line
from foqs.cli.tables import duration, plain_table, preview, show
from foqs.cli.unknown import say_unknown
from foqs.errors import Invalid
from foqs.ids import parse_id
from foqs.shardmgr.operate import name

if TYPE_CHECKING:
    from rich.table import Table

    from foqs.client import ActiveTopic, Failure, Item, ItemState

TABLE_ITEMS = 100
_PAGE_ITEMS = 1_000

JsonOption = Annotated[
    bool, typer.Option("--json", help="The command writes JSON lines on a terminal too, in place of a table.")
]


class State(Enum):
    """The states of an item, as options name them."""

    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"

    @property
    def number(self) -> ItemState:
        from foqs.client import ItemState

        return ItemState[self.name]


def state_of(item: Item) -> str:
    """Return the name of the state of a listed item."""
    return next((state.value for state in State if state.number == item.state), "-")


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for function, examples in _EXAMPLES.items():
        command(app, *examples, group=QUEUE)(piped(function))


def topics(
    all_states: Annotated[
        bool, typer.Option("--all", "-a", help="The list has topics with delayed or leased items too, and counts them.")
    ] = False,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The list covers every namespace.")
    ] = False,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """List the topics that have ready items, or all: a table on a terminal, else JSON lines.

    Counts are approximate. In a table, "oldest" is how long the oldest ready item has waited at most.
    """
    with connection.client() as client:
        found = client.active_topics(all_namespaces=all_namespaces, all_states=all_states)
        if as_json or not sys.stdout.isatty():
            for topic in found:
                write_line({key: value for key, value in topic._asdict().items() if value is not None})
            return
        rows = list(found)
        now_ms = client.server_info().now_ms if rows else 0
    if not rows:
        where = "" if all_namespaces else f" in namespace {name(connection.namespace)}"
        print(f"no topic{where} has items" if all_states else f"no topic{where} has ready items; try --all")
        return
    show(topics_table(rows, now_ms, all_states=all_states))


def topics_table(topics: list[ActiveTopic], now_ms: int, *, all_states: bool) -> Table:
    """Return a row for each topic; "oldest" is the longest time that a ready item may have waited. `now_ms` is the
    server's time."""
    states = ("ready", "delayed", "leased") if all_states else ("ready",)
    headers = ("namespace", "topic", *states, "oldest", "hosts")
    table = plain_table(*headers, numbers=(*states, "oldest"), folded=("namespace", "topic", "hosts"))
    for one in topics:
        counts = (one.ready, one.delayed, one.leased) if all_states else (one.ready,)
        oldest = f"≤{duration(now_ms - one.oldest_ready_at_ms)}" if one.ready else "-"
        shown = ("-" if count is None else f"{count:,}" for count in counts)
        table.add_row(name(one.ns), name(one.topic), *shown, oldest, " ".join(one.hosts))
    return table


def items(
    topic: Annotated[str, typer.Argument(help="The items are in this topic.")],
    state: Annotated[State | None, typer.Option(help="The list has items in this state only.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"The list ends after this many items; 0: no limit. Default: {TABLE_ITEMS} in a table, all as JSON "
            "lines.",
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """List the items of a topic without leasing them: a table on a terminal, else JSON lines.

    In a table, "next" is the time until a delayed item is ready, or until a lease ends, and "failure" is why an item
    is a dead letter. The columns "fairness key" and "throttle keys" (those in the failure of a dead letter) are there
    if an item has such keys. `foqs enqueue --copy` and `foqs delete -` read the JSON lines.
    """
    from foqs.client.item_copies import item_json

    wanted = None if state is None else state.number
    in_table = sys.stdout.isatty() and not as_json
    most = (TABLE_ITEMS if in_table else None) if limit is None else limit or None
    with connection.client() as client:
        # One item more than the table has tells whether there are more.
        page = _PAGE_ITEMS if most is None else min(most + 1, _PAGE_ITEMS)
        found = client.list_items(topic, state=wanted, page_items=page)
        if not in_table:
            written = 0
            for item in islice(found, most):
                write_line(item_json(item))
                written += 1
            if not written:
                say_unknown(client, topic)
            return
        rows = list(islice(found, None if most is None else most + 1))
        if not rows and say_unknown(client, topic):
            return
        now_ms = client.server_info().now_ms if rows else 0
    if not rows:
        what = "items" if state is None else f"{state.value} items"
        print(f"topic {name(topic)} in namespace {name(connection.namespace)} has no {what}")
        return
    show(items_table(rows[:most], now_ms))
    if most is not None and len(rows) > most:
        print(f"foqs: these are the first {most:,} items; --limit shows more", file=sys.stderr)


def items_table(items: list[Item], now_ms: int) -> Table:
    """Return a row for each item. Failures, fairness keys and throttle keys have a column each if an item has one.
    `now_ms` is the server's time."""
    texts = {
        "fairness key": [name(_keys_of(one).fairness_key or "-") for one in items],
        "throttle keys": [" ".join(map(name, _keys_of(one).throttle_keys)) or "-" for one in items],
        "failure": [_failure(one) for one in items],
    }
    texts = {header: column for header, column in texts.items() if any(text != "-" for text in column)}
    table = plain_table(
        *("id", "state", "next", "priority", "attempt", "age", "payload", *texts),
        numbers=("id", "next", "priority", "attempt", "age"), folded=tuple(texts), rest="payload",
    )  # fmt: skip
    for at, one in enumerate(items):
        state = state_of(one)
        due_ms = {"delayed": one.deliver_after_ms, "leased": one.lease_expires_at_ms}.get(state)
        table.add_row(
            str(one.id),
            state,
            "-" if due_ms is None else duration(due_ms - now_ms),
            str(one.priority),
            str(one.attempt),
            duration(now_ms - one.enqueued_at_ms),
            preview(one.payload),
            *(column[at] for column in texts.values()),
        )
    return table


def _keys_of(item: Item) -> Item | Failure:
    return item if item.failure is None else item.failure


def _failure(item: Item) -> str:
    if item.failure is None:
        return "-"
    cause, reason = shown_cause(item.failure.cause), preview(item.failure.reason.encode())
    return f"{cause}: {reason}" if reason else cause


def item(
    item_id: Annotated[str, typer.Argument(metavar="ID", help="The item's id is decimal, or hexadecimal after 0x.")],
    *,
    connection: Connection,
) -> None:
    """Show one item as JSON, without leasing it."""
    from foqs.client.item_copies import item_json

    try:
        number = parse_id(item_id)
    except Invalid as error:
        fail(error.message, 2)
    with connection.client() as client:
        write_line(item_json(client.get_item(number)))


_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    topics: ("foqs topics --all", "foqs topics --all-namespaces"),
    items: ("foqs items emails --state leased", "foqs items emails --json > items.jsonl"),
    item: ("foqs item 281474976710657",),
}
