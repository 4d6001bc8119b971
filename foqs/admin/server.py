"""The admin port: `/metrics`, `/healthz` and `/readyz` by HTTP/1.1, on the host's event loop.

Bounds: `MOST_CONNECTIONS` connections. Each gets one reply and is then closed. A connection has
`HEAD_S` to send its request and `LIFE_S` in all. When all places are taken, a new connection gets the place of the
oldest one that has no request in progress: connections that send nothing cannot block `/healthz`. One scrape is
made at a time: read on the loop in short slices, rendered in a thread.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from contextlib import suppress
from typing import Any

import structlog
from aiohttp import web

from foqs.admin.exposition import render
from foqs.admin.readiness import View
from foqs.admin.snapshot import Series, gather
from foqs.checks import host_port
from foqs.config.schema import AdminSection

log = structlog.get_logger("foqs.admin")

MOST_CONNECTIONS = 64
HEAD_S = 5.0
LIFE_S = 30.0
_BACKLOG = 128
_SWEEP_S = 1.0
_AGAIN_S = 1.0
_HEAD_BYTES = 4096
_SILENT = logging.Logger("foqs.admin", logging.CRITICAL + 1)
"""Without this, aiohttp logs a traceback for input that is not HTTP."""


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.abort()


class AdminServer:
    """The admin port of one host. All methods run on its event loop."""

    def __init__(self, config: AdminSection, view: View) -> None:
        self._config = config
        self._view = view
        self._series = Series(config)
        self._scraping = asyncio.Lock()
        self._since: dict[Any, float] = {}  # open connections, the oldest first
        self._asked: set[Any] = set()  # connections that sent a request
        self._in_progress: set[Any] = set()  # connections with a request in progress
        self._sweeping: asyncio.TimerHandle | None = None
        app = web.Application(client_max_size=1, middlewares=[self._track, _once])
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_SILENT,
            handle_signals=False,
            shutdown_timeout=1.0,
            lingering_time=0.0,
            max_line_size=_HEAD_BYTES,
            max_field_size=_HEAD_BYTES,
        )
        self._listener: asyncio.Server | None = None
        self._trying: asyncio.Task[None] | None = None

    async def start(self, port: int) -> None:
        """Listen on a port; 0 picks a free one. Raises OSError.

        If the port is taken, try again later: a standby may have the same configuration as the host it waits for.
        """
        await self._runner.setup()
        try:
            await self._listen(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            log.warning("admin.not_listening", host=self._config.host, port=port, reason="the port is taken")
            self._trying = asyncio.get_running_loop().create_task(self._try_again(port))

    async def _try_again(self, port: int) -> None:
        while self._listener is None:
            await asyncio.sleep(_AGAIN_S)
            with suppress(OSError):
                await self._listen(port)

    async def _listen(self, port: int) -> None:
        loop, host = asyncio.get_running_loop(), self._config.host
        self._listener = await loop.create_server(self._connection, host, port, backlog=_BACKLOG)
        host, port = self._listener.sockets[0].getsockname()[:2]
        log.info("admin.listening", address=host_port(host, port))

    async def stop(self) -> None:
        """Stop; safe if `start` failed."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._trying is not None:
            self._trying.cancel()
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()

    def _connection(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        self._look()
        if len(self._since) >= MOST_CONNECTIONS and not self._make_room():
            return _Refused()
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
        server = self._runner.server
        assert server is not None
        return server()

    def _look(self) -> None:
        """Bring `_since` in line with the connections that are open."""
        server, now = self._runner.server, asyncio.get_running_loop().time()
        assert server is not None
        # A closed connection stays listed until the loop reports the end; its transport is None at once.
        opened = [each for each in server.connections if each.transport is not None]
        self._since = {each: self._since.get(each, now) for each in opened}
        self._asked &= self._since.keys()
        self._in_progress &= self._since.keys()

    def _make_room(self) -> bool:
        """Close the oldest connection without a request in progress. Return False if all have one."""
        idle = [each for each in self._since if each not in self._in_progress]
        if not idle:
            return False
        self._close(next((each for each in idle if each not in self._asked), idle[0]))
        return True

    def _close(self, connection: Any) -> None:
        del self._since[connection]
        connection.force_close()

    def _sweep(self) -> None:
        """Close expired connections until no connection is open."""
        self._look()
        now = asyncio.get_running_loop().time()
        for each, since in list(self._since.items()):
            if since + (LIFE_S if each in self._asked else HEAD_S) <= now:
                self._close(each)
        self._sweeping = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep) if self._since else None

    @web.middleware
    async def _track(self, request: web.Request, handler: Any) -> web.StreamResponse:
        connection = request.protocol
        self._asked.add(connection)
        self._in_progress.add(connection)
        try:
            response: web.StreamResponse = await handler(request)
        finally:
            self._in_progress.discard(connection)
        return response

    # ------------------------------------------------------------------------------------- requests

    async def _metrics(self, request: web.Request) -> web.Response:
        async with self._scraping:
            rows = await gather(self._view, self._series)
            text, content_type = await asyncio.to_thread(render, rows, request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        missing = self._view.missing()
        found = {"ready": not missing, "missing": missing, "notes": self._view.notes()}
        if (cluster := self._view.cluster()) is not None:
            found["cluster"] = cluster
        text = json.dumps(found) + "\n"
        return web.Response(text=text, status=503 if missing else 200, content_type="application/json")


@web.middleware
async def _once(request: web.Request, handler: Any) -> web.StreamResponse:
    """Close the connection after one reply, and name no software in its headers."""
    response: web.StreamResponse
    try:
        response = await handler(request)
    except web.HTTPException as refused:
        response = web.Response(text=f"{refused.status} {refused.reason}\n", status=refused.status)
    except Exception as error:
        log.error("admin.failed", path=request.path, exc_info=error)
        response = web.Response(text="500 internal error\n", status=500)
    response.headers["Server"] = "foqs"
    response.force_close()
    return response
