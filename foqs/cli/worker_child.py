"""One process of `foqs worker`: imports the App, and runs its tasks until it is asked to end, or reaches a limit.

`python -m foqs.cli.worker_child APP STDOUT`: the input has the order and then, as a line, the wish that the process
ends; its end means at once. STDOUT is the descriptor of the output of the tasks.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from foqs.checks import LONGEST_MS
from foqs.cli import logs
from foqs.cli.apps import load
from foqs.cli.worker_supervisor import LAST_S, Order
from foqs.client.ending import end_process_after_main
from foqs.errors import FoqsError
from foqs.tasks import App
from foqs.tasks.meter import Meter
from foqs.tasks.options import DEFAULT_TOPIC
from foqs.tasks.runner import post, run_loop
from foqs.tasks.task import Task

TICK_S = 0.1
REPORT_S = 1.0
HARD_LIMIT = "hard_limit"
_OVERDUE_S = 1.0
"""A process that drains ends this long after the time limit of its runs, if all are beyond it."""
_CLOSE_S = LAST_S / 2
"""The time for closing the event loop: it waits for threads of `asyncio.to_thread` that a task has left behind."""


def ends(order: Order, meter: Meter, now: float, rss_bytes: int, *, draining: bool) -> str | None:
    """Return why the process has to end: "hard_limit" at once, "max_jobs" and "max_memory" after its running tasks.

    A process whose memory is beyond its limit at the start still runs one task. One that ends after its running tasks
    waits only for those within their time limit."""
    if order.hard_limit_ms is not None and meter.over_limit(now, order.hard_limit_ms / 1000):
        return HARD_LIMIT
    if draining and meter.running and meter.over_limit(now, _OVERDUE_S) == meter.running:
        return HARD_LIMIT
    if draining or not meter.ended:
        return None
    if order.max_jobs is not None and meter.ended >= order.max_jobs:
        return "max_jobs"
    return "max_memory" if order.max_memory_bytes is not None and rss_bytes > order.max_memory_bytes else None


def odd_topics(topics: Iterable[str], tasks: Mapping[str, Task[Any, Any, Any]]) -> dict[str, list[str]]:
    """Return the topics that no task has by default, and the topics of tasks that the worker does not take."""
    taken, own = set(topics), {task.default.get("topic", DEFAULT_TOPIC) for task in tasks.values()}
    return {"without_tasks": sorted(taken - own), "left_out": sorted(own - taken)}


class Voice:
    """What the supervisor hears: lines of JSON. One that does not read does not hold up the worker."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._rest = b""

    def say(self, **said: Any) -> None:
        self._rest += json.dumps(said).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Return True if all was said."""
        with suppress(OSError):  # full; or the supervisor has died, so the input ends as well
            self._rest = self._rest[os.write(self._descriptor, self._rest) :]
        return not self._rest


class _Child:
    def __init__(self, order: Order, orders: IO[bytes], voice: Voice) -> None:
        self._order = order
        self._orders = orders
        self._voice = voice
        self._grace_ms: float | None = None  # that the supervisor has asked for
        self._heard_ms: float | None = None  # that the worker knows of
        self._loop: asyncio.AbstractEventLoop | None = None
        self._why: str | None = None
        threading.Thread(target=self._listen, name="foqs-orders", daemon=True).start()

    def _listen(self) -> None:
        """Take what the supervisor asks for, also while a task blocks the event loop."""
        for _ in self._orders:
            self._ask(self._order.grace_ms)
        self._ask(0)
        time.sleep(LAST_S)
        os._exit(1)

    def _ask(self, grace_ms: float) -> None:
        """Have the worker hear it at once: a moment later it might take an item that another process gives back."""
        self._grace_ms = grace_ms
        if self._loop is not None:
            post(self._loop, self._obey)

    def _obey(self) -> None:
        if self._grace_ms != self._heard_ms:
            self._heard_ms = self._grace_ms
            self._worker.stop(self._heard_ms)

    def work(self) -> None:
        """Raises FoqsError for what no restart would cure."""
        order = self._order
        app = load(order.app, Path(order.folder))
        self._worker = app.worker(
            order.topics, concurrency=order.concurrency, grace_ms=order.grace_ms, lease_ms=order.lease_ms,
            report_errors=order.report_errors,
        )  # fmt: skip
        self._namespace = app.namespace
        self._about = {"tasks": len(app.tasks), "address": app.address, "namespace": app.namespace}
        self._odd = odd_topics(self._worker.topics, app.tasks)
        looks = order.max_jobs is not None or order.max_memory_bytes is not None  # ticks look at the other limits
        self._meter = Meter(app.tasks, self._look if looks else None)
        self._worker.ends_process(self._meter.around)
        if self._grace_ms is None:
            closing = threading.Timer(_CLOSE_S, os._exit, [0])
            closing.daemon = True
            run_loop(self._run(app, closing))
            closing.cancel()
        if self._worker.busy_threads:  # their items are given back, so they must end
            sys.stdout.flush()
            os._exit(0)
        end_process_after_main(_CLOSE_S)

    async def _run(self, app: App, closing: threading.Timer) -> None:
        self._loop = asyncio.get_running_loop()
        ticking = asyncio.create_task(self._tick(), name="foqs-tick")
        try:
            await self._worker.arun()
        finally:
            if not ticking.cancel():
                ticking.result()
            if self._worker.abandoned:
                self._voice.say(abandoned=self._worker.abandoned)
            self._report()
            closing.start()
            await app.aclose()

    async def _tick(self) -> None:
        self._voice.say(started=list(self._worker.topics), **self._about, **self._odd)
        try:
            report_at = 0.0
            while True:
                due = time.monotonic() + TICK_S
                await asyncio.sleep(TICK_S)
                now = time.monotonic()
                self._meter.lag_s = max(self._meter.lag_s, now - due)
                self._obey()
                self._look()
                if self._voice.flush() and now >= report_at:
                    self._report()
                    report_at = now + REPORT_S
        except Exception:
            self._worker.stop(0)
            raise

    def _report(self) -> None:
        self._voice.say(report={"namespace": self._namespace, "places": self._worker.places, **self._meter.take()})

    def _look(self) -> None:
        """End the worker if a limit is reached."""
        if self._why == HARD_LIMIT:
            return
        rss_bytes = 0 if self._order.max_memory_bytes is None else _rss()
        why = ends(self._order, self._meter, time.monotonic(), rss_bytes, draining=self._why is not None)
        if why is not None:
            self._why = why
            if why == HARD_LIMIT:
                self._voice.say(ends=why)
                self._worker.stop(0)
            else:
                self._voice.say(ends=why, running=self._meter.running)
                self._worker.stop(LONGEST_MS)


def _rss() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _forget(worker: int, descriptors: Sequence[int]) -> None:
    """Close the descriptors in a process that a task forks, and let signals end it: if it outlives the worker, the
    supervisor hears no end."""
    if os.getppid() == worker:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in descriptors:
            os.close(descriptor)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # until the worker hears it; a program of a task must not ignore it
    own = os.dup(0), os.dup(1)
    os.register_at_fork(after_in_child=partial(_forget, os.getpid(), own))
    orders, voice = os.fdopen(own[0], "rb", closefd=False), Voice(own[1])
    stdout = int(sys.argv[2])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(stdout, 1)
    os.close(nothing)
    os.close(stdout)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # Python saw the pipe
    line = orders.readline()
    if not line:
        return  # the supervisor died before it wrote the line
    order = Order(**json.loads(line))
    logs.from_environment(process=order.process)
    try:
        _Child(order, orders, voice).work()
    except FoqsError as error:
        voice.say(refused=error.message)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
