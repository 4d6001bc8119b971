"""The first calls of a host whose database has died, vanished, or lost a connection without a word."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop
from sqlalchemy.engine import make_url
from structlog.testing import capture_logs

from foqs.config.load import load
from foqs.event_loop import until
from foqs.idl import idl
from foqs.server.node import Node
from foqs.store.maintenance import create_schema
from foqs.store.sql import SqlStore
from foqs_lab.relay import Relay
from foqs_lab.servers import Kind
from tests.api.wire import Code, Refused, Wire, spec
from tests.conftest import NewServer, Server
from tests.store.proxy import Break, Proxy

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(300)]
PATIENCE_S = 60
SOON_S = 5.0
"""Far more than `breaker.hang_ms`, which is a second, and far less than the time-out of the requests."""
TIMEOUT_MS = 30_000
KIND: Kind = "mariadb"


class ThreadStore(SqlStore):
    """All transactions run in the shard's thread, as over TLS."""

    plain_socket = None  # type: ignore[assignment]


both = pytest.mark.parametrize("store_type", [SqlStore, ThreadStore])


class Rig:
    """A host with `shards` on one server, behind a port that the test cuts."""

    def __init__(self, server: Server, port: int, store_type: type[SqlStore], shards: int = 1) -> None:
        self.server = server
        self.urls: dict[int, str] = {}
        for number in range(1, shards + 1):
            server.create_database(f"shard_{number}")
            create_schema(server.url(f"shard_{number}"), number)
            url = make_url(server.url(f"shard_{number}")).set(port=port)
            self.urls[number] = url.render_as_string(hide_password=False)
        sections = [{"id": number, "url": url} for number, url in self.urls.items()]
        config = load(server={"port": 0, "grace_ms": 500}, shards=sections)
        self.node = Node(config, lambda number: store_type(self.urls[number], shard=number, io_timeout_s=10.0))

    def items(self) -> set[int]:
        return {int(one) for number in self.urls for (one,) in self.server.query(f"SELECT id FROM shard_{number}.item")}

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Wire]:
        """A client of the host, with one item leased in each shard."""
        _, port = await self.node.start()
        assert await until(
            lambda: len(self.node.engine.state.serving) == len(self.urls),
            asyncio.get_running_loop().time() + PATIENCE_S,
        )
        with Wire(("127.0.0.1", port), timeout_ms=TIMEOUT_MS) as wire:
            yield wire
        await self.node.stop()

    async def healthy(self) -> None:
        shards = self.node.engine.state.serving
        assert await until(
            lambda: all(shard.owner.breaker.closed and not shard.owner.lost for shard in shards),
            asyncio.get_running_loop().time() + PATIENCE_S,
        )


async def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.monotonic()
    answer = await asyncio.to_thread(call)
    return answer, time.monotonic() - began


def put(wire: Wire) -> Any:
    """Return the error code of an enqueue, or the id."""
    (outcome,) = wire.outcomes(spec("t", b"x"))
    return outcome.id or outcome.error.code


@both
def test_connections_that_the_server_killed_cost_nothing(new_server: NewServer, store_type: type[SqlStore]) -> None:
    """An idle time-out of a server or a firewall ends connections so."""
    server = new_server(KIND)

    async def run() -> None:
        rig = Rig(server, server.port, store_type)
        async with rig.serving() as wire:
            for _ in range(10):
                stored = await asyncio.to_thread(wire.put, "t", b"x")
                item = await asyncio.to_thread(wire.one, "t")
                listed = server.query("SELECT id FROM information_schema.processlist WHERE db LIKE 'shard%'")
                for (number,) in listed:
                    server.query(f"KILL {number:d}")
                for call in (lambda item=item: wire.ack(item), lambda: put(wire), lambda: wire.one("t")):
                    answer, took_s = await timed(call)
                    assert answer == [0] or isinstance(answer, int) or answer.id
                    assert answer not in (Code.OUTCOME_UNKNOWN, Code.UNAVAILABLE)
                    assert took_s < SOON_S
                assert stored[0] == item.id
                await asyncio.to_thread(wire.ack, answer)

    uvloop.run(run())


