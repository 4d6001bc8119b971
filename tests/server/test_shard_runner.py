"""The runner carries out the steps of the driver with threads and stores, and closes every store it opened."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from foqs.config.load import load
from foqs.event_loop import until
from foqs.ids import Mark, Marks
from foqs.opened import Opened
from foqs.rows import LaneRow
from foqs.server.clock import Reading
from foqs.server.marks import Recalled, Saved
from foqs.server.node import Neighbours, Node
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import Routing
from foqs.store.protocol import ShardRefused, StoreDown
from tests.sim.memory_database import MemoryDatabase
from tests.sim.memory_store import MemoryStore

PATIENCE_S = 60
CLUSTER = Neighbours(routing=Routing, handover_ms=5_000, changed=lambda: None)


class Store(MemoryStore):
    """Opens once `gate` is set, and records its end."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.gate = threading.Event()
        self.gate.set()
        self.opens = 0
        self.closed: bool | None = None  # clean or not

    def open(self, owner: str, *, take_over: bool, epoch_above: int = 0, marks: Marks | None = None) -> Opened:
        assert self.gate.wait(PATIENCE_S)
        self.opens += 1
        return super().open(owner, take_over=take_over, epoch_above=epoch_above, marks=marks)

    def close(self, *, clean: bool = False) -> None:
        self.closed = clean
        super().close(clean=clean)


class LateMarks:
    """Marks that are read when the test says so."""

    def __init__(self) -> None:
        self.recalls: list[Recalled] = []

    def recall(self, shard: int, done: Recalled) -> None:
        self.recalls.append(done)

    def save(self, shard: int, identity: str, mark: Mark, done: Saved) -> None:
        done("")


class Stores:
    """Makes stores on one database; `made` are in order."""

    def __init__(self) -> None:
        self.database = MemoryDatabase(lambda: 1_700_000_000_000)
        self.made: list[Store] = []
        self.gated = False

    def __call__(self, number: int) -> Store:
        store = Store(self.database)
        if self.gated:
            store.gate.clear()
        self.made.append(store)
        return store


async def reached(condition: Callable[[], bool]) -> None:
    assert await until(condition, asyncio.get_running_loop().time() + PATIENCE_S)


def serves(node: Node) -> bool:
    return 1 in node.engine.state.shards and node.engine.state.shards[1].owner.state is ShardState.SERVING


class NoAnswers:
    """Two more database servers that never answer, so nothing bounds the time."""

    def ask(self, report: Callable[[str, Reading | None], None]) -> Sequence[str]:
        return ["a", "b"]


def node_of(stores: Stores, marks: LateMarks | None = None, survey: NoAnswers | None = None) -> Node:
    return Node(load(server={"port": 0, "grace_ms": 2_000}), stores, neighbours=CLUSTER, marks=marks, survey=survey)


def test_a_shard_is_taken_served_and_released_in_order() -> None:
    async def run() -> None:
        stores = Stores()
        node = node_of(stores)
        node.take(1, 41)
        await reached(lambda: serves(node))
        assert node.engine.state.shards[1].owner.epoch == 42
        node.release(1, 5_000)
        await reached(lambda: 1 not in node.engine.state.shards)
        assert (stores.made[0].closed, node.engine.state.counters.shards_released) == (True, 1)
        assert await node.stop()

    asyncio.run(run())


def test_a_shard_released_before_its_mark_is_read_is_not_opened() -> None:
    async def run() -> None:
        stores, marks = Stores(), LateMarks()
        node = node_of(stores, marks=marks)
        node.take(1)
        node.release(1, 5_000)
        assert node.engine.state.shards[1].owner.state is ShardState.OPENING
        marks.recalls.pop()({}, "")
        assert 1 not in node.engine.state.shards
        assert (stores.made[0].opens, stores.database.epoch) == (0, 0)
        assert await node.stop()

    asyncio.run(run())


