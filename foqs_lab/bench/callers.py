"""Synchronous callers: each enqueues an item, dequeues one and acks it, one call after the other.

All callers share a topic. A caller's dequeue never waits: it has just enqueued an item, or another caller took that
item and left its own.
"""

from __future__ import annotations

import random
import time
from typing import Any, Protocol

from foqs.client import Client, methods
from foqs.idl import idl
from foqs_lab.bench.clients import Run
from foqs_lab.bench.load import LoadConnection, drive

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

    connection = LoadConnection(("127.0.0.1", port), step)

    def run() -> list[float]:
        drive([connection])
        return took_ms

    return run
