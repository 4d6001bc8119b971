"""`foqs enqueue`: one item by hand, or many from stdin."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.bounds import MOST_WEIGHT
from foqs.checks import I32_MAX, I64_MAX
from foqs.cli import streams
from foqs.cli.connection import BATCH_ITEMS, Connection, server_clock, stdin_lines
from foqs.cli.errors import fail
from foqs.cli.help import QUEUE, command
from foqs.cli.progress import reading
from foqs.cli.streams import write_line
from foqs.errors import FoqsError
from foqs.ids import Duplicate
from foqs.travel import bare

if TYPE_CHECKING:
    from foqs.client import ItemOptions, ItemSpec, Producer


def register(app: typer.Typer) -> None:
    command(
        app,
        """echo '{"payload": "hello"}' | foqs enqueue emails --priority -5""",
        "foqs enqueue emails hello",
        "foqs enqueue emails --raw < lines.txt",
        "foqs items emails --json | foqs enqueue --copy letters",
        group=QUEUE,
    )(enqueue)


def enqueue(
    topic: Annotated[
        str | None,
        typer.Argument(help="Items that name no topic go to this one. With --copy, all copies do. Default: their own."),
    ] = None,
    text: Annotated[
        str | None, typer.Argument(help="The command enqueues one item with this payload, and does not read stdin.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Each line of stdin is one payload, without JSON.")] = False,
    copy: Annotated[
        bool, typer.Option("--copy", help="Stdin holds items as `foqs dequeue` and `foqs items` write them.")
    ] = False,
    priority: Annotated[
        int,
        typer.Option(
            min=-I32_MAX - 1,
            max=I32_MAX,
            help="Items that name no priority get this one. A lower number is more urgent.",
        ),
    ] = 0,
    delay_ms: Annotated[
        int | None,
        typer.Option(
            min=0, max=I64_MAX, help="Items that name no time are delivered after this many milliseconds; 0: at once."
        ),
    ] = None,
    fairness_key: Annotated[
        str | None, typer.Option(help="Items that name no fairness key are of this tenant.")
    ] = None,
    throttle_key: Annotated[
        list[str] | None,
        typer.Option(help="Items that name no throttle keys have this one. Repeat the option for several keys."),
    ] = None,
    weight: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_WEIGHT, help="The tenants of items that name no weight have this one from now on."
        ),
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Enqueue one item, or items from stdin: JSON lines, raw payloads, or copies of other items.

    A JSON line holds `payload` (text) or `payload_base64`. It may hold topic, priority, delay_ms, deliver_after_ms,
    lease_ms, ttl_ms, expires_at_ms, metadata or metadata_base64, headers, dedup_key, fairness_key, throttle_keys (a
    list), weight, and delivery ("AT_LEAST_ONCE" or "AT_MOST_ONCE").

    With --copy the command reads the lines that `foqs dequeue` and `foqs items` write. A copy is a new item: it has the
    payload, headers, metadata, priority, delivery, fairness key, throttle keys, time and end of the TTL. A time that
    has passed means now, and a copy whose TTL is over is removed at once.

    For each item the command writes one JSON line: the id, or the error with the number of the line.
    """
    if topic is None and not copy:
        fail("name the topic of the items: foqs enqueue TOPIC", 2)
    if text is not None and (raw or copy):
        fail(f"{'--raw' if raw else '--copy'} is for items from stdin, and TEXT is one item: give one of them", 2)
    if raw and copy:
        fail("--raw lines are payloads, and --copy lines are items: give one of them", 2)
    options: ItemOptions = {
        "priority": priority,
        "delay_ms": delay_ms,
        "fairness_key": fairness_key,
        "throttle_keys": throttle_key,
        "weight": weight,
    }
    if text is not None:
        with connection.client() as client:
            item_id = str(client.enqueue(topic or "", os.fsencode(text), **options))
        write_line({"id": item_id})
        streams.say_done(f"item {item_id} is enqueued")
        return

    from foqs.client import ItemSpec, Producer
    from foqs.client.item_copies import copy_of_line, spec_of_line

    def spec(line: bytes) -> ItemSpec:
        if copy:
            return copy_of_line(line, topic=topic, now_ms=now_ms, **options)
        if raw:
            return ItemSpec(topic or "", line.removesuffix(b"\n"), **options)
        return spec_of_line(line, topic=topic or "", **options)

    failed = total = 0
    first_error = ""
    waiting: deque[tuple[int, Future[int]]] = deque()

    def write_oldest() -> None:
        nonlocal failed, first_error, total
        error = _write_outcome(*waiting[0])  # Ctrl-C may end the wait for it
        waiting.popleft()
        total += 1
        if error is not None:
            failed += 1
            first_error = first_error or error

    def write_rest() -> None:
        producer.flush()
        while waiting:
            write_oldest()

    with (
        connection.client_for_stdin() as client,
        Producer(client, max_items=BATCH_ITEMS, in_flight=1) as producer,
        reading(sys.stdin.buffer) as advance,
    ):
        now_ms = server_clock(client)
        try:
            for number, line in stdin_lines("payloads" if raw else "items as JSON", raw=raw):
                advance(len(line))
                if not raw and not line.strip():
                    continue
                waiting.append((number, _submit(producer, spec, line)))
                while waiting and (waiting[0][1].done() or len(waiting) > 4 * BATCH_ITEMS):
                    write_oldest()
            write_rest()
        except BaseException:  # the producer sends the items that it has
            write_rest()
            streams.say_done(f"{total - failed} items are enqueued")
            raise
    if failed:
        fail(f"{failed} of {total} items were not enqueued; the first error: {first_error}")
    streams.say_done(f"all {total} items are enqueued")


def _submit(producer: Producer, spec: Callable[[bytes], ItemSpec], line: bytes) -> Future[int]:
    try:
        return producer.submit(spec(line))
    except FoqsError as error:
        future: Future[int] = Future()
        future.set_exception(bare(error))
        return future


def _write_outcome(number: int, future: Future[int]) -> str | None:
    """Write the outcome of line `number`. Return the error of a line that failed."""
    try:
        item_id = future.result()
        write_line({"id": str(int(item_id))} | ({"duplicate": True} if isinstance(item_id, Duplicate) else {}))
    except FoqsError as error:
        message = f"line {number}: {error.message}"
        write_line({"error": error.code.name, "message": message})
        return message
    return None
