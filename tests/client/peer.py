"""A small foqs server on a real socket with the real IDL, which misbehaves on demand.

It keeps items in memory; `meddle` is asked before every request is carried out and after, and may change what happens.
"""

import contextlib
import itertools
import select
import socket
import threading
import time
import traceback
from collections.abc import Callable
from enum import Enum
from typing import Any

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType
from thriftpy2.transport import TCyBufferedTransport, TCyMemoryBuffer, TMemoryBuffer

from foqs.idl import idl
from foqs.wire.server_codec import ReplyEncoder
from tests.support.ports import held_port
from tests.support.waiting import wait_until as eventually  # noqa: F401 - for the tests

LATER = 30.0
"""Seconds until a test gives up waiting."""


def logged_tracebacks(caplog: Any) -> str:
    """Return the tracebacks of a log. `caplog.text` has none after a test of PySpark, which logs JSON from then on."""
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    return "".join(line for error in errors if error is not None for line in traceback.format_exception(error))


class Act(Enum):
    SERVE = "carry it out and answer"
    CLOSE_BEFORE = "close the connection instead of carrying it out"
    LAST = "carry it out, answer, and send GOAWAY behind the reply"
    GOAWAY = "send GOAWAY instead of carrying it out, and let the client close"
    CLOSE_AFTER = "carry it out, then close without an answer"
    HALF = "carry it out, then send half of the answer and close"
    SILENT = "carry it out, never answer"
    IGNORE = "neither carry it out nor answer"
    JUNK = "carry it out, then answer with bytes that are no message"
    WRONG_NUMBER = "carry it out, then answer with another sequence number"


Meddle = Callable[[str, Any], Any]
"""(method, request) -> an Act, or a response or exception to answer with instead."""


def script(method: str, *acts: Any) -> Meddle:
    """Does the acts at the first calls of `method`, one after the other, and serves all else."""
    left = list(acts)
    return lambda name, request: left.pop(0) if name == method and left else Act.SERVE


def failed(code: int, retry_after_ms: int | None = None, message: str = "no") -> Any:
    return idl.ItemError(code=code, message=message, retry_after_ms=retry_after_ms)


def refused(code: int, retry_after_ms: int | None = None) -> Any:
    return idl.RequestError(code=code, message="no", retry_after_ms=retry_after_ms)


