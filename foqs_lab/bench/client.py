"""The processor time of the client library alone: a real client, whose host answers each request with the same bytes.

A reply lies in the socket before the client waits for it. So the figures contain the calls of the kernel, but no wait,
no other process, and not the cost of cold code.
"""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from foqs.client import Client, ItemSpec, methods
from foqs.idl import idl
from foqs.wire.protocol import REPLY, encode_struct, message_head, pack_u32
from foqs_lab.bench.host import Figures
from foqs_lab.bench.kinds import Kind, options_of

ADDRESS = "127.0.0.1:7707"
_NS, _TOPIC = "bench", "topic"
_WAIT_MS = 5_000
_NAME_AT = 12
"""Where the name of the method begins in a frame."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A round has `items` calls with `batch` items for each method."""

    kind: Kind = Kind.PLAIN
    items: int = 20_000
    batch: int = 1
    payload_bytes: int = 256
    lease_ms: int | None = None


class MemorySocket(socket.socket):
    """The client's end of a connection to a host that has a reply for each method. `host_s`: the time of its work."""

    host_s = 0.0

    def __init__(self, replies: Mapping[str, bytes], ours: socket.socket, host: socket.socket) -> None:
        super().__init__(fileno=ours.detach())
        self._host = host
        self._replies = {name.encode(): reply for name, reply in replies.items()}

    def setsockopt(self, *_: Any) -> None:
        """Ignore the options of TCP."""

    def send(self, frame: Any, flags: int = 0) -> int:
        began_s = time.thread_time()
        at = _NAME_AT + int.from_bytes(frame[_NAME_AT - 4 : _NAME_AT], "big")
        reply = self._replies[frame[_NAME_AT:at]]
        self._host.send(b"".join((reply[:at], frame[at : at + 4], reply[at + 4 :])))
        MemorySocket.host_s += time.thread_time() - began_s
        return len(frame)

    def close(self) -> None:
        super().close()
        self._host.close()


@contextmanager
def memory_client(plan: Plan) -> Iterator[Client]:
    """Yield a client of one host in memory."""
    replies = _replies(plan)

    def connect(*_: Any) -> MemorySocket:
        return MemorySocket(replies, *socket.socketpair())

    with (
        patch("foqs.client._sync.connection.socket.create_connection", connect),
        Client(ADDRESS, _NS, routing=False) as client,
    ):
        yield client


def calls(client: Client, plan: Plan) -> Mapping[str, Callable[[], Any]]:
    """Return a call of each method."""
    payload, leased = bytes(plan.payload_bytes), [_item(plan, at) for at in range(plan.batch)]
    options = options_of(plan.kind, 1)
    topics: Any = _TOPIC
    made: dict[str, Callable[[], Any]] = {
        "enqueue": partial(client.enqueue, _TOPIC, payload, priority=1, **options),
        "dequeue": partial(client.dequeue, topics, plan.batch, wait_ms=_WAIT_MS, lease_ms=plan.lease_ms),
        "ack": partial(client.ack, leased[0]),
        "ack_and_dequeue": partial(client.ack_and_dequeue, leased, topics, plan.batch, lease_ms=plan.lease_ms),
    }
    if plan.batch > 1:
        specs = [ItemSpec(_TOPIC, payload, priority=at % 8, **options_of(plan.kind, at)) for at in range(plan.batch)]
        made |= {"enqueue": partial(client.enqueue_many, specs), "ack": partial(client.ack_many, leased)}
    return made


def measure(plan: Plan, rounds: int) -> Figures:
    """Measure rounds with one client. Raises a FoqsError if a call fails."""
    figures = Figures(f"foqs-lab bench client, {plan.kind} items, batches of {plan.batch}")
    with memory_client(plan) as client:
        for name, call in calls(client, plan).items():
            call()
            figures.rounds[f"{name}_us_per_item"] = [_round(plan, call) for _ in range(rounds)]
    return figures


def _round(plan: Plan, call: Callable[[], Any]) -> float:
    gc.collect()
    MemorySocket.host_s, began_s = 0.0, time.thread_time()
    for _ in range(plan.items // plan.batch):
        call()
    return (time.thread_time() - began_s - MemorySocket.host_s) / plan.items * 1e6


def _replies(plan: Plan) -> dict[str, bytes]:
    """Return the reply of each method as the codec writes it."""
    leased = [_item(plan, at) for at in range(plan.batch)]
    done = [idl.ItemOutcome() for _ in leased]
    return {
        method.name: _frame(method.name, response)
        for method, response in (
            (methods.ENQUEUE, idl.EnqueueResponse([idl.EnqueueOutcome(item.id) for item in leased])),
            (methods.DEQUEUE, idl.DequeueResponse(leased)),
            (methods.ACK, idl.AckResponse(done)),
            (methods.ACK_AND_DEQUEUE, idl.AckAndDequeueResponse(done, leased)),
        )
    }


def _frame(name: str, response: Any) -> bytes:
    result = encode_struct(getattr(idl.Foqs, f"{name}_result")(response))
    message = b"".join((message_head(REPLY, name.encode()), bytes(4), result))
    return pack_u32(len(message)) + message


def _item(plan: Plan, at: int) -> Any:
    options = options_of(plan.kind, at)
    options.pop("dedup_key", None)
    now_ms = time.time_ns() // 1_000_000
    return idl.Item(
        (1 << 44) + at, (1 << 50) + at, 1, _NS, _TOPIC, at % 8, bytes(plan.payload_bytes), delivery=1,
        deliver_after_ms=now_ms, enqueued_at_ms=now_ms, lease_expires_at_ms=now_ms + 30_000, **options,
    )  # fmt: skip
