"""A host on MariaDB: its plain transactions run on the event loop, also when a shard is given up or the host stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop
from sqlalchemy.engine import make_url

from foqs.config.load import load
from foqs.event_loop import until
from foqs.server.node import Neighbours, Node
from foqs.server.shard_worker import ShardWorker
from foqs.shardmgr.routing import Routing
from foqs.store.maintenance import create_schema
from foqs.store.sql import SqlStore
from foqs.store.transaction import State, Transaction
from foqs_lab.relay import Relay
from tests.api.wire import Wire, spec
from tests.conftest import SHARD_KINDS

pytestmark = pytest.mark.parametrize("shard_kind", SHARD_KINDS[1:2], indirect=True)
PATIENCE_S = 60
IO_TIMEOUT_S = 3.0
"""Longer than the grace period of a host, and than a busy server takes to reply."""
CLUSTER = Neighbours(routing=Routing, handover_ms=200, changed=lambda: None)


@pytest.fixture
def relay(shard_url: str) -> Iterator[Relay]:
    create_schema(shard_url, 1)
    port = make_url(shard_url).port
    assert port is not None
    made = Relay(port)
    yield made
    made.close()


class Host:
    """Stores of the shard record how their transactions end, and in which thread."""

    def __init__(self, url: str, relay: Relay) -> None:
        self._url = make_url(url).set(port=relay.port).render_as_string(hide_password=False)
        self.ends: list[tuple[State, bool]] = []
        self.stores: list[SqlStore] = []
        self.node = Node(load(server={"port": 0, "grace_ms": 500}), self._make, neighbours=CLUSTER)

    def _make(self, number: int) -> SqlStore:
        store = SqlStore(self._url, shard=number, io_timeout_s=IO_TIMEOUT_S)
        conclude = store.conclude

        def record(transaction: Transaction) -> None:
            self.ends.append((transaction.state, threading.current_thread() is threading.main_thread()))
            conclude(transaction)

        store.conclude = record  # type: ignore[method-assign]
        self.stores.append(store)
        return store

    async def start(self) -> None:
        _, self.port = await self.node.start()
        self.node.take(1)
        await reached(lambda: bool(self.node.engine.state.serving))

    async def put(self) -> None:
        """Enqueue items until a transaction was plain: now and then one is sent together with a read."""
        ended = len(self.ends)
        with self.wire() as wire:
            for _ in range(100):
                await asyncio.to_thread(wire.put, "t", b"x")
                if len(self.ends) > ended:
                    return
        raise AssertionError("no transaction was concluded")

    def wire(self) -> Wire:
        return Wire(("127.0.0.1", self.port))

    async def hang(self, relay: Relay, wire: Wire) -> None:
        """A plain transaction is in flight and gets no reply."""
        shard, worker = self.node.engine.state.shards[1], self.node.runner._workers[1]
        assert isinstance(worker, ShardWorker)
        for _ in range(100):
            relay.hold()
            wire.send_call("Enqueue", ns="test", items=[spec("t")])
            await reached(lambda: shard.queue.in_flight is not None)
            if worker._on_loop.busy:
                return
            relay.flow()
            await reached(lambda: shard.queue.idle)
        raise AssertionError("no transaction was plain")


async def reached(condition: Callable[[], bool]) -> None:
    assert await until(condition, asyncio.get_running_loop().time() + PATIENCE_S)


def test_transactions_run_on_the_loop(shard_url: str, relay: Relay) -> None:
    async def run() -> None:
        host = Host(shard_url, relay)
        await host.start()
        for _ in range(3):
            await host.put()
        assert host.ends == [(State.COMMITTED, True)] * len(host.ends)
        assert await host.node.stop()

    uvloop.run(run())


def test_a_shard_is_given_up_while_its_database_hangs(shard_url: str, relay: Relay) -> None:
    """The store is closed after the transaction, which its deadline ends."""

    async def run() -> None:
        host = Host(shard_url, relay)
        await host.start()
        await host.put()
        with host.wire() as wire:
            await host.hang(relay, wire)
            host.node.release(1, 200)
            await reached(lambda: 1 not in host.node.engine.state.shards)
        state, on_loop = host.ends[-1]
        assert state in (State.FAILED, State.IN_DOUBT) and not on_loop
        assert host.stores[0].plain_socket is None
        relay.flow()
        host.node.take(1)
        await reached(lambda: bool(host.node.engine.state.serving))
        await host.put()
        assert host.ends[-1] == (State.COMMITTED, True)
        assert await host.node.stop()

    uvloop.run(run())


def test_a_host_stops_while_its_database_hangs(shard_url: str, relay: Relay) -> None:
    """It does not wait for longer than its grace period, and the loop ends with the transaction in flight."""
    faults: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        host = Host(shard_url, relay)
        await host.start()
        await host.put()
        with host.wire() as wire:
            await host.hang(relay, wire)
            assert not await host.node.stop()
        assert all(state is State.COMMITTED for state, _ in host.ends)

    uvloop.run(run())
    assert faults == []
