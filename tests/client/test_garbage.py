"""Errors of the client leave nothing that only the garbage collector could free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from foqs.client import Client, FoqsError, ItemSpec, Job, Lease, Producer, Retry, Worker
from foqs.client.items import Item
from tests.support.garbage import kept_errors, no_collector, with_host
from tests.support.ports import held_port

NOWHERE = "127.0.0.1:1"
LONG = "t" * 300
ROUNDS = 3


def refused(work: Callable[[], Any]) -> None:
    with pytest.raises(FoqsError):
        work()


def calls(client: Client) -> None:
    """Calls that fail, as a whole or for some of their items."""
    unknown = Lease(id=1 << 40, lease=7)
    for work in (
        lambda: client.ack(unknown),
        lambda: client.nack(unknown),
        lambda: client.extend(unknown),
        lambda: client.release(unknown),
        lambda: client.enqueue(LONG, b""),
        lambda: client.dequeue(LONG),
        lambda: client.get_item(unknown.id),
        lambda: client.list_items(LONG),
    ):
        refused(work)
    for outcomes in (
        client.ack_many([unknown, unknown]),
        client.nack_many([unknown]),
        client.extend_many([unknown]),
        client.delete_items([unknown.id]),
        client.enqueue_many([ItemSpec(LONG, b""), ItemSpec("t", b"", priority=1 << 40), ItemSpec("t", b"x")]),
    ):
        assert any(isinstance(outcome, FoqsError) for outcome in outcomes)


def unreachable() -> None:
    with Client(NOWHERE, "n", timeout_ms=50) as client:
        refused(lambda: client.enqueue("t", b""))
        refused(client.server_info)
    silent = held_port()
    try:
        silent.listen()
        with Client(f"127.0.0.1:{silent.getsockname()[1]}", "n", timeout_ms=50) as client:
            refused(lambda: client.ack(Lease(id=1, lease=1)))
            refused(lambda: client.enqueue("t", b""))
    finally:
        silent.close()


def produce(client: Client) -> None:
    failed: list[str] = []
    with Producer(client, on_error=lambda spec, error: failed.append(type(error).__name__)) as producer:
        futures = [producer.enqueue("t", b"", priority=1 << 40), producer.enqueue(LONG, b"")]
    assert len(failed) == len(futures)
    while futures:
        future = futures.pop()
        with suppress(FoqsError):
            future.result()
        del future  # it keeps the error, whose traceback holds this frame


def work(client: Client, address: str) -> None:
    client.enqueue_many([ItemSpec("w", b"%d" % number, priority=number) for number in range(3)])

    def handle(item: Item, job: Job) -> None:
        if item.payload == b"0":
            raise ValueError("of the handler")
        if item.payload == b"1":
            raise Retry("later")
        worker.stop()

    with Client(address, "n") as own:
        worker = Worker(own, "w", handle, concurrency=1)
        worker.start()
        assert worker.join(30_000)


def errors_of(port: int) -> dict[str, Counter[str]]:
    address = f"127.0.0.1:{port}"
    found = {}
    with Client(address, "n") as client:
        parts: dict[str, Callable[[], None]] = {
            "calls": lambda: calls(client),
            "unreachable": unreachable,
            "produce": lambda: produce(client),
            "work": lambda: work(client, address),
        }
        for name, part in parts.items():
            part()
            with no_collector():
                for _ in range(ROUNDS):
                    part()
                if kept := kept_errors():
                    found[name] = kept
    return found


def test_errors_of_the_client_leave_no_cycles(tmp_path: Path) -> None:
    assert with_host(f"sqlite:///{tmp_path}/shard.db", errors_of) == {}