@both
@pytest.mark.parametrize("first", ["enqueue", "ack", "get"])
def test_a_server_that_died(new_server: NewServer, store_type: type[SqlStore], first: str) -> None:
    """All its shards at once. The outcome of each first call is known, and it comes soon."""
    server = new_server(KIND)

    async def run() -> None:
        rig = Rig(server, server.port, store_type, shards=4)
        async with rig.serving() as wire:
            await asyncio.to_thread(wire.put, "t", *[b"x"] * 40)
            items = await asyncio.to_thread(wire.dequeue, "t", 40)
            before = rig.items()
            server.kill()
            if first == "enqueue":
                answer, took_s = await timed(lambda: [put(wire) for _ in range(8)])
                codes = set(answer)
            elif first == "ack":
                answer, took_s = await timed(lambda: wire.ask("Ack", items=_acks(items)).outcomes)
                codes = {outcome.error.code for outcome in answer}
            else:
                answer, took_s = await timed(lambda: refused(wire, items[0].id))
                codes = {answer}
            assert codes == {Code.UNAVAILABLE}
            assert took_s < SOON_S
            server.restart()
            await rig.healthy()
            assert rig.items() == before
            assert isinstance(await asyncio.to_thread(put, wire), int)

    uvloop.run(run())


def _acks(items: list[Any]) -> list[Any]:
    return [idl.AckItem(item.id, item.lease) for item in items]


def refused(wire: Wire, item_id: int) -> int:
    with pytest.raises(Refused) as error:
        wire.ask("GetItem", id=item_id)
    return error.value.code


@both
def test_a_machine_that_vanished(new_server: NewServer, store_type: type[SqlStore]) -> None:
    """No packet comes back, and none says that the connection is gone. The statement was sent: its outcome is unknown
    after a hang. Later calls are refused at once, and the outcome is found out when the machine is back."""
    server = new_server(KIND)
    relay = Relay(server.port)

    async def run() -> None:
        rig = Rig(server, relay.port, store_type)
        async with rig.serving() as wire:
            await asyncio.to_thread(wire.put, "t", *[b"x"] * 3)
            items = await asyncio.to_thread(wire.dequeue, "t", 3)
            before = rig.items()
            relay.hold()
            answer, took_s = await timed(lambda: put(wire))
            assert answer == Code.OUTCOME_UNKNOWN and took_s < SOON_S
            answer, took_s = await timed(lambda: put(wire))
            assert answer == Code.UNAVAILABLE and took_s < 1
            answer, took_s = await timed(lambda: wire.ask("Ack", items=_acks(items)).outcomes)
            assert {outcome.error.code for outcome in answer} == {Code.UNAVAILABLE} and took_s < SOON_S
            relay.flow()
            await rig.healthy()
            assert await asyncio.to_thread(wire.ack, *items) == [0] * 3
            stored = await asyncio.to_thread(put, wire)
        left = rig.items() - before
        assert stored in left and len(left) <= 2

    uvloop.run(run())
    relay.close()


@both
@pytest.mark.parametrize("arrives", [False, True])
def test_a_connection_that_a_firewall_forgot(new_server: NewServer, store_type: type[SqlStore], arrives: bool) -> None:
    """The server lives: another connection finds out the outcome, long before the time-out of the first one. The item
    is stored once, also where the server never got it."""
    server = new_server(KIND)
    proxy = Proxy(server.port)

    async def run() -> list[str]:
        rig = Rig(server, proxy.port, store_type)
        with capture_logs() as lines:
            async with rig.serving() as wire:
                await asyncio.to_thread(wire.put, "t", b"x")
                before = rig.items()
                proxy.arm(Break("BEGIN", arrives=arrives, missed=True, silent=True))
                began = time.monotonic()
                answer = await asyncio.to_thread(put, wire)
                assert time.monotonic() - began < SOON_S
                await rig.healthy()
                assert time.monotonic() - began < 8, "the time-out of a statement is 10 s"
                stored = rig.items() - before
                assert answer in stored, "the outcome is found out before the caller gives up"
                assert len(stored) == 1
                assert isinstance(await asyncio.to_thread(put, wire), int)
        return [line["event"] for line in lines]

    assert "shard.hangs" in uvloop.run(run())
    proxy.close()


@both
def test_a_slow_statement_keeps_its_connection(new_server: NewServer, store_type: type[SqlStore]) -> None:
    """The server works on it for longer than a hang: nothing is given up, or no such statement would ever succeed."""
    server = new_server(KIND)

    async def run() -> list[str]:
        rig = Rig(server, server.port, store_type)
        with capture_logs() as lines:
            async with rig.serving() as wire:
                await asyncio.to_thread(wire.put, "t", b"x")
                server.query("CREATE TRIGGER shard_1.slow BEFORE INSERT ON shard_1.item FOR EACH ROW DO SLEEP(3)")
                before = rig.items()
                answer = await asyncio.to_thread(put, wire)
                assert answer == Code.OUTCOME_UNKNOWN
                await rig.healthy()
                assert len(rig.items() - before) == 1
                server.query("DROP TRIGGER shard_1.slow")
        return [line["event"] for line in lines]

    events = uvloop.run(run())
    assert "shard.hangs" not in events and "shard.failed" not in events
