"""A host whose database becomes read-only, until the name leads to the new primary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from foqs.admin.readiness import View
from foqs.config.load import load
from foqs.event_loop import until
from foqs.server.node import Node
from foqs.store.sql import SqlStore
from tests.api.wire import Code, Wire, spec
from tests.conftest import NewServer
from tests.store.primaries import Primaries

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(300)]
PATIENCE_S = 60
NOTE = ["shard 1: its database is read-only: is it a replica, or no longer the primary?"]
WHY = "the server is read-only"


@pytest.fixture
def primaries(new_server: NewServer) -> Iterator[Primaries]:
    made = Primaries("mariadb", new_server, number=1)
    yield made
    made.close()


class ThreadStore(SqlStore):
    """All transactions run in the shard's thread, as over TLS."""

    plain_socket = None  # type: ignore[assignment]


class Host:
    def __init__(self, url: str, store_type: type[SqlStore]) -> None:
        config = load(server={"port": 0, "grace_ms": 500}, shards=[{"id": 1, "url": url}])
        self.node = Node(config, lambda number: store_type(url, shard=number, io_timeout_s=10.0))
        self.view = View("a", self.node, None)

    async def enqueue(self, wire: Wire, count: int) -> list[Any]:
        """Return the outcomes of new items."""
        return await asyncio.to_thread(wire.outcomes, *(spec("t", b"x") for _ in range(count)))


async def reached(condition: Callable[[], bool]) -> None:
    assert await until(condition, asyncio.get_running_loop().time() + PATIENCE_S)


@pytest.mark.parametrize("store_type", [SqlStore, ThreadStore])
def test_no_outcome_is_unknown(primaries: Primaries, store_type: type[SqlStore]) -> None:
    """Enqueues of that time are refused, and none is stored; later ones are stored on the new primary."""

    async def run() -> None:
        host = Host(primaries.url, store_type)
        _, port = await host.node.start()
        with Wire(("127.0.0.1", port), timeout_ms=3_000) as wire:
            stored = [outcome.id for outcome in await host.enqueue(wire, 5)]
            primaries.close_old()
            codes = [outcome.error.code for _ in range(20) for outcome in await host.enqueue(wire, 3)]
            assert set(codes) == {Code.UNAVAILABLE}
            await reached(lambda: host.view.notes() == NOTE)
            assert host.view.missing() == []
            primaries.switch()
            await reached(lambda: host.view.notes() == [])
            stored += [outcome.id for outcome in await host.enqueue(wire, 5)]
            assert all(stored)
        found = {int(number) for (number,) in primaries.new.query("SELECT id FROM shard.item")}
        assert found == set(stored)
        assert primaries.connections(primaries.old) == 0
        await host.node.stop()

    with capture_logs() as lines:
        uvloop.run(run())
    reasons = [line["reason"] for line in lines if line["event"] == "shard.failed"]
    assert reasons and all(WHY in reason for reason in reasons)
    assert len(reasons) < 40, "the host tries again without a pause"


def test_a_host_that_starts_before_the_switch_waits_for_it(primaries: Primaries) -> None:
    async def run() -> None:
        host = Host(primaries.url, SqlStore)
        started = asyncio.ensure_future(host.node.start())
        await reached(lambda: host.view.notes() == NOTE)
        primaries.switch()
        await started
        await reached(lambda: bool(host.node.engine.state.serving))
        assert host.view.notes() == []
        await host.node.stop()

    primaries.close_old()
    with capture_logs() as lines:
        uvloop.run(run())
    reasons = [line["reason"] for line in lines if line["event"] == "shard.not_opened"]
    assert reasons and all(WHY in reason for reason in reasons)
