"""The processor time of a host alone: a real node, whose clients and databases are in memory.

Clients put the bytes of their requests into the connections. A database answers each transaction with the number of
rows that each statement should match. No byte passes through the kernel, and no other process takes part. So two runs
differ by about 2 %, and whole hosts by 30 %. The figures do not contain waits, flushes, and the cost of cold code.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import structlog
import uvloop
from rich.console import Console

from foqs.cli.host import GC_THRESHOLDS
from foqs.client import methods
from foqs.config.load import Config
from foqs.config.schema import ServerSection, ShardSection
from foqs.idl import idl
from foqs.ids import Marks
from foqs.opened import Opened
from foqs.policies.settings import Change, Settings
from foqs.rows import Batch, DedupRow, DedupScan, DueRow, EndedRow, ExpiringRow, Scan, SettingRow
from foqs.rpc.connection import ServedConnection
from foqs.server import shard_worker
from foqs.server.node import Node
from foqs.server.shard_worker import LoopTransactions, ShardWorker
from foqs.store.protocol import Confirmation
from foqs.store.sql import SqlStore
from foqs.store.transaction import State, Transaction
from foqs_lab.bench.kinds import SETTINGS, Kind, options_of, topic_of
from foqs_lab.bench.machine import table

_NS = "bench"
_URL = "mysql+pymysql://memory@127.0.0.1:1/"
_HEAD_BYTES = 4
_COMMAND_BYTES = 5
"""Of a packet to the database, before its text."""
_WAIT_MS = 5_000
_RETRY_S = 0.1
_CLIENT_POLLS, _DATABASE_POLLS = range(1, 4), range(4, 9)
"""Polls of a host between a reply and the next request of its client, and between a transaction and its reply. With the
same number each time, clients would enqueue and ack in step, and no transaction would have both."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`callers` enqueue `batch` items, take the same number and ack these, until `items` are acked."""

    kind: Kind = Kind.PLAIN
    items: int = 20_000
    batch: int = 1
    callers: int = 8
    shards: int = 4
    payload_bytes: int = 256


@dataclass(slots=True)
class Figures:
    """Each figure, by name, of each round."""

    title: str
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"median": {name: median(values) for name, values in self.rounds.items()}, "rounds": self.rounds}

    def show(self, console: Console) -> None:
        shown = table(self.title, "figure", "median", "min", "max")
        for name, values in self.rounds.items():
            shown.add_row(name, *(f"{value:,.3g}" for value in (median(values), min(values), max(values))))
        console.print(shown)


class MemoryStore(SqlStore):
    """A shard that is empty when it is opened, and whose database says that each transaction is committed."""

    def __init__(self, number: int) -> None:
        super().__init__(_URL + str(number), shard=number)
        self._ends = socket.socketpair()  # nothing is sent over it: an event loop watches a real socket only
        self._ends[0].setblocking(False)
        self._replies: dict[tuple[int | None, ...], bytes] = {}
        self._rows: tuple[int | None, ...] = ()
        self.reply = b""
        self.transactions = 0

    def open(self, owner: str, *, take_over: bool, epoch_above: int = 0, marks: Marks | None = None) -> Opened:
        link: Any = SimpleNamespace(
            id=1, inserts=None, compound=None, autocommit=True, poll=None, close=self._close_socket
        )
        self._link, self._epoch, self._next_number = link, 1, 1
        now_ms, now_ns = _now_ms(), time.monotonic_ns()
        settings = [SettingRow(_NS.encode(), SETTINGS.encoded())]
        return Opened(1, 1, now_ms, now_ms, (), (), {}, now_ms, [], False, read_ns=now_ns, settings=settings)

    def _close_socket(self) -> None:
        for end in self._ends:
            end.close()

    def close(self, *, clean: bool = False) -> None:
        self._drop()

    def commit(self, batch: Batch) -> None:
        """Commit a transaction that goes with a read."""
        made = super().begin(batch)
        made.state = State.COMMITTED
        self.conclude(made)

    def confirm(self) -> Confirmation:
        return Confirmation(_now_ms())

    def dedup(self, digests: list[bytes]) -> list[DedupRow]:
        return []

    def due(self, from_ms: int, now_ms: int, limit: int, after_id: int = 0) -> Scan[DueRow]:
        return Scan([], True, 0, _now_ms())

    def expiring(self, from_ms: int, now_ms: int, limit: int) -> Scan[ExpiringRow]:
        return Scan([], True, 0, _now_ms())

    def ended_due(self, from_ms: int, now_ms: int, limit: int) -> Scan[EndedRow]:
        return Scan([], True, 0, _now_ms())

    def dedup_expired(self, from_ms: int, now_ms: int, limit: int) -> DedupScan:
        return DedupScan(0, 0, True, 0, _now_ms())

    def change_settings(self, ns: str, change: Change) -> Settings:
        return change(Settings(ns))

    @property
    def plain_socket(self) -> socket.socket | None:
        return self._ends[0]

    def begin(self, batch: Batch) -> Transaction:
        made = super().begin(batch)
        self._rows = (*made.plan.rows, 0)
        self.transactions += 1
        return made

    def receive(self, packet: bytes) -> None:
        """Make the reply to statements, which have no semicolon but between two of them."""
        statements = packet.count(b";", _COMMAND_BYTES) + 1
        rows, self._rows = self._rows[:statements], self._rows[statements:]
        if rows not in self._replies:
            self._replies[rows] = _oks(rows)
        self.reply = self._replies[rows]


