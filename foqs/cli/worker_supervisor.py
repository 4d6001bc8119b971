"""`foqs worker`: processes that run the tasks of an App, each replaced when it ends.

The processes (`foqs.cli.worker_child`) import the App; this process does not.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import structlog

from foqs import __version__
from foqs.cli import logs, reload, signals
from foqs.cli.keeper import Keeper
from foqs.cli.terminal import say
from foqs.errors import Invalid

if TYPE_CHECKING:
    from foqs.cli.worker_metrics import Totals

log = structlog.get_logger("foqs.worker")

PATIENCE_S = 2.0
"""Beyond the grace: coroutines that are cancelled and the last outcomes take a second each."""
LAST_S = 2.0
"""Then the process is to end at once, and is killed after this time. By default that is 29 s after a signal, before
Kubernetes would kill all of them."""
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class Order:
    """What each process does. `app` is MODULE:APP. `topics` are names, or weights by name; None: the default of the
    App."""

    app: str
    folder: str
    topics: Sequence[str] | Mapping[str, int] | None
    concurrency: int
    lease_ms: int
    grace_ms: int
    hard_limit_ms: int | None
    report_errors: bool
    max_jobs: int | None
    max_memory_bytes: int | None
    process: str = ""


def supervise(
    order: Order, processes: int, *, watched: Sequence[Path] | None = None, metrics: tuple[str, int] | None = None
) -> None:
    """Run the processes until SIGTERM or SIGINT: then they end within the grace, and at once after a second signal.

    watched  folders of Python files: a change replaces the processes
    metrics  the host and port of /metrics and /healthz

    Raises Invalid for what no restart would cure, and if a process did not stop in order; SystemExit(1) if tasks were
    at work when the grace ended.
    """
    names = [str(number) for number in range(1, processes + 1)]
    with signals.last_work(), ExitStack() as stack:
        totals: Totals | None = None
        if metrics is not None:
            from foqs.cli.metrics_port import serving
            from foqs.cli.worker_metrics import FAMILIES, Totals

            totals = Totals(names)
            address = stack.enter_context(serving(*metrics, FAMILIES, totals.rows, totals.sick))
            log.info("worker.metrics", address=address)
        supervisor = _Supervisor(order, names, watched, totals)
        asyncio.run(supervisor.run())
    if supervisor.abandoned:
        raise SystemExit(1)


class _Supervisor:
    def __init__(
        self, order: Order, names: Sequence[str], watched: Sequence[Path] | None, totals: Totals | None
    ) -> None:
        self.abandoned: list[str] = []
        self._order = order
        self._watched = watched
        self._totals = totals
        self._outcomes: Counter[str] = Counter()
        self._began = monotonic()
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._said = ""
        self._introduced = False
        stdout = os.dup(1)  # that of the tasks: a process's own is for its reports
        self._keepers = [
            Keeper(
                name, ("foqs.cli.worker_child", order.app, str(stdout)), partial(self._heard, name),
                farewell=b"stop\n", ended=partial(self._ended, name), pass_fds=[stdout], last_s=LAST_S,
            )
            for name in names
        ]  # fmt: skip
        for keeper in self._keepers:
            keeper.give({**asdict(order), "process": keeper.name}, order.grace_ms / 1000 + PATIENCE_S, {})

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        logs.catch_faults(loop)
        signals.on_stop(self._asked)
        tasks = [loop.create_task(self._keep(keeper)) for keeper in self._keepers]
        others: list[asyncio.Task[Any]] = [loop.create_task(self._stop.wait())]
        if self._watched is not None:
            others.append(loop.create_task(self._reload(self._watched)))
        await asyncio.wait({*tasks, *others}, return_when=asyncio.FIRST_COMPLETED)
        log.info("processes.stopping", processes=len(tasks), grace_ms=self._order.grace_ms)
        self._stop.set()
        self._changed.set()
        for keeper in self._keepers:
            keeper.stop()
        await asyncio.wait(tasks)
        self._sum_up(len(tasks))
        for other in others:
            other.cancel()
        faults = [fault for task in tasks if (fault := task.exception()) is not None]
        if faults:
            raise faults[0]

    def _sum_up(self, processes: int) -> None:
        took_ms = round((monotonic() - self._began) * 1000)
        count = self._outcomes
        log.info(
            "worker.stopped",
            processes=processes,
            took_ms=took_ms,
            completed=count["completed"],
            failed=count["failed"],
            retried=count["retried"],
            rejected=count["rejected"],
            released=count["released"],
            lost=count["lost"],
        )
        if self.abandoned:
            log.warning("worker.abandoned", tasks=len(self.abandoned), items=self.abandoned[:_MOST_NAMED])

    def _asked(self) -> None:
        if self._stop.is_set():
            for keeper in self._keepers:
                keeper.hurry()
        self._stop.set()

    async def _keep(self, keeper: Keeper) -> None:
        """Keep the process running. While files are watched, a permanent error is cured by a change of them."""
        while True:
            try:
                await keeper.run()
            except Invalid as error:
                if self._watched is None or self._stop.is_set():
                    raise
                if error.message != self._said:  # not once more for each process
                    self._said = error.message
                    _tell(error.message)
            else:
                return
            await self._changed.wait()

    async def _reload(self, watched: Sequence[Path]) -> None:
        async for files in reload.changes(watched):
            log.info("worker.reloading", files=files)
            self._said = ""
            self._introduced = False
            for keeper in self._keepers:
                keeper.replace("reload")
            self._changed.set()
            self._changed = asyncio.Event()

    def _heard(self, process: str, said: Mapping[str, Any]) -> None:
        if "started" in said:
            if not self._introduced:  # each process says it
                self._introduced = True
                order = self._order
                log.info(
                    "worker.running",
                    app=order.app,
                    topics=said["started"],
                    tasks=said["tasks"],
                    processes=len(self._keepers),
                    concurrency=order.concurrency,
                    address=said["address"],
                    namespace=said["namespace"],
                    lease_ms=order.lease_ms,
                    grace_ms=order.grace_ms,
                    version=__version__,
                )
                if said["without_tasks"]:
                    log.warning("worker.topics_without_tasks", topics=said["without_tasks"])
                if said["left_out"]:
                    log.warning("worker.topics_left_out", topics=said["left_out"])
            log.info("worker.started", process=process)
        if "abandoned" in said and self._stop.is_set():  # a process that is replaced gives its tasks back at once
            self.abandoned += said["abandoned"]
        if "report" in said:
            for *_, outcome, count in said["report"]["outcomes"]:
                self._outcomes[outcome] += count
        if "running" in said:
            log.info("worker.draining", process=process, why=said["ends"], running=said["running"])
        if "report" in said and self._totals is not None:
            self._totals.add(process, said["report"], monotonic())

    def _ended(self, process: str, why: str) -> None:
        if self._totals is not None:
            self._totals.ended(process, why)


def _tell(why: str) -> None:
    if logs.is_json():
        log.error("worker.refused", reason=why)
    else:  # a traceback is lines
        say(why)
