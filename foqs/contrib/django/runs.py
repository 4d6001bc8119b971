"""What a worker does around each run of a Django task: signals, the record of its attempts, database connections."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from time import monotonic, time
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries

from foqs.bounds import LIMITS
from foqs.client import FoqsError, Item, Reject, Retry
from foqs.client.items import check_result
from foqs.contrib.django.interface import TaskContext, TaskError, TaskResultStatus, normalize_json, signals
from foqs.contrib.django.record import Attempt, packed
from foqs.contrib.django.results import attempts_of, found, made, time_of
from foqs.tasks import App, Call, Middleware
from foqs.tasks.codecs import Codecs
from foqs.tasks.runner import log_line

SHOWN_AFTER_S = 0.25
"""The service learns the start and the worker of a run that is still at work then. To tell it of each short run would
double the requests."""
_POLICY_S = 60.0
"""How long the answer to how many attempts a topic allows is believed."""


class Run:
    """One attempt of a task, which `in_thread` or `in_loop` gets in place of the arguments, and returns.

    `body` is the result after a success, and the checkpoint after a failure. `last`: a failure is not tried again."""

    def __init__(self, alias: str, sender: type, codecs: Codecs, call: Call, *, last: bool) -> None:
        item, task = call.item, found(call.task.name)
        self.job = call.job
        self.sender = sender
        self.codecs = codecs
        self.last = last
        self.ended = False
        self.body = b""
        worker = f"{socket.gethostname()[:50]}:{os.getpid()}"
        self._attempts = [*attempts_of(codecs, item), Attempt(item.attempt, worker, _now_ms())]
        self.result = made(alias, task, item, call.args, call.kwargs, TaskResultStatus.RUNNING, self._attempts)
        self.function = self.result.task.func
        self.args = [TaskContext(task_result=self.result)] * self.result.task.takes_context + self.result.args
        self.kwargs = self.result.kwargs
        call.args, call.kwargs = [self], {}

    def show(self) -> None:
        """Have the service know of a run that is still at work."""
        if not self.ended:
            self.job.checkpoint(self._sealed(LIMITS.checkpoint_bytes))

    def succeed(self, value: Any) -> None:
        """Take what the task has returned. Raises TypeError if it is no JSON, and Invalid for more than 64 KiB."""
        value = normalize_json(value)
        self._stop()
        self.body = self._packed(LIMITS.result_bytes, return_value=value)
        check_result("the return value", self.codecs.sealed(self.body))
        object.__setattr__(self.result, "_return_value", value)
        self._end(TaskResultStatus.SUCCESSFUL)

    def fail(self, error: BaseException) -> None:
        """Take what the task has raised. A Retry is no error, and its item waits, also at the last attempt."""
        self._stop()
        final = isinstance(error, Reject) or self.last
        if isinstance(error, Retry):
            final = final and error.counts and error.delay_ms is None
        else:
            self._attempts[-1] = failed = self._attempts[-1].failed(error)
            self.result.errors.append(TaskError(exception_class_path=failed.error, traceback=failed.traceback))
        self.body = self._sealed(LIMITS.checkpoint_bytes)
        self._end(TaskResultStatus.FAILED if final else TaskResultStatus.READY)

    def misfit(self) -> bool:
        """Return True if the function does not take the arguments."""
        try:
            signature(self.function, follow_wrapped=False).bind(*self.args, **self.kwargs)
        except TypeError:
            return True
        except ValueError:  # a function in C may say nothing about its arguments
            pass
        return False

    def _stop(self) -> None:
        self.ended = True
        self._attempts[-1] = self._attempts[-1]._replace(end_ms=_now_ms())

    def _end(self, status: TaskResultStatus) -> None:
        object.__setattr__(self.result, "status", status)
        if self.result.is_finished:
            object.__setattr__(self.result, "finished_at", time_of(self._attempts[-1].end_ms))

    def _sealed(self, most_bytes: int) -> bytes:
        sealed: bytes = self.codecs.sealed(self._packed(most_bytes))
        return sealed

    def _packed(self, most_bytes: int, **more: Any) -> bytes:
        encode, context = self.codecs.writes.encode, self.codecs.of_result(self.job.id)
        most_bytes -= len(self.codecs.sealed(b""))
        return packed(self._attempts, most_bytes, lambda said: encode(said, context), **more)


def in_thread(run: Run) -> Run:
    """Do the work of a function, in a thread of the worker."""
    with _own_connections():
        signals.task_started.send_robust(run.sender, task_result=run.result)
        try:
            run.succeed(run.function(*run.args, **run.kwargs))
        except BaseException as error:
            run.fail(error)
            run.job.checkpoint(run.body)
            if run.result.is_finished:
                signals.task_finished.send_robust(run.sender, task_result=run.result)
            raise
        signals.task_finished.send_robust(run.sender, task_result=run.result)
    return run


async def in_loop(run: Run) -> Run:
    """Do the work of a coroutine function, in the event loop of the worker. Blocking code of the run, such as receivers
    of signals and Django's ORM, has a thread of its own, as that of a request has."""

    async def aside(call: Any, given: Any) -> None:
        await asyncio.to_thread(call, given) if run.codecs.blocks else call(given)

    async with ThreadSensitiveContext():
        try:
            await signals.task_started.asend_robust(run.sender, task_result=run.result)
            try:
                await aside(run.succeed, await run.function(*run.args, **run.kwargs))
            except asyncio.CancelledError:  # the worker stops, or has lost the item: it comes again
                run.ended = True
                raise
            except BaseException as error:
                await aside(run.fail, error)
                run.job.checkpoint(run.body)
                if run.result.is_finished:
                    await signals.task_finished.asend_robust(run.sender, task_result=run.result)
                raise
            await signals.task_finished.asend_robust(run.sender, task_result=run.result)
        finally:
            await sync_to_async(connections.close_all)()
    return run


