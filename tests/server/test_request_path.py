"""What one plain request enters, from its bytes to its reply: a ratchet against detours that no other test sees.

A plain item has no deduplication key, delay, header or TTL, and its host has no quotas and no other hosts. Lower a
ceiling with each change that shortens a path. A change that needs a higher one makes every request slower.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import uvloop

import foqs
from foqs.config.load import Config
from foqs.config.schema import ServerSection, ShardSection
from foqs.idl import idl
from foqs.server.node import Node
from foqs.store.maintenance import create_schema
from foqs.store.sql import SqlStore
from foqs_lab.bench import host
from tests.api.wire import Wire

PRODUCT = f"{Path(foqs.__file__).parent}/"
CLIENT = (f"{PRODUCT}client/", f"{PRODUCT}wire/client_codec.py")
CEILINGS = {
    "enqueue": (26, 50),
    "dequeue": (14, 22),
    "ack": (22, 45),
    "ack and dequeue": (33, 95),
}
"""The most product files, and calls of their functions, with two shards. A dequeue may set an alarm: two files.

The first three are counted on a host whose event loop runs the transactions, as it does with MariaDB and MySQL. The
last one is counted with SQLite."""
THROTTLED = (56, 293)
"""The most product files and functions that each throttled dequeue enters. It finds no token for its item and waits
until the host has one. How often it calls a function depends on the time that is left until then."""
Called = list[tuple[str, str]]
"""The file and the name of each function that is called."""
SAMPLES = 20
PARKED = 5
TOKENS_PER_S = 5


class Recorder:
    """A profile function of several threads: the product's calls of each request, from a read to the reply."""

    def __init__(self) -> None:
        self._recording = False
        self.requests: list[Called] = []

    def __enter__(self) -> None:
        sys.setprofile(self)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PRODUCT):
            if code.co_qualname == "ServedConnection.get_buffer" and not self._recording:
                self._recording = True
                self.requests.append([])
            if self._recording and not code.co_filename.startswith(CLIENT):
                self.requests[-1].append((code.co_filename, code.co_qualname))
        elif event == "return" and code.co_qualname == "ServedConnection.answer":
            self._recording = False

    async def of(self, request: Callable[[], Any]) -> tuple[Called, Any]:
        result = await asyncio.to_thread(request)
        assert not self._recording
        return self.requests[-1], result


async def _on_loop() -> dict[str, list[Called]]:
    recorder = Recorder()
    async with host.memory_node(2) as (node, _, polls):
        await host.run_round(node, polls, host.Plan(items=100, callers=1))
        with recorder:
            await host.run_round(node, polls, host.Plan(items=SAMPLES, callers=1))
    assert len(recorder.requests) == 3 * SAMPLES
    return {name: recorder.requests[at::3] for at, name in enumerate(("enqueue", "dequeue", "ack"))}


async def _on_threads(tmp_path: Path) -> dict[str, list[Called]]:
    urls = {number: f"sqlite:///{tmp_path}/{number}.db" for number in (1, 2)}
    for number, url in urls.items():
        create_schema(url, number)
    shards = tuple(ShardSection(id=number, url=url) for number, url in urls.items())
    node = Node(
        Config(server=ServerSection(port=0), shards=shards), lambda number: SqlStore(urls[number], shard=number)
    )
    recorder = Recorder()
    threading.setprofile(recorder)
    try:
        _, port = await node.start()
    finally:
        threading.setprofile(None)
    found: dict[str, list[Called]] = {"ack and dequeue": [], "throttled dequeue": []}
    wire = Wire(("127.0.0.1", port))
    with wire:
        await asyncio.to_thread(wire.put, "t", *[b"x"] * 100)  # dequeues are served from the windows
        with recorder:
            for _ in range(SAMPLES):
                (item,) = await asyncio.to_thread(wire.dequeue, "t")
                acks = [idl.AckItem(item.id, item.lease)]
                both = partial(wire.ask, "AckAndDequeue", ns=wire.ns, acks=acks, wants=[idl.TopicCount("t", 1)])
                calls, _ = await recorder.of(both)
                found["ack and dequeue"].append(calls)
            entries = {"throttle.key": f'{{"per_second": {TOKENS_PER_S}, "burst": 1}}'}
            await asyncio.to_thread(partial(wire.ask, "PutSettings", ns=wire.ns, entries=entries))
            await asyncio.to_thread(partial(wire.put, "slow", *[b"x"] * (PARKED + 1), throttle_keys=["key"]))
            await asyncio.to_thread(wire.one, "slow")  # takes the burst
            for _ in range(PARKED):
                calls, _ = await recorder.of(partial(wire.one, "slow"))
                found["throttled dequeue"].append(calls)
        await node.stop()
    return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Called]]:
    return uvloop.run(_on_threads(tmp_path_factory.mktemp("shards"))) | uvloop.run(_on_loop())


@pytest.mark.parametrize("request_name", CEILINGS)
def test_a_plain_request_takes_the_short_path(request_name: str, measured: dict[str, list[Called]]) -> None:
    # The least of several: now and then a timer runs in between.
    calls = min(measured[request_name], key=len)
    files = {file for file, _ in calls}
    most_files, most_calls = CEILINGS[request_name]
    assert len(files) <= most_files, sorted(files)
    assert len(calls) <= most_calls


def test_a_throttled_dequeue_takes_the_short_path(measured: dict[str, list[Called]]) -> None:
    functions = set.intersection(*map(set, measured["throttled dequeue"]))
    files = {file for file, _ in functions}
    most_files, most_functions = THROTTLED
    assert len(files) <= most_files, sorted(files)
    assert len(functions) <= most_functions, sorted(functions)
