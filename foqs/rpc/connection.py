"""One connection: bytes in, one call at a time, answers out.

Bytes are received in one of two places. While nothing is pending they go to a buffer that all connections
share, and whole frames are cut from it at once; that is the way of nearly every request. What is left over
(the beginning of a frame, or frames that came while a call is in hand) is copied out. As soon as the length
of an unfinished frame is known its bytes are reserved in the budget, and the rest is received straight into a
buffer of exactly that size.

`_settle()` sums up all that a connection holds and brings the budget, the socket's reading and the clock of
unfinished frames in line with it, at the end of every event. So each take has exactly one give.
"""

from __future__ import annotations

import asyncio
from ssl import SSLError
from typing import TYPE_CHECKING, Any

from foqs.errors import Invalid
from foqs.rpc.address import address_of
from foqs.rpc.call import Call
from foqs.rpc.decode import NotServed
from foqs.rpc.tls import Tls, names_of
from foqs.rpc.wire import CALL, INVALID_MESSAGE_TYPE, ONEWAY, UNKNOWN_METHOD, Malformed, read_frame_size

if TYPE_CHECKING:
    from foqs.rpc.server import ThriftServer

BEHIND_BYTES = 64 * 1024  # held behind a call in hand before reading is paused
LINGER_S = 0.25  # for a peer that was told goodbye; its requests take no longer on their way
_HEAD_BYTES = 4
_TURN_FRAMES = 64  # answered in a row before other connections get their turn
_NAME_BYTES = 255  # of an unknown method that are said back


