# Written by hand.
"""Each test runs on the loop of asyncio and on that of uvloop."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from foqs.client import AsyncClient
from tests.client.peer import Peer
from tests.client.real_server import PATIENT_MS, Server


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def client_of(anyio_backend: object) -> AsyncIterator[Callable[..., Awaitable[AsyncClient]]]:
    """`await client_of(peer, ...)` is a client whose time-outs are no part of a test that does not give its own."""
    async with AsyncExitStack() as stack:

        async def make(peer: Peer, **options: Any) -> AsyncClient:
            settings = {"timeout_ms": PATIENT_MS, "attempt_timeout_ms": PATIENT_MS, **options}
            return await stack.enter_async_context(AsyncClient(peer.address, **settings))

        yield make


@pytest.fixture
async def client(anyio_backend: object, server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.address, "shop", timeout_ms=PATIENT_MS) as client:
        yield client
