"""Calls from host to host, on the host's own event loop: framed, strict binary, over a few connections a peer.

Bounds (promise 8): `connections` a peer, each with one call in hand; `waiting` calls a peer behind them; requests and
replies take from the byte budget, and a large reply is not read before there is room for it. A connection that nobody
used for `idle_ms` is closed; of a peer without connections and calls nothing is kept.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from foqs.budget import Budget
from foqs.errors import FoqsError, Overloaded
from foqs.limits import Limits
from foqs.rpc import outgoing
from foqs.rpc.peer import Asked, Done, LostReply, NotSent, PeerConnection
from foqs.rpc.server import Report, log_failure
from foqs.rpc.tls import Tls
from foqs.rpc.wire import Malformed

_RETRY_MS = 100
_SCRATCH_BYTES = 64 * 1024
_SEQIDS = 0x7FFF_FFFF
_INTRODUCTION = 0  # its sequence number


class Peer:
    """Another host, as long as there is something of it. `idle` connections: the one used last is used next."""

    __slots__ = ("address", "connecting", "connections", "gone", "idle", "waiting")

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections: set[PeerConnection] = set()
        self.idle: list[PeerConnection] = []
        self.waiting: deque[Asked] = deque()
        self.connecting = 0
        self.gone = False  # what is still being connected for it is not wanted


class Caller:
    """All methods run on the loop it was made on. `done` is called later, never by `call` itself."""

    def __init__(
        self,
        limits: Limits,
        budget: Budget,
        *,
        connections: int = 64,
        waiting: int = 1_000,
        connect_timeout_ms: int = 1_000,
        idle_ms: int = 60_000,
        tls: ssl.SSLContext | None = None,
        introduction: tuple[str, Any] | None = None,
        report: Report = log_failure,
    ) -> None:
        """`introduction` is (method, request): a connection sends it before a large request that would be the first
        one, as a host reads large requests of authenticated callers only."""
        self.limits = limits
        self.budget = budget
        self.introduction: bytes | None = None
        if introduction is not None:
            self.introduction = outgoing.encode(*introduction, _INTRODUCTION, limits)
        self._max_connections = connections
        self._max_waiting = waiting
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._idle_s = idle_ms / 1000
        self._tls = tls
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES if tls is not None else 0))
        self._report = report
        self._loop = asyncio.get_running_loop()
        self.soon: Callable[[Callable[[], None]], Any] = self._loop.call_soon
        self._peers: dict[str, Peer] = {}
        self._connects: set[asyncio.Task[None]] = set()
        self._seqids = count(1)
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def call(self, address: str, method: str, request: Any, timeout_ms: int, done: Done) -> None:
        """Asks the host at `address` (host:port) within `timeout_ms`; `request` is the idl struct.

        Errors: NotSent (nothing was changed), LostReply (nobody knows), Overloaded (too much waits here already),
        RequestTooLarge, or what the host answered.
        """
        seqid = next(self._seqids) & _SEQIDS
        try:
            frame = outgoing.encode(method, request, seqid, self.limits)
        except FoqsError as error:
            self._loop.call_soon(done, None, error)
            return
        peer = self._peers.get(address) or Peer(address)
        full = len(peer.waiting) >= self._max_waiting or not self.budget.fits(len(frame))
        if full or self._closed:
            refusal = Overloaded(f"too much waits for {address}", _RETRY_MS) if full else NotSent("the host stops")
            self._loop.call_soon(done, None, refusal)
            return
        self._peers[address] = peer
        self.budget.take(len(frame))
        asked = Asked(peer, method, seqid, frame, done)
        asked.timer = self._loop.call_later(timeout_ms / 1000, self._late, asked)
        peer.waiting.append(asked)
        self._serve(peer)

    def cut(self, address: str) -> None:
        """The host is gone: calls to it are lost at once, which a silent one would not tell for long."""
        peer = self._peers.pop(address, None)
        if peer is not None:
            self._drop(peer, "the host is gone")

    def close(self) -> None:
        """Loses what is under way."""
        self._closed = True
        for task in self._connects:
            task.cancel()
        for address in list(self._peers):
            self.cut(address)
        if self._sweeping is not None:
            self._sweeping.cancel()

    # ------------------------------------------------------------------------------------- for its connections

    def sent(self, asked: Asked) -> None:
        """The peer begins to answer, so it has the whole request: room for the reply."""
        frame, asked.frame = asked.frame, b""
        self.budget.give(len(frame))

    def answered(self, connection: PeerConnection, asked: Asked, frame: bytes, *, ended: bool) -> None:
        """A whole frame came for the call that was in hand; `ended`: the last one of the connection."""
        taken_bytes = connection.take_over()
        response = None
        error: FoqsError | None = None
        try:
            response = outgoing.decode(asked.method, frame, asked.seqid, self.limits)
        except Malformed as malformed:
            error = LostReply(f"{asked.peer.address}: {malformed}")
            connection.fail("it sent what is no reply")
        except FoqsError as answer:
            error = answer.with_traceback(None)
        if ended or isinstance(error, NotSent):
            connection.fail("goodbye")
        elif not isinstance(error, LostReply):
            connection.idle_since = self._loop.time()
            asked.peer.idle.append(connection)
            self._serve(asked.peer)
            self._sweep_later()
        self._finish(asked, response, error)
        self.budget.give(taken_bytes)

    def lost(self, connection: PeerConnection, asked: Asked | None, error: FoqsError | None) -> None:
        """The connection is closed; `asked` was in its hand."""
        peer = connection.peer
        peer.connections.discard(connection)
        if connection in peer.idle:
            peer.idle.remove(connection)
        if asked is not None:
            self._finish(asked, None, error)
        self._serve(peer)

    # ------------------------------------------------------------------------------------- inside

    def _serve(self, peer: Peer) -> None:
        """Gives waiting calls to idle connections, and opens more where that is allowed."""
        while peer.waiting and peer.idle:
            peer.idle.pop().send(peer.waiting.popleft())
        wanted = min(len(peer.waiting), self._max_connections - len(peer.connections))
        while peer.connecting < wanted and not peer.gone:
            peer.connecting += 1
            task = self._loop.create_task(self._connect(peer))
            self._connects.add(task)
            task.add_done_callback(self._connects.discard)
        if not (peer.waiting or peer.connections or peer.connecting) and self._peers.get(peer.address) is peer:
            del self._peers[peer.address]

    async def _connect(self, peer: Peer) -> None:
        why = ""
        try:
            host, port = _split(peer.address)
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await self._open(peer, host, port)
        except (OSError, ValueError) as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        finally:
            peer.connecting -= 1
        if why and peer.connections:
            # Those that wait get the next connection that is free, which may take as long as what is in hand there. So
            # another one is tried, but not at once: that could go on for ever.
            self._loop.call_later(_RETRY_MS / 1000, self._serve, peer)
            return
        if why:
            self._tell_waiting(peer, f"cannot connect to {peer.address}: {why}")
        elif peer.gone:
            connection.fail("the host is gone")
        elif connection in peer.connections:
            connection.idle_since = self._loop.time()
            peer.idle.append(connection)
            self._sweep_later()
        self._serve(peer)

    async def _open(self, peer: Peer, host: str, port: int) -> PeerConnection:
        connection = PeerConnection(self, peer)
        if self._tls is None:
            await self._loop.create_connection(lambda: connection, host, port)
            return connection
        shaken = self._loop.create_future()
        shaken.add_done_callback(lambda told: told.cancelled() or told.exception())  # nobody may wait for it any more
        tls = Tls(self._tls, connection, self._scratch, server_hostname=host, shaken=shaken)
        transport, _ = await self._loop.create_connection(lambda: tls, host, port)
        try:
            await shaken
        except BaseException:
            transport.abort()
            raise
        return connection

    def _drop(self, peer: Peer, why: str) -> None:
        peer.gone = True
        for connection in list(peer.connections):
            connection.fail(why)
        self._tell_waiting(peer, f"{peer.address}: {why}")

    def _tell_waiting(self, peer: Peer, why: str) -> None:
        waiting, peer.waiting = peer.waiting, deque()
        for asked in waiting:
            self._finish(asked, None, NotSent(why))

    def _late(self, asked: Asked) -> None:
        if asked.connection is not None:
            asked.connection.fail("it took too long")
        else:
            asked.peer.waiting.remove(asked)
            self._finish(asked, None, NotSent(f"no connection to {asked.peer.address} in time"))

    def _finish(self, asked: Asked, response: Any, error: FoqsError | None) -> None:
        assert asked.timer is not None
        asked.timer.cancel()
        self.budget.give(len(asked.frame))
        try:
            asked.done(response, error)
        except Exception as fault:  # noqa: BLE001 - one receiver's fault must not cost others their connection
            self._report(asked.method, fault, None)

    def _sweep_later(self) -> None:
        if self._sweeping is None and not self._closed:
            self._sweeping = self._loop.call_later(self._idle_s / 2, self._sweep)

    def _sweep(self) -> None:
        """Closes connections that were idle for long; goes on for as long as there are any."""
        self._sweeping = None
        before = self._loop.time() - self._idle_s
        for peer in list(self._peers.values()):
            for connection in [each for each in peer.idle if each.idle_since <= before]:
                connection.fail("idle")
        if self._peers:
            self._sweep_later()

    def __repr__(self) -> str:
        open_ = sum(len(peer.connections) for peer in self._peers.values())
        return f"Caller({len(self._peers)} peers, {open_} connections)"


def _split(address: str) -> tuple[str, int]:
    """ValueError when it is not host:port, or [host]:port."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
