"""Calls from host to host, on the host's own event loop: framed, strict binary, over a few connections a peer.

Bounds (promise 8): `connections` per peer, each with one call in progress; `waiting` calls per peer behind them. (The
server at the other end runs one call at a time and leaves later ones in the socket, so a second call would only wait
there.) Calls that wait for a long time have `long_calls` connections of their own, and none waits behind them.
Requests and replies take from the byte budget, and a large reply is read only when there is room for it. A connection
that was idle for `idle_ms` is closed; a peer without connections and calls is forgotten.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from itertools import count
from typing import Any

from foqs.bounds import Budget, Limits
from foqs.errors import FoqsError, LostReply, NotSent, Overloaded
from foqs.rpc.call import log_failure
from foqs.rpc.hub import Report
from foqs.rpc.tls import TlsTransport
from foqs.travel import bare
from foqs.wire.client_codec import ReadReply, RemoteMethod
from foqs.wire.protocol import FRAME_HEAD_BYTES, SMALL_BYTES, Malformed, read_frame_size
from foqs.wire.scan import scan_reply, text_fault
from foqs.wire.usual_replies import Outcomes, items_done, items_leased, items_stored

Done = Callable[[Any, FoqsError | None], None]
"""(response, None) or (None, error), once."""

_RETRY_MS = 100
_SCRATCH_BYTES = 64 * 1024
_SEQIDS = 0x7FFF_FFFF
_INTRODUCTION = 0  # its sequence number
_UNREAD = frozenset({"Dequeue"})
"""Answers whose texts are passed on as they are: the host that stored the items has checked them."""
_USUAL: dict[str, ReadReply] = {
    "Enqueue": items_stored,
    "Dequeue": items_leased,
    **dict.fromkeys(("Ack", "Nack", "ExtendLease", "DeleteItems", "ChangeItems"), items_done),
}
_LONG = frozenset({"GetResult"})
_SILENT_S = 1.0
"""A call without an answer for this long says something of the other connections to its peer. Without this bound,
callers with very short timeouts would make hosts connect again all the time."""


class PeerCaller:
    """All methods run on the loop it was made on. `done` is called later, never by `call` itself."""

    def __init__(
        self,
        limits: Limits,
        budget: Budget,
        *,
        connections: int = 64,
        waiting: int = 1_000,
        long_calls: int = 256,
        connect_timeout_ms: int = 1_000,
        idle_ms: int = 60_000,
        tls: ssl.SSLContext | None = None,
        introduction: tuple[str, Any] | None = None,
        report: Report = log_failure,
    ) -> None:
        """`introduction` is (method, request): a connection sends it before a large request that would be the first
        one, as a host reads large requests of authenticated callers only."""
        self.budget = budget
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.introduction: bytes | None = None
        self.introduce(introduction)
        self._max_connections = connections
        self._max_waiting = waiting
        self._long_calls = long_calls
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._idle_s = idle_ms / 1000
        self.tls = tls
        """The context of new connections."""
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES if tls is not None else 0))
        self._report = report
        self._peers: dict[tuple[str, bool], Peer] = {}  # by address; True: for long calls
        self._connects: set[asyncio.Task[None]] = set()
        self._seqids = count(1)
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def introduce(self, introduction: tuple[str, Any] | None) -> None:
        """Send another introduction on new connections."""
        if introduction is None:
            self.introduction = None
            return
        name, request = introduction
        self.introduction = remote_method(name).encode(request, _INTRODUCTION, self.limits.frame_bytes)

    def call(
        self, address: str, method: str, request: Any, timeout_ms: int, done: Done
    ) -> Callable[[], None] | None:  # fmt: skip
        """Ask the host at `address` (host:port) within `timeout_ms`; `request` is the idl struct. A usual response
        reads like its struct (`foqs.wire.usual_replies`). Return what ends a long call early.

        Errors: NotSent (nothing was changed), LostReply (the outcome is unknown), Overloaded (too much waits here
        already), RequestTooLarge, Unencodable, or what the host answered.
        """
        seqid = next(self._seqids) & _SEQIDS
        try:
            remote = remote_method(method)
            frame = remote.encode(request, seqid, self.limits.frame_bytes)
        except FoqsError as error:
            self.loop.call_soon(done, None, bare(error))
            return None
        key = address, method in _LONG
        peer = self._peers.get(key) or Peer(*key)
        full = not (self._has_room(peer) and self.budget.fits(len(frame)))
        if full or self._closed:
            refusal = Overloaded(f"too much waits for {address}", _RETRY_MS) if full else NotSent("the host stops")
            self.loop.call_soon(done, None, refusal)
            return None
        self._peers[key] = peer
        self.budget.take(len(frame))
        asked = PeerCall(peer, remote, seqid, frame, done, self.loop.time())
        asked.timer = self.loop.call_later(timeout_ms / 1000, self._late, asked)
        peer.waiting.append(asked)
        peer.calls += 1
        self._serve(peer)
        return partial(self._give_up, asked) if peer.long else None

    def cut(self, address: str) -> None:
        """Lose all calls to a host that has left the cluster, rather than wait for their time-outs."""
        for long in (False, True):
            peer = self._peers.pop((address, long), None)
            if peer is not None:
                self._drop(peer, "the host is gone")

    def close(self) -> None:
        """Close all connections; calls in progress are lost."""
        self._closed = True
        for task in self._connects:
            task.cancel()
        for address, _ in list(self._peers):
            self.cut(address)
        if self._sweeping is not None:
            self._sweeping.cancel()

    # ------------------------------------------------------------------------------------- for its connections

    def sent(self, asked: PeerCall) -> None:
        """Give back the request's bytes: the peer begins to answer, so it has the whole request."""
        frame, asked.frame = asked.frame, b""
        self.budget.give(len(frame))

    def answered(self, connection: PeerConnection, asked: PeerCall, frame: bytes, ended: bool) -> None:
        """Finish a call whose whole reply came; `ended`: GOAWAY came behind it."""
        taken_bytes = connection.take_over()
        response = None
        error: FoqsError | None = None
        try:
            found = asked.method.decode(frame, asked.seqid, self._check_reply)
            usual = type(found) is Outcomes or asked.method.name in _UNREAD
            if not usual and (fault := text_fault(found)) is not None:
                raise Malformed(f"{fault} in the reply to {asked.method.name} is not UTF-8")
            response = found
        except Malformed as malformed:
            error = LostReply(f"{asked.peer.address}: {malformed}")
            connection.fail("it sent no valid reply")
        except FoqsError as answer:
            error = bare(answer)
        if ended or isinstance(error, NotSent):
            connection.fail("it sent GOAWAY")
        elif not isinstance(error, LostReply):
            connection.idle_since = self.loop.time()
            asked.peer.idle.append(connection)
            self._serve(asked.peer)
            self._sweep_later()
        self._finish(asked, response, error)
        self.budget.give(taken_bytes)

    def lost(self, connection: PeerConnection, asked: PeerCall | None, error: FoqsError | None) -> None:
        """Remove a closed connection; `asked` was in progress there."""
        peer = connection.peer
        peer.connections.discard(connection)
        if connection in peer.idle:
            peer.idle.remove(connection)
        if asked is not None:
            self._finish(asked, None, error)
        self._serve(peer)

    # ------------------------------------------------------------------------------------- inside

    def _check_reply(self, frame: bytes, start: int) -> None:
        scan_reply(frame, start, self.limits)

    def _has_room(self, peer: Peer) -> bool:
        """Return True if the peer may have one more call."""
        if peer.long:
            return peer.calls < self._long_calls
        return len(peer.waiting) < self._max_waiting

    def _serve(self, peer: Peer) -> None:
        """Give waiting calls to idle connections, and open more where that is allowed."""
        while peer.waiting and peer.idle:
            peer.idle.pop().send(peer.waiting.popleft())
        most = self._long_calls if peer.long else self._max_connections
        wanted = min(len(peer.waiting), most - len(peer.connections))
        while peer.connecting < wanted and not peer.gone:
            peer.connecting += 1
            task = self.loop.create_task(self._connect(peer))
            self._connects.add(task)
            task.add_done_callback(self._connects.discard)
        key = peer.address, peer.long
        if not (peer.waiting or peer.connections or peer.connecting) and self._peers.get(key) is peer:
            del self._peers[key]

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
            # Waiting calls get the next free connection, but only when its call is answered. So another connection is
            # tried, after a pause: without it, the attempts could repeat for ever.
            self.loop.call_later(_RETRY_MS / 1000, self._serve, peer)
            return
        if why:
            self._tell_waiting(peer, f"cannot connect to {peer.address}: {why}")
        elif peer.gone:
            connection.fail("the host is gone")
        elif connection in peer.connections:
            connection.idle_since = self.loop.time()
            peer.idle.append(connection)
            self._sweep_later()
        self._serve(peer)

    async def _open(self, peer: Peer, host: str, port: int) -> PeerConnection:
        connection = PeerConnection(self, peer)
        if self.tls is None:
            await self.loop.create_connection(lambda: connection, host, port)
            return connection
        shaken = self.loop.create_future()
        # Read the exception also where the connect was cancelled and no task awaits `shaken`.
        shaken.add_done_callback(lambda done: done.cancelled() or done.exception())
        tls = TlsTransport(self.tls, connection, self._scratch, server_hostname=host, shaken=shaken)
        transport, _ = await self.loop.create_connection(lambda: tls, host, port)
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

    def _give_up(self, asked: PeerCall) -> None:
        """End a call without an answer, unless it has ended. The other host learns it from the closed connection."""
        if asked.connection is not None:
            asked.connection.give_up(asked)
        elif asked in asked.peer.waiting:
            asked.peer.waiting.remove(asked)
            asked.done = _nothing
            self._finish(asked, None, None)

    def _late(self, asked: PeerCall) -> None:
        if asked.connection is not None:
            # The cause may have silenced idle connections too, unless they answered after the call began.
            if self.loop.time() - asked.begun_s >= _SILENT_S:
                for connection in [each for each in asked.peer.idle if each.idle_since < asked.begun_s]:
                    connection.fail("a call to the peer took too long")
            asked.connection.fail("it took too long")
        else:
            asked.peer.waiting.remove(asked)
            self._finish(asked, None, NotSent(f"no connection to {asked.peer.address} in time"))

    def _finish(self, asked: PeerCall, response: Any, error: FoqsError | None) -> None:
        assert asked.timer is not None
        asked.timer.cancel()
        asked.peer.calls -= 1
        self.budget.give(len(asked.frame))
        try:
            asked.done(response, error)
        except Exception as fault:  # noqa: BLE001 - one receiver's fault must not cost other calls their connection
            self._report(asked.method.name, fault, None)

    def _sweep_later(self) -> None:
        if self._sweeping is None and not self._closed:
            self._sweeping = self.loop.call_later(self._idle_s / 2, self._sweep)

    def _sweep(self) -> None:
        """Close connections that were idle for `idle_ms`; repeat while there are peers."""
        self._sweeping = None
        before = self.loop.time() - self._idle_s
        for peer in list(self._peers.values()):
            for connection in [each for each in peer.idle if each.idle_since <= before]:
                connection.fail("idle")
        if self._peers:
            self._sweep_later()

    def __repr__(self) -> str:
        open_ = sum(len(peer.connections) for peer in self._peers.values())
        return f"PeerCaller({len(self._peers)} peers, {open_} connections)"


