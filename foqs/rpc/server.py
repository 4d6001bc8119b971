"""The Thrift server: framed transport, strict binary protocol, one event loop, no task and no thread per
request.

Bounds (promise 8): `max_connections` and `max_connections_per_address` bound connections, each with one call in
progress at most. `limits.frame_bytes` bounds a frame, which is refused before a byte of it is held. The byte budget
bounds the input and output of all connections. `foqs.rpc.frames` decides which unfinished frames may take more of it;
the other sockets are not read, and slow frames are closed for waiting ones. The server closes a connection whose
frame or TLS handshake is not complete, or whose answer is not read at all, for `frame_timeout_s`. Where callers must
authenticate, a connection reads small frames only before its first authenticated request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import structlog

from foqs.bounds import Budget, Limits, LogThrottle
from foqs.counters import Namespaces
from foqs.rpc.arrival import Admission
from foqs.rpc.call import RequestLog, log_failure
from foqs.rpc.connection import ServedConnection
from foqs.rpc.frames import Frame
from foqs.rpc.hub import ConnectionHub, Handler, Report, Trusts
from foqs.rpc.tls import TlsTransport

log = structlog.get_logger("foqs.rpc")

_BACKLOG = 1024


class ThriftServer(ConnectionHub[ServedConnection]):
    """Serves `handlers` by method name. Everything runs on the loop that `listen` was called on.

    A handler is called with a `Call` and answers it now or later; it must not block. A FoqsError that it
    raises is the answer; any other exception goes to `report` and is answered as UNAVAILABLE "internal
    error".
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        limits: Limits,
        budget: Budget,
        max_connections: int,
        *,
        frame_timeout_s: float = 30.0,
        idle_timeout_s: float = 3600.0,
        tls: ssl.SSLContext | None = None,
        max_connections_per_address: int | None = None,
        report: Report = log_failure,
        namespaces: Namespaces | None = None,
        requests: RequestLog | None = None,
        trusts: Trusts = lambda names: True,
    ) -> None:
        """`namespaces` count how long requests took, `requests` logs slow ones. A connection that `trusts` does not
        accept sends small frames only until `Call.trust`. Raises ValueError for a method that is not in the IDL, and
        when the largest frame would never fit the budget."""
        super().__init__(handlers, limits, budget, report, namespaces, requests, trusts)
        self.bound(max_connections, max_connections_per_address, frame_timeout_s, idle_timeout_s)
        self._listeners: list[asyncio.Server] = []
        self.tls = tls
        """The context of new connections."""
        self._ticking: asyncio.TimerHandle | None = None
        self._tick_at_s = 0.0
        self._cuts = LogThrottle(1)

    def bound(
        self,
        max_connections: int,
        max_connections_per_address: int | None,
        frame_timeout_s: float,
        idle_timeout_s: float,
    ) -> None:
        """Set the bounds on connections, open ones included. Connections above a new bound stay open."""
        self.places.bound(max_connections, max_connections_per_address)
        self._frame_timeout_s = frame_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._tick_s = min(1.0, frame_timeout_s / 4, idle_timeout_s / 4)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Begin to serve; port 0 picks one. Return the address and the port. Raises OSError when it cannot."""
        address = await self.bind(host, port)
        await self.serve()
        return address

    async def bind(self, host: str, port: int, *, shared: bool = False) -> tuple[str, int]:
        """Take the port, where connections are refused until `serve`. A server may take several ports.

        A `shared` port is one that other processes of the same user listen on as well: each gets some of the
        connections (SO_REUSEPORT).
        """
        if not self._listeners:
            self.loop = asyncio.get_running_loop()
            self.admission = Admission(self.budget, self.frames, self.counters, self.loop, self._close_slow)
        listener = await self.loop.create_server(
            self._connection, host, port, backlog=_BACKLOG, start_serving=False, reuse_port=shared or None
        )
        self._listeners.append(listener)
        address: tuple[Any, ...] = listener.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def serve(self) -> None:
        """Take connections on every port that was bound. Raises OSError when another process was faster."""
        for listener in list(self._listeners):
            await listener.start_serving()
        if self._ticking is None and self._listeners:
            self._tick()

    @property
    def serves(self) -> bool:
        """True while the server takes connections."""
        return self._ticking is not None and bool(self._listeners)

    def stop_listening(self) -> None:
        """Accept no more connections; open ones stay."""
        while self._listeners:
            self._listeners.pop().close()

    async def drain(self, deadline: float) -> bool:
        """Start no more requests, answer requests in progress, and send GOAWAY on each connection after its answer.

        `deadline` is in seconds of the loop's clock; connections open then are aborted and their calls lost.
        Return True if no call was lost.
        """
        self.draining = True
        self.stop_listening()
        for connection in list(self._connections):
            connection.finish()
        if self._connections:
            self._emptied.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._emptied.wait()
        clean = all(connection.lingers() for connection in self._connections)
        self.close()
        return clean

    def close(self) -> None:
        """Stop at once; calls in progress are lost."""
        self.draining = True
        self.stop_listening()
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
            self.admission.close()
        for connection in list(self._connections):
            connection.abort()

    def _connection(self) -> asyncio.BufferedProtocol:
        connection = ServedConnection(self)
        if self.tls is None:
            return connection
        return TlsTransport(self.tls, connection, self.scratch)

    # ------------------------------------------------------------------------------------------ time-outs

    def _tick(self) -> None:
        self.now = self.loop.time()
        if self._ticking is not None:
            self.admission.ran(self._tick_at_s)
        self._tick_at_s = monotonic() + self._tick_s
        self._ticking = self.loop.call_later(self._tick_s, self._tick)
        self._close_late()
        self._close_stalled()
        self._close_idle()

    def _close_late(self) -> None:
        for frame in self.frames.late(self.now, self._frame_timeout_s):
            frame.owner.abort("slow frame")
        self._close_slow()

    def _close_slow(self) -> None:
        """Close slow frames for the frames that wait."""
        now_s = self.loop.time()
        for frame in self.frames.slow(now_s, self._frame_timeout_s):
            self._log_cut(frame, now_s)
            frame.owner.abort("slow frame")

    def _log_cut(self, frame: Frame, now_s: float) -> None:
        left_out = self._cuts.take(now_s)
        if left_out is not None:
            log.warning(
                "frame.cut",
                address=frame.owner.peer,
                frame_bytes=frame.size_bytes,
                received_bytes=frame.received_bytes,
                bytes_per_s=round(frame.received_bytes / max(now_s - frame.began_s, 0.001)),
                waiting=self.frames.waiting,
                left_out=left_out,
            )

    def _close_stalled(self) -> None:
        for connection, (left_bytes, since) in list(self._stalled.items()):
            now_left_bytes = connection.output_bytes()
            if now_left_bytes < left_bytes:
                self.stalled(connection, now_left_bytes)
            elif since + self._frame_timeout_s <= self.now:
                connection.abort("slow reader")

    def _close_idle(self) -> None:
        before = self.now - self._idle_timeout_s
        for connection in [each for each in self._connections if each.seen < before and each.is_idle()]:
            connection.finish("idle")

    def __repr__(self) -> str:
        state = "draining" if self.draining else "serving"
        return f"ThriftServer({state}, {len(self._connections)} connections, {self.counters.calls} calls)"
