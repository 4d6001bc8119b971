"""`foqs explain`: why an item is not delivered, or none of a topic."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.cli.connection import Connection
from foqs.cli.errors import piped
from foqs.cli.help import QUEUE, command
from foqs.cli.look import JsonOption
from foqs.cli.streams import write_line
from foqs.cli.tables import duration, plain_table, show
from foqs.cli.unknown import say_unknown
from foqs.errors import Invalid
from foqs.ids import parse_id
from foqs.shardmgr.operate import name

if TYPE_CHECKING:
    from rich.table import Table

    from foqs.client import ExplainReason, Explanation


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, "foqs explain 281474976710657", "foqs explain mail --ns shop", group=QUEUE)(piped(explain))


def explain(
    what: Annotated[str, typer.Argument(metavar="ID|TOPIC", help="The command explains this item or topic.")],
    topic: Annotated[bool, typer.Option("--topic", help="The argument is a topic, although it is a number.")] = False,
    as_json: JsonOption = False,
    *,
    connection: Connection,
) -> None:
    """Say why an item is not delivered, or none of a topic: a table on a terminal, else JSON.

    The reasons are in the order in which they have to end. "until" is when one ends by itself.
    """
    number = None if topic else _id(what)
    in_table = sys.stdout.isatty() and not as_json
    with connection.client() as client:
        found = client.explain_topic(what) if number is None else client.explain(number)
        if number is None and any(code_name(reason) == "gone" for reason in found.reasons):
            say_unknown(client, what)
        now_ms = client.server_info().now_ms if in_table and found.reasons else 0
    if not in_table:
        write_line(shown(found))
        return
    subject = f"topic {name(what)}" if number is None else f"item {number}"
    print(headline(subject, found))
    if found.reasons:
        show(reasons_table(found, now_ms))


def headline(subject: str, found: Explanation) -> str:
    """Return the first line for a terminal."""
    state = "" if found.state is None else f" ({found.state.name.lower()})"
    if not found.reasons:
        return f"{subject}{state}: nothing keeps {'it' if found.state else 'its items'} from being delivered now"
    eta = "" if found.eta_ms is None else f", delivered in about {duration(found.eta_ms)}"
    return f"{subject}{state}{eta}"


def reasons_table(found: Explanation, now_ms: int) -> Table:
    """Return a row for each reason."""
    table = plain_table("reason", "until", "why", numbers=("until",), folded=("why",))
    for reason in found.reasons:
        until = "-" if reason.until_ms is None else duration(reason.until_ms - now_ms)
        table.add_row(code_name(reason), until, reason.text)
    return table


def shown(found: Explanation) -> dict[str, Any]:
    """Return the explanation as it is written in JSON, without the values that are not known."""
    reasons = [
        {key: value for key, value in (asdict(one) | {"code": code_name(one)}).items() if value is not None}
        for one in found.reasons
    ]
    rest = {"eta_ms": found.eta_ms, "state": found.state and found.state.name.lower()}
    return {"reasons": reasons} | {key: value for key, value in rest.items() if value is not None}


def code_name(reason: ExplainReason) -> str:
    """Return the name of a reason, for example `no_consumer`."""
    from foqs.client import Reason

    return reason.code.name.lower() if isinstance(reason.code, Reason) else str(reason.code)


def _id(text: str) -> int | None:
    try:
        return parse_id(text)
    except Invalid:
        return None
