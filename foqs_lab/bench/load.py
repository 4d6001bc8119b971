"""A load generator: many connections in one thread, each with one request at a time; and synchronous callers.

The figures include the client, so it does the work of a real one (the client library's own codec, random
priorities, every lease acked) and nothing else: no threads, no queue of its own.
"""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from foqs.client import Client, methods
from foqs.errors import Overloaded
from foqs.idl import idl
from foqs.wire.client_codec import RemoteMethod
from foqs_lab.bench.clients import Run
from foqs_lab.bench.kinds import Kind, options_of

_HEAD_BYTES = 4
_IDLE_S = 30.0
_OVERLOADED_S = 0.005
"""Less than a host asks for: the thread drives all connections, and acks of other connections make room."""


@dataclass(frozen=True, slots=True)
class Load:
    """`total` items in batches of `batch` over `connections`; a producer stops when all are enqueued, a consumer when
    all are acked. `marks`: record the time at every 1/marks of the total. `batches`: the items are members of these,
    all of a request of one, or each of another one."""

    port: int
    topic: str
    total: int
    connections: int
    batch: int
    payload_bytes: int = 256
    delay_ms: int = 0
    seed: int = 0
    marks: int = 0
    kind: Kind = Kind.PLAIN
    batches: Sequence[int] = ()


@dataclass(slots=True)
class Took:
    """`began` and `ended` are seconds of the machine's monotonic clock, comparable between processes."""

    began: float = 0.0
    ended: float = 0.0
    items: int = 0
    marks: list[float] = field(default_factory=list)


class LoadConnection:
    """One socket with at most one request in flight; `step` is called with each reply and sends the next."""

    def __init__(self, port: int, step: Callable[[LoadConnection, Any], None]) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.step = step
        self.method = methods.ENQUEUE
        self.open = False
        self._request: Any = None
        self._got = bytearray()
        self._sequence = 0

    def send(self, method: RemoteMethod, request: Any) -> None:
        self._sequence += 1
        self.method, self._request = method, request
        frame = method.encode(request, self._sequence)
        self.sock.sendall(frame)
        self.open = True

    def start(self) -> None:
        self.step(self, None)

    def readable(self) -> None:
        data = self.sock.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed a connection of the load generator")
        got = self._got
        if not got and len(data) == _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "big"):
            frame = data[_HEAD_BYTES:]
        else:
            got += data
            size = int.from_bytes(got[:_HEAD_BYTES], "big")
            if len(got) < _HEAD_BYTES + size:
                return
            frame = bytes(got[_HEAD_BYTES:])
            got.clear()
        self.open = False
        try:
            reply = self.method.decode(frame, self._sequence)
        except Overloaded:
            time.sleep(_OVERLOADED_S)
            self.send(self.method, self._request)
            return
        self.step(self, reply)


class Drives(Protocol):
    """A connection with at most one request in flight (`open`)."""

    sock: socket.socket
    open: bool

    def start(self) -> None: ...

    def readable(self) -> None: ...


def drive(connections: Sequence[Drives], idle_s: float = _IDLE_S) -> None:
    """Run until no connection has a request in flight. Raise TimeoutError when none is answered for `idle_s`."""
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection.sock, selectors.EVENT_READ, connection)
    for connection in connections:
        connection.start()
    while any(connection.open for connection in connections):
        ready = selector.select(idle_s)
        if not ready:
            raise TimeoutError(f"no answer for {idle_s:.0f} s")
        for key, _ in ready:
            key.data.readable()
    for connection in connections:
        connection.sock.close()
    selector.close()


