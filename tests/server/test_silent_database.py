"""A host without a cluster whose database server freezes (SIGSTOP), with transactions on the loop and in the thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from foqs.admin.readiness import View
from foqs.config.load import load
from foqs.event_loop import until
from foqs.idl import idl
from foqs.server.node import Node
from foqs.store.sql import SqlStore
from foqs_lab.cluster import make_shards
from tests.api.wire import Code, Wire, spec
from tests.conftest import NewServer

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(300)]
PATIENCE_S = 60
NOTE = ["shard 1: its database does not answer"]
SEEN_S = 2.0
ANSWERED_S = 2.5
BUSY_S = 1.0
"""Added to both for the stalls of a machine that runs other tests, too."""
FRESH_MS = 100
"""The host asks a quiet database for the next sign of life 400 ms after the last one."""


class ThreadStore(SqlStore):
    """All transactions run in the shard's thread, as over TLS."""

    plain_socket = None  # type: ignore[assignment]


async def took_s(condition: Callable[[], bool]) -> float:
    begun = time.monotonic()
    assert await until(condition, asyncio.get_running_loop().time() + PATIENCE_S)
    return time.monotonic() - begun


@pytest.mark.parametrize("store_type", [SqlStore, ThreadStore])
@pytest.mark.parametrize("io_timeout_s", [1.5, 60.0], ids=["given-up", "kept"])
def test_a_frozen_database(new_server: NewServer, store_type: type[SqlStore], io_timeout_s: float) -> None:
    """Whether the host gives the connection up in the freeze or not, each item is delivered once at most."""
    server = new_server("mariadb")
    (shard,) = make_shards([server], 1, "silent")

    async def run() -> None:
        config = load(server={"port": 0, "grace_ms": 500}, shards=[{"id": 1, "url": shard.url}])
        node = Node(config, lambda number: store_type(shard.url, shard=number, io_timeout_s=io_timeout_s))
        view = View("a", node, None)
        _, port = await node.start()

        def ask(wire: Wire, payload: bytes) -> None:
            context = idl.RequestContext(timeout_ms=60_000)
            wire.send_call("Enqueue", ns=wire.ns, items=[spec("t", payload)], context=context)

        with Wire(("127.0.0.1", port)) as wire, Wire(("127.0.0.1", port)) as other:
            await asyncio.to_thread(ask, wire, b"before")
            assert (await asyncio.to_thread(wire.receive, "Enqueue")).outcomes[0].error is None
            server.pause()
            try:
                assert await took_s(lambda: view.notes() == NOTE) < SEEN_S + BUSY_S, "an idle shard"
                assert view.missing() == []
            finally:
                server.resume()
            held = node.engine.state.shards[1]
            await took_s(
                lambda: (
                    view.notes() == []
                    and held.queue.in_flight is None
                    and node.now_ms() - held.owner.confirmed_ms < FRESH_MS
                )
            )
            server.pause()
            try:
                begun = time.monotonic()
                await asyncio.to_thread(ask, wire, b"during")
                await took_s(
                    lambda: bool(
                        held.queue.chunks or (held.queue.in_flight is not None and held.queue.in_flight.chunks)
                    )
                )
                was_sent = not held.queue.chunks  # unless the host asked for a sign of life since the pause
                error = (await asyncio.to_thread(wire.receive, "Enqueue")).outcomes[0].error
                assert time.monotonic() - begun < ANSWERED_S + BUSY_S
                assert error.code == (Code.OUTCOME_UNKNOWN if was_sent else Code.UNAVAILABLE)
                assert error.retry_after_ms > 0
                await asyncio.to_thread(ask, other, b"refused")
                refused = (await asyncio.to_thread(other.receive, "Enqueue")).outcomes[0].error
                assert refused.code == Code.UNAVAILABLE, "nothing of it was sent"
                assert view.notes() == NOTE
            finally:
                server.resume()
            await took_s(lambda: view.notes() == [] and node.engine.state.shards[1].healthy(node.now_ms()))
            stored = [bytes(one) for (one,) in server.query("SELECT payload FROM item", database=shard.database)]
            assert stored == [b"before"] or (was_sent and sorted(stored) == [b"before", b"during"])
            found: list[bytes] = []

            def drained() -> bool:
                found.extend(item.payload for item in wire.drain("t"))
                return len(found) >= len(stored)

            deadline = time.monotonic() + PATIENCE_S
            while not await asyncio.to_thread(drained):
                assert time.monotonic() < deadline, found
                await asyncio.sleep(0.05)
            assert sorted(found) == sorted(stored)
            assert await asyncio.to_thread(wire.drain, "t") == []
        await node.stop()

    uvloop.run(run())
