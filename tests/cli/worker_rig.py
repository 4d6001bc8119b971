"""`foqs worker` with the tasks of a module of its own, on a real host."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from tests.api.hosts import HostProcess, until
from tests.client.real_server import PATIENT_MS

Start = Callable[..., HostProcess]
LEASE_MS = 120_000
"""No test waits for the end of such a lease: an item that comes again was given back."""
TASKS = """
import asyncio, os, time
from foqs import App, Job, Reject, Retry
from foqs.client import RetryKind, RetryRule

app = App({address!r}, {namespace!r}, timeout_ms={timeout_ms})
SOON = RetryRule(RetryKind.CONSTANT, first_ms=1, jitter=0)
kept = []


def note(*words):
    with open({journal!r}, "a") as journal:
        journal.write(" ".join(map(str, words)) + "\\n")


@app.task(topic="quick")
async def pid(n: int) -> int:
    print("did", n)
    return os.getpid()


@app.task(topic="waits")
async def waits(job: Job) -> int:
    note("waits", job.attempt, os.getpid())
    noted_stop = False
    while not os.path.exists({gate!r}):
        if job.stopping.is_set() and not noted_stop:
            noted_stop = True
            note("stopping", job.attempt, os.getpid())
        await asyncio.sleep(0.01)
    return job.attempt


@app.task(topic="threads")
def blocks(job: Job) -> int:
    note("blocks", job.attempt, os.getpid())
    while not os.path.exists({gate!r}):
        time.sleep(0.01)
    return job.attempt


@app.task(topic="stuck", time_limit=0.3, retry=SOON)
def stuck(job: Job) -> int:
    note("stuck", job.attempt, os.getpid())
    while job.attempt == 1:
        time.sleep(0.05)
    return job.attempt


@app.task(topic="late", time_limit=0.1, retry=SOON)
def late(job: Job) -> int:
    if job.attempt == 1:
        job.time_is_up.wait()
    return job.attempt


@app.task(topic="aside")
async def aside() -> None:
    note("aside", 1, os.getpid())
    await asyncio.to_thread(time.sleep, 600)


@app.task(topic="loop")
async def holds_the_loop() -> None:
    note("holds", 1, os.getpid())
    while not os.path.exists({gate!r}):
        time.sleep(0.05)


@app.task(topic="grows")
async def grows(mib: int) -> int:
    kept.append(bytearray(mib << 20))
    return os.getpid()


@app.task(topic="forks")
async def forks() -> int:
    if (child := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    note("forked", child, os.getpid())
    return os.getpid()


@app.task(topic="bad", max_attempts=2, retry=SOON)
async def bad(kind: str) -> None:
    if kind == "retry":
        raise Retry(delay_ms=60_000)
    raise Reject("never") if kind == "reject" else ValueError("no such user")
"""


class Shop:
    """The module `tasks` in a folder of its own, with a namespace of its own, and what its tasks wrote down."""

    def __init__(self, folder: Path, address: str, source: str = TASKS) -> None:
        self.folder = folder
        self._gate = folder / "gate"
        self._journal = folder / "journal"
        fields = {"journal": str(self._journal), "gate": str(self._gate), "namespace": uuid4().hex}
        (folder / "tasks.py").write_text(source.format(address=address, timeout_ms=PATIENT_MS, **fields))
        self.tasks: Any = self._loaded()

    def _loaded(self) -> ModuleType:
        spec = spec_from_file_location("tasks_of_a_test", self.folder / "tasks.py")
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def noted(self, word: str) -> list[tuple[int, int]]:
        """The second and the third word, numbers, of the lines that begin with `word`."""
        lines = self._journal.read_text().splitlines() if self._journal.exists() else []
        return [(int(one), int(two)) for first, one, two in map(str.split, lines) if first == word]

    def open_gate(self) -> None:
        self._gate.touch()


def pids(worker: HostProcess) -> list[int]:
    """Of all processes that the worker has started."""
    return [int(pid) for pid in re.findall(r"process\.started +pid=(\d+)", worker.said())]


def reached(worker: HostProcess, condition: Callable[[], object]) -> None:
    """Wait for the condition while the worker runs."""
    until(lambda: condition() or not worker.running, worker.said)
    assert condition(), worker.said()


def ready(worker: HostProcess, count: int) -> None:
    """Wait until `count` processes have imported the App."""
    reached(worker, lambda: worker.said().count("worker.started") >= count)


def gone(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


def why_replaced(worker: HostProcess) -> list[str]:
    return re.findall(r"process\.replaced +process=\d+ why=(\w+)", worker.said())


def ended(pid: int) -> None:
    until(lambda: gone(pid), f"the end of process {pid}")
