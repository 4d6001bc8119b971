"""One connection to another host: a frame out, a frame in, one call at a time.

The server at the other end carries out one call at a time and leaves what comes behind it in the socket, so a second
call would only wait there: it takes another connection of the pool (`foqs.rpc.client`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foqs.errors import FoqsError, OutcomeUnknown, Unavailable
from foqs.rpc.frames import SMALL_BYTES
from foqs.rpc.wire import read_frame_size

if TYPE_CHECKING:
    from foqs.rpc.client import Caller, Peer

Done = Callable[[Any, FoqsError | None], None]
"""(response, None) or (None, error), once."""


class NotSent(Unavailable):
    """The peer cannot have seen the whole request: nothing was changed."""


class LostReply(OutcomeUnknown):
    """The request was sent and no usable reply came."""


class Asked:
    """A call that is not answered yet. `connection` is None while it waits for one."""

    __slots__ = ("connection", "done", "frame", "method", "peer", "seqid", "timer")

    def __init__(self, peer: Peer, method: str, seqid: int, frame: bytes, done: Done) -> None:
        self.peer = peer
        self.method = method
        self.seqid = seqid
        self.frame = frame
        self.done = done
        self.connection: PeerConnection | None = None
        self.timer: asyncio.TimerHandle | None = None


class PeerConnection(asyncio.Protocol):
    """States: idle; a call in hand, its reply awaited, begun, or waiting for room in the budget; closed."""

    __slots__ = (
        "_asked", "_caller", "_closed", "_filled", "_frame", "_head", "_introduced", "_introducing", "_taken_bytes",
        "_transport", "_unsent", "_waiting", "idle_since", "peer",
    )  # fmt: skip

    def __init__(self, caller: Caller, peer: Peer) -> None:
        self.peer = peer
        self.idle_since = 0.0
        self._caller = caller
        self._transport: Any = None
        self._asked: Asked | None = None
        self._unsent = False  # the peer cannot have the whole of the request
        self._introduced = caller.introduction is None
        self._introducing = False  # the request follows when the introduction is answered
        self._head = b""  # bytes of a reply that was not begun
        self._frame: bytearray | None = None  # being received
        self._filled = 0
        self._taken_bytes = 0  # from the budget, for the reply
        self._waiting = False  # for the budget
        self._closed = False

    def send(self, asked: Asked) -> None:
        """The connection is idle."""
        asked.connection = self
        self._asked = asked
        if not self._introduced and len(asked.frame) > SMALL_BYTES:
            self._introducing = True
            self._transport.write(self._caller.introduction)
        else:
            self._write(asked)

    def _write(self, asked: Asked) -> None:
        self._unsent = False
        self._transport.write(asked.frame)

    def fail(self, why: str) -> None:
        """Closes at once; the call in hand is lost."""
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

    # ------------------------------------------------------------------------------------- what asyncio calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        # So that what a write leaves behind is told at once.
        transport.set_write_buffer_limits(high=0)
        self.peer.connections.add(self)

    def pause_writing(self) -> None:
        self._unsent = True

    def resume_writing(self) -> None:
        self._unsent = False

    def data_received(self, data: bytes) -> None:
        frame = self._frame
        if self._asked is None:
            self.fail("it sent what nobody asked for")
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
        if len(head) < 4 or asked is None:
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
            if len(head) >= size + 4:
                self._answered(head[4 : size + 4], ended=len(head) > size + 4)
                return
            self._frame = bytearray(size)
            self._filled = len(head) - 4
            self._frame[: self._filled] = head[4:]

    def _given(self) -> None:
        # A give happens amid somebody's work: the reading goes on when that is done.
        self._caller.soon(self._resume)

    def _resume(self) -> None:
        if self._waiting:
            self._waiting = False
            self._transport.resume_reading()
            self._begin()

    def _answered(self, frame: bytes, *, ended: bool) -> None:
        """`ended`: something came behind the reply, a goodbye."""
        asked = self._asked
        assert asked is not None
        self._introduced = True
        if self._introducing and not ended:
            # Whatever the answer is: if the proof is refused, the request is refused in the same way.
            self._introducing = False
            self._give()
            self._write(asked)
        elif self._introducing:
            self.fail("goodbye")
        else:
            self._asked = None
            self._caller.answered(self, asked, frame, ended=ended)

    def _give(self) -> None:
        size, self._taken_bytes = self._taken_bytes, 0
        self._caller.budget.give(size)

    def take_over(self) -> int:
        """The bytes of the budget that were taken for the reply, which are the caller's to give back now."""
        size, self._taken_bytes = self._taken_bytes, 0
        return size

    def __repr__(self) -> str:
        state = "closed" if self._closed else "busy" if self._asked is not None else "idle"
        return f"PeerConnection({self.peer.address}, {state})"
