"""A real server on a thread of its own with a small service that echoes, and a client that speaks bytes."""

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Any

import uvloop
from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TCyBufferedTransport, TCyMemoryBuffer, TMemoryBuffer

from foqs.bounds import Budget, Limits
from foqs.errors import NotFound
from foqs.idl import idl
from foqs.rpc.call import Call
from foqs.rpc.server import ThriftServer
from foqs.wire.known_context import KnownContext
from foqs.wire.protocol import NAME_AT, SEQID_BYTES
from foqs.wire.server_codec import RequestDecoder, ServedMethod
from tests.support.ports import held_port
from tests.support.waiting import wait_until_on_loop

PATIENCE_S = 60.0
ENQUEUE_HEAD = b"\x80\x01\x00\x01\x00\x00\x00\x07Enqueue\x00\x00\x00\x07"
TO_REQUEST = b"\x0c\x00\x01"


def message(method: str, request: Any, seqid: int = 1, kind: int = 1) -> bytes:
    """A frame's content: the whole call as thriftpy2 encodes it."""
    buffer = TCyMemoryBuffer()
    protocol = TCyBinaryProtocol(buffer)
    protocol.write_message_begin(method, kind, seqid)
    args = getattr(idl.Foqs, f"{method}_args")()
    args.request = request
    protocol.write_struct(args)
    return bytes(buffer.getvalue())


def head(decoder: RequestDecoder, frame: bytes) -> tuple[ServedMethod, bytes, int]:
    """(method, sequence number, where the request begins), as a connection finds them."""
    name_end = NAME_AT + int.from_bytes(frame[4:NAME_AT])
    start = name_end + SEQID_BYTES
    called = decoder.methods.get(frame[:name_end])
    if called is None or len(frame) < start:
        raise decoder.refusal(frame)
    return called, frame[name_end:start], start


def decode(decoder: RequestDecoder, frame: bytes) -> Any:
    called, _, start = head(decoder, frame)
    return decoder.request(called, frame, start, KnownContext())


def enqueue_of(fields: bytes) -> bytes:
    """An Enqueue whose request has these bytes for its fields."""
    return ENQUEUE_HEAD + TO_REQUEST + fields + b"\0\0"


def i32(number: int) -> bytes:
    return struct.pack(">i", number)


