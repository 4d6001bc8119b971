"""The hot path leaves nothing that only the garbage collector could free: it is made to run rarely."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

from foqs.client import Client
from foqs.config.load import Config
from foqs.config.schema import ServerSection, ShardSection
from foqs.server.node import Node
from foqs.store.schema import create_schema
from foqs.store.sql import SqlStore

ROUNDS = 50
ITEMS = 20


def live(port: int, rounds: int) -> None:
    """Every kind of request of an item's life, `rounds` times."""
    with Client(f"127.0.0.1:{port}", "test") as client:
        for _ in range(rounds):
            for _ in range(ITEMS):
                client.enqueue("t", b"x" * 100)
            items = client.dequeue("t", count=ITEMS, wait_ms=30_000)
            client.extend(items[0])
            client.nack(items[0])
            client.release(items[1])
            again = client.dequeue("t", count=ITEMS, wait_ms=30_000)
            client.ack_many([*items[2:], *again])
            assert not client.dequeue("empty", count=1, wait_ms=1)
            client.server_info()


async def garbage(url: str) -> int:
    """How many objects the collector finds after a long run of requests without it."""
    config = Config(server=ServerSection(port=0), shards=(ShardSection(id=1, url=url),))
    node = Node(config, lambda number: SqlStore(url, shard=number))
    _, port = await node.start()
    await asyncio.to_thread(live, port, 2)
    gc.collect()
    gc.disable()
    try:
        await asyncio.to_thread(live, port, ROUNDS)
        return gc.collect()
    finally:
        gc.enable()
        await node.stop()


def test_requests_leave_no_cycles(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shard.db"
    create_schema(url, 1)
    # What a client and its thread leave behind once is allowed; what each request leaves is not.
    assert asyncio.run(garbage(url)) < ROUNDS * ITEMS
