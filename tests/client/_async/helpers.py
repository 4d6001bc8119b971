# Written by hand, as is its twin.
"""What tests of both clients do in two ways."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

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
