"""The commands on single items, and on the items of a topic."""

from __future__ import annotations

from collections.abc import Callable

import typer

from foqs.cli.change import delete, purge
from foqs.cli.consume import ack, dequeue, nack
from foqs.cli.errors import piped
from foqs.cli.help import QUEUE, command
from foqs.cli.look import item, items, topics
from foqs.cli.move import move
from foqs.cli.produce import enqueue


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for function, examples in _EXAMPLES.items():
        command(app, *examples, group=QUEUE)(piped(function))


_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    enqueue: (
        """echo '{"payload": "hello"}' | foqs enqueue emails --priority -5""",
        "foqs enqueue emails hello",
        "foqs enqueue emails --raw < lines.txt",
        "foqs items emails --json | foqs enqueue --copy letters",
    ),
    dequeue: (
        "foqs dequeue emails --count 10 --wait-ms 5000 > items.jsonl",
        "foqs dequeue emails --ack",
    ),
    ack: (
        "foqs ack 281474976710657 7",
        "foqs ack < items.jsonl",
    ),
    nack: (
        "foqs nack 281474976710657 7 --delay-ms 60000 --reason 'mail server busy'",
        "foqs nack --release < items.jsonl",
        "foqs nack --reject --reason 'no such product' < items.jsonl",
    ),
    topics: ("foqs topics --all", "foqs topics --all-namespaces"),
    items: ("foqs items emails --state leased", "foqs items emails --json > items.jsonl"),
    item: ("foqs item 281474976710657",),
    move: ("foqs move emails.dlq emails --count 100",),
    delete: ("foqs delete 281474976710657 0x1000000000002", "foqs items emails --state delayed --json | foqs delete -"),
    purge: ("foqs purge emails.dlq", "foqs purge emails --state delayed --yes"),
}