def test_a_shard_that_opens_while_the_host_stops_is_closed() -> None:
    async def run() -> None:
        stores = Stores()
        node = node_of(stores)
        node.take(1)
        await reached(lambda: serves(node))
        stores.gated = True
        node.take(2)
        shard = node.engine.state.shards[1]
        shard.owner.confirm_wanted = True  # work that keeps the host from stopping at once
        node.engine.state.touch(shard)
        stopping = asyncio.ensure_future(node.stop())
        await asyncio.sleep(0)
        stores.made[1].gate.set()
        await stopping
        assert [store.closed is not None for store in stores.made] == [True, True]
        assert node.engine.state.shards[2].owner.state is not ShardState.SERVING
        assert stores.database.holder is None

    asyncio.run(run())


def test_a_lost_shard_is_forgotten_after_a_pause() -> None:
    async def run() -> None:
        stores = Stores()
        node = node_of(stores)
        node.take(1)
        await reached(lambda: serves(node))
        MemoryStore(stores.database).open("rival", take_over=True)
        node.recheck_owner(1)
        await reached(lambda: node.engine.state.shards[1].owner.state is ShardState.CLOSED)
        await reached(lambda: stores.made[0].closed is False)
        await reached(lambda: 1 not in node.engine.state.shards)
        assert len(stores.made) == 1, "only the assignment may name this host again"
        assert await node.stop()

    asyncio.run(run())


def test_a_database_that_is_down_is_counted_until_it_opens() -> None:
    async def run() -> None:
        stores = Stores()
        node = node_of(stores)
        make, failures = stores.__call__, [StoreDown("no answer"), ShardRefused("held", held=True)]

        def failing(number: int) -> Store:
            store = make(number)
            if failures:
                error = failures.pop(0)

                def fail(*_: object, **__: object) -> Opened:
                    raise error

                store.open = fail  # type: ignore[method-assign]
            return store

        node.runner._make_store = failing
        node.take(1)
        await reached(lambda: node.unreachable == {1})
        await reached(lambda: 1 not in node.engine.state.shards)
        node.take(1)
        await reached(lambda: node.engine.state.counters.shards_not_opened == 2)
        assert node.unreachable == set()
        await reached(lambda: 1 not in node.engine.state.shards)
        node.take(1)
        await reached(lambda: serves(node))
        assert await node.stop()

    asyncio.run(run())


@pytest.mark.parametrize("filled", [False, True])
def test_a_released_shard_does_not_wait_for_the_time(filled: bool) -> None:
    """It is released while it waits, or before that, while its store opens. The host with the next assignment needs it
    closed."""

    async def run() -> None:
        stores = Stores()
        stores.gated = True
        node = node_of(stores, survey=NoAnswers())
        node.take(1)
        await reached(lambda: len(stores.made) == 1)
        if filled:
            stores.made[0].gate.set()
            await reached(lambda: bool(node.runner.clock_note))
            assert node.engine.state.shards[1].owner.state is ShardState.OPENING
        node.release(1, 5_000)
        stores.made[0].gate.set()
        await reached(lambda: 1 not in node.engine.state.shards)
        assert (stores.made[0].closed, stores.database.holder) == (True, None)
        assert node.runner.clock_note == ""
        assert await node.stop()

    asyncio.run(run())


def test_a_shard_released_while_filling_is_not_served() -> None:
    """The store is closed, and no lane of it stays in a topic."""

    async def run() -> None:
        stores = Stores()
        stores.database.lanes[1] = LaneRow(1, b"ns", b"topic", b"tenant")
        node, fills = node_of(stores), list[Callable[[], None]]()
        fill = node.engine.fill
        node.engine.fill = lambda *how: fills.append(partial(fill, *how))  # type: ignore[method-assign]
        node.take(1)
        await reached(lambda: bool(fills))
        node.release(1, 5_000)
        shard = node.engine.state.shards[1]
        assert shard.owner.state is ShardState.OPENING
        fills.pop()()
        await reached(lambda: 1 not in node.engine.state.shards and not node.engine.state.topics)
        assert (stores.made[0].closed, shard.filled) == (True, None)
        node.take(1)
        await reached(lambda: bool(fills))
        fills.pop()()
        await reached(lambda: serves(node))
        assert len(node.engine.state.shards[1].memory.lanes) == 1
        assert await node.stop()

    asyncio.run(run())