def framed(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def decoded(content: bytes, method: str) -> tuple[int, Any]:
    """(sequence number, what the result holds: the response, a RequestError or a TApplicationException)."""
    protocol = TCyBinaryProtocol(TCyBufferedTransport(TMemoryBuffer(content)))
    _, kind, seqid = protocol.read_message_begin()
    if kind == 3:
        refusal = TApplicationException()
        protocol.read_struct(refusal)
        return seqid, refusal
    result = getattr(idl.Foqs, f"{method}_result")()
    protocol.read_struct(result)
    return seqid, result.success if result.success is not None else result.error


class Peer:
    """A blocking client. Also a context manager."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection(address, timeout=PATIENCE_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=address[0])
        except OSError:
            plain.close()
            raise

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, size: int) -> bytes:
        """Exactly that many bytes, or fewer when the server closed."""
        chunks = []
        while size:
            try:
                chunk = self.socket.recv(min(size, 1 << 20))
            except ConnectionResetError:
                break
            if not chunk:
                break
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def frame(self) -> bytes | None:
        """The next answer, None when the server closed."""
        head = self.read(4)
        if len(head) < 4:
            return None
        (size,) = struct.unpack(">I", head)
        content = self.read(size)
        assert len(content) == size
        return content

    def answer(self, method: str) -> tuple[int, Any]:
        content = self.frame()
        assert content is not None, "the server closed the connection"
        return decoded(content, method)

    def call(self, method: str, request: Any, seqid: int = 1) -> Any:
        self.send(framed(message(method, request, seqid)))
        answered, result = self.answer(method)
        assert answered == seqid
        return result

    def goodbye(self) -> bool:
        """Waits for the message that ends a connection; whether it came, and nothing after it."""
        content = self.frame()
        return content is not None and b"Goodbye" in content and self.is_closed()

    def is_closed(self) -> bool:
        """Waits for the server to close; False when it sends something instead."""
        return self.read(1) == b""

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Served:
    """The server, its loop, and what its service does:

    Enqueue says of each item the length of its payload; ListItems returns the fields of its request; GetItem
    is not found; Ack raises what `raises` holds; Dequeue and GetResult wait in `held` until the test answers;
    DeleteItems answers with something that cannot be encoded; ExtendLease with something that does not fit a frame.
    """

    def __init__(
        self,
        limits: Limits,
        budget: Budget,
        max_connections: int,
        client_tls: ssl.SSLContext | None = None,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
        **options: Any,
    ) -> None:
        """`client_tls` is how its own peers connect."""
        self.client_tls = client_tls
        self.budget = budget
        self.held: list[Call] = []
        self.lost: list[Call] = []
        self.reported: list[tuple[str, Exception]] = []
        self.raises: Exception | None = None
        handlers = {
            "Enqueue": self.enqueue,
            "Dequeue": self.dequeue,
            "GetResult": self.dequeue,
            "Ack": self.ack,
            "ListItems": self.list_items,
            "GetItem": self.get_item,
            "DeleteItems": self.delete_items,
            "ExtendLease": self.extend_lease,
        }
        self.server = ThriftServer(
            handlers,
            limits,
            budget,
            max_connections,
            report=lambda *seen: self.reported.append(seen),
            **options,
        )
        self.calls_before_look = 0
        self.loop_errors: list[dict[str, Any]] = []
        self.loop = new_loop()
        self.loop.set_exception_handler(lambda _, context: self.loop_errors.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._held = held_port()  # no other server may take its port when the server has stopped
        self.address = self.wait(self.server.listen(*self._held.getsockname()))

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def on_loop(self, do: Callable[[], Any]) -> Any:
        async def work() -> Any:
            return do()

        return self.wait(work())

    def until(self, state: Callable[[], bool]) -> None:
        """Returns as soon as `state`, asked on the loop between its events, holds."""
        self.wait(wait_until_on_loop(state, lambda: f"{self.server!r} {self.budget!r}", pause_s=0))

    def stop_clock(self) -> None:
        """From now on time passes for the server's time-outs in `advance` alone, however long a test takes."""
        now = self.loop.time()
        self.loop.time = lambda: now

    def advance(self, seconds: float) -> None:
        """Returns when the server has looked at its time-outs since."""
        now = self.loop.time() + seconds
        self.loop.time = lambda: now
        # With pauses: the loop's own timers go by the machine's clock, and the look may be a second away.
        self.wait(wait_until_on_loop(lambda: self.server.now == now))

    def say_goodbye(self) -> None:
        """As when the server stops. On the loop, so before anything more is read."""
        for connection in list(self.server._connections):
            connection.finish()

    def peer(self) -> Peer:
        return Peer(self.address, self.client_tls)

    def stop(self) -> None:
        self.on_loop(self.server.close)
        self.until(lambda: self.server.counters.connections == 0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()
        self._held.close()

    def enqueue(self, call: Call) -> None:
        sizes = [len(item.payload) if item.payload is not None else -1 for item in call.request.items or ()]
        call.reply(idl.EnqueueResponse([idl.EnqueueOutcome(id=size) for size in sizes]))

    def dequeue(self, call: Call) -> None:
        call.on_lost = lambda: self.lost.append(call)
        self.held.append(call)

    def release(self, payload_bytes: int = 0) -> bool:
        """Answers the oldest Dequeue or GetResult in progress. On the loop."""
        call = self.held.pop(0)
        if call.method == "GetResult":
            return call.reply(idl.GetResultResponse(1))
        payload = b"p" * payload_bytes
        return call.reply(idl.DequeueResponse([idl.Item(ns=call.request.ns, payload=payload)]))

    def ack(self, call: Call) -> None:
        if self.raises is not None:
            raise self.raises
        call.reply(idl.AckResponse([idl.ItemOutcome() for _ in call.request.items]))

    def list_items(self, call: Call) -> None:
        asked = call.request
        call.reply(idl.ListItemsResponse([idl.Item(ns=asked.ns, topic=asked.topic)], asked.cursor))

    def get_item(self, call: Call) -> None:
        self.calls_before_look = self.server.counters.calls
        call.fail(NotFound("no such item", 5))

    def delete_items(self, call: Call) -> None:
        call.reply(idl.DeleteItemsResponse([idl.ItemOutcome(idl.ItemError(message=object()))]))

    def extend_lease(self, call: Call) -> None:
        assert not call.reply(idl.ExtendLeaseResponse([idl.ItemOutcome(idl.ItemError(message="m" * 40_000_000))]))
