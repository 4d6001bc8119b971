"""Calls of a task that takes several at once: gathered in the event loop of a worker, and run together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, NamedTuple

from foqs.client import AsyncJob
from foqs.client.unread import raisable
from foqs.tasks.task import Batch, Call, Task
from foqs.travel import trimmed

_Ended = tuple[list[Any], BaseException | None]
_Threads = Callable[[Callable[[], Any]], "asyncio.Future[Any]"]
_WHEN = "in a task"


class _Waiting(NamedTuple):
    call: Call
    job: AsyncJob


class Gathering:
    """Gathers the calls of one task with a `batch`, and runs one batch at a time: a coroutine in the event loop, a
    function by `threads`."""

    def __init__(self, task: Task[Any, Any, Any], batch: Batch, threads: _Threads) -> None:
        self._task = task
        self._size = batch.size
        self._wait_s = batch.wait_ms / 1000
        self._threads = threads
        self._waiting: dict[asyncio.Future[Any], _Waiting] = {}
        self._full = asyncio.Event()
        self._hurries = False
        self._working: asyncio.Task[None] | None = None

    def add(self, call: Call, job: AsyncJob) -> asyncio.Future[Any]:
        """Return what the call will return or raise."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[future] = _Waiting(call, job)
        if self._working is None:
            self._working = asyncio.create_task(self._work(), name=f"foqs-batch-{self._task.name}")
        elif len(self._waiting) >= self._size:
            self._full.set()
        return future

    def cancel(self, future: asyncio.Future[Any]) -> None:
        """Cancel a call that waits, and a coroutine with the last call of its batch. Threads cannot be cancelled."""
        if self._waiting.pop(future, None) is not None or self._task.is_async:
            future.cancel()

    def hurry(self) -> None:
        """Wait for no more calls: the worker takes none."""
        self._hurries = True
        self._full.set()

    async def _work(self) -> None:
        try:
            while self._waiting:
                self._full.clear()
                if len(self._waiting) < self._size and not self._hurries:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._wait_s):
                            await self._full.wait()
                if first := tuple(self._waiting)[: self._size]:
                    await self._run({future: self._waiting.pop(future) for future in first})
        finally:
            self._working = None

    async def _run(self, batch: Mapping[asyncio.Future[Any], _Waiting]) -> None:
        task, calls = self._task, [one.call for one in batch.values()]
        if task.time_limit_ms is not None:
            for one in batch.values():
                one.job.limit(task.time_limit_ms)
        if task.is_async:
            running: asyncio.Future[_Ended] = asyncio.create_task(_awaited(task, calls), name=f"foqs-{task.name}")
            for future in batch:
                future.add_done_callback(partial(_cancel_with_last, running, batch))
        else:
            running = self._threads(partial(_called, task, calls))
        await asyncio.wait((running,))
        results: list[Any] = []
        error: BaseException | None = RuntimeError("the task has cancelled itself")
        if not running.cancelled():
            results, error = running.result()
        if error is not None:
            failed = [one for future, one in batch.items() if one.call.error is None and not future.done()]
            _log_once([one for one in failed if not one.job.released])  # a job that was has no entry
        for at, (future, call) in enumerate(zip(batch, calls, strict=True)):
            if future.done():
                continue
            if call.error is not None:
                future.set_exception(raisable(call.error, _WHEN))
            elif error is None:
                future.set_result(results[at])
            else:
                future.set_exception(raisable(error, _WHEN))
                error = _copy(error)


async def _awaited(task: Task[Any, Any, Any], calls: list[Call]) -> _Ended:
    try:
        return task.results_of(calls, await task.run_batch(calls)), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - it is the task's, and SystemExit would end the event loop
        return [], trimmed(error)


def _called(task: Task[Any, Any, Any], calls: list[Call]) -> _Ended:
    try:
        return task.results_of(calls, task.run_batch(calls)), None
    except BaseException as error:  # noqa: BLE001 - it is the task's
        return [], trimmed(error)


def _log_once(failed: Sequence[_Waiting]) -> None:
    """Have the log entry of the first item name the other ones, which fail with it."""
    for at, one in enumerate(failed):
        one.job.held.along = () if at else [other.call.item.id for other in failed[1:]] or None


def _cancel_with_last(
    running: asyncio.Future[Any], batch: Collection[asyncio.Future[Any]], one: asyncio.Future[Any]
) -> None:
    if one.cancelled() and all(future.done() for future in batch):
        running.cancel()


def _copy(error: BaseException) -> BaseException:
    """Return the error without its traceback and notes, where it can be copied: one log entry has them, and each
    `raise` adds to one."""
    try:
        made = copy(error)
        made.__dict__.pop("__notes__", None)
    except Exception:  # noqa: BLE001 - of a class that is made in its own way
        return error
    return made if type(made) is type(error) else error
