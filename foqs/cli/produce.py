"""`foqs enqueue`: one item by hand, or many from stdin."""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future
from typing import Annotated

import typer

from foqs.cli.connection import BATCH_ITEMS, Connection, write_line
from foqs.cli.errors import fail
from foqs.cli.progress import reading
from foqs.client import Duplicate, FoqsError, ItemSpec, Producer
from foqs.client.json_lines import spec_of_line


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
        with reading(sys.stdin.buffer) as advance:
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
        write_line({"id": str(int(item_id))} | ({"duplicate": True} if isinstance(item_id, Duplicate) else {}))
    except FoqsError as error:
        write_line({"error": error.code.name, "message": f"line {number}: {error.message}"})
        return True
    return False
