"""The client processes of a measurement: all of them connect first, then they run at the same time, and report."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Self

from foqs_lab.bench.machine import cpu_s

_STOP_S = 10.0
_LIMIT_S = 60.0
_LIMIT_OF_ITEM_S = 0.02
"""No measured queue was slower than 140 items a second."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a workload sends: `items` in all. `delayed`: more items of `drain`, an hour ahead."""

    items: int
    batch: int = 100
    producers: int = 4
    consumers: int = 4
    payload_bytes: int = 256
    delayed: int = 0

    def parts(self) -> list[Shape]:
        """Return the part of each producer."""
        return [replace(self, items=share, producers=1) for share in shares(self.items, self.producers)]

    def scaled(self, share: float) -> Shape:
        """Return a smaller shape, of at least 100 items and ten batches."""
        items = max(100, 10 * self.batch, int(share * self.items))
        return replace(self, items=items, delayed=int(share * self.delayed))


SHAPES: Mapping[str, Shape] = {
    "cycle": Shape(200_000),
    "single": Shape(40_000, 1, 32, 32),
    "callers": Shape(8_000, 1, 8, 8),
    "enqueue": Shape(200_000),
    "drain": Shape(1_000_000, delayed=300_000),
    "latency": Shape(1_000, 1, 1, 1),
}
"""Each workload at its full size."""


def shares(items: int, among: int) -> list[int]:
    """As equal as possible, `items` in all."""
    return [items // among + (number < items % among) for number in range(among)]


Run = Callable[[], list[float]]
"""The measured part of a client. Returns the milliseconds of each enqueue, or nothing."""


@dataclass(frozen=True, slots=True)
class Report:
    """`began` and `ended` are seconds of the machine's monotonic clock; `cpu_s` is the client's processor time."""

    began: float
    ended: float
    cpu_s: float
    enqueue_ms: list[float]


class PythonClient:
    """A process in which `connect` runs, and returns the measured part. Leaving the context ends it."""

    def __init__(self, connect: Callable[[], Run]) -> None:
        context = get_context("spawn")
        self._here, self._there = context.Pipe()
        self._process = context.Process(target=_python_client, args=(connect, self._there), daemon=True)

    def __enter__(self) -> Self:
        # Ctrl-C goes to all processes of the terminal. This one ends the client, which would print a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._there.close()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._process.join(_STOP_S)
        self._process.kill()
        self._process.join()
        self._here.close()

    def ready(self) -> None:
        """Return when the client has connected. Raises RuntimeError if it failed."""
        self._receive()

    def go(self) -> None:
        self._here.send(None)

    def kill(self) -> None:
        self._process.kill()

    def report(self) -> Report:
        """Return when the client has done its work. Raises RuntimeError if it failed."""
        return self._receive()

    def _receive(self) -> Report:
        try:
            received: Report = self._here.recv()
        except (EOFError, ConnectionError) as error:
            raise RuntimeError("a client of the benchmark failed with the error above, or took too long") from error
        return received


def _python_client(connect: Callable[[], Run], pipe: Connection) -> None:
    run = connect()
    pipe.send(None)
    pipe.recv()
    used_s, began = time.process_time(), time.monotonic()
    enqueue_ms = run()
    ended, used_s = time.monotonic(), time.process_time() - used_s
    pipe.send(Report(began, ended, used_s, enqueue_ms))


class NodeClient:
    """A program for node. It reads its job from its argument, says `ready`, waits for a line, and prints a report."""

    def __init__(self, node: str, program: Path, job: Mapping[str, object]) -> None:
        self._argv = [node, str(program), json.dumps(job)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ready(self) -> None:
        self._line()

    def go(self) -> None:
        process = self._started()
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

    def kill(self) -> None:
        self._started().kill()

    def report(self) -> Report:
        return Report(**json.loads(self._line()))

    def _line(self) -> str:
        process = self._started()
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{Path(self._argv[1]).name} failed with the error above, or took too long")
        return line

    def _started(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process


Client = PythonClient | NodeClient


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a workload. `cpu_us` is microseconds of processor time for each item, by part of the system."""

    items_per_s: float
    cpu_us: dict[str, float] = field(default_factory=dict)
    enqueue_p50_ms: float | None = None


def measure(
    clients: Sequence[Client], items: int, servers: Mapping[str, int], limit_s: float | None = None
) -> Measured:
    """Run `clients`, which enqueue, dequeue and ack `items` together. `servers` are processes by name.

    Raises RuntimeError if a client fails, or takes longer than `limit_s`: by default a minute, and 20 ms for each item.
    """
    with ExitStack() as stack:
        for client in clients:
            stack.enter_context(client)
        limit = threading.Timer(_LIMIT_S + items * _LIMIT_OF_ITEM_S if limit_s is None else limit_s, _kill, [clients])
        stack.callback(limit.cancel)
        limit.start()
        for client in clients:
            client.ready()
        before_s = {name: cpu_s(pid) for name, pid in servers.items()}
        for client in clients:
            client.go()
        reports = [client.report() for client in clients]
        used_s = {name: cpu_s(pid) - before_s[name] for name, pid in servers.items()}
    used_s["clients"] = sum(report.cpu_s for report in reports)
    took_s = max(report.ended for report in reports) - min(report.began for report in reports)
    enqueues = [ms for report in reports for ms in report.enqueue_ms]
    return Measured(
        items / took_s,
        {name: 1e6 * seconds / items for name, seconds in used_s.items()},
        median(enqueues) if enqueues else None,
    )


def _kill(clients: Sequence[Client]) -> None:
    for client in clients:
        client.kill()
