"""Endpoints on loopback, and exchanges with them, on the loop of asyncio and on that of uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from foqs.client import AsyncClient
from foqs.push.addresses import Allow
from foqs.push.exchange import Exchange, Lookup, look_up
from foqs.push.pusher import Pusher
from foqs.push.target import Target
from tests.client.real_server import InMemory

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LOOPBACK = Allow.parse(["http://127.0.0.0/8"])
SOON_MS = 200
LATER_MS = 60_000


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def serve(anyio_backend: object) -> AsyncIterator[Callable[..., Awaitable[int]]]:
    """`await serve(answer)` is the port of an HTTP server that answers each request so."""
    async with AsyncExitStack() as stack:

        async def start(answer: Answer, *hosts: str, **options: Any) -> int:
            app = web.Application(client_max_size=1 << 30)
            app.router.add_route("*", "/{path:.*}", answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01, handler_cancellation=True)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            port = 0
            for host in hosts or ("127.0.0.1",):
                await web.TCPSite(runner, host, port, **options).start()
                port = int(runner.addresses[0][1])
            return port

        yield start


@pytest.fixture
async def talk(anyio_backend: object) -> AsyncIterator[Callable[[Talk], Awaitable[int]]]:
    """`await talk(say)` is the port of a server that calls `say` with the streams of each connection."""
    async with AsyncExitStack() as stack:

        async def start(say: Talk) -> int:
            tasks: set[asyncio.Task[None]] = set()

            async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = asyncio.current_task()
                assert task is not None
                tasks.add(task)
                try:
                    await say(reader, writer)
                except (ConnectionError, asyncio.CancelledError):
                    pass
                finally:
                    tasks.discard(task)
                    writer.close()

            server = await asyncio.start_server(one, "127.0.0.1", 0)

            async def end() -> None:
                server.close()
                for task in list(tasks):
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

            stack.push_async_callback(end)
            return int(server.sockets[0].getsockname()[1])

        yield start


@pytest.fixture
async def exchange(anyio_backend: object) -> AsyncIterator[Callable[..., Exchange]]:
    """`exchange(url, ...)` sends requests there. It is closed after the test."""
    async with AsyncExitStack() as stack:

        def make(
            url: str, *, allow: Allow = LOOPBACK, lookup: Lookup = look_up, tls: Any = None, **fields: Any
        ) -> Exchange:
            fields = {"timeout_ms": LATER_MS, **fields}
            made = Exchange(Target("hook", "shop", "t", url, **fields), allow, lookup=lookup, tls=tls)
            stack.push_async_callback(made.close)
            return made

        yield make


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InMemory]:
    """A real host in this process."""
    running = InMemory(tmp_path)
    yield running
    running.stop()


@pytest.fixture
async def client(anyio_backend: object, service: InMemory) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(service.address, "shop", timeout_ms=LATER_MS, pool_size=0) as client:
        yield client


@pytest.fixture
async def pusher(client: AsyncClient) -> AsyncIterator[Pusher]:
    pusher = Pusher(client)
    yield pusher
    await pusher.stop(grace_ms=0)
