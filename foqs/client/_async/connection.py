# Written by hand, as is its twin.
"""One connection to one host, on an event loop: a frame out, a frame in; with TLS if asked for. The blocking twin has
the same errors."""

from __future__ import annotations

import asyncio
import socket
from time import monotonic
from typing import cast

from foqs.client.methods import SERVER_INFO
from foqs.client.per_worker import Ask
from foqs.client.routes import Address
from foqs.client.tls import Securing
from foqs.client.wrong_peer import (
    MAX_REPLY_BYTES,
    PROBE_S,
    Closed,
    NoFrame,
    Speaks,
    asked_plainly,
    asked_with_tls,
    refuses_certificate,
    said,
    spoken,
    why_no_handshake,
)
from foqs.errors import LostReply, NotSent, Unreachable
from foqs.travel import stripped
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import FRAME_HEAD_BYTES, end_wait

_END_WAIT = end_wait()
_EARLY_S = 0.005
"""The clock of a loop may be this late: uvloop counts milliseconds, and reads the time once in each round."""


class Connection(asyncio.Protocol):
    """Used by one task at a time. Times are of the monotonic clock, in seconds."""

    _transport: asyncio.Transport

    def __init__(self, address: Address) -> None:
        self.address = address
        self.idle_since = 0.0  # set when it is kept for another request, so after a reply
        self.authenticated = False  # a request of this connection was answered
        self.cut_off = False  # the caller was cancelled, and the reply has to come
        # The request that was sent here last, and when its answer is given up.
        self.method: RemoteMethod = SERVER_INFO
        self.sequence = 0
        self.request_id = ""
        self.until = 0.0
        self.secure = False
        self._loop = asyncio.get_running_loop()
        self._asked = False  # a request was sent, and its reply has not come
        self._ended = False
        self._lost: OSError | None = None
        self._parts: list[bytes] = []
        self._size = 0  # of the parts
        self._end = 0  # of the frame in the parts, as soon as its head has come
        self._reply: bytes | None = None
        self._waiter: asyncio.Future[None] | None = None  # for a reply, or for room to write
        self._paused = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = self._deadline = 0.0

    # ------------------------------------------------------------------------------------- of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another class
        self._transport.set_write_buffer_limits(high=0)  # so that a sent request has left this process
        if (plain := transport.get_extra_info("socket")) is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if not self._asked or self._reply is not None:
            self._ended = True  # GOAWAY, or bytes without a request
            return
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < FRAME_HEAD_BYTES or self._size < self._end:
                return
            data = b"".join(self._parts)
        size = len(data)
        if size >= FRAME_HEAD_BYTES:
            end = FRAME_HEAD_BYTES + int.from_bytes(data[:FRAME_HEAD_BYTES], "big")
            if end > FRAME_HEAD_BYTES + MAX_REPLY_BYTES:
                self._fail(NoFrame(data[:FRAME_HEAD_BYTES]))
                return
            if size >= end:
                self._parts, self._size, self._end = [], 0, 0
                self._ended |= size > end
                self._reply = data[FRAME_HEAD_BYTES:end]
                self._wake()
                return
            self._end = end
        self._parts, self._size = [data], size

    def eof_received(self) -> None:
        self._fail(Closed("the connection was closed within the reply" if self._size else "the connection was closed"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc if isinstance(exc, OSError) else Closed("the connection was closed"))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake()

    def _fail(self, error: OSError) -> None:
        self._ended = True
        self._lost = self._lost or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ------------------------------------------------------------------------------------- of the client

    def usable(self) -> bool:
        """False when the server closed it, or sent bytes without a request, while it was idle."""
        return not self._ended and not self._transport.is_closing()

    async def exchange(self, frame: bytes, deadline: float) -> bytes:
        """Send `frame` and return the reply's, without its length. Raises NotSent, LostReply or WrongPeer; then the
        connection must be closed."""
        await self.send(frame, deadline)
        return await self.receive(deadline)

    async def send(self, frame: bytes, deadline: float) -> None:
        """Send `frame`, its length included. Raises NotSent or WrongPeer; then the connection must be closed."""
        self._reply, self._asked = None, True
        try:
            if deadline <= monotonic():
                raise TimeoutError("timed out")
            if not self.usable():
                raise Closed("the connection was closed") if self._lost is None else stripped(self._lost)
            self._transport.write(frame)
            if self._transport.is_closing():
                raise Closed("the connection was closed")
            while self._paused and self._lost is None:
                await self._wait(deadline)
            if self._lost is not None:
                raise stripped(self._lost)
        except OSError as error:
            await self._raise_of_peer(error, deadline)
            raise NotSent(f"sending to {self.address} failed: {said(error)}") from error

    async def receive(self, deadline: float, places: Ask | None = None) -> bytes:
        """Return the frame that answers the sent request, whose wait `places` may end. Raises LostReply or WrongPeer;
        then it must be closed."""
        if places is not None:
            self._loop.add_reader(places.fileno(), self._ask_places, places)
        try:
            while self._reply is None:
                if self._lost is not None:
                    raise stripped(self._lost)
                await self._wait(deadline)
        except OSError as error:
            await self._raise_of_peer(error, deadline)
            raise LostReply(f"no reply from {self.address}: {said(error)}") from error
        except asyncio.CancelledError:
            self.cut_off = True
            raise
        finally:
            if places is not None:
                self._loop.remove_reader(places.fileno())
        self._asked = False
        return self._reply

    async def _wait(self, deadline: float) -> None:
        """Wait for a change. Raises TimeoutError."""
        self._waiter = self._loop.create_future()
        self._deadline = deadline
        if self._alarm is None or deadline < self._alarm_at:
            self._set_alarm()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _set_alarm(self) -> None:
        """Have one alarm for many requests: one for each costs a tenth of a small request."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = self._deadline
        self._alarm = self._loop.call_later(self._deadline - monotonic(), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._waiter is None or self._waiter.done():
            return
        if self._deadline - monotonic() > _EARLY_S:
            self._set_alarm()
        else:
            self._waiter.set_exception(TimeoutError("timed out"))

    def _ask_places(self, places: Ask) -> None:
        """End the wait of the request when `places` says so."""
        if self._reply is None and places.cuts():
            self._loop.remove_reader(places.fileno())
            self.end_wait()

    def end_wait(self) -> None:
        """Have the host answer the request now."""
        self._transport.write(_END_WAIT)

    async def _raise_of_peer(self, error: OSError, deadline: float) -> None:
        """Raise Unreachable if the peer does not take the certificate, and WrongPeer if the first request here failed
        with `error` as the peer speaks another protocol."""
        if refuses_certificate(error):
            raise Unreachable(f"{self.address} does not take the client's certificate: {said(error)}") from error
        if self.idle_since or self.authenticated:
            return
        found = None
        if isinstance(error, NoFrame):
            found = spoken(error.head)
        elif isinstance(error, Closed | ConnectionError) and not self.secure:
            for ask in (asked_with_tls, asked_plainly)[: 1 if isinstance(error, Closed) else 2]:
                left = min(PROBE_S, deadline - monotonic())
                found = found or (await asyncio.to_thread(ask, self.address, left) if left > 0 else None)
        if found not in (None, Speaks.PLAIN):
            raise found.error(self.address) from error

    def abort(self) -> None:
        """End the wait of another task, which closes the connection."""
        self.authenticated = True  # else that task would look for another protocol of the peer
        self._transport.abort()

    def close(self) -> None:
        if not self._loop.is_closed():
            self._transport.abort()
        if self._alarm is not None:
            self._alarm.cancel()


async def open_connection(address: Address, timeout_s: float, securing: Securing | None = None) -> Connection:
    """Return a new connection. Raises NotSent (Unreachable, unless time ran out), or WrongPeer: the peer does not speak
    TLS, though `securing` asks for it."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: Connection(address),
                address.host,
                address.port,
                ssl=None if securing is None else securing.context,
                server_hostname=None if securing is None else securing.name_of(address.host),
            )
    except OSError as error:
        if securing is not None:
            left = min(PROBE_S, timeout_s)
            found = await asyncio.to_thread(why_no_handshake, error, lambda: asked_plainly(address, left))
            if found is not None:
                raise found.error(address) from error
        kind = NotSent if isinstance(error, TimeoutError) else Unreachable
        raise kind(f"cannot connect to {address}: {said(error)}") from error
    except UnicodeError as error:
        raise Unreachable(f"cannot connect to {address}: not the name of a host") from error
    connection.secure = securing is not None
    return connection
