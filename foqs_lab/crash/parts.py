"""What the client processes of crash tests have in common: their part, the hosts that they ask, and their journals."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Any, Self

from foqs.client import Item
from foqs.errors import FoqsError
from foqs_lab.crash.clients import Wire

TIMEOUT_MS = 4_000
PAUSE_S = 0.05


@dataclass(frozen=True)
class Part:
    """What one process does: `threads` clients of the hosts at `ports`. Producers pause while `full` exists, and end
    when `stop` does."""

    folder: str
    ports: list[int]
    seed: str
    threads: int

    def json(self) -> str:
        return json.dumps(asdict(self))

    def again(self, start: int) -> Self:
        """Return the part for this start of the process: it makes other choices."""
        return replace(self, seed=f"{self.seed}/{start}")

    @property
    def addresses(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def full(self) -> Path:
        return Path(self.folder) / "full"

    @property
    def stop(self) -> Path:
        return Path(self.folder) / "stop"


class Journal:
    """A JSON list a line. A line is in the file when `write` returns. The last line of a process that was killed may
    be torn."""

    def __init__(self, folder: str) -> None:
        self._file = os.open(Path(folder) / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()

    def write(self, *values: Any) -> None:
        line = (json.dumps(values, separators=(",", ":")) + "\n").encode()
        with self._lock:
            os.write(self._file, line)


class Wires:
    """A connection to each host. One is in use: the next one when it does not answer."""

    def __init__(self, part: Part, number: int, namespace: str) -> None:
        self._wires = deque(Wire(port, namespace, timeout_ms=TIMEOUT_MS) for port in part.ports)
        self._wires.rotate(number)

    @property
    def now(self) -> Wire:
        return self._wires[0]

    def rotate(self) -> None:
        self._wires.rotate()

    def take(self, topics: tuple[str, ...], count: int, wait_ms: int, lease_ms: int) -> tuple[int, int, list[Item]]:
        """Return when a dequeue began and ended (ns), and its items; after a pause, if the host does not answer."""
        began = monotonic_ns()
        try:
            items = self.now.dequeue(topics, count, wait_ms=wait_ms, lease_ms=lease_ms)
        except FoqsError:
            self.rotate()
            sleep(PAUSE_S)
            return began, began, []
        return began, monotonic_ns(), items
