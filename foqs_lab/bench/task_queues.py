"""Libraries of tasks, each with one worker process, a server of its own, and a task that does nothing.

All of them flush each write, and end an item after its task: tasks at work in a process that dies come again.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import ClassVar

import foqs
from foqs_lab.bench.rig import Rig
from foqs_lab.servers import PostgresqlServer, RedisServer, ServerUnavailable
from foqs_lab.servers.programs import find_rival_package

COROUTINES, THREADS = 64, 8
_PACKAGES = f"python{sys.version_info[0]}.{sys.version_info[1]}-workers"
_NOOP = "foqs_lab.bench.noop"
_CHECKOUT = Path(foqs.__file__).parent.parent


class TaskQueue(ABC):
    """How a backlog is stored and worked on: words after `python`, run with `environment`. `start` comes first, `close`
    may be called twice."""

    name: ClassVar[str]
    """Begins the names of its figures."""
    title: ClassVar[str]
    version: str = ""
    python: str = sys.executable

    @abstractmethod
    def start(self) -> None:
        """Start its server. Raises ServerUnavailable if something is not installed."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def servers(self) -> Mapping[str, int]:
        """Return the server processes, by the name of the part."""

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Return where the server is, and where the packages are."""

    @abstractmethod
    def store(self, items: int) -> Sequence[str]:
        """Return the program that stores a backlog in the queue FOQS_BENCH_QUEUE."""

    @abstractmethod
    def work(self) -> Sequence[str]:
        """Return the command of its worker."""


class _Foqs(TaskQueue):
    task: ClassVar[str]
    concurrency: ClassVar[int]

    def __init__(self, rig: Rig, checkout: Path = _CHECKOUT) -> None:
        """`checkout`: the worker is that of this one. The host stays."""
        self._rig = rig
        self._checkout = checkout
        own = checkout / ".venv/bin/python"
        self.python = str(own) if checkout != _CHECKOUT and own.exists() else sys.executable

    def start(self) -> None:
        """Do nothing: the host runs."""

    def close(self) -> None:
        """Leave the host."""

    def servers(self) -> Mapping[str, int]:
        return self._rig.servers()

    def environment(self) -> Mapping[str, str]:
        return {
            "FOQS_ADDRESS": f"127.0.0.1:{self._rig.port}", "FOQS_NAMESPACE": "bench", "PYTHONPATH": str(self._checkout)
        }  # fmt: skip

    def store(self, items: int) -> Sequence[str]:
        return ["-m", f"{_NOOP}.foqs_tasks", self.task, str(items)]

    def work(self) -> Sequence[str]:
        return ["-m", "foqs", "worker", f"{_NOOP}.foqs_tasks:app", "--concurrency", str(self.concurrency)]


class FoqsCoroutines(_Foqs):
    name = "foqs_async"
    title = f"foqs, {COROUTINES} coroutines"
    task = "coroutine"
    concurrency = COROUTINES


class FoqsThreads(_Foqs):
    name = "foqs_threads"
    title = f"foqs, {THREADS} threads"
    task = "function"
    concurrency = THREADS


class _TaskRival(TaskQueue):
    package: ClassVar[str]

    def __init__(self, server: PostgresqlServer | RedisServer) -> None:
        self._server = server
        self._packages = Path()

    def start(self) -> None:
        self._packages = find_rival_package(_PACKAGES, self.package).parent
        found = (one.version for one in distributions(name=self.package, path=[str(self._packages)]))
        self._server.start()
        self.version = f"{next(found, 'unknown')} on {self._server.version}"

    def close(self) -> None:
        self._server.close()

    def servers(self) -> Mapping[str, int]:
        return {"server": self._server.pid}

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._server.port}/0"

    def environment(self) -> Mapping[str, str]:
        return {"FOQS_BENCH_URL": self.url, "PYTHONPATH": os.pathsep.join(map(str, (self._packages, _CHECKOUT)))}

    def store(self, items: int) -> Sequence[str]:
        return ["-m", f"{_NOOP}.{self.package}_tasks", str(items)]


class _Celery(_TaskRival):
    """Without the messages to other workers, of which there are none here."""

    package = "celery"
    pool: ClassVar[Sequence[str]]

    def __init__(self) -> None:
        super().__init__(RedisServer())

    def work(self) -> Sequence[str]:
        alone = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING")
        return ["-m", "celery", "-A", f"{_NOOP}.celery_tasks", "worker", *self.pool, *alone]


class CeleryThreads(_Celery):
    name = "celery_threads"
    title = f"Celery, {THREADS} threads"
    pool = ("-P", "threads", "-c", str(THREADS))


class CeleryPrefork(_Celery):
    """Its default pool: the tasks run in child processes."""

    name = "celery_prefork"
    title = "Celery, 2 processes"
    pool = ("-P", "prefork", "-c", "2")


class Dramatiq(_TaskRival):
    name = "dramatiq"
    title = f"dramatiq, {THREADS} threads"
    package = "dramatiq"

    def __init__(self) -> None:
        super().__init__(RedisServer())

    def work(self) -> Sequence[str]:
        return ["-m", "dramatiq", f"{_NOOP}.dramatiq_tasks:broker", "-p", "1", "-t", str(THREADS)]


class Procrastinate(_TaskRival):
    name = "procrastinate"
    title = f"procrastinate, {COROUTINES} coroutines"
    package = "procrastinate"

    def __init__(self) -> None:
        self._postgresql = PostgresqlServer()
        super().__init__(self._postgresql)

    @property
    def url(self) -> str:
        return self._postgresql.url()

    def work(self) -> Sequence[str]:
        return ["-m", "procrastinate", f"--app={_NOOP}.procrastinate_tasks.app", "worker", "-c", str(COROUTINES)]


_RIVALS: Sequence[type[CeleryThreads | CeleryPrefork | Dramatiq | Procrastinate]] = (
    CeleryThreads, CeleryPrefork, Dramatiq, Procrastinate,
)  # fmt: skip
OWN: Sequence[type[_Foqs]] = (FoqsCoroutines, FoqsThreads)


@dataclass(slots=True)
class TaskQueues:
    """The queues that run, foqs first, and the reason of each that does not, by name."""

    running: list[TaskQueue] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


@contextmanager
def started(rig: Rig, *, rivals: bool, against: Path | None) -> Iterator[TaskQueues]:
    """Start a host, and every rival that is installed. `against`: the workers of this checkout are measured as well,
    as `before`."""
    rig.start_host()
    queues = TaskQueues([make(rig) for make in OWN])
    if against is not None:
        for make in OWN:
            before = make(rig, against.absolute())
            before.name, before.title = f"{make.name}_before", f"{make.title}, before"  # type: ignore[misc]
            queues.running.append(before)
    with ExitStack() as stack:
        for rival in [make() for make in _RIVALS if rivals]:
            try:
                rival.start()
            except ServerUnavailable as error:
                queues.missing[rival.name] = error.reason
                continue
            stack.callback(rival.close)
            queues.running.append(rival)
        yield queues
