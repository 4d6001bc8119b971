"""The connections of browsers to the console: how many there may be, and how long each may take for a request.

uvicorn bounds the time between two requests only. A connection that sends a request slowly, takes its answer slowly, or
sends nothing, would keep its place for ever.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from foqs.console.guard import source_of

MOST_CONNECTIONS = 500


class Phase(Enum):
    """What a connection does. `HEAD` begins with the connection, or with the first byte of a request, and includes the
    handshake of TLS. `REQUEST`: the rest of the request and its answer."""

    HEAD = "head"
    REQUEST = "request"
    IDLE = "idle"


LONGEST_S: Mapping[Phase, float] = {Phase.HEAD: 15.0, Phase.REQUEST: 60.0, Phase.IDLE: 65.0}
"""The connection is closed after this time in one phase."""


class Connections:
    """The connections of a console, at most `most`. A further one takes the place of one whose request is not in
    progress: of the source with the most connections, the connection with the longest phase. So one client
    cannot keep other ones out. `tls`: the console speaks HTTPS."""

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        most: int = MOST_CONNECTIONS,
        longest_s: Mapping[Phase, float] = LONGEST_S,
    ) -> None:
        self.tls = tls
        self.longest_s = longest_s
        self._most = most
        self._open: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self, **given: Any) -> Connection:
        """Return the protocol of a new connection, as `http` of uvicorn.Config."""
        return Connection(self, **given)

    def enter(self, connection: Connection) -> None:
        self._open.add(connection)
        if len(self._open) <= self._most:
            return
        sources = Counter(one.source for one in self._open)
        ending = [one for one in self._open if not one.is_answered]
        min(ending, key=lambda one: (-sources[one.source], one.since_s, one is connection)).end()

    def leave(self, connection: Connection) -> None:
        self._open.discard(connection)


class Connection(H11Protocol):
    """One connection. `is_answered`: its request has arrived, and the console works on it."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.source = ""
        self.since_s = 0.0
        self.phase = Phase.HEAD
        self._connections = connections
        self._below: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._securing: asyncio.Task[None] | None = None
        self._serves = False
        self._early = b""

    @property
    def is_answered(self) -> bool:
        return self.phase is Phase.REQUEST and not self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._below = transport
        self.source = source_of(str((transport.get_extra_info("peername") or ("",))[0]))
        self._begin(Phase.HEAD)
        self._connections.enter(self)
        if self._connections.tls is None:
            self._serve(transport)
        elif not transport.is_closing():
            self._securing = self.loop.create_task(self._secure(transport, self._connections.tls))

    def data_received(self, data: bytes) -> None:
        if not self._serves:  # it came with the end of the handshake
            self._early += data
            return
        if self.phase is Phase.IDLE:
            self._begin(Phase.HEAD)
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        self._begin(Phase.IDLE)
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._serves:
            super().connection_lost(exc)

    def end(self) -> None:
        """Close the connection. It drops unsent data."""
        self._leave()
        if self._securing is not None:
            self._securing.cancel()
        if self._below is not None:
            self._below.abort()

    def _leave(self) -> None:
        self._connections.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self, phase: Phase) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.phase, self.since_s = phase, self.loop.time()
        self._timer = self.loop.call_later(self._connections.longest_s[phase], self.end)

    def _look(self) -> None:
        """A request may have begun."""
        cycle = cast(RequestResponseCycle | None, self.cycle)
        if self.phase is not Phase.REQUEST and cycle is not None and not cycle.response_complete:
            self._begin(Phase.REQUEST)

    def _serve(self, transport: asyncio.Transport) -> None:
        self._serves = True
        super().connection_made(transport)

    async def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            secure = await self.loop.start_tls(transport, self, tls, server_side=True)
        except OSError:  # the handshake failed
            secure = None
        if secure is None or secure.is_closing():
            self.end()
            return
        self._serve(secure)
        if self._early:
            early, self._early = self._early, b""
            self.data_received(early)
