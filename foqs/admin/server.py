"""The admin port: `/metrics`, `/healthz` and `/readyz` by HTTP/1.1, on the host's event loop.

Bounds: so many connections, each answered once and then closed; one that is open for long makes room for the next. One
scrape is made at a time: read on the loop in short turns, rendered in a thread.
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
from foqs.admin.gather import gather
from foqs.admin.lag import LoopLag
from foqs.admin.view import View
from foqs.sections import AdminSection

log = structlog.get_logger("foqs.admin")

MOST_CONNECTIONS = 16
_LIFE_S = 5.0
_AGAIN_S = 1.0
_HEAD_BYTES = 4096
_SILENT = logging.Logger("foqs.admin", logging.CRITICAL + 1)
"""aiohttp would log a traceback for whatever a caller sends that is no HTTP."""


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.abort()


class AdminServer:
    """Of one host. All methods run on its event loop."""

    def __init__(self, config: AdminSection, view: View) -> None:
        self._config = config
        self._view = view
        self._lag = LoopLag()
        self._scraping = asyncio.Lock()
        self._since: dict[Any, float] = {}  # connections, as long as they are open
        app = web.Application(client_max_size=1, middlewares=[_once])
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
        """Listens; 0 picks a port. One that is taken is tried for again, as a standby may have the configuration of the
        host that it waits for. OSError when it cannot for another reason."""
        await self._runner.setup()
        self._lag.start()
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
        self._listener = await loop.create_server(self._connection, host, port, backlog=MOST_CONNECTIONS)
        host, port = self._listener.sockets[0].getsockname()[:2]
        log.info("admin.listening", address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    async def stop(self) -> None:
        """Also when it did not start."""
        self._lag.stop()
        if self._trying is not None:
            self._trying.cancel()
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()

    def _connection(self) -> asyncio.BaseProtocol:
        """For one that was just made."""
        server, now = self._runner.server, asyncio.get_running_loop().time()
        assert server is not None
        self._since = {each: self._since.get(each, now) for each in server.connections}
        for each, since in self._since.items():
            if since < now - _LIFE_S:
                each.force_close()
        if len(self._since) >= MOST_CONNECTIONS:
            return _Refused()
        return server()

    # ------------------------------------------------------------------------------------- what is asked

    async def _metrics(self, request: web.Request) -> web.Response:
        async with self._scraping:
            rows = await gather(self._view, self._lag.seconds, self._config.topics)
            text, content_type = await asyncio.to_thread(render, rows, request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        missing = self._view.missing()
        text = json.dumps({"ready": not missing, "missing": missing}) + "\n"
        return web.Response(text=text, status=503 if missing else 200, content_type="application/json")


@web.middleware
async def _once(request: web.Request, handler: Any) -> web.StreamResponse:
    """One answer a connection, and no word of what it is made with."""
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