class Polls:
    """Brings bytes in later turns of the event loop, as polls of a kernel do: together with other bytes, and not at
    once, so that transactions gather requests."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._random = Random(1).random
        self._coming: deque[list[Callable[[], None]]] = deque()
        self._polling = False

    def bring(self, among: range, arrive: Callable[[], None]) -> None:
        coming, polls = self._coming, among[int(self._random() * len(among))]
        while len(coming) < polls:
            coming.append([])
        coming[polls - 1].append(arrive)
        if not self._polling:
            self._polling = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        coming = self._coming
        while not (arrived := coming.popleft()):
            pass  # a host sleeps until something comes
        for arrive in arrived:
            arrive()
        if coming:
            self._loop.call_soon(self._poll)
        else:
            self._polling = False


class Wires:
    """In place of the module `os` where the host writes transactions."""

    def __init__(self) -> None:
        self.polls = Polls()
        self.ends: dict[int, tuple[MemoryStore, LoopTransactions]] = {}

    def write(self, fd: int, packet: bytes) -> int:
        store, transactions = self.ends[fd]
        store.receive(packet)
        self.polls.bring(_DATABASE_POLLS, transactions._readable)
        return len(packet)

    def read(self, fd: int, size: int) -> bytes:
        return self.ends[fd][0].reply


class MemoryClient:
    """A client, and the transport of its connection: it sends the next request after a reply.

    `client_s` is the time of its own work.
    """

    def __init__(self, server: Any, plan: Plan, first: int, numbers: Iterator[int], polls: Polls) -> None:
        self._polls = polls
        self._first = first
        self._plan = plan
        self._numbers = numbers
        self._topic = topic_of(plan.kind)
        self.client_s = 0.0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._context = methods.context(methods.context_head(None), "0" * 32, None, 30_000)
        self._method = methods.ENQUEUE
        self._left = 0
        self._frame = b""
        self.connection = ServedConnection(server)
        self.connection.connection_made(self)

    def begin(self) -> None:
        self._frame = self._enqueue()
        self._send()

    def _send(self) -> None:
        frame, connection = self._frame, self.connection
        at, size = 0, len(frame)
        while at < size:
            room = connection.get_buffer(-1)
            taken = min(len(room), size - at)
            room[:taken] = frame[at : at + taken]
            connection.buffer_updated(taken)
            at += taken

    def write(self, frame: bytes) -> None:
        began_s = time.thread_time()
        response = self._method.decode(frame[_HEAD_BYTES:], 0)
        if self._method is methods.DEQUEUE:
            self._frame = self._ack(response.items) if response.items else self._dequeue()
        elif any(one.error is not None for one in response.outcomes):
            self.ended.set_exception(AssertionError(f"a request failed: {response.outcomes[0]}"))
            return
        elif self._method is methods.ENQUEUE:
            self._left = self._plan.batch
            self._frame = self._dequeue()
        else:
            self._frame = self._dequeue() if self._left else self._enqueue()
        self.client_s += time.thread_time() - began_s
        if self._frame:
            self._polls.bring(_CLIENT_POLLS, self._send)
        else:
            self.ended.set_result(None)

    def _enqueue(self) -> bytes:
        plan, payload = self._plan, bytes(self._plan.payload_bytes)
        at = next(self._numbers)
        if (at - self._first) * plan.batch > plan.items:
            return b""
        self._method = methods.ENQUEUE
        if plan.batch == 1 and plan.kind in (Kind.PLAIN, Kind.TENANTS, Kind.MANY_TENANTS, Kind.THROTTLE):
            request: Any = methods.enqueue_request(_NS, self._topic, payload, at % 8, **options_of(plan.kind, at))
        else:
            numbers = range(at * plan.batch, (at + 1) * plan.batch)
            topic, kind = self._topic, plan.kind
            specs = [idl.ItemSpec(topic, payload, priority=one % 8, **options_of(kind, one)) for one in numbers]
            request = idl.EnqueueRequest(_NS, specs)
        return self._method.encode(request, 0, context=self._context)

    def _dequeue(self) -> bytes:
        self._method = methods.DEQUEUE
        request = methods.dequeue_request(_NS, {self._topic: self._left}, _WAIT_MS, None, None)
        return self._method.encode(request, 0, context=self._context)

    def _ack(self, items: list[Any]) -> bytes:
        self._method = methods.ACK
        self._left -= len(items)
        if len(items) == 1:
            request: Any = methods.ack_request(_NS, items[0].id, items[0].lease)
        else:
            request = idl.AckRequest([idl.AckItem(item.id, item.lease) for item in items], _NS)
        return self._method.encode(request, 0, context=self._context)

    # What a connection asks of its transport.

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    abort = write_eof = close


def measure(plan: Plan, rounds: int) -> Figures:
    """Measure rounds on one host. Raises AssertionError if a request fails."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)  # as a host does
    return uvloop.run(_measure(plan, rounds))


