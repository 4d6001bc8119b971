"""`foqs enqueue|dequeue|ack|nack|topics|item`: single items by hand, or many as JSON lines through pipes."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import IO, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from foqs.cli.errors import fail, piped
from foqs.cli.help import QUEUE, command
from foqs.cli.written import write_items
from foqs.client import Client, Duplicate, FoqsError, ItemSpec, Lease, Nack, Producer
from foqs.client.json_lines import item_json, lease_of_line, spec_of_line
from foqs.errors import Invalid, NotSent
from foqs.ids import parse_id

DEFAULT_ADDRESS = "127.0.0.1:7707"
BATCH_ITEMS = 500
MOST_ITEMS = 1_000
TIMEOUT_MS = 10_000
_CONNECTION = "Connection"


@dataclass(frozen=True, slots=True)
class Connection:
    """The options of a command that calls a host."""

    address: Annotated[
        str,
        typer.Option(
            envvar="FOQS_ADDRESS",
            rich_help_panel=_CONNECTION,
            help="The command connects to this host:port. Commas separate several.",
        ),
    ] = DEFAULT_ADDRESS
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", "-n", rich_help_panel=_CONNECTION, help="The command works in the namespace of this tenant."
        ),
    ] = "default"
    token: Annotated[
        str | None,
        typer.Option(
            envvar="FOQS_TOKEN",
            rich_help_panel=_CONNECTION,
            help="This credential identifies the caller. @FILE reads it from a file.",
        ),
    ] = None
    tls: Annotated[
        str | None,
        typer.Option(
            envvar="FOQS_CLIENT_TLS",
            metavar="on|KEY=VALUE,...",
            rich_help_panel=_CONNECTION,
            help="The connection uses TLS: `on`, or any of ca_file, cert_file, key_file and server_name.",
        ),
    ] = None

    def client(self) -> Client:
        # A command makes too few calls to gain from learning which host serves which topic.
        return Client(
            self.address,
            self.namespace,
            token=self.token,
            tls=self.tls,
            timeout_ms=TIMEOUT_MS,
            routing=False,
            on_retry=_say_retry,
        )


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
        command(app, *examples, group=QUEUE)(piped(function))


def enqueue(
    topic: Annotated[str, typer.Argument(help="Items that name no topic go to this one.")],
    raw: Annotated[bool, typer.Option("--raw", help="Each line of stdin is one payload, without JSON.")] = False,
    priority: Annotated[
        int,
        typer.Option(
            min=-(1 << 31),
            max=(1 << 31) - 1,
            help="Items that name no priority get this one. A lower number is more urgent.",
        ),
    ] = 0,
    delay_ms: Annotated[
        int | None, typer.Option(help="Items that name no time are delivered after this many milliseconds.")
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Enqueue items from stdin: JSON lines, or raw payloads.

    A JSON line holds `payload` (text) or `payload_base64`. It may hold topic, priority, delay_ms, deliver_after_ms,
    lease_ms, ttl_ms, metadata or metadata_base64, headers, dedup_key, and delivery ("AT_LEAST_ONCE" or
    "AT_MOST_ONCE").

    For each line the command writes one JSON line: the item's id, or the error with the number of the line.
    """
    failed = total = 0
    with connection.client() as client, Producer(client, max_items=BATCH_ITEMS, in_flight=1) as producer:
        waiting: deque[tuple[int, Future[int]]] = deque()
        with _progress(sys.stdin.buffer) as advance:
            for number, line in enumerate(sys.stdin.buffer, 1):
                advance(len(line))
                if not raw and not line.strip():
                    continue
                total += 1
                waiting.append((number, _submit(producer, line, topic, raw, priority, delay_ms)))
                while waiting and (waiting[0][1].done() or len(waiting) > 4 * BATCH_ITEMS):
                    failed += _write_outcome(*waiting.popleft())
            producer.flush()
            while waiting:
                failed += _write_outcome(*waiting.popleft())
    if failed:
        fail(f"{failed} of {total} items were not enqueued")


def _submit(producer: Producer, line: bytes, topic: str, raw: bool, priority: int, delay_ms: int | None) -> Future[int]:
    try:
        if raw:
            spec = ItemSpec(topic, line.removesuffix(b"\n"), priority=priority, delay_ms=delay_ms)
        else:
            spec = spec_of_line(line, topic=topic, priority=priority, delay_ms=delay_ms)
        return producer.submit(spec)
    except FoqsError as error:
        future: Future[int] = Future()
        future.set_exception(error)
        return future


def _write_outcome(number: int, future: Future[int]) -> bool:
    """Write the outcome of line `number`. True if it failed."""
    try:
        item_id = future.result()
        _write({"id": str(int(item_id))} | ({"duplicate": True} if isinstance(item_id, Duplicate) else {}))
    except FoqsError as error:
        _write({"error": error.code.name, "message": f"line {number}: {error.message}"})
        return True
    return False


