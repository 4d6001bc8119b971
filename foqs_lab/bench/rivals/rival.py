"""What every rival of foqs has: servers of its own, and clients for each workload.

Clients whose driver blocks: a thread for each connection.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from foqs_lab.bench.clients import Client, Measured, Run, Shape, measure, shares
from foqs_lab.bench.load import run_together


def in_threads(connect: Callable[[Shape, int], Run], shape: Shape, connections: int) -> Run:
    """Connect `connections` times; each runs its share of the items in a thread of its own.

    The run raises the first error of a thread.
    """
    runs = [connect(shape, share) for share in shares(shape.items, connections)]
    errors: list[Exception] = []

    def work(run: Run) -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that reports
            errors.append(error)

    def together() -> list[float]:
        run_together([threading.Thread(target=work, args=(run,), daemon=True) for run in runs])
        if errors:
            raise errors[0]
        return []

    return together


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
        """The server processes, by the name of the part."""

    @abstractmethod
    def pair(self, shape: Shape) -> Sequence[Client]:
        """Clients that produce and clients that consume at the same time, in a fresh queue."""

    @abstractmethod
    def callers(self, shape: Shape) -> Sequence[Client]:
        """Clients that each enqueue, dequeue and ack one item after the other, in a fresh queue."""

    def measure_pair(self, shape: Shape) -> Measured:
        return measure(self.pair(shape), shape.items, self.servers())

    def measure_callers(self, shape: Shape) -> Measured:
        return measure(self.callers(shape), shape.items, self.servers())
