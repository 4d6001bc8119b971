"""`foqs dequeue|ack|nack`: items leased by hand, as JSON lines through pipes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.checks import I64_MAX, LONGEST_MS
from foqs.cli.connection import Connection
from foqs.cli.errors import fail, piped
from foqs.cli.help import QUEUE, command
from foqs.cli.lines import Count, entries_of_lines, settle
from foqs.cli.streams import write_line
from foqs.cli.unknown import say_unknown
from foqs.cli.written import write_items
from foqs.errors import FoqsError, Invalid
from foqs.ids import parse_id
from foqs.policies.remedy import throttle_command, topic_command
from foqs.shardmgr.operate import name

if TYPE_CHECKING:
    from foqs.client import Client, Items, Lease

MOST_ITEMS = 1_000

IdArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="The item's id is decimal, or hexadecimal after 0x. Without it, the command reads JSON lines from stdin.",
    ),
]
LeaseArgument = Annotated[
    str | None, typer.Argument(metavar="LEASE", help="The lease is the one that `foqs dequeue` wrote with the item.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for function, examples in _EXAMPLES.items():
        command(app, *examples, group=QUEUE)(piped(function) if function is dequeue else function)


def dequeue(
    topic: Annotated[str, typer.Argument(help="The items come from this topic.")],
    count: Annotated[int, typer.Option(min=1, help="The command takes at most this many items.")] = 1,
    wait_ms: Annotated[
        int,
        typer.Option(
            min=0,
            max=LONGEST_MS,
            help="The server waits this many milliseconds for the first item; 0: it answers at once.",
        ),
    ] = 0,
    lease_ms: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LONGEST_MS,
            help="The leases last this many milliseconds. Default: as the item or the server says.",
        ),
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack", help="The command acks each item after writing it: it is not delivered again.")
    ] = False,
    *,
    connection: Connection,
) -> None:
    """Lease items and write them as JSON lines, which `foqs ack` and `foqs nack` read.

    A payload that is UTF-8 text is in `payload`, any other in `payload_base64`. If stdout closes early, the command
    gives back the items that it did not write. If there are none and the host says why, a line on stderr has the
    reason.
    """
    failed: list[FoqsError] = []
    total = 0
    with connection.client() as client:
        while count > 0 and (
            found := client.dequeue(topic, min(count, MOST_ITEMS), wait_ms=wait_ms, lease_ms=lease_ms)
        ):
            write_items(client, found, to_ack=ack)
            if ack:
                failed += [error for error in client.ack_many(found) if error is not None]
            count -= len(found)
            total += len(found)
            wait_ms = 0
        if not total and found.reason is None:
            say_unknown(client, topic)
    if not total:
        say_why_empty(found, topic, connection.namespace)
    if failed:
        fail(f"{len(failed)} items could not be acked: {failed[0].message}")


def say_why_empty(found: Items, topic: str, namespace: str) -> None:
    """Print why a dequeue found no items, if the host said so. A reason that this version does not know is printed as
    the host gave it."""
    if found.reason is None:
        return
    why = name(found.reason)
    if found.reason == "paused":
        why = f"topic {name(topic)} is paused ({topic_command('resume', namespace, topic)})"
    elif found.reason.startswith("throttled: "):
        again = "" if found.retry_after_ms is None else f", again in {found.retry_after_ms:,} ms"
        why = f"{why}{again} ({throttle_command('list', namespace)})"
    print(f"foqs: no items: {why}", file=sys.stderr)


def ack(
    item_id: IdArgument = None,
    lease: LeaseArgument = None,
    *,
    connection: Connection,
) -> None:
    """Ack one leased item, or many from stdin.

    Stdin holds the JSON lines with id and lease that `foqs dequeue` writes. For each line the command writes one JSON
    line: the id, or the error with the number of the line. A wrong line fails alone.
    """
    with _client(connection, item_id) as client:
        _each_lease(item_id, lease, "acked", client.ack_many)


def nack(
    item_id: IdArgument = None,
    lease: LeaseArgument = None,
    delay_ms: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=I64_MAX,
            help="The server delivers the item again after this many milliseconds; 0: at once. Default: at once.",
        ),
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="The server does not count the attempt: no work was begun.")
    ] = False,
    failed: Annotated[
        bool,
        typer.Option("--failed", help="The work failed: the policy of the topic decides when the item comes again."),
    ] = False,
    reject: Annotated[
        bool, typer.Option("--reject", help="The work can never succeed: the item is a dead letter at once.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option(help="The server writes this text to its log, and keeps it with a dead letter.")
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Give back one leased item, or many from stdin, for another delivery.

    Stdin holds the JSON lines with id and lease that `foqs dequeue` writes. For each line the command writes one JSON
    line: the id, or the error with the number of the line. A wrong line fails alone.
    """
    options = (("--release", release), ("--failed", failed), ("--reject", reject))
    ends = [option for option, given in options if given]
    if len(ends) > 1:
        fail(f"{' and '.join(ends)} exclude each other: give one of them", 2)
    if delay_ms and (release or reject):
        fail(f"--delay-ms does not go with {ends[0]}: the item has no delay then", 2)
    from foqs.client import Nack

    with _client(connection, item_id) as client:

        def give_back(leases: list[Lease]) -> list[FoqsError | None]:
            return client.nack_many(
                Nack.of(lease, delay_ms=delay_ms, reason=reason, release=release, failed=failed, reject=reject)
                for lease in leases
            )

        _each_lease(item_id, lease, "nacked", give_back)


def _client(connection: Connection, item_id: str | None) -> Client:
    return connection.client_for_stdin() if item_id is None else connection.client()


def _each_lease(
    item_id: str | None, lease: str | None, done: str, send: Callable[[list[Lease]], list[FoqsError | None]]
) -> None:
    """Write a JSON line for each lease; end with an error if one failed."""
    from foqs.client import Lease
    from foqs.client.item_copies import lease_of_line

    if (item_id is None) != (lease is None):
        fail("ID and LEASE belong together: give both, or neither to read from stdin", 2)
    leases: Iterable[tuple[int, Lease | Invalid]]
    if item_id is None:
        leases = entries_of_lines("leases as JSON", lease_of_line)
    else:
        leases = [(0, Lease(parse_id(item_id), parse_id(lease, "a lease")))]
    count = Count()
    for ended in settle(leases, send):
        count.add(ended)
        named = {"id": str(ended.entry.id)} if isinstance(ended.entry, Lease) else {}
        error = ended.error
        write_line(
            {**named, **({"ok": True} if error is None else {"error": error.code.name, "message": ended.message})}
        )
    count.report(done)


_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
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
}