def _nothing(_response: Any, _error: FoqsError | None) -> None:
    """The caller is gone."""


class PeerCall:
    """A call that is not answered yet. `connection` is None while the call waits for one."""

    __slots__ = ("begun_s", "connection", "done", "frame", "method", "peer", "seqid", "timer")

    def __init__(self, peer: Peer, method: RemoteMethod, seqid: int, frame: bytes, done: Done, begun_s: float) -> None:
        self.begun_s = begun_s
        self.peer = peer
        self.method = method
        self.seqid = seqid
        self.frame = frame
        self.done = done
        self.connection: PeerConnection | None = None
        self.timer: asyncio.TimerHandle | None = None


class Peer:
    """Another host with calls or connections, for `long` calls or for short ones. `idle` connections: the last one used
    is used next."""

    __slots__ = ("address", "calls", "connecting", "connections", "gone", "idle", "long", "waiting")

    def __init__(self, address: str, long: bool) -> None:
        self.address = address
        self.long = long
        self.connections: set[PeerConnection] = set()
        self.idle: list[PeerConnection] = []
        self.waiting: deque[PeerCall] = deque()
        self.calls = 0  # in progress, or waiting
        self.connecting = 0
        self.gone = False  # connections still being made are closed


class PeerConnection(asyncio.Protocol):
    """States: idle; a call in progress, its reply awaited, begun, or waiting for room in the budget; closed."""

    __slots__ = (
        "_asked", "_caller", "_closed", "_filled", "_frame", "_head", "_introduced", "_introducing", "_taken_bytes",
        "_transport", "_unsent", "_waiting", "idle_since", "peer",
    )  # fmt: skip

    def __init__(self, caller: PeerCaller, peer: Peer) -> None:
        self.peer = peer
        self.idle_since = 0.0
        self._caller = caller
        self._transport: Any = None
        self._asked: PeerCall | None = None
        self._unsent = False  # the peer cannot have the whole request
        self._introduced = caller.introduction is None
        self._introducing = False  # the request follows when the introduction is answered
        self._head = b""  # bytes of a reply that was not begun
        self._frame: bytearray | None = None  # being received
        self._filled = 0
        self._taken_bytes = 0  # from the budget, for the reply
        self._waiting = False  # for the budget
        self._closed = False

    def send(self, asked: PeerCall) -> None:
        """The connection is idle."""
        asked.connection = self
        self._asked = asked
        if not self._introduced and len(asked.frame) > SMALL_BYTES:
            self._introducing = True
            self._transport.write(self._caller.introduction)
        else:
            self._write(asked)

    def _write(self, asked: PeerCall) -> None:
        self._unsent = False
        self._transport.write(asked.frame)

    def fail(self, why: str) -> None:
        """Close at once; the call in progress is lost."""
        if self._closed:
            return
        self._closed = True
        asked, self._asked = self._asked, None
        self._frame, self._head, self._waiting = None, b"", False
        self._give()
        self._transport.abort()
        error: FoqsError | None = None
        if asked is not None:
            address = self.peer.address
            unsent = self._unsent or self._introducing
            error = NotSent(f"{address}: {why}") if unsent else LostReply(f"no reply from {address}: {why}")
        self._caller.lost(self, asked, error)

    def give_up(self, asked: PeerCall) -> None:
        """Close at once, if this call is in progress."""
        if self._asked is asked:
            asked.done = _nothing
            self.fail("its caller is gone")

    # ------------------------------------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        # So the transport calls `pause_writing` during each write that it cannot send whole.
        transport.set_write_buffer_limits(high=0)
        self.peer.connections.add(self)

    def pause_writing(self) -> None:
        self._unsent = True

    def resume_writing(self) -> None:
        self._unsent = False

    def data_received(self, data: bytes) -> None:
        frame = self._frame
        if self._asked is None:
            self.fail("it sent bytes without a request")
        elif frame is None:
            self._head += data
            if not self._waiting:
                self._begin()
        else:
            left = len(frame) - self._filled
            frame[self._filled : self._filled + len(data)] = data[:left]
            self._filled += len(data)
            if self._filled >= len(frame):
                self._frame = None
                self._answered(bytes(frame), ended=len(data) > left)

    def connection_lost(self, error: Exception | None) -> None:
        self.fail("the connection was lost")

    # ------------------------------------------------------------------------------------- one reply

    def _begin(self) -> None:
        head, asked = self._head, self._asked
        if len(head) < FRAME_HEAD_BYTES or asked is None:
            return
        if not self._introducing:
            self._caller.sent(asked)
        (size,) = read_frame_size(head)
        if not 0 < size <= self._caller.limits.frame_bytes:
            self.fail(f"a reply of {size} bytes was announced")
        elif size > SMALL_BYTES and not self._caller.budget.fits(size):
            self._waiting = True
            self._transport.pause_reading()
            self._caller.budget.when_given(self._given)
        else:
            self._caller.budget.take(size)
            self._taken_bytes = size
            self._head = b""
            end = FRAME_HEAD_BYTES + size
            if len(head) >= end:
                self._answered(head[FRAME_HEAD_BYTES:end], ended=len(head) > end)
                return
            self._frame = bytearray(size)
            self._filled = len(head) - FRAME_HEAD_BYTES
            self._frame[: self._filled] = head[FRAME_HEAD_BYTES:]

    def _given(self) -> None:
        # The budget is given back in the middle of other work: resume after it.
        self._caller.loop.call_soon(self._resume)

    def _resume(self) -> None:
        if self._waiting:
            self._waiting = False
            self._transport.resume_reading()
            self._begin()

    def _answered(self, frame: bytes, *, ended: bool) -> None:
        """`ended`: GOAWAY came behind the reply."""
        asked = self._asked
        assert asked is not None
        self._introduced = True
        if self._introducing and not ended:
            # Whatever the answer is: if the proof is refused, the request is refused in the same way.
            self._introducing = False
            self._give()
            self._write(asked)
        elif self._introducing:
            self.fail("it sent GOAWAY")
        else:
            self._asked = None
            self._caller.answered(self, asked, frame, ended)

    def _give(self) -> None:
        self._caller.budget.give(self.take_over())

    def take_over(self) -> int:
        """Return the bytes of the budget taken for the reply; the caller must give them back."""
        size, self._taken_bytes = self._taken_bytes, 0
        return size

    def __repr__(self) -> str:
        state = "closed" if self._closed else "busy" if self._asked is not None else "idle"
        return f"PeerConnection({self.peer.address}, {state})"


@cache
def remote_method(name: str) -> RemoteMethod:
    """Raises AttributeError: the IDL has no such method."""
    return RemoteMethod(name, usual=_USUAL.get(name))


def _split(address: str) -> tuple[str, int]:
    """Raises ValueError: the address is not host:port, or [host]:port."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
