"""`foqs topics|item`: commands that change nothing."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from foqs.cli.connection import Connection, write_line
from foqs.cli.errors import fail
from foqs.client.json_lines import item_json
from foqs.errors import Invalid
from foqs.ids import parse_id


def topics(
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The list covers every namespace.")
    ] = False,
    *,
    connection: Connection,
) -> None:
    """List the topics that have ready items: a table on a terminal, else JSON lines."""
    with connection.client() as client:
        found = client.active_topics(all_namespaces=all_namespaces)
        if not sys.stdout.isatty():
            for topic in found:
                write_line(topic._asdict())
            return
        table = Table("namespace", "topic", "ready (about)", "hosts")
        for topic in found:
            table.add_row(topic.ns, topic.topic, str(topic.ready), " ".join(topic.hosts))
    Console().print(table)


def item(
    item_id: Annotated[str, typer.Argument(metavar="ID", help="The item's id is decimal, or hexadecimal after 0x.")],
    *,
    connection: Connection,
) -> None:
    """Show one item as JSON, without leasing it."""
    try:
        number = parse_id(item_id)
    except Invalid as error:
        fail(error.message, 2)
    with connection.client() as client:
        write_line(item_json(client.get_item(number)))