@asynccontextmanager
async def memory_node(shards: int) -> AsyncIterator[tuple[Node, Mapping[int, MemoryStore], Polls]]:
    """Run a node whose shards are in memory."""
    stores = {number: MemoryStore(number) for number in range(1, shards + 1)}
    sections = tuple(ShardSection(id=number, url=_URL + str(number)) for number in stores)
    node = Node(Config(server=ServerSection(port=0), shards=sections), stores.__getitem__)
    await node.start()
    wires = Wires()
    for number, worker in node.runner.workers().items():
        assert isinstance(worker, ShardWorker), "the loop runs the transactions"
        wires.ends[stores[number]._ends[0].fileno()] = (stores[number], worker._on_loop)
    with patch.object(shard_worker, "os", wires):
        yield node, stores, wires.polls
        await node.stop()


async def _measure(plan: Plan, rounds: int) -> Figures:
    cpu_us: list[float] = []  # of the event loop
    transactions: list[float] = []
    async with memory_node(plan.shards) as (node, stores, polls):
        while plan.kind in (Kind.DEDUP, Kind.TOGETHER):  # the first deduplication keys have the slots shared out
            with suppress(AssertionError):
                await run_round(node, polls, replace(plan, items=1_000, batch=1))
                break
            await asyncio.sleep(_RETRY_S)
        for _ in range(rounds):
            before = sum(store.transactions for store in stores.values())
            cpu_us.append(await run_round(node, polls, plan) / plan.items * 1e6)
            made = sum(store.transactions for store in stores.values()) - before
            transactions.append(made / plan.items)
    figures = {"host_alone_us_per_item": cpu_us, "transactions_per_item": transactions}
    return Figures(f"foqs-lab bench host, {plan.kind} items, batches of {plan.batch}", figures)


async def run_round(node: Node, polls: Polls, plan: Plan) -> float:
    """Return the processor time of a round, without that of its clients."""
    numbers = count(time.monotonic_ns())  # no key comes twice
    first = next(numbers)
    clients = [MemoryClient(node.server, plan, first, numbers, polls) for _ in range(plan.callers)]
    began_s = time.thread_time()
    for client in clients:
        client.begin()
    try:
        await asyncio.gather(*[client.ended for client in clients])
    finally:
        for client in clients:
            client.connection.connection_lost(None)
    return time.thread_time() - began_s - sum(client.client_s for client in clients)


def _oks(rows: Sequence[int | None]) -> bytes:
    """Return the packets of a server that names the number of rows that each statement matched."""
    packets = []
    for at, matched in enumerate(rows, 1):
        body = b"\0" + _number(matched or 0) + b"\0" + (b"\x0a\0" if at < len(rows) else b"\2\0") + b"\0\0"
        packets.append(len(body).to_bytes(3, "little") + bytes((at & 0xFF,)) + body)
    return b"".join(packets)


def _number(value: int) -> bytes:
    return bytes((value,)) if value < 0xFB else b"\xfc" + value.to_bytes(2, "little")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
