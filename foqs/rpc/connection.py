"""One connection: bytes in, one call at a time, answers out.

Bytes are received in one of two places. While nothing is pending they go to a buffer that all connections share, and
whole frames are cut from it at once; nearly every request takes this way. The rest (the beginning of a frame, or
frames behind a call in progress) is copied out. As soon as the length of an unfinished frame is known, its rest is
received into chunks, each admitted by `foqs.rpc.frames` before it is made. So the budget is charged for the bytes
held, not for the announced length. While unfinished frames have little room left, only the beginning of a frame is read
before it is admitted: bytes that were read cannot be put back.

`_settle()` sums up all that a connection holds and brings the budget and the socket's reading in line with it, at
the end of every event. So each take has exactly one give.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from ssl import SSLError
from typing import Any

from foqs.bounds import NAME_BYTES
from foqs.errors import FoqsError, Invalid, OtherProtocol, Unauthenticated
from foqs.rpc.arrival import Arrival
from foqs.rpc.call import Call
from foqs.rpc.frames import FREE_BYTES
from foqs.rpc.hub import ConnectionHub, address_of
from foqs.rpc.tls import TlsTransport, names_of, unread_bytes
from foqs.travel import bare
from foqs.wire.known_context import KnownContext
from foqs.wire.protocol import (
    CALL,
    END_WAIT,
    FRAME_HEAD_BYTES,
    INVALID_MESSAGE_TYPE,
    NAME_AT,
    ONEWAY,
    SEQID_BYTES,
    SMALL_BYTES,
    UNKNOWN_METHOD,
    VERSION_1,
    Malformed,
    read_frame_size,
)
from foqs.wire.server_codec import UnknownCall

_ONEWAY_WORD = (VERSION_1 | ONEWAY).to_bytes(4, "big")
BEHIND_BYTES = 64 * 1024  # held behind a call in progress before reading is paused
_BEHIND_LEAST_BYTES = 64  # where many calls have bytes behind them; EndWait fits in
LINGER_S = 0.25  # from GOAWAY to the close: a request in flight arrives within it
_SLICE_FRAMES = 64  # answered in a row before the loop serves other connections


class ServedConnection(asyncio.BufferedProtocol):
    """States: idle; receiving (`_arrival`); waiting for the budget; call in progress; answer not drained; GOAWAY sent.

    `trusted`: frames of any length are read. False before the caller is authenticated, where the server requires that.
    `_known`: the caller has proven itself, or had an answer where no proof is required. Its unfinished frames have
    another share of the budget than frames of strangers.
    """

    __slots__ = (
        "_answer_bytes", "_arrival", "_behind", "_call", "_closing", "_context", "_cutting", "_encrypted_bytes",
        "_known", "_loose_bytes", "_ns", "_output_bytes", "_reading", "_seconds", "_server", "_slice_due",
        "_taken_bytes", "_transport", "certified", "counters", "encoder", "host", "namespaces", "peer", "requests",
        "seen", "trusted",
    )  # fmt: skip

    def __init__(self, server: ConnectionHub[ServedConnection]) -> None:
        self._server = server
        self.counters = server.counters
        self.encoder = server.encoder
        self.namespaces = server.namespaces
        self.requests = server.requests
        self._ns: Any = None
        self._seconds = server.namespaces.of(None).seconds  # of the namespace `_ns`, by method
        self._context = KnownContext()
        self.host = self.peer = ""
        self.certified: tuple[str, ...] = ()
        self.trusted = server.trusts(())
        self.seen = server.now
        self._transport: Any = None
        self._call: Call | None = None
        self._behind = bytearray()  # bytes that are not cut yet
        self._arrival: Arrival | None = None  # a frame that has begun, or a TLS handshake
        self._known = False
        self._encrypted_bytes = 0  # held by TLS
        self._loose_bytes = 0  # counted by the hub
        self._taken_bytes = 0  # from the budget
        self._output_bytes = 0  # given to the transport, not drained
        self._answer_bytes = 0  # of the last answer
        self._reading = True
        self._cutting = False
        self._slice_due = False
        self._closing = False

    # ------------------------------------------------------------------------------------ what asyncio calls

    def accepted(self, transport: Any) -> bool:
        """Take a place on the server, or close. Called before a TLS handshake, which has the time of a frame."""
        self._transport = transport
        self.host, self.peer = address_of(transport)
        if not self._server.admit(self, self.host):
            self._closing = True
            transport.abort()
            return False
        if isinstance(transport, TlsTransport):
            self._arrival = Arrival(self._server.admission, self, self.host, known=False)
        return True

    def connection_made(self, transport: Any) -> None:
        if isinstance(transport, TlsTransport):
            self.certified = names_of(transport.get_extra_info("peercert"))
            self.trusted = self._server.trusts(self.certified)
            self._known = self.trusted and bool(self.certified)
            self._end_arrival()
            self._settle()
        elif not self.accepted(transport):
            return
        # With a high-water mark of 0, the transport calls `pause_writing` during each write that it cannot send whole.
        transport.set_write_buffer_limits(high=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        server = self._server
        if self._arrival is not None and self._arrival.known:
            return self._arrival.room(server.scratch)
        if (
            self._call is None
            and not self._behind
            and not server.frames.unfinished
            and server.loose_bytes < server.frames.loose_share_bytes
            and server.budget.used_bytes <= server.room_bytes
        ):
            return server.scratch
        return server.scratch[: max(1, self._unread_limit() - len(self._behind))]

    def buffer_updated(self, size: int) -> None:
        server = self._server
        if self._closing:
            return  # after GOAWAY requests are dropped
        self.seen = server.now
        arrival = self._arrival
        idle = self._call is None and not self._behind and not self._output_bytes
        if arrival is not None and arrival.known:
            if arrival.came(server.scratch, size):
                self._end_arrival()
                self._begin(arrival.content(), _unproven(arrival.frame.received_bytes) if arrival.skipped else None)
        elif idle:
            if FRAME_HEAD_BYTES < size == FRAME_HEAD_BYTES + read_frame_size(server.scratch)[0] <= server.whole_bytes:
                self._cutting = True
                self._begin(bytes(server.scratch[FRAME_HEAD_BYTES:size]))
                self._cutting = False
                if self._taken_bytes or self._loose_bytes or self._output_bytes or not self._reading:
                    self._settle()
                elif self._call is not None:  # all that `_settle` would find
                    self._taken_bytes = request_bytes = self._call.request_bytes
                    server.budget.used_bytes += request_bytes
                return
            used = self._cut(server.scratch, size)
            if used < size and not self._closing:
                self._behind += server.scratch[used:size]
                self._receive_rest()
        else:
            self._behind += server.scratch[:size]
            self._go_on()
        if (
            self._behind
            and self._call is not None
            and self._call.on_oneway is not None
            and self._behind[FRAME_HEAD_BYTES : FRAME_HEAD_BYTES + 4] == _ONEWAY_WORD
        ):
            self._call.on_oneway()
        self._settle()

    def eof_received(self) -> bool:
        # No Thrift client closes only its sending side: the caller has stopped waiting for an answer.
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
        self._output_bytes = self._encrypted_bytes = 0
        if isinstance(error, SSLError):
            self.counters.closed["tls"] += 1
        call, self._call = self._call, None
        self._settle()
        self._server.forget(self, self.host)
        if call is not None:
            if call.request_bytes > SMALL_BYTES:
                self._server.admission.answered(self.host, call.request_bytes)
            self.counters.lost += 1
            call.lost()

    # ------------------------------------------------------------------------------------ called by server and calls

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def is_idle(self) -> bool:
        """Return True if no frame and no call is unfinished."""
        return self._taken_bytes == 0 and self._arrival is None

    def output_bytes(self) -> int:
        """Return the bytes given to the transport and not sent yet."""
        size: int = self._transport.get_write_buffer_size()
        return size

    def answer(self, call: Call, frame: bytes) -> bool:
        """Send the answer to the call in progress, end the call, and start the frames behind it. Return False if the
        connection closes: nothing is sent."""
        call.connection = call.on_lost = call.on_oneway = None
        if self._closing or self._transport.is_closing():
            return False
        call.answered = True
        self._call = None
        self._known = self.trusted
        self._answer_bytes = answer_bytes = len(frame)
        request_bytes, method, requests = call.request_bytes, call.method, self.requests
        counters = self.counters.methods[method]
        counters.calls += 1
        counters.request_bytes += request_bytes + FRAME_HEAD_BYTES
        counters.answer_bytes += answer_bytes
        ns = getattr(call.request, "ns", None)
        if ns != self._ns:
            self._ns, self._seconds = ns, self.namespaces.of(ns).seconds
        took_s = requests.now_s() - call.begun_s
        seconds = self._seconds[method]
        seconds.counts[bisect_left(seconds.bounds, took_s)] += 1  # written out: each answer comes here
        seconds.total += took_s
        if took_s > requests.slow_s:
            requests.took(method, call.request, self.peer, took_s, answered=True)
        if request_bytes > SMALL_BYTES:
            self._server.admission.answered(self.host, request_bytes)
        self._transport.write(frame)
        if self._server.draining:
            self.finish()
        elif not self._cutting:
            if self._taken_bytes != request_bytes or self._output_bytes or not self._reading:
                if self._behind:
                    self._go_on()
                self._settle()
            else:  # nothing but the call was held
                self._taken_bytes, budget = 0, self._server.budget
                budget.used_bytes -= request_bytes
                if budget.waiters:
                    budget.wake()
        return True

    def admitted(self) -> None:
        """Resume the frame that waits: the budget has room for it."""
        assert self._arrival is not None
        self._arrival.admitted()
        self._settle()

    def arrived_bytes(self) -> int:
        """Return how many bytes have come and are not read yet; over TLS, most of them are encrypted."""
        transport = self._transport
        return transport.unread_bytes if isinstance(transport, TlsTransport) else unread_bytes(transport)

    def shaking(self, received_bytes: int) -> None:
        """Note how many bytes of a TLS handshake came beyond the bytes that every handshake may hold."""
        if received_bytes > SMALL_BYTES:
            self.abort("oversized")
        elif self._arrival is not None and not self._closing:
            self._arrival.shake(received_bytes)
            self._encrypted_bytes = received_bytes
            self._settle()

    def encrypted(self, held_bytes: int) -> None:
        """Note how many received bytes TLS holds undecrypted."""
        if held_bytes != self._encrypted_bytes and not self._closing:
            self._encrypted_bytes = held_bytes
            self._settle()

    def lingers(self) -> bool:
        """Return True if everything is sent, GOAWAY last, and the peer has not closed yet."""
        return self._closing and not self.output_bytes()

    def finish(self, why: str | None = None) -> None:
        """Start no more requests, and send GOAWAY as soon as the call in progress is answered. `why` is counted.

        A request may be in flight. To close at once would reset the connection, and its sender could not know whether
        the request was started. So the peer reads GOAWAY, and has `LINGER_S` to close first.
        """
        if self._call is not None or self.is_closing():
            return
        if why is not None:
            self.counters.closed[why] += 1
        self._stop_receiving()
        self._transport.write(self.encoder.goaway())
        try:
            self._transport.write_eof()
        except OSError:  # the peer had closed, and its reset is here already
            self._transport.abort()
            return
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        self._settle()
        self._server.loop.call_later(LINGER_S, self._transport.close)

    def close(self, why: str | None = None) -> None:
        """Close after the answers written before are sent. `why` is counted."""
        if self._closing:
            return
        if why is not None:
            self.counters.closed[why] += 1
        self._stop_receiving()
        self._transport.close()
        self._settle()

    def abort(self, why: str | None = None) -> None:
        """Close at once."""
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
        self._end_arrival()

    # ------------------------------------------------------------------------------------ cutting frames

    def _cut(self, data: bytearray | memoryview, end: int) -> int:
        """Start the calls of whole frames, until one is not answered at once. Return the bytes used."""
        limit_bytes = self._server.limits.frame_bytes
        position = 0
        left = _SLICE_FRAMES
        self._cutting = True
        while self._call is None and not self._output_bytes and end - position >= FRAME_HEAD_BYTES:
            (size,) = read_frame_size(data, position)
            if not 0 < size <= limit_bytes:
                self.close("oversized" if size > 0 else "malformed")
            if self._closing:
                break
            stop = position + FRAME_HEAD_BYTES + size
            if stop > end:
                break
            if left == 0:
                self._slice_later()
                break
            left -= 1
            self._begin(bytes(data[position + FRAME_HEAD_BYTES : stop]))
            position = stop
        self._cutting = False
        return position

    def _go_on(self) -> None:
        """Start the frames that waited behind a call or an answer, unless another one blocks them."""
        if self._call is None and not self._output_bytes and not self._slice_due:
            if len(self._behind) >= FRAME_HEAD_BYTES:
                used = self._cut(self._behind, len(self._behind))
                if self._closing:
                    return
                del self._behind[:used]
            self._receive_rest()

    def _receive_rest(self) -> None:
        """Begin to receive the frame whose first bytes came, unless a call or an answer blocks it."""
        behind = self._behind
        if self._call is not None or self._output_bytes or self._slice_due or not behind:
            return
        arrival = self._arrival
        if arrival is None:
            arrival = self._arrival = Arrival(self._server.admission, self, self.host, known=self._known)
        if len(behind) >= FRAME_HEAD_BYTES:
            (size,) = read_frame_size(behind)
            self._behind = bytearray()
            skip = size > SMALL_BYTES and not self.trusted
            del behind[:FRAME_HEAD_BYTES]
            arrival.announce(size, behind, skip=skip)

    def _end_arrival(self) -> None:
        """End the arrival: the frame, or the handshake, is whole or given up."""
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival.end()

    def _slice_later(self) -> None:
        self._slice_due = True
        self._server.loop.call_soon(self._slice)

    def _slice(self) -> None:
        self._slice_due = False
        if not self._closing:
            self._go_on()
            self._settle()

    # ------------------------------------------------------------------------------------ one frame

    def _begin(self, frame: bytes, refusal: FoqsError | None = None) -> None:
        """Start the call of a frame. `refusal` answers a frame of which only the head was kept."""
        server = self._server
        decoder = server.decoder
        request = None
        if self._arrival is not None:  # the next frame has its own time
            self._end_arrival()
        name_end = NAME_AT + int.from_bytes(frame[NAME_AT - 4 : NAME_AT])
        start = name_end + SEQID_BYTES
        called = decoder.methods.get(frame[:name_end])
        try:
            if called is None or len(frame) < start:
                raise decoder.refusal(frame)
            if refusal is None:
                request = decoder.request(called, frame, start, self._context)
        except UnknownCall as message:
            self._refuse(message)
            return
        except Malformed:
            self.close("malformed")
            return
        except (Invalid, OtherProtocol) as error:
            refusal = bare(error)
        assert called is not None
        self._call = call = Call(self, called, frame[name_end:start], request, len(frame))
        if len(frame) > SMALL_BYTES:
            server.frames.started(self.host, len(frame))
        if refusal is not None:
            self.counters.refused["unauthenticated" if isinstance(refusal, Unauthenticated) else "invalid"] += 1
            call.fail(refusal)
            return
        try:
            server.handlers[called.name](call)
        except Exception as error:  # noqa: BLE001 - whatever a handler lets out, its caller gets an answer
            call.raised(self, error)

    def _refuse(self, message: UnknownCall) -> None:
        """Answer a message that is no call of a served method. A oneway message gets no answer by definition, and is
        dropped, as no method of the service is one."""
        if message.message_type == ONEWAY:
            self.counters.refused["oneway"] += message.name != END_WAIT
            return
        kind, why = UNKNOWN_METHOD, "unknown method"
        if message.message_type != CALL:
            kind, why = INVALID_MESSAGE_TYPE, "message type"
        self.counters.refused[why] += 1
        self._transport.write(self.encoder.refusal(message.name[:NAME_BYTES], message.seqid, kind, why))

    # ------------------------------------------------------------------------------------ bringing in line

    def _unread_limit(self) -> int:
        """Return how many bytes may be held that belong to no call and to no frame with a known length."""
        server = self._server
        if server.budget.used_bytes > server.room_bytes:
            return FRAME_HEAD_BYTES
        others_bytes = server.loose_bytes - self._loose_bytes
        crowded = others_bytes >= server.frames.loose_share_bytes
        if self._call is not None or self._output_bytes:
            return _BEHIND_LEAST_BYTES if crowded else BEHIND_BYTES
        most_bytes = FREE_BYTES if crowded else len(server.scratch)  # a call may begin, with the rest behind it
        return server.frames.first_bytes(self.host, most_bytes, known=self._known)

    def _settle(self) -> None:
        call = self._call
        held = 0 if call is None else call.request_bytes
        if (
            self._behind
            or self._arrival is not None
            or self._output_bytes
            or self._encrypted_bytes
            or self._loose_bytes
            or not self._reading
        ):
            loose = len(self._behind)
            held += loose + self._output_bytes + self._encrypted_bytes
            if self._arrival is not None:
                held += self._arrival.held_bytes
                loose += self._arrival.frame.loose_bytes
            self._server.loose_bytes += loose - self._loose_bytes
            self._loose_bytes = loose
            self._regulate()
        change = held - self._taken_bytes
        if change:
            self._taken_bytes = held
            budget = self._server.budget
            budget.used_bytes += change
            if change < 0 and budget.waiters:
                budget.wake()

    def _regulate(self) -> None:
        if self._closing:
            return
        arrival = self._arrival
        waiting = arrival is not None and arrival.frame.wants_bytes > 0
        full = (arrival is None or not arrival.known) and len(self._behind) >= self._unread_limit()
        reading = not (full or waiting or self._output_bytes)
        if reading != self._reading:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()


def _unproven(size_bytes: int) -> Unauthenticated:
    """Return the error of a large frame before the first authenticated request of its connection."""
    return Unauthenticated(
        f"a request of {size_bytes} bytes came before any authenticated request on this connection, where at most "
        f"{SMALL_BYTES} bytes are read: send a small request with the token first, such as GetServerInfo"
    )