class Peer:
    """Listens at once. `calls` are (method, request) in the order in which they were read."""

    def __init__(self, meddle: Meddle | None = None, port: int = 0) -> None:
        self.meddle: Meddle = meddle or (lambda name, request: Act.SERVE)
        self.calls: list[tuple[str, Any]] = []
        self.connections = 0
        self.routing: Any = None
        self.told = 0
        self.as_a_wait_ends: Callable[[], object] = lambda: None  # called before the answer
        self.waits: bool | None = True
        self.items: dict[int, Any] = {}
        self.keys: dict[str, int] = {}
        self.acked: list[int] = []
        self.nacked: list[Any] = []
        self._ids = itertools.count(1)
        self._ids_of_routing = itertools.count(2)
        self._lock = threading.Condition()
        self._open: set[socket.socket] = set()
        # Clients go on trying a peer that is closed, and some are started again: no other server may take its port.
        self._held = held_port(port)
        self.port = self._held.getsockname()[1]
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.address = f"127.0.0.1:{self.port}"
        self._closing = False
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def first_id(self, item_id: int) -> None:
        """Of the items that are made from now on."""
        self._ids = itertools.count(item_id)

    def take_over(self, item_id: int) -> None:
        """Another consumer has the item now, for longer than a test takes."""
        with self._lock:
            item = self.items[item_id]
            item.lease, item.lease_expires_at_ms = 77, int((time.time() + 3_600) * 1000)

    def named(self, name: str) -> list[Any]:
        """The requests of one method."""
        return [request for called, request in list(self.calls) if called == name]

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept, which would hold the port
        self._listener.close()
        self._accepting.join(LATER)
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._lock.notify_all()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._held.close()

    # ------------------------------------------------------------------------------------- sockets

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as stream:
                used = False
                while frame := _read_frame(stream):
                    if b"GetRouting" in frame[:20]:
                        self._tell_routing(connection, frame)
                        continue
                    self.connections += not used
                    used = True
                    if not self._one(connection, frame):
                        return
        except OSError:
            pass
        finally:
            with self._lock:
                self._open.discard(connection)

    def _tell_routing(self, connection: socket.socket, frame: bytes) -> None:
        """Not one of `calls`: a client asks by itself. A client that knows `routing` waits for another one."""
        protocol = TCyBinaryProtocol(TCyBufferedTransport(TMemoryBuffer(frame)))
        name, _, number = protocol.read_message_begin()
        args = idl.Foqs.GetRouting_args()
        args.read(protocol)
        if self.waits is None and args.request.wait_ms:
            raise OSError("closed instead")
        deadline = time.monotonic() + (args.request.wait_ms or 0) / 1000
        with self._lock:
            self._lock.wait_for(
                lambda: (
                    self._closing or not self.waits or getattr(self._told(), "version", None) != args.request.version
                ),
                deadline - time.monotonic(),
            )
            answer = self._told()
            self.told += 1
        connection.sendall(encode_reply(name, answer, number))

    def _told(self) -> Any:
        return self.routing or idl.GetRoutingResponse(1, [idl.ShardRoute(0, self.address, 1)], [self.address])

    def tell(self, hosts: "list[Peer]", owners: "dict[int, Peer] | None" = None) -> None:
        """From now on this is the routing."""
        shards = [idl.ShardRoute(shard, peer.address, 1) for shard, peer in (owners or {}).items()]
        with self._lock:
            version = next(self._ids_of_routing)
            self.routing = idl.GetRoutingResponse(version, shards, [peer.address for peer in hosts])
            self._lock.notify_all()

    def _one(self, connection: socket.socket, frame: bytes) -> bool:
        protocol = TCyBinaryProtocol(TCyBufferedTransport(TMemoryBuffer(frame)))
        name, _, number = protocol.read_message_begin()
        if name == "EndWait":  # it has ended
            return True
        args = getattr(idl.Foqs, f"{name}_args")()
        args.read(protocol)
        if name == "WatchTopics":  # it never has news
            return bool(connection.recv(1))
        self.calls.append((name, args.request))
        act = self.meddle(name, args.request)
        if act is Act.CLOSE_BEFORE:
            return False
        if act is Act.GOAWAY:
            connection.sendall(ReplyEncoder(1000).goaway())
            connection.recv(1)  # as a server does: bytes received from now on are not read
            return False
        if act is Act.IGNORE:
            return bool(connection.recv(1))
        if isinstance(act, Act) and name == "Dequeue":
            answer = self.Dequeue(args.request, connection)
        else:
            answer = getattr(self, name)(args.request) if isinstance(act, Act) else act
        reply = encode_reply(name, answer, number + (act is Act.WRONG_NUMBER))
        if act is Act.CLOSE_AFTER:
            return False
        if act is Act.SILENT:
            return bool(connection.recv(1))
        if act is Act.JUNK:
            reply = (8).to_bytes(4, "big") + b"\xff" * 8
        if act is Act.HALF:
            connection.sendall(reply[: len(reply) // 2])
            return False
        if act is Act.LAST:
            reply += ReplyEncoder(1000).goaway()
        connection.sendall(reply)
        return act is not Act.LAST

    # ------------------------------------------------------------------------------------- the service

    def Enqueue(self, request: Any) -> Any:
        outcomes = []
        with self._lock:
            for spec in request.items:
                if not spec.topic:
                    outcomes.append(idl.EnqueueOutcome(error=failed(1)))
                    continue
                if spec.dedup_key in self.keys:
                    outcomes.append(idl.EnqueueOutcome(id=self.keys[spec.dedup_key], duplicate=True))
                    continue
                item = idl.Item(
                    id=next(self._ids), ns=request.ns, topic=spec.topic, priority=spec.priority, payload=spec.payload,
                    metadata=spec.metadata, headers=spec.headers, delivery=spec.delivery, attempt=0, lease=0,
                    lease_expires_at_ms=0,
                )  # fmt: skip
                item.ready_at = time.time()
                self.items[item.id] = item
                if spec.dedup_key is not None:
                    self.keys[spec.dedup_key] = item.id
                outcomes.append(idl.EnqueueOutcome(id=item.id))
            self._lock.notify_all()
        return idl.EnqueueResponse(outcomes=outcomes)

    def Dequeue(self, request: Any, connection: socket.socket | None = None) -> Any:
        """Answer with items, or after the wait, which bytes from the connection (EndWait) end."""
        deadline = time.time() + (request.wait_ms or 0) / 1000
        with self._lock:
            while not (taken := self._take(request)) and not self._closing and time.time() < deadline:
                if connection is not None and select.select([connection], [], [], 0)[0]:
                    self.as_a_wait_ends()
                    taken = self._take(request)
                    break
                self._lock.wait(min(0.05, max(0.0, deadline - time.time())))
        return idl.DequeueResponse(items=taken)

    def AckAndDequeue(self, request: Any) -> Any:
        outcomes = self.Ack(idl.AckRequest(items=request.acks)).outcomes
        wait_ms = 0 if outcomes else request.wait_ms
        asked = idl.DequeueRequest(wants=request.wants, lease_ms=request.lease_ms, wait_ms=wait_ms, most=request.most)
        items = self.Dequeue(asked).items
        return idl.AckAndDequeueResponse(outcomes=outcomes, items=items)

    def _take(self, request: Any) -> list[Any]:
        taken = []
        now = time.time()
        for want in request.wants:
            fit = [i for i in self.items.values() if i.topic == want.topic and max(i.ready_at, _ends(i)) <= now]
            left = want.count if request.most is None else min(want.count, request.most - len(taken))
            for item in sorted(fit, key=lambda i: (i.priority, i.id))[:left]:
                item.attempt += 1
                item.lease = item.id * 1000 + item.attempt
                item.lease_expires_at_ms = int(now * 1000) + (request.lease_ms or 30_000)
                taken.append(item)
        return taken

    def _leased(self, entry: Any) -> Any:
        item = self.items.get(entry.id)
        if item is None:
            return failed(2)
        return failed(3) if item.lease != entry.lease else None

    def Ack(self, request: Any) -> Any:
        def ack(entry: Any) -> None:
            del self.items[entry.id]
            self.acked.append(entry.id)

        return idl.AckResponse(outcomes=self._each(request, ack))

    def Nack(self, request: Any) -> Any:
        def nack(entry: Any) -> None:
            self.nacked.append(entry)
            item = self.items[entry.id]
            item.lease = item.lease_expires_at_ms = 0
            item.ready_at = time.time() + (entry.delay_ms or 0) / 1000
            item.attempt -= bool(entry.release)
            item.metadata = item.metadata if entry.metadata is None else entry.metadata

        return idl.NackResponse(outcomes=self._each(request, nack))

    def ExtendLease(self, request: Any) -> Any:
        def extend(entry: Any) -> None:
            self.items[entry.id].lease_expires_at_ms = int(time.time() * 1000) + (entry.lease_ms or 30_000)

        return idl.ExtendLeaseResponse(outcomes=self._each(request, extend))

    def _each(self, request: Any, do: Callable[[Any], None]) -> list[Any]:
        outcomes = []
        with self._lock:
            for entry in request.items:
                error = self._leased(entry)
                if error is None:
                    do(entry)
                outcomes.append(idl.ItemOutcome(error=error))
            self._lock.notify_all()
        return outcomes

    def DeleteItems(self, request: Any) -> Any:
        gone = [self.items.pop(item_id, None) for item_id in request.ids]
        return idl.DeleteItemsResponse(outcomes=[idl.ItemOutcome(error=None if item else failed(2)) for item in gone])

    def GetItem(self, request: Any) -> Any:
        item = self.items.get(request.id)
        return idl.GetItemResponse(item=item, state=1) if item else refused(2)

    def GetServerInfo(self, request: Any) -> Any:
        return idl.GetServerInfoResponse(version="test", limits={"request_items": 10_000})

    def GetActiveTopics(self, request: Any) -> Any:
        with self._lock:
            topics = sorted({item.topic for item in self.items.values()})
        start = int(request.cursor or 0)
        page = [
            idl.ActiveTopic(ns=request.ns, topic=topic, ready=1, oldest_ready_at_ms=1, hosts=[self.address])
            for topic in topics[start : start + request.limit]
        ]
        more = start + request.limit < len(topics)
        return idl.GetActiveTopicsResponse(topics=page, cursor=str(start + request.limit) if more else None)

    def ListItems(self, request: Any) -> Any:
        with self._lock:
            items = [item for item in self.items.values() if item.topic == request.topic]
        start = int(request.cursor or 0)
        more = start + request.limit < len(items)
        return idl.ListItemsResponse(
            items=items[start : start + request.limit], cursor=str(start + request.limit) if more else None
        )


def _ends(item: Any) -> float:
    return float(item.lease_expires_at_ms) / 1000


def _read_frame(stream: Any) -> bytes:
    """Empty at the end, and for bytes that are not a frame, as a TLS handshake."""
    head = stream.read(4)
    length = int.from_bytes(head, "big") if len(head) == 4 else 0
    if length > 64 << 20:
        return b""
    frame = bytes(stream.read(length))
    return frame if len(frame) == length else b""


def encode_reply(name: str, answer: Any, number: int) -> bytes:
    buffer = TCyMemoryBuffer()
    protocol = TCyBinaryProtocol(buffer)
    if isinstance(answer, TApplicationException):
        protocol.write_message_begin(name, TMessageType.EXCEPTION, number)
        answer.write(protocol)
    else:
        protocol.write_message_begin(name, TMessageType.REPLY, number)
        result = getattr(idl.Foqs, f"{name}_result")()
        setattr(result, "error" if isinstance(answer, idl.RequestError) else "success", answer)
        result.write(protocol)
    message = bytes(buffer.getvalue())
    return len(message).to_bytes(4, "big") + message
