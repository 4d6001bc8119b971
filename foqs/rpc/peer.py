"""One connection to another host: a frame out, a frame in, one call at a time.

The server at the other end runs one call at a time and leaves later ones in the socket. A second call would only wait
there: it takes another connection of the pool (`foqs.rpc.peer_caller`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foqs.bounds import Budget, Limits
from foqs.errors import FoqsError, LostReply, NotSent
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import FRAME_HEAD_BYTES, SMALL_BYTES, read_frame_size

Done = Callable[[Any, FoqsError | None], None]
"""(response, None) or (None, error), once."""


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
    """Another host with calls or connections. `idle` connections: the one used last is used next."""

    __slots__ = ("address", "connecting", "connections", "gone", "idle", "waiting")

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections: set[PeerConnection] = set()
        self.idle: list[PeerConnection] = []
        self.waiting: deque[PeerCall] = deque()
        self.connecting = 0
        self.gone = False  # connections still being made are closed


@dataclass(slots=True)
class PeerShared:
    """Shared by all connections to peers. `soon` runs a function after the current event of the loop.

    `sent(asked)`: the peer begins to answer, so it has the whole request. `answered(connection, asked, frame, ended)`:
    the whole reply came; `ended`: GOAWAY came behind it. `lost(connection, asked, error)`: the connection is closed.
    """

    limits: Limits
    budget: Budget
    introduction: bytes | None
    soon: Callable[[Callable[[], None]], Any]
    sent: Callable[[PeerCall], None]
    answered: Callable[[PeerConnection, PeerCall, bytes, bool], None]
    lost: Callable[[PeerConnection, PeerCall | None, FoqsError | None], None]


class PeerConnection(asyncio.Protocol):
    """States: idle; a call in progress, its reply awaited, begun, or waiting for room in the budget; closed."""

    __slots__ = (
        "_asked", "_closed", "_filled", "_frame", "_head", "_introduced", "_introducing", "_shared", "_taken_bytes",
        "_transport", "_unsent", "_waiting", "idle_since", "peer",
    )  # fmt: skip

    def __init__(self, shared: PeerShared, peer: Peer) -> None:
        self.peer = peer
        self.idle_since = 0.0
        self._shared = shared
        self._transport: Any = None
        self._asked: PeerCall | None = None
        self._unsent = False  # the peer cannot have the whole request
        self._introduced = shared.introduction is None
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
            self._transport.write(self._shared.introduction)
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
        self._shared.lost(self, asked, error)

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
            self._shared.sent(asked)
        (size,) = read_frame_size(head)
        if not 0 < size <= self._shared.limits.frame_bytes:
            self.fail(f"a reply of {size} bytes was announced")
        elif size > SMALL_BYTES and not self._shared.budget.fits(size):
            self._waiting = True
            self._transport.pause_reading()
            self._shared.budget.when_given(self._given)
        else:
            self._shared.budget.take(size)
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
        self._shared.soon(self._resume)

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
            self._shared.answered(self, asked, frame, ended)

    def _give(self) -> None:
        size, self._taken_bytes = self._taken_bytes, 0
        self._shared.budget.give(size)

    def take_over(self) -> int:
        """Return the bytes of the budget taken for the reply; the caller must give them back."""
        size, self._taken_bytes = self._taken_bytes, 0
        return size

    def __repr__(self) -> str:
        state = "closed" if self._closed else "busy" if self._asked is not None else "idle"
        return f"PeerConnection({self.peer.address}, {state})"
