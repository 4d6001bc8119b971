"""Workers that take items from a backlog: the acks by themselves, or with the next dequeue."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from rich.console import Console

from foqs.client import methods
from foqs.idl import idl
from foqs_lab.bench import load
from foqs_lab.bench.load import Load, LoadConnection, drive
from foqs_lab.bench.machine import cpu_s, table
from foqs_lab.bench.rig import Rig

CONNECTIONS = 32
APART, TOGETHER = "ack, then dequeue", "both in one request"
_FIGURES = ("items_per_s", "requests_per_item", "worker_cpu_us", "host_cpu_us")
_WAIT_MS = 200
_BATCH = 100


@dataclass(frozen=True, slots=True)
class Worked:
    """One run, of which all figures are for an item: requests of the workers, processor time of workers and host."""

    items_per_s: float
    requests_per_item: float
    worker_cpu_us: float
    host_cpu_us: float


class _Backlog:
    """Counts the items that no dequeue asks for yet. No dequeue waits behind the last item: a long poll there would be
    part of the time of workers whose dequeues have no acks."""

    def __init__(self, part: Load) -> None:
        self._part = part
        self._left = part.total
        self._asked: dict[LoadConnection, int] = {}

    def ask(self, connection: LoadConnection) -> list[Any]:
        """Return what the next dequeue of `connection` wants: nothing at the end."""
        count = self._asked[connection] = min(self._part.batch, self._left)
        self._left -= count
        return [idl.TopicCount(self._part.topic, count)] if count else []

    def got(self, connection: LoadConnection, items: int) -> None:
        self._left += self._asked.pop(connection) - items


def apart(part: Load) -> int:
    """Dequeue `part.batch` items, then ack them, until `part.total` items are acked. Return the number of requests."""
    backlog = _Backlog(part)

    def step(connection: LoadConnection, reply: Any) -> None:
        if connection.method is methods.DEQUEUE:
            backlog.got(connection, len(reply.items))
            if reply.items:
                connection.send(methods.ACK, idl.AckRequest(_acks(reply)))
                return
        if wants := backlog.ask(connection):
            connection.send(methods.DEQUEUE, idl.DequeueRequest("bench", wants, None, _WAIT_MS))

    return _worked(part, step)


def together(part: Load) -> int:
    """Send the acks with the dequeue of the next items."""
    backlog = _Backlog(part)

    def step(connection: LoadConnection, reply: Any) -> None:
        acks = []
        if connection.method is methods.ACK_AND_DEQUEUE:
            backlog.got(connection, len(reply.items))
            acks = _acks(reply)
        if wants := backlog.ask(connection):
            request = idl.AckAndDequeueRequest("bench", acks, wants, None, _WAIT_MS)
            connection.send(methods.ACK_AND_DEQUEUE, request)
        elif acks:
            connection.send(methods.ACK, idl.AckRequest(acks))

    return _worked(part, step)


def _acks(reply: Any) -> list[Any]:
    return [idl.AckItem(item.id, item.lease) for item in reply.items]


def _worked(part: Load, step: Callable[[LoadConnection, Any], None]) -> int:
    requests = 0

    def counted(connection: LoadConnection, reply: Any) -> None:
        nonlocal requests
        failed = [one.error for one in getattr(reply, "outcomes", None) or () if one.error is not None]
        if failed:
            raise RuntimeError(f"an ack was refused: {failed[0]}")
        step(connection, reply)
        requests += connection.open

    drive([LoadConnection(part.port, counted) for _ in range(part.connections)])
    return requests


def run(rig: Rig, work: Callable[[Load], int], topic: str, items: int, batch: int) -> Worked:
    """Enqueue `items`, then have workers take them, `batch` at a time."""
    part = Load(rig.port, topic, items, CONNECTIONS, batch)
    load.produce(replace(part, batch=_BATCH, connections=4))
    assert rig.process is not None
    began_s, used_s, host_s = time.monotonic(), time.process_time(), cpu_s(rig.process.pid)
    requests = work(part)
    took_s, used_s = time.monotonic() - began_s, time.process_time() - used_s
    host_s = cpu_s(rig.process.pid) - host_s
    return Worked(items / took_s, requests / items, 1e6 * used_s / items, 1e6 * host_s / items)


@dataclass(frozen=True, slots=True)
class Runs:
    items: int
    batch: int
    runs: dict[str, list[Worked]]

    def as_json(self) -> dict[str, Any]:
        return {
            kind: {name: [getattr(one, name) for one in worked] for name in _FIGURES}
            for kind, worked in self.runs.items()
        }

    def show(self, console: Console) -> None:
        """Print the median of each figure."""
        title = f"foqs-lab bench workers, {self.items:,} items in batches of {self.batch}, {CONNECTIONS} workers"
        columns = ("items/s", "its requests an item", "workers' CPU us an item", "host's CPU us an item")
        shown = table(title, "a worker sends", *columns)
        for kind, worked in self.runs.items():
            rate, requests, *cpu = (median(getattr(one, name) for one in worked) for name in _FIGURES)
            shown.add_row(kind, f"{rate:,.0f}", f"{requests:.2f}", *(f"{figure:,.0f}" for figure in cpu))
        console.print(shown)


def measure(rig: Rig, rounds: int, items: int, batch: int, step: Callable[[str], None]) -> Runs:
    """Return the runs of both kinds of workers, which alternate."""
    rig.start_host()
    runs: dict[str, list[Worked]] = {APART: [], TOGETHER: []}
    for number in range(rounds):
        for kind, work in ((APART, apart), (TOGETHER, together)):
            step(f"{kind}, round {number + 1} of {rounds}")
            runs[kind].append(run(rig, work, f"t{number}-{work.__name__}", items, batch))
    return Runs(items, batch, runs)
