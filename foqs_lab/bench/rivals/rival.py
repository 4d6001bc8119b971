"""What every rival of foqs has: servers of its own, and clients for each workload."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Protocol

from foqs_lab.bench.clients import Client, Measured, PythonClient, Run, Shape, measure, shares
from foqs_lab.bench.load import run_together

_EMPTY_S = 0.001


class Rival(ABC):
    """A queue that users would otherwise pick, made durable. `start` comes first, `close` may be called twice."""

    name: ClassVar[str]
    """Begins the names of its figures."""
    title: ClassVar[str]
    has_batches: ClassVar[bool] = True
    version: str = ""

    @abstractmethod
    def start(self) -> None:
        """Start its servers. Raises ServerUnavailable if something is not installed."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def servers(self) -> dict[str, int]:
        """Return the server processes, by the name of the part."""

    @abstractmethod
    def pair(self, shape: Shape) -> Sequence[Client]:
        """Return clients that produce and clients that consume at the same time, in a fresh queue."""

    @abstractmethod
    def callers(self, shape: Shape) -> Sequence[Client]:
        """Return clients that each enqueue, dequeue and ack one item after the other, in a fresh queue."""

    def measure_pair(self, shape: Shape) -> Measured:
        return measure(self.pair(shape), shape.items, self.servers())

    def measure_callers(self, shape: Shape) -> Measured:
        return measure(self.callers(shape), shape.items, self.servers())


class Queue(Protocol):
    """A connection to a queue, whose driver blocks."""

    def put(self, count: int) -> None:
        """Store some items."""

    def take(self, count: int) -> int:
        """Lease up to `count` items and remove them; return their number."""


class BlockingRival(Rival):
    """A rival with a blocking driver: a thread for each connection, in two processes; or a process for each caller."""

    @abstractmethod
    def fresh(self, shape: Shape) -> Callable[[], Queue]:
        """Make a fresh queue. Return the function that connects to it in a client's process."""

    def pair(self, shape: Shape) -> Sequence[Client]:
        connect = self.fresh(shape)
        parts = ((_produce, shape.producers), (_consume, shape.consumers))
        return [PythonClient(partial(_in_threads, connect, work, shape, threads)) for work, threads in parts]

    def callers(self, shape: Shape) -> Sequence[Client]:
        connect = self.fresh(shape)
        return [PythonClient(partial(_caller, connect, part.items)) for part in shape.parts()]


def _produce(queue: Queue, share: int, batch: int) -> None:
    for left in range(share, 0, -batch):
        queue.put(min(batch, left))


def _consume(queue: Queue, share: int, batch: int) -> None:
    done = 0
    while done < share:
        done += _taken(queue, min(batch, share - done))


def _taken(queue: Queue, count: int) -> int:
    """Return how many items it took: 0 after a short pause if there was none."""
    taken = queue.take(count)
    if not taken:
        time.sleep(_EMPTY_S)
    return taken


def _caller(connect: Callable[[], Queue], items: int) -> Run:
    queue = connect()

    def run() -> list[float]:
        took_ms = []
        for _ in range(items):
            began = time.perf_counter()
            queue.put(1)
            took_ms.append(1000 * (time.perf_counter() - began))
            while not _taken(queue, 1):
                pass
        return took_ms

    return run


def _in_threads(
    connect: Callable[[], Queue], work: Callable[[Queue, int, int], None], shape: Shape, threads: int
) -> Run:
    """Connect `threads` times. Each thread works on its share; the run raises the first error of a thread."""
    queues = [connect() for _ in range(threads)]
    errors: list[Exception] = []

    def one(queue: Queue, share: int) -> None:
        try:
            work(queue, share, shape.batch)
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that reports
            errors.append(error)

    def together() -> list[float]:
        parts = zip(queues, shares(shape.items, threads), strict=True)
        run_together([threading.Thread(target=one, args=part, daemon=True) for part in parts])
        if errors:
            raise errors[0]
        return []

    return together


def priority() -> int:
    return random.randrange(1000)
