"""Tasks that `foqs worker` runs in crash tests, these workers, and what they write down.

A worker writes a line when a task begins, when the service has confirmed a checkpoint, and when a task is done.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import count
from pathlib import Path
from time import monotonic_ns
from typing import Any

from foqs import App, Call, Job, Middleware
from foqs.client import AsyncClient, FoqsError, Leased
from foqs.tasks import clients
from foqs_lab.servers.process import Restartable, ServerProcess

_FOLDER = "FOQS_LAB_JOURNAL"
_LEASE_MS = 3_000
_TICK_S = 2.0
TICKS = "ticks"


def _note(kind: str, *values: int | str) -> None:
    os.write(_journal(), (json.dumps([kind, monotonic_ns(), *values]) + "\n").encode())


@lru_cache(maxsize=1)
def _journal() -> int:
    """Each process has a file of its own: only the last line of one that was killed may be torn."""
    return os.open(Path(os.environ[_FOLDER]) / f"{os.getpid()}.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY)


class _Client(AsyncClient):
    """Writes down which checkpoints were confirmed: a job does not say so."""

    async def extend_many(
        self, items: Iterable[Leased], lease_ms: int | None = None, *, timeout_ms: int | None = None
    ) -> list[FoqsError | None]:
        given, asked_ns = list(items), monotonic_ns()
        outcomes = await super().extend_many(given, lease_ms, timeout_ms=timeout_ms)
        for item, error in zip(given, outcomes, strict=True):
            if error is None and (state := getattr(item, "checkpoint", None)) is not None:
                _note("saved", item.id, int(state), asked_ns)
        return outcomes


if _FOLDER in os.environ:  # in a worker
    clients.AsyncClient = _Client  # type: ignore[attr-defined]


class _Noted(Middleware):
    """Writes down the items of a schedule: the time that each is for, and when it was enqueued (ms)."""

    def before(self, call: Call) -> None:
        item = call.item
        _note("began", item.id, int((item.headers or {})["schedule_at_ms"]), item.enqueued_at_ms or 0)

    def after(self, call: Call, _: object) -> None:
        _note("done", call.item.id)


app = App.from_env()
clock = App.from_env()
"""Apart, because each worker writes the schedules of its App."""
clock.middleware.append(_Noted())


@app.task(topic="coroutines")
async def in_loop(job: Job, key: str, steps: int, step_s: float) -> None:
    for _ in _steps(job, key, steps):
        await asyncio.sleep(step_s)


@app.task(topic="threads")
def in_thread(job: Job, key: str, steps: int, step_s: float) -> None:
    for _ in _steps(job, key, steps):
        time.sleep(step_s)


@clock.periodic("* * * * * *", catch_up="all")
@clock.task(topic=TICKS)
async def tick() -> None:
    await asyncio.sleep(_TICK_S)


def _steps(job: Job, key: str, steps: int) -> Iterator[int]:
    first = int(job.last_checkpoint or b"0")
    _note("began", job.id, first, key)
    for number in range(first, steps):
        if job.lease_lost.is_set():
            return
        yield number
        job.checkpoint(b"%d" % (number + 1))
    _note("done", job.id)


class Journal:
    """What all workers have written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_bytes: dict[Path, int] = {}

    def read(self) -> Iterator[list[Any]]:
        """Yield the new lines: the kind, the time (ns of the monotonic clock), and the values."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._read_bytes[path] = self._read_bytes.get(path, 0) + len(whole) + 1
                yield from map(json.loads, whole.split(b"\n"))


class Command(Restartable):
    """A command of foqs as a process, its log in a file of `folder`."""

    _numbers = count(1)

    def __init__(self, folder: Path, *args: str, environment: Mapping[str, str] | None = None) -> None:
        self.log = folder / f"{args[0]}-{next(self._numbers)}.log"
        self._argv = [sys.executable, "-m", "foqs", *args]
        self._environment = environment
        self.launch()

    def launch(self) -> None:
        """Start it, and do not wait."""
        self._process = ServerProcess(self._argv, log=self.log, environment=self._environment)

    def kill_worker(self, rng: random.Random) -> None:
        """Kill the process of a `foqs worker` that runs tasks, its supervisor, or both. A supervisor starts again."""
        how = rng.randrange(3)
        if how != 1:
            found = re.findall(r"process\.started +pid=(\d+)", self.log.read_text(errors="replace"))
            with suppress(ProcessLookupError):
                os.kill(int(found[-1]), signal.SIGKILL)
        if how != 0:
            self.kill()
            self.launch()


def worker(folder: Path, name: str, addresses: str, namespace: str, *options: str) -> Command:
    """Start `foqs worker` for the App `name` of this module."""
    environment = {_FOLDER: str(folder), "FOQS_ADDRESS": addresses, "FOQS_NAMESPACE": namespace}
    args = ("worker", f"{__name__}:{name}", "--lease-ms", str(_LEASE_MS), *options)
    return Command(folder, *args, environment=environment)
