"""No request leaves what only the garbage collector could free: hosts let it run rarely. So memory stays level."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from pathlib import Path

from foqs.client import Client
from foqs.config.load import Config
from foqs.config.schema import AuthSection, ServerSection, ShardSection
from foqs.idl import idl
from foqs.server.node import Node
from foqs.store.maintenance import create_schema
from foqs.store.sql import SqlStore
from tests.api.refusals import METHODS, requests
from tests.api.wire import Refused, Wire
from tests.rpc.serving import framed, message
from tests.support.garbage import kept_errors, no_collector, with_host

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


# --------------------------------------------------------------------------------- requests that are refused

SOAK_ROUNDS = 8
NEVER_REFUSED = {"GetServerInfo", "GetStatus"}
PRINCIPALS = """
[principals.operator]
rights = { "*" = ["admin"] }
token_sha256 = "%s"
"""


def refused(wire: Wire, method: str) -> list[dict[str, object]]:
    """Send each request of a method once. Return the ones that the host refused."""
    found = []
    for fields in requests(method):
        try:
            wire.ask(method, **fields)
        except Refused:
            found.append(fields)
    return found


def refuse_each(port: int) -> dict[str, Counter[str]]:
    with Wire(("127.0.0.1", port)) as wire:
        for method in METHODS:
            refused(wire, method)
        kept = {}
        with no_collector():
            for method in METHODS:
                assert refused(wire, method) or method in NEVER_REFUSED, method
                if found := kept_errors():
                    kept[method] = found
    return kept


def test_refused_requests_leave_no_errors(shard_url: str) -> None:
    assert with_host(shard_url, refuse_each) == {}


def test_requests_without_a_proof_leave_no_errors(tmp_path: Path) -> None:
    file = tmp_path / "principals.toml"
    file.write_text(PRINCIPALS % ("0" * 64))
    assert with_host(f"sqlite:///{tmp_path}/shard.db", refuse_each, AuthSection(principals_file=file)) == {}


def blocks_of(wire: Wire, frames: list[bytes], rounds: int) -> int:
    """Return how many blocks of memory are left by `rounds` of requests. Nothing is encoded or decoded here."""
    before = sys.getallocatedblocks()
    for _ in range(rounds):
        for frame in frames:
            wire.send(frame)
            assert wire.frame() is not None
    return sys.getallocatedblocks() - before


def soak(port: int) -> dict[str, float]:
    """Return the methods whose requests leave memory, with the blocks that each request leaves."""
    grown = {}
    with Wire(("127.0.0.1", port)) as wire, no_collector():
        for method in METHODS:
            kind = getattr(idl, f"{method}Request")
            # An accepted request may begin a read, which leaves blocks when the database answers.
            frames = [framed(message(method, kind(**fields))) for fields in refused(wire, method) or requests(method)]
            blocks_of(wire, frames, SOAK_ROUNDS)
            left = [blocks_of(wire, frames, SOAK_ROUNDS) for _ in range(4)]
            # A table that grows does so in one of the parts. The interpreter keeps some tuples for new ones.
            if min(left) > SOAK_ROUNDS * len(frames):
                grown[method] = min(left) / (SOAK_ROUNDS * len(frames))
    return grown


def test_memory_stays_level_under_refused_requests(shard_url: str) -> None:
    """Without the collector: no refused request of any method may leave a block of memory."""
    assert with_host(shard_url, soak) == {}
