"""The clients of all sessions: shared, bounded, and never taken from a request that uses one."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from foqs.console.clients import Clients
from foqs.errors import Overloaded


class Rig:
    """Clients that are (token, namespace, number). `closed` has the names of closed ones."""

    def __init__(self, most: int = 4, of_token: int = 2, uses: int = 10) -> None:
        self.opened = 0
        self.closed: list[str] = []
        self.clients = Clients(self.connect, most, of_token, uses)

    def connect(self, token: str | None, namespace: str) -> Any:
        self.opened += 1
        rig = self

        class Client:
            name = f"{token} {namespace}"

            async def close(self) -> None:
                rig.closed.append(self.name)

        return Client()

    async def touch(self, *names: str) -> None:
        for name in names:
            token, _, namespace = name.partition(" ")
            async with self.clients.use(token, namespace) as client:
                assert client.name == name  # type: ignore[attr-defined]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_sessions_with_one_token_and_namespace_share_a_client() -> None:
    rig = Rig()
    run(rig.touch("a x", "a x", "b x", "a y"))
    assert (rig.opened, rig.closed) == (3, [])


def test_the_client_that_was_idle_longest_makes_room() -> None:
    rig = Rig(most=3)
    run(rig.touch("a x", "b x", "c x", "a x", "d x", "e x"))
    assert rig.closed == ["b x", "c x"]
    assert len(rig.clients) == 3


def test_one_token_takes_no_client_from_another() -> None:
    rig = Rig()
    run(rig.touch("a x", *[f"b {number}" for number in range(20)]))
    assert rig.closed == [f"b {number}" for number in range(18)]


def test_a_long_use_counts_from_its_end() -> None:
    async def work() -> None:
        rig = Rig(most=2)
        async with rig.clients.use("a", "x"):
            await rig.touch("b x")
        await rig.touch("c x")
        assert rig.closed == ["b x"]

    run(work())


def test_a_client_in_use_stays_open() -> None:
    async def work() -> None:
        rig = Rig(most=2)
        async with rig.clients.use("a", "x"):
            await rig.touch("b x", "c x", "d x")
            assert rig.closed == ["b x", "c x"]
            async with rig.clients.use("d", "x"):
                with pytest.raises(Overloaded, match="in use"):
                    await rig.touch("e x")
                await rig.touch("a x")
        await rig.touch("e x")
        assert rig.closed == ["b x", "c x", "d x"]

    run(work())


def test_a_token_waits_for_no_client_of_another() -> None:
    async def work() -> None:
        rig = Rig()
        async with AsyncExitStack() as held:
            for namespace in ("x", "y"):
                await held.enter_async_context(rig.clients.use("a", namespace))
            with pytest.raises(Overloaded):
                await rig.touch("a z")
            await rig.touch("b x")
        assert rig.closed == []

    run(work())


def test_one_token_leaves_requests_to_other_ones() -> None:
    async def work() -> None:
        rig = Rig(uses=3)
        async with AsyncExitStack() as held:
            for namespace in ("x", "x", "y"):
                await held.enter_async_context(rig.clients.use("a", namespace))
            with pytest.raises(Overloaded, match="many requests with this token"):
                await rig.touch("a x")
            await rig.touch("b x")
        await rig.touch("a x")

    run(work())


def test_clients_of_a_forgotten_token_close_after_their_use() -> None:
    async def work() -> None:
        rig = Rig()
        await rig.touch("a x", "b x")
        async with rig.clients.use("a", "y"):
            await rig.clients.forget("a")
            assert rig.closed == ["a x"]
            await rig.touch("a y")
        assert rig.closed == ["a x", "a y"]
        assert len(rig.clients) == 2

    run(work())
