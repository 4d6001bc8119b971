"""The Thrift server: framed transport, strict binary protocol, one event loop, no task and no thread per
request.

Bounds (promise 8): connections by `max_connections`, those of one address by `max_connections_per_address` (each has
one call in hand at most); a frame by `limits.frame_bytes`, refused before a byte of it is held; what connections hold
in all, input and output, by the byte budget. `foqs.rpc.frames` says which unfinished frames may take more of it; the
sockets of the others are not read. A frame that does not arrive whole, a TLS handshake that does not end, and an
answer of which nothing is taken, for `frame_timeout_s` cost their connection. Where callers have to be authenticated,
a connection takes small frames only before the first authenticated request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any

import structlog

from foqs.budget import Budget
from foqs.counters import Namespaces
from foqs.idl import idl
from foqs.limits import Limits
from foqs.lines import Lines
from foqs.rpc.address import Places
from foqs.rpc.admission import Admission
from foqs.rpc.call import Call
from foqs.rpc.connection import Connection
from foqs.rpc.counters import counters_of
from foqs.rpc.decode import Decoder
from foqs.rpc.encode import Encoder
from foqs.rpc.frames import Frame, Frames
from foqs.rpc.request_log import RequestLog, request_id_of, trace_of
from foqs.rpc.tls import Tls

log = structlog.get_logger("foqs.rpc")

Handler = Callable[[Call], None]
Trusts = Callable[[tuple[str, ...]], bool]
"""Whether a client whose certificate has these names (none: no certificate) is known without a further proof."""
Report = Callable[[str, Exception, Any], None]
"""(method, what was raised, the request where it is known)"""

_SCRATCH_BYTES = 64 * 1024
_BACKLOG = 1024
_FRAME_HEAD_BYTES = 4


def log_failure(method: str, error: Exception, request: Any) -> None:
    """What is done about an exception that a handler let out, unless a server is told otherwise."""
    request_id = None if request is None else request_id_of(request)
    trace = {} if request is None else trace_of(request.context)
    log.error("handler.failed", method=method, request_id=request_id, exc_info=error, **trace)


class ThriftServer:
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
        self.frames = Frames(budget.limit_bytes, limits.frame_bytes)
        self.handlers = dict(handlers)
        self.limits = limits
        self.budget = budget
        self.report = report
        self.counters = counters_of(self.handlers)
        self.namespaces = namespaces if namespaces is not None else Namespaces()
        self.requests = requests or RequestLog(perf_counter)
        self.decoder = Decoder(idl.Foqs, self.handlers, limits)
        self.encoder = Encoder(limits.frame_bytes)
        self.trusts = trusts
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.draining = False
        self.now = 0.0  # loop time of the last tick
        self.loop: asyncio.AbstractEventLoop
        self.admission: Admission
        self._room_bytes = budget.limit_bytes - max(self.frames.small_share_bytes, _SCRATCH_BYTES)
        self.places = Places()
        self.bound(max_connections, max_connections_per_address, frame_timeout_s, idle_timeout_s)
        self._connections: set[Connection] = set()
        # Bytes of its answer that a peer has not taken, and since when.
        self._stalled: dict[Connection, tuple[int, float]] = {}
        self._listeners: list[asyncio.Server] = []
        self._tls = tls
        self._ticking: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._refusals = Lines(1)
        self._cuts = Lines(1)

    def bound(
        self,
        max_connections: int,
        max_connections_per_address: int | None,
        frame_timeout_s: float,
        idle_timeout_s: float,
    ) -> None:
        """Bounds on connections, from now on also for those that are open; none is closed for being too many."""
        self.places.bound(max_connections, max_connections_per_address)
        self._frame_timeout_s = frame_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._tick_s = min(1.0, frame_timeout_s / 4, idle_timeout_s / 4)

    def limit(self, limits: Limits) -> None:
        """Bounds on requests, from the next one on. Not for `frame_bytes`, which frames under way were measured by."""
        assert limits.frame_bytes == self.limits.frame_bytes
        self.limits = self.decoder.limits = limits

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Begins to serve; port 0 picks one. Returns where it listens. Raises OSError when it cannot."""
        address = await self.bind(host, port)
        await self.serve()
        return address

    async def bind(self, host: str, port: int, *, shared: bool = False) -> tuple[str, int]:
        """Takes the port, where connections are refused until `serve`. Another one may be taken beside it.

        A `shared` port is one that other processes of the same user listen on as well: each gets some of the
        connections (SO_REUSEPORT).
        """
        if not self._listeners:
            self.loop = asyncio.get_running_loop()
            self.admission = Admission(self.budget, self.frames, self.counters, self.loop)
        listener = await self.loop.create_server(
            self._connection, host, port, backlog=_BACKLOG, start_serving=False, reuse_port=shared or None
        )
        self._listeners.append(listener)
        address: tuple[Any, ...] = listener.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def serve(self) -> None:
        """Takes connections on every port that was bound. Raises OSError when another process was faster."""
        for listener in list(self._listeners):
            await listener.start_serving()
        if self._ticking is None and self._listeners:
            self._tick()

    @property
    def serves(self) -> bool:
        """Whether connections are taken."""
        return self._ticking is not None and bool(self._listeners)

    def stop_listening(self) -> None:
        """Takes no more connections; those that are open go on."""
        while self._listeners:
            self._listeners.pop().close()

    async def drain(self, deadline: float) -> bool:
        """Begins no more requests, answers those in hand, and says goodbye on each connection after its answer.

        `deadline` is in seconds of the loop's clock; what is open then is aborted (and its call is lost).
        Returns whether no call was.
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
        """Stops at once; calls in hand are lost."""
        self.draining = True
        self.stop_listening()
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        for connection in list(self._connections):
            connection.abort()

    def _connection(self) -> asyncio.BufferedProtocol:
        connection = Connection(self)
        if self._tls is None:
            return connection
        return Tls(self._tls, connection, self.scratch, accept=connection.accepted, held=connection.encrypted)

    # -------------------------------------------------------------------------------- for its connections

    def admit(self, connection: Connection, host: str) -> bool:
        """Whether there is room for one more connection, from that address."""
        full = None if self.draining else self.places.take(host)
        if self.draining or full is not None:
            self.counters.connections_refused += 1
            if full is not None:
                self._log_refusal(host, *full)
            return False
        self._connections.add(connection)
        self.counters.connections += 1
        self.counters.connections_accepted += 1
        return True

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        if connection in self._connections:
            self._connections.remove(connection)
            self.places.give(connection.host)
            self.counters.connections -= 1
        self._stalled.pop(connection, None)
        if not self._connections:
            self._emptied.set()

    def answered(self, call: Call, answer_bytes: int) -> None:
        """An answer with so many bytes was written."""
        method = call.method
        counters = self.counters.methods[method]
        counters.calls += 1
        counters.request_bytes += call.request_bytes + _FRAME_HEAD_BYTES
        counters.answer_bytes += answer_bytes
        namespace = self.namespaces.of(getattr(call.request, "ns", None))
        took_s = self.requests.now_s() - call.begun_s
        namespace.seconds[method].observe(took_s)
        if took_s > self.requests.slow_s:
            self.requests.took(call, took_s, answered=True)

    def has_room(self) -> bool:
        """Whether a read may bring bytes of any frame. If not, only the lengths of frames are read, and small frames
        are admitted one by one to the share that is theirs."""
        return self.budget.used_bytes <= self._room_bytes

    def stalled(self, connection: Connection, output_bytes: int) -> None:
        """The peer does not take its answer."""
        self._stalled[connection] = (output_bytes, self.loop.time())

    def unstalled(self, connection: Connection) -> None:
        """The peer has taken its answer."""
        self._stalled.pop(connection, None)

    # ------------------------------------------------------------------------------------------ time-outs

    def _tick(self) -> None:
        self.now = self.loop.time()
        self._ticking = self.loop.call_later(self._tick_s, self._tick)
        self._close_late()
        self._close_stalled()
        self._close_idle()

    def _close_late(self) -> None:
        for frame in self.frames.late(self.now, self._frame_timeout_s):
            frame.owner.abort("slow frame")
        for frame in self.frames.slow(self.now, self._frame_timeout_s):
            self._log_cut(frame)
            frame.owner.abort("slow frame")

    def _log_cut(self, frame: Frame) -> None:
        left_out = self._cuts.take(self.now)
        if left_out is not None:
            log.warning(
                "frame.cut",
                address=frame.owner.peer,
                frame_bytes=frame.size_bytes,
                received_bytes=frame.received_bytes,
                bytes_per_s=round(frame.pace or 0.0),
                waiting=self.frames.waiting,
                left_out=left_out,
            )

    def _log_refusal(self, host: str, key: str, limit: int) -> None:
        left_out = self._refusals.take(self.now)
        if left_out is not None:
            log.warning(
                "connection.refused",
                address=host,
                limit=limit,
                hint=f"raise server.{key} (SIGHUP applies it) if these are your clients",
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
