"""What every rival of foqs has: servers of its own, and clients for each workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from foqs_lab.bench.clients import Client, Measured, Shape, measure


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