@contextmanager
def _own_connections() -> Iterator[None]:
    """Do what Django does around a request, so that a connection that was lost or is too old is not used."""
    reset_queries()
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


class Runs(Middleware):
    """Makes the run of a call, and has it shown while it lasts."""

    def __init__(self, sender: type, alias: str, app: App) -> None:
        """`sender`: the class of the backend, for receivers of signals."""
        self._sender = sender
        self._alias = alias
        self._app = app
        self._most: dict[str, tuple[int | None, float]] = {}

    async def before(self, call: Call) -> None:
        most = await self._most_attempts(call.item)
        codecs, last = self._app._clients.codecs, bool(most and call.item.attempt >= most)
        make = partial(Run, self._alias, self._sender, codecs, call, last=last)
        run = await asyncio.to_thread(make) if codecs.blocks else make()
        if not codecs.blocks:
            call.state["timer"] = asyncio.get_running_loop().call_later(SHOWN_AFTER_S, run.show)

    def after(self, call: Call, result: Any) -> None:
        if "timer" in call.state:
            call.state["timer"].cancel()

    def failed(self, call: Call, error: BaseException) -> None:
        self.after(call, None)
        if isinstance(error, TypeError) and call.args and call.args[0].misfit():
            log_line(call.job, error)

    async def _most_attempts(self, item: Item) -> int | None:
        """Return how many attempts an item has, 0: no limit; None if that is not known."""
        if item.rules is not None and item.rules.max_attempts is not None:
            return item.rules.max_attempts
        most, until = self._most.get(item.topic, (None, 0.0))
        if monotonic() >= until:
            try:
                policy = (await self._app.aclient.topic_stats(item.topic)).policy
            except FoqsError:
                return most
            most = policy.get("max_attempts")
            self._most[item.topic] = most, monotonic() + _POLICY_S
        return most


def _now_ms() -> int:
    return int(time() * 1000)
