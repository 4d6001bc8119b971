"""The type hints of the public functions agree with their checks: mypy --strict refuses what they refuse."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import Any

from foqs.client import AckPolicy, Client, Delivery, FailureFilter, Item, ItemSpec, ItemState, Job, Producer, Worker
from foqs.client import AsyncClient, AsyncJob, AsyncProducer, AsyncWorker

client = Client("127.0.0.1:7707", "shop", timeout_ms=5_000)


def plain(item: Item) -> None: ...
def answers(item: Item) -> int: return 5
def with_job(item: Item, job: Job) -> dict[str, int]: return {}
def untyped(item: Any) -> Any: ...
def wrong_item(item: int) -> None: ...
async def waits(item: Item) -> None: ...
async def waits_with_job(item: Item, job: AsyncJob) -> None: ...
def yields(item: Item) -> Iterator[int]: yield 1
async def yields_async(item: Item) -> AsyncIterator[int]: yield 1
class Handler:
    def handle(self, item: Item, job: Job) -> None: ...
class ItemHandler:
    def handle(self, item: Item) -> None: ...
class Waits:
    async def handle(self, item: Item, job: AsyncJob) -> None: ...
class Calls:
    def __call__(self, item: Item) -> None: ...
class WaitsCalled:
    async def __call__(self, item: Item) -> None: ...


Worker(client, "mail", plain)
Worker(client, ["mail"], answers)
Worker(client, ["mail"], with_job, ack_policy="manual", time_limit_ms=0)
Worker(client, "mail", untyped, ack_policy=AckPolicy.ACK)
Worker(client, {"mail": 3, "default": 1}, plain)
Worker(client, {"mail": "3"}, plain)  # refused
Worker(client, "mail", lambda item: print(item.id))
Worker(client, "mail", Handler)
Worker(client, "mail", Handler())
Worker(client, "mail", ItemHandler)
Worker(client, "mail", ItemHandler())
Worker(client, "mail", Calls())
Worker(client, "mail", wrong_item)  # refused
Worker(client, "mail", waits)  # refused
Worker(client, "mail", waits_with_job)  # refused
Worker(client, "mail", yields)  # refused
Worker(client, "mail", yields_async)  # refused
Worker(client, "mail", Waits)  # refused
Worker(client, "mail", Waits())  # refused
Worker(client, "mail", WaitsCalled())  # refused
Worker(client, "mail", plain, ack_policy="nak")  # refused
Worker(client, "mail", plain, report_errors="yes")  # refused
Worker(client, "mail", plain, concurrency="4")  # refused
Worker(client, "mail", plain, lease_ms=timedelta(seconds=30))  # refused
Worker(client, "mail", plain, lease_ms=1.5)  # refused
Worker("127.0.0.1:7707", "mail", plain)  # refused

async_client = AsyncClient("127.0.0.1:7707", "shop")
AsyncWorker(async_client, "mail", waits)
AsyncWorker(async_client, "mail", waits_with_job)
AsyncWorker(async_client, "mail", untyped)
AsyncWorker(async_client, "mail", Waits)
AsyncWorker(async_client, "mail", Waits())
AsyncWorker(async_client, "mail", WaitsCalled())
AsyncWorker(async_client, "mail", plain)  # refused
AsyncWorker(async_client, "mail", with_job)  # refused
AsyncWorker(async_client, "mail", Handler())  # refused
AsyncWorker(async_client, "mail", yields_async)  # refused
AsyncWorker(client, "mail", waits)  # refused
Worker(async_client, "mail", plain)  # refused
AsyncProducer(client)  # refused

Client(["127.0.0.1:7707"])  # refused
Client(timeout_ms=1.5)  # refused
Client(routing="yes")  # refused
Client(pool_size=None)  # refused
Client(on_retry=5)  # refused

Producer(client, when_full="raise")
Producer(client, when_full="drop")  # refused
Producer(client, max_items="5")  # refused

client.enqueue("mail", b"x", priority=1, delivery=Delivery.AT_MOST_ONCE, throttle_keys=["a"])
client.enqueue("mail", "text")  # refused
client.enqueue("mail", b"x", priority="1")  # refused
client.enqueue("mail", b"x", delay_ms=0.5)  # refused
client.enqueue("mail", b"x", deliver_after_ms=datetime.now())  # refused
client.enqueue("mail", b"x", delivery=7)  # refused
client.enqueue("mail", b"x", prio=7)  # refused
ItemSpec("mail", b"x", delivery=7)  # refused
client.dequeue({"mail": 5}, wait_ms=5)
client.dequeue(["mail", "default"], most=5, weights={"mail": 3})
client.dequeue("mail", "5")  # refused
client.dequeue("mail", wait_ms=0.5)  # refused
client.dequeue(b"mail")  # refused
client.list_items("mail", state=ItemState.READY)
client.list_items("mail", state="ready")  # refused
client.try_hook(ItemSpec("mail", b""), hook="on_failure", source="")
client.try_hook(ItemSpec("mail", b""), hook="on_dequeue", source="")  # refused
client.redrive("mail", filter=FailureFilter(min_attempts=1), dry_run=True)
client.redrive("mail", dry_run="no")  # refused
client.redrive("mail", filter={})  # refused
"""


@pytest.mark.process
def test_mypy_refuses_what_the_checks_refuse(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", "", str(program)]
    environment = {"MYPYPATH": str(ROOT), "MYPY_CACHE_DIR": str(tmp_path / "cache")}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    found = {int(line) for line in re.findall(rf"{re.escape(str(program))}:(\d+): error", ended.stdout)}
    lines = PROGRAM.split("\n")
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    accepted = {number: lines[number - 1] for number in expected - found}
    refused = {number: lines[number - 1] for number in found - expected}
    assert (accepted, refused) == ({}, {}), ended.stdout + ended.stderr