def run_together(threads: Sequence[threading.Thread]) -> None:
    """Run threads side by side until the last one ends."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def produce(load: Load) -> Took:
    """Enqueues `total` items with random priorities."""
    rng, took, numbers = random.Random(load.seed), Took(), count(load.seed)
    payload = rng.randbytes(load.payload_bytes)
    sent = 0

    def step(connection: LoadConnection, reply: Any) -> None:
        nonlocal sent
        if reply is not None:
            refused = [outcome.error for outcome in reply.outcomes if outcome.id is None]
            if refused:
                raise RuntimeError(f"an enqueue was refused: {refused[0]}")
            took.items += len(reply.outcomes)
        items = min(load.batch, load.total - sent)
        if items <= 0:
            return
        sent += items
        specs = [_spec(load, rng, payload, numbers) for _ in range(items)]
        connection.send(methods.ENQUEUE, idl.EnqueueRequest("bench", specs))

    took.began = time.monotonic()
    drive([LoadConnection(load.port, step) for _ in range(load.connections)])
    took.ended = time.monotonic()
    return took


def _spec(load: Load, rng: random.Random, payload: bytes, numbers: Iterator[int]) -> Any:
    at = next(numbers)
    options = {} if load.kind is Kind.PLAIN else options_of(load.kind, at)
    if load.batches:
        turn = (at - load.seed) // (1 if load.kind is Kind.BATCHES else load.batch)
        options["batch"] = load.batches[turn % len(load.batches)]
    priority, delay_ms = int(rng.random() * 1000), load.delay_ms or None
    return idl.ItemSpec(topic=load.topic, payload=payload, priority=priority, delay_ms=delay_ms, **options)


def consume(load: Load) -> Took:
    """Dequeues and acks `total` items."""
    took = Took()
    leased = 0
    every = max(1, load.total // load.marks) if load.marks else 0
    wants = [idl.TopicCount(load.topic, load.batch)]

    def step(connection: LoadConnection, reply: Any) -> None:
        nonlocal leased
        if connection.method is methods.DEQUEUE and reply is not None and reply.items:
            leased += len(reply.items)
            acks = [idl.AckItem(item.id, item.lease) for item in reply.items]
            connection.send(methods.ACK, idl.AckRequest(acks))
            return
        if connection.method is methods.ACK and reply is not None:
            refused = [outcome.error for outcome in reply.outcomes if outcome.error is not None]
            if refused:
                raise RuntimeError(f"an ack was refused: {refused[0]}")
            took.items += len(reply.outcomes)
            if every and took.items // every > len(took.marks):
                took.marks.append(time.monotonic())
        if leased < load.total:
            connection.send(methods.DEQUEUE, idl.DequeueRequest("bench", wants, None, 200))

    took.began = time.monotonic()
    drive([LoadConnection(load.port, step) for _ in range(load.connections)])
    took.ended = time.monotonic()
    return took


_WAIT_MS = 10_000


class Caller(Protocol):
    def __call__(self, port: int, topic: str, items: int, payload_bytes: int) -> Run:
        """Connect to a host on this machine. The run makes `items` cycles with `topic`."""


def library(port: int, topic: str, items: int, payload_bytes: int) -> Run:
    """A caller with the public client library."""
    client = Client(f"127.0.0.1:{port}", "bench")
    client.server_info()
    payload = random.randbytes(payload_bytes)

    def run() -> list[float]:
        took_ms = []
        for _ in range(items):
            began = time.perf_counter()
            client.enqueue(topic, payload, priority=random.randrange(1000))
            took_ms.append(1000 * (time.perf_counter() - began))
            (item,) = client.dequeue(topic, wait_ms=_WAIT_MS)
            client.ack(item)
        client.close()
        return took_ms

    return run


def lean(port: int, topic: str, items: int, payload_bytes: int) -> Run:
    """A caller with the load generator's connection: the codec, and nothing else of the client library."""
    payload = random.randbytes(payload_bytes)
    wants = [idl.TopicCount(topic, 1)]
    took_ms: list[float] = []
    began, done = 0.0, 0

    def step(connection: LoadConnection, reply: Any) -> None:
        nonlocal began, done
        if reply is not None and connection.method is methods.ENQUEUE:
            if reply.outcomes[0].error is not None:
                raise RuntimeError(f"an enqueue was refused: {reply.outcomes[0].error}")
            took_ms.append(1000 * (time.perf_counter() - began))
            connection.send(methods.DEQUEUE, idl.DequeueRequest("bench", wants, None, _WAIT_MS))
            return
        if reply is not None and connection.method is methods.DEQUEUE:
            (item,) = reply.items
            connection.send(methods.ACK, idl.AckRequest([idl.AckItem(item.id, item.lease)]))
            return
        if reply is not None:
            if reply.outcomes[0].error is not None:
                raise RuntimeError(f"an ack was refused: {reply.outcomes[0].error}")
            done += 1
        if done < items:
            spec = idl.ItemSpec(topic=topic, payload=payload, priority=random.randrange(1000))
            began = time.perf_counter()
            connection.send(methods.ENQUEUE, idl.EnqueueRequest("bench", [spec]))

    connection = LoadConnection(port, step)

    def run() -> list[float]:
        drive([connection])
        return took_ms

    return run