def dequeue(
    topic: Annotated[str, typer.Argument(help="The items come from this topic.")],
    count: Annotated[int, typer.Option(min=1, help="The command takes at most this many items.")] = 1,
    wait_ms: Annotated[
        int, typer.Option(min=0, help="The server waits this many milliseconds for the first item.")
    ] = 0,
    lease_ms: Annotated[
        int | None,
        typer.Option(help="The leases last this many milliseconds. Default: as the item or the server says."),
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack", help="The command acks each item after writing it: it is not delivered again.")
    ] = False,
    *,
    connection: Connection,
) -> None:
    """Lease items and write them as JSON lines, which `foqs ack` and `foqs nack` read.

    A payload that is UTF-8 text is in `payload`, any other in `payload_base64`. If stdout closes early, the command
    gives back the items that it did not write.
    """
    failed: list[FoqsError] = []
    with connection.client() as client:
        while count > 0 and (
            found := client.dequeue(topic, min(count, MOST_ITEMS), wait_ms=wait_ms, lease_ms=lease_ms)
        ):
            write_items(client, found, to_ack=ack)
            if ack:
                failed += [error for error in client.ack_many(found) if error is not None]
            count -= len(found)
            wait_ms = 0
    if failed:
        fail(f"{len(failed)} items could not be acked: {failed[0].message}")


def ack(
    item_id: IdArgument = None,
    lease: LeaseArgument = None,
    *,
    connection: Connection,
) -> None:
    """Ack one leased item, or many from stdin.

    Stdin holds the JSON lines with id and lease that `foqs dequeue` writes.
    """
    with connection.client() as client:
        _each_lease(item_id, lease, "acked", client.ack_many)


def nack(
    item_id: IdArgument = None,
    lease: LeaseArgument = None,
    delay_ms: Annotated[
        int | None,
        typer.Option(help="The server delivers the item again after this many milliseconds. Default: at once."),
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="The server does not count the attempt: no work was begun.")
    ] = False,
    reason: Annotated[str | None, typer.Option(help="The server writes this text to its log.")] = None,
    *,
    connection: Connection,
) -> None:
    """Give back one leased item, or many from stdin, for another delivery.

    Stdin holds the JSON lines with id and lease that `foqs dequeue` writes.
    """
    with connection.client() as client:

        def give_back(leases: list[Lease]) -> list[FoqsError | None]:
            return client.nack_many(
                Nack.of(lease, delay_ms=delay_ms, release=release, reason=reason) for lease in leases
            )

        _each_lease(item_id, lease, "nacked", give_back)


def _each_lease(
    item_id: str | None, lease: str | None, done: str, send: Callable[[list[Lease]], list[FoqsError | None]]
) -> None:
    """Write a JSON line for each lease; end with an error if one failed."""
    if (item_id is None) != (lease is None):
        fail("ID and LEASE belong together: give both, or neither to read from stdin", 2)
    leases: Iterator[Lease]
    if item_id is None:
        leases = (lease_of_line(line, number) for number, line in enumerate(sys.stdin.buffer, 1) if line.strip())
    else:
        leases = iter([Lease(parse_id(item_id), parse_id(lease, "a lease"))])
    failed = total = 0
    while chunk := list(islice(leases, BATCH_ITEMS)):
        for sent, error in zip(chunk, send(chunk), strict=True):
            total += 1
            failed += error is not None
            said = {"ok": True} if error is None else {"error": error.code.name, "message": error.message}
            _write({"id": str(sent.id), **said})
        sys.stdout.flush()
    if failed:
        fail(f"{failed} of {total} items were not {done}")


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
                _write(topic._asdict())
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
        _write(item_json(client.get_item(number)))


_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    enqueue: (
        """echo '{"payload": "hello"}' | foqs enqueue emails --priority -5""",
        "foqs enqueue emails --raw < lines.txt",
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
    ),
    topics: ("foqs topics --all-namespaces",),
    item: ("foqs item 281474976710657",),
}


# ------------------------------------------------------------------------------------------ the terminal


def _say_retry(error: FoqsError, left_s: float) -> None:
    hint = (
        "; check that a server runs there, or name another with --address or FOQS_ADDRESS"
        if isinstance(error, NotSent)
        else ""
    )
    print(f"foqs: {error.message}; retrying for up to {left_s:.0f} s{hint}", file=sys.stderr, flush=True)


def _write(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


@contextmanager
def _progress(source: IO[bytes]) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr if stderr is a terminal, and neither stdin nor stdout is one."""
    if not sys.stderr.isatty() or sys.stdout.isatty() or source.isatty():
        yield lambda _bytes: None
        return
    about = os.fstat(source.fileno())
    total = about.st_size if stat.S_ISREG(about.st_mode) else None
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.fields[items]:,} items"), TimeElapsedColumn())
    bar = Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        # Otherwise rich sends the lines for stdout through its own console, to stderr.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task("enqueue", total=total, items=0)
        items = seen = 0

        def advance(count: int) -> None:
            nonlocal items, seen
            items, seen = items + 1, seen + count
            if items % 100 == 0:
                bar.update(task, completed=seen, items=items)

        yield advance
