# Written by hand, as is its twin.
"""What tests of both clients do in two ways."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from foqs.client import Item
from foqs.client._async.waits import Event
from tests.client.peer import LATER


async def together(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Return the results of calls that run at the same time."""
    return list(await asyncio.gather(*(call() for call in calls)))


async def eventually(ready: Callable[[], bool]) -> None:
    """Wait until `ready`."""
    until = monotonic() + LATER
    while not ready():
        assert monotonic() < until
        await asyncio.sleep(0.005)


async def result(future: asyncio.Future[Any]) -> Any:
    """Return the result of the future of an item."""
    async with asyncio.timeout(LATER):
        return await future


async def failure(future: asyncio.Future[Any]) -> BaseException | None:
    """Return the error of the future of an item, once it has ended."""
    await asyncio.wait((future,), timeout=LATER)
    return future.exception()


async def nothing(item: Item) -> None:
    """A handler that returns."""


def noting(seen: list[bytes]) -> Callable[[Item], Awaitable[None]]:
    """Return a handler that notes the payloads in `seen`."""

    async def note(item: Item) -> None:
        seen.append(item.payload)

    return note


def waiting(gate: Event) -> Callable[[Item], Awaitable[None]]:
    """Return a handler that waits for the gate."""

    async def wait(item: Item) -> None:
        await gate.wait(LATER)

    return wait