class Connection(asyncio.BufferedProtocol):
    """States: idle; receiving (`_frame` or `_behind`); waiting for the budget; a call in hand; answer not
    drained; told goodbye.
    """

    __slots__ = (
        "_answer_bytes", "_behind", "_call", "_closing", "_cutting", "_filled", "_frame", "_output_bytes",
        "_reading", "_server", "_taken_bytes", "_timed", "_transport", "_turn_due", "_waiting", "certified",
        "counters", "encoder", "host", "peer", "requests", "seen",
    )  # fmt: skip

    def __init__(self, server: ThriftServer) -> None:
        self._server = server
        self.counters = server.counters
        self.encoder = server.encoder
        self.requests = server.requests
        self.host = self.peer = ""
        self.certified: tuple[str, ...] = ()
        self.seen = server.now
        self._transport: Any = None
        self._call: Call | None = None
        self._behind = bytearray()  # bytes that are not cut yet
        self._frame: bytearray | None = None  # being received
        self._filled = 0
        self._taken_bytes = 0  # from the budget
        self._output_bytes = 0  # given to the transport, not drained
        self._answer_bytes = 0  # of the last answer
        self._reading = True
        self._waiting = False  # for the budget
        self._timed = False  # a frame was begun and its time runs
        self._cutting = False
        self._turn_due = False
        self._closing = False

    # ------------------------------------------------------------------------------------ what asyncio calls

    def accepted(self, transport: Any) -> bool:
        """Takes a place on the server, or closes. Before a TLS handshake, which has the time of a frame."""
        self._transport = transport
        self.host, self.peer = address_of(transport)
        if not self._server.admit(self, self.host):
            self._closing = True
            transport.abort()
            return False
        if isinstance(transport, Tls):
            self._timed = True
            self._server.time_frame(self, True)
        return True

    def connection_made(self, transport: Any) -> None:
        if isinstance(transport, Tls):
            self.certified = names_of(transport.get_extra_info("peercert"))
            self._settle()
        elif not self.accepted(transport):
            return
        # With a high-water mark of 0, what a write leaves behind is told at once: after a write either all
        # was sent or `pause_writing` has been called.
        transport.set_write_buffer_limits(high=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is not None:
            return memoryview(frame)[self._filled :]
        server = self._server
        if self._call is None and not self._behind and server.has_room():
            return server.scratch
        return server.scratch[: max(1, self._behind_limit() - len(self._behind))]

    def buffer_updated(self, size: int) -> None:
        server = self._server
        if self._closing:
            return  # after the goodbye: dropped, as it says
        self.seen = server.now
        if self._frame is not None:
            self._filled += size
            if self._filled == len(self._frame):
                frame, self._frame, self._filled = bytes(self._frame), None, 0
                self._begin(frame)
        elif self._call is None and not self._behind and not self._output_bytes:
            used = self._cut(server.scratch, size)
            if used < size and not self._closing:
                self._behind += server.scratch[used:size]
                self._receive_rest()
        else:
            self._behind += server.scratch[:size]
            self._go_on()
        self._settle()

    def eof_received(self) -> bool:
        # No Thrift client closes only its sending side: whoever waits for the answer is gone.
        return False

    def pause_writing(self) -> None:
        left_bytes = self._transport.get_write_buffer_size()
        # The transport keeps the whole of an answer until the last byte of it is sent.
        self._output_bytes = max(left_bytes, self._answer_bytes)
        self._server.stalled(self, left_bytes)

    def resume_writing(self) -> None:
        self._output_bytes = 0
        self._server.unstalled(self)
        if not self._closing:
            self._go_on()
        self._settle()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_receiving()
        self._output_bytes = 0
        if isinstance(error, SSLError):
            self.counters.closed["tls"] += 1
        call, self._call = self._call, None
        self._settle()
        self._server.forget(self)
        if call is not None:
            self.counters.lost += 1
            call.lost()

    # ------------------------------------------------------------------------------------ what others call

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def is_idle(self) -> bool:
        """Nothing was begun that is not finished."""
        return self._taken_bytes == 0 and not self._timed and not self._waiting

    def output_bytes(self) -> int:
        """Given to the transport and not sent yet."""
        size: int = self._transport.get_write_buffer_size()
        return size

    def answer(self, call: Call, frame: bytes) -> None:
        """Sends the answer to the call in hand, and goes on with what came behind it."""
        call.settled()
        self._call = None
        self._answer_bytes = len(frame)
        self._server.answered(call, len(frame))
        self._transport.write(frame)
        if self._server.draining:
            self.finish()
        elif not self._cutting:
            self._go_on()
            self._settle()

    def admitted(self) -> None:
        """There is room in the budget for the frame that waits."""
        self._waiting = False
        self._reserve(read_frame_size(self._behind)[0])
        self._settle()

    def lingers(self) -> bool:
        """All is sent, the goodbye last; the peer has not closed yet."""
        return self._closing and not self.output_bytes()

    def finish(self, why: str | None = None) -> None:
        """Begins no more requests; says goodbye as soon as the call in hand is answered. `why` is counted.

        A request may be on its way. To close then would reset the connection, and leave its sender in doubt about
        what was done; so the peer is told, and gets some time to close first.
        """
        if self._call is not None or self.is_closing():
            return
        if why is not None:
            self.counters.closed[why] += 1
        self._stop_receiving()
        self._transport.write(self.encoder.goodbye())
        self._transport.write_eof()
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        self._settle()
        self._server.loop.call_later(LINGER_S, self._transport.close)

    def close(self, why: str | None = None) -> None:
        """Sends what was answered, then closes. `why` is counted."""
        if self._closing:
            return
        if why is not None:
            self.counters.closed[why] += 1
        self._stop_receiving()
        self._transport.close()
        self._settle()

    def abort(self, why: str | None = None) -> None:
        """Closes at once."""
        if why is not None:
            self.counters.closed[why] += 1
        self._stop_receiving()
        self._transport.abort()
        self._settle()

    def report(self, call: Call, error: Exception) -> None:
        self._server.report(call.method, error, call.request)

    def _stop_receiving(self) -> None:
        self._closing = True
        self._behind = bytearray()
        self._frame = None
        if self._waiting:
            self._waiting = False
            self._server.admission.leave(self)

    # ------------------------------------------------------------------------------------ cutting frames

    def _cut(self, data: bytearray | memoryview, end: int) -> int:
        """Begins the calls whose frames are whole, until one is not answered at once. Returns the bytes
        used.
        """
        limit_bytes = self._server.limits.frame_bytes
        position = 0
        turn = _TURN_FRAMES
        self._cutting = True
        while self._call is None and not self._output_bytes and end - position >= _HEAD_BYTES:
            (size,) = read_frame_size(data, position)
            if not 0 < size <= limit_bytes:
                self.close("oversized" if size > 0 else "malformed")
            if self._closing:
                break
            stop = position + _HEAD_BYTES + size
            if stop > end:
                break
            if turn == 0:
                self._take_turn_later()
                break
            turn -= 1
            self._begin(bytes(data[position + _HEAD_BYTES : stop]))
            position = stop
        self._cutting = False
        return position

    def _go_on(self) -> None:
        """Begins what waited behind a call or an answer, if nothing is in its way any more."""
        if self._call is None and not self._output_bytes and not self._waiting and not self._turn_due:
            if len(self._behind) >= _HEAD_BYTES:
                used = self._cut(self._behind, len(self._behind))
                if self._closing:
                    return
                del self._behind[:used]
            self._receive_rest()

    def _receive_rest(self) -> None:
        """Reserves the frame that has begun, so that the rest of it can be received."""
        behind = self._behind
        if self._call is not None or self._output_bytes or self._turn_due or len(behind) < _HEAD_BYTES:
            return
        (size,) = read_frame_size(behind)
        more = size + _HEAD_BYTES - len(behind)
        if self._server.admission.admit(self, more):
            self._reserve(size)
        else:
            self.counters.budget_waits += 1
            self._waiting = True

    def _reserve(self, size: int) -> None:
        frame = bytearray(size)
        self._filled = len(self._behind) - _HEAD_BYTES
        frame[: self._filled] = memoryview(self._behind)[_HEAD_BYTES:]
        self._frame = frame
        self._behind = bytearray()

    def _take_turn_later(self) -> None:
        self._turn_due = True
        self._server.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if not self._closing:
            self._go_on()
            self._settle()

    # ------------------------------------------------------------------------------------ one frame

    def _begin(self, frame: bytes) -> None:
        server = self._server
        decoder = server.decoder
        if self._timed:  # the next frame has its own time
            self._timed = False
            server.time_frame(self, False)
        try:
            called, seqid, start = decoder.head(frame)
        except NotServed as message:
            self._refuse(message)
            return
        except Malformed:
            self.close("malformed")
            return
        try:
            request = decoder.request(called, frame, start)
        except Malformed:
            self.close("malformed")
            return
        except Invalid as error:
            self.counters.refused["invalid"] += 1
            self._call = call = Call(self, called, seqid, None, len(frame))
            call.fail(error)
            return
        self._call = call = Call(self, called, seqid, request, len(frame))
        try:
            server.handlers[called.name](call)
        except Exception as error:  # noqa: BLE001 - whatever a handler lets out, its caller gets an answer
            call.raised(self, error)

    def _refuse(self, message: NotServed) -> None:
        """A oneway message gets no answer by definition, and no method of the service is one: it is
        dropped.
        """
        if message.message_type == ONEWAY:
            self.counters.refused["oneway"] += 1
            return
        kind, why = UNKNOWN_METHOD, "unknown method"
        if message.message_type != CALL:
            kind, why = INVALID_MESSAGE_TYPE, "message type"
        self.counters.refused[why] += 1
        self._transport.write(self.encoder.refusal(message.name[:_NAME_BYTES], message.seqid, kind, why))

    # ------------------------------------------------------------------------------------ bringing in line

    def _behind_limit(self) -> int:
        return BEHIND_BYTES if self._server.has_room() else _HEAD_BYTES

    def _settle(self) -> None:
        call = self._call
        held = 0 if call is None else call.request_bytes
        if self._behind or self._frame is not None or self._output_bytes or self._timed or not self._reading:
            held += len(self._behind) + self._output_bytes
            if self._frame is not None:
                held += len(self._frame)
            self._regulate()
        change = held - self._taken_bytes
        if change:
            self._taken_bytes = held
            if change > 0:
                self._server.budget.take(change)
            else:
                self._server.budget.give(-change)

    def _regulate(self) -> None:
        receiving = self._call is None and not self._waiting and not self._output_bytes
        timed = receiving and (self._frame is not None or len(self._behind) > 0)
        if timed != self._timed:
            self._timed = timed
            self._server.time_frame(self, timed)
        if self._closing:
            return
        full = self._frame is None and len(self._behind) >= self._behind_limit()
        reading = not (full or self._waiting or self._output_bytes)
        if reading != self._reading:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
