# Written by hand.
"""Each test runs on the loop of asyncio and on that of uvloop."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from foqs.client import AsyncClient, AsyncWorker, Backoff
from foqs.client._async.waits import Event
from tests.client.peer import LATER, Peer
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


@pytest.fixture
def gate() -> Event:
    return Event()


@pytest.fixture
async def start_worker(anyio_backend: object) -> AsyncIterator[Callable[..., Awaitable[AsyncWorker]]]:
    """As `start_worker` of the blocking client."""
    workers: list[AsyncWorker] = []

    async def start(client: AsyncClient, handler: Any, topics: Any = "t", **options: Any) -> AsyncWorker:
        settings = {"wait_ms": 50, "grace_ms": LATER * 1000, "backoff": Backoff(7, 7, jitter=0), **options}
        workers.append(AsyncWorker(client, topics, handler, **settings))
        await workers[-1].start()
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop(grace_ms=100)
    for worker in workers:
        assert await worker.join(LATER * 1000), "no error ended it"
