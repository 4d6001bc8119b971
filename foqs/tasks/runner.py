"""Runs tasks: finds the task of an item, calls it in the event loop or in a thread, and encodes its result."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from foqs.client import (
    AsyncJob,
    AsyncWorker,
    FoqsError,
    Forbidden,
    Invalid,
    Item,
    Reject,
    Retry,
    Unauthenticated,
    Unavailable,
)
from foqs.client._async.waits import until_done
from foqs.client._async.worker import run_together
from foqs.client.ending import END_OF_PROCESS_MS
from foqs.client.guard import SafeLog, check_returned, kind_of, text_of
from foqs.client.handlers import TASK_HEADER, WrongArgument, reason_of
from foqs.client.unread import raisable
from foqs.tasks.batches import Gathering
from foqs.tasks.clients import Clients
from foqs.tasks.follow_ups import THEN_HEADER, FollowUp, follow_up_of, item_of
from foqs.tasks.job import Job
from foqs.tasks.meter import Handler
from foqs.tasks.middleware import Middleware, awaited
from foqs.tasks.options import DEFAULT_TOPIC
from foqs.tasks.periodic import apply
from foqs.tasks.task import Batch, Call, Task
from foqs.travel import Local, bare, stripped, trimmed

T = TypeVar("T")

log = SafeLog()

_HELD_FOR = timedelta(seconds=30)
"""An item that no task takes comes again after this time, in a topic without dead letters."""
_APPLY_AGAIN_S = 5.0
_BY_COMMAND = "`foqs schedule apply MODULE:APP` does it with a token that may"
_POLICY_S = 60.0
"""How long the answer to whether a topic has dead letters is believed."""


class _Overdue(TimeoutError):
    """A thread is at work after its time limit when its process ends."""


class TaskWorker(Local):
    """Takes items of the topics and runs their tasks, until SIGTERM or SIGINT. Made by `App.worker`.

    Items of one worker run in one event loop: coroutines there, functions in threads. A task that is not
    registered, or whose arguments do not fit, fails: it is tried again, and at last a dead letter, so a deployment that
    is half finished loses nothing. In a topic without dead letters it comes again every 30 s, without an attempt
    counted.
    """

    instead = "make one there by App.worker"

    def __init__(
        self,
        clients: Clients,
        tasks: Mapping[str, Task[Any, Any, Any]],
        middleware: Sequence[Middleware],
        schedules: Mapping[str, Mapping[str, Any]],
        topics: Sequence[str] | Mapping[str, int],
        *,
        concurrency: int,
        options: Mapping[str, Any],
        hint: str = "",
    ) -> None:
        """`hint` follows the error of an item whose task is not registered."""
        self.topics = list(topics)
        self._weights = topics if isinstance(topics, Mapping) else None
        self._clients = clients
        self._tasks = tasks
        self._middleware = middleware
        self._schedules = schedules
        self._concurrency = concurrency
        self._batches = _batches(tasks, self.topics)
        self._options = options
        self._hint = hint
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dead: dict[str, tuple[bool, float]] = {}
        self._workers: list[AsyncWorker] = []
        self._handler: Handler = self._handle
        self._ends_process = False
        self._begin(until_empty=False)
        for task in tasks.values():
            task.signature.prepare()

    def _begin(self, *, until_empty: bool, raises: bool = False) -> None:
        self._until_empty = until_empty
        self._raises = raises
        self._threads = Threads()
        self._gatherings: dict[str, Gathering] = {}
        self._stopped = self._ended = False
        self._runs = 0
        self._first_error: Exception | None = None

    def ends_process(self, around: Callable[[Handler], Handler]) -> None:
        """Say, before the start, that the process ends with this worker. So its threads do, too, and their items are
        given back at the end of the grace. `around` returns what runs an item, around the worker's own."""
        self._handler = around(self._handle)
        self._ends_process = True

    @property
    def places(self) -> dict[str, int]:
        """How many tasks of each topic run at a time; topics without batches share theirs."""
        return {topic: self._batches.get(topic, self._concurrency) for topic in self.topics}

    @property
    def busy_threads(self) -> int:
        """The number of functions at work."""
        return self._threads.busy

    @property
    def abandoned(self) -> list[str]:
        """The items of the tasks that were at work when the grace ended, for the log."""
        return [item for worker in self._workers for item in worker.life.abandoned]

    def run(self) -> None:
        """Run tasks in an event loop of its own, that of uvloop where it is installed."""
        self._in_a_loop(self.arun())

    async def arun(self) -> None:
        """Run tasks in this event loop. If the call is cancelled, the worker ends without a grace first."""
        self._loop = asyncio.get_running_loop()
        self._begin(until_empty=False)
        applying = asyncio.create_task(self._apply(), name="foqs-schedules")
        try:
            self._workers = self._made(self._handler)
            await run_together(self._workers)
        finally:
            self._ended = True
            self._threads.close()
            applying.cancel()
        if applying.done() and not applying.cancelled():
            applying.result()

    def run_until_empty(self, *, raise_errors: bool = False) -> int:
        """Run tasks until the service has none that is ready and none is at work, and return the number of runs.

        Items that are delayed stay, such as tasks that failed and are tried again later. It may be called again.

        raise_errors  raise the first exception of a task, but for `Retry` and `Reject`, after all runs

        Raises also what keeps the worker from its work, such as Unavailable. Where several hosts serve, a worker with
        `wait_ms` waits that long for items of other hosts."""
        return self._in_a_loop(self.arun_until_empty(raise_errors=raise_errors))

    async def arun_until_empty(self, *, raise_errors: bool = False) -> int:
        """Like `run_until_empty`, in this event loop."""
        self._loop = asyncio.get_running_loop()
        self._begin(until_empty=True, raises=raise_errors)
        try:
            await self._apply()
            before = -1
            # A task may have enqueued one of a topic whose worker had ended.
            while self._runs > before and not self._stopped:
                before, self._workers = self._runs, self._made(self._counted, wait_ms=0)
                async with AsyncExitStack() as stack:
                    for worker in self._workers:
                        worker.until_empty = True
                        await stack.enter_async_context(worker)
                    for worker in self._workers:
                        await worker.join()
                if len(self._workers) == 1:
                    break
        finally:
            self._ended = True
            self._threads.close()
        if self._first_error is not None:
            raise stripped(self._first_error)
        return self._runs

    def _made(self, handler: Handler, **defaults: Any) -> list[AsyncWorker]:
        client, made = self._clients.of_loop, []
        options = {**defaults, **self._options}
        ordinary = [topic for topic in self.topics if topic not in self._batches]
        weighted = self._weights and {topic: self._weights[topic] for topic in ordinary}
        if ordinary:
            made.append(AsyncWorker(client, weighted or ordinary, handler, concurrency=self._concurrency, **options))
        # While a batch is at work, the next one waits here.
        for topic, size in self._batches.items():
            made.append(AsyncWorker(client, topic, handler, concurrency=size, **{**options, "prefetch": size}))
        for worker in made:
            worker.life.process_ends = self._ends_process
            worker.life.tells = not self._ends_process and not self._until_empty  # else the process says more
        return made

    async def _counted(self, item: Item, job: AsyncJob) -> None:
        self._runs += 1
        try:
            await self._handle(item, job)
        except Exception as error:
            if self._raises and self._first_error is None and not isinstance(error, Retry | Reject):
                self._first_error = bare(error)
            raise

    def _in_a_loop(self, work: Coroutine[Any, Any, T]) -> T:
        async def main() -> T:
            try:
                return await work
            finally:
                await self._clients.aclose()

        return run_loop(main())

    def stop(self, grace_ms: float | None = None) -> None:
        """Ask the worker to end, from any thread: it waits up to `grace_ms` for tasks at work. Before its start and
        after its end this does nothing."""
        if self._loop is not None:
            post(self._loop, partial(self._stop, grace_ms))

    def _stop(self, grace_ms: float | None = None) -> None:
        self._stopped = True
        for worker in self._workers:
            worker.stop(grace_ms)
        for gathering in self._gatherings.values():
            gathering.hurry()

    async def _apply(self) -> None:
        """Write the schedules of the App, as far as the token may. Ends the worker for one that the service refuses."""
        if not self._schedules:
            return
        while True:
            try:
                change = await apply(self._clients.of_loop, self._schedules)
            except (Forbidden, Unauthenticated) as error:
                log.warning("the schedules are not written: %s; %s", error.message, _BY_COMMAND)
                return
            except Invalid:
                self._stop()
                raise
            except FoqsError as error:
                if self._until_empty:
                    raise
                log.warning("the schedules are not written yet: %s", error.message)
                await asyncio.sleep(_APPLY_AGAIN_S)
            else:
                if change is not None:
                    log.info("the schedules are written: version %d of the settings", change.version)
                return

    # ------------------------------------------------------------------------------------- one task

    async def _handle(self, item: Item, job: AsyncJob) -> None:
        try:
            task, follows = self._task(item), None
            if item.headers and THEN_HEADER in item.headers:
                follows = follow_up_of(item.headers[THEN_HEADER])
            if task.time_limit_ms is not None and task.batch is None:
                job.limit(task.time_limit_ms)
            codecs = self._clients.codecs
            codec, context = codecs.reader_of(item, task.name), codecs.of_arguments(task.name)
            decode = partial(task.signature.decode, item.payload, codec, context)
            named = await self._aside(decode) if codecs.blocks else decode()
        except WrongArgument as error:
            raise await self._unusable(item, job, error) from None
        if not task.is_async:
            job.use_threads(partial(post, asyncio.get_running_loop()))
        args, kwargs = task.signature.split(named)
        call = Call(task, item, Job(job, in_thread=not task.is_async, clients=self._clients), args, kwargs)
        try:
            value = await self._through(self._middleware, call, job)
        except _Overdue:  # the worker sees that the time is up, and says so without a traceback
            return
        except Exception as error:
            if _rejects(task, error):
                raise Reject(reason_of(error, text=bool(self._options.get("report_errors")))) from error
            raise
        if follows is not None and _has_succeeded(job):
            await self._follow(follows, task.signature.passed_on(value), item.id)

    async def _follow(self, follows: FollowUp, args: list[Any], after: int) -> None:
        """Store what follows an item, before its ack. A refusal is for good: the task would run again in vain."""
        codecs = self._clients.codecs
        make = partial(item_of, follows, args, after, codecs)
        spec = await self._aside(make) if codecs.blocks else make()
        try:
            await self._clients.aenqueue(spec)
        except Invalid as error:
            raise Reject(f"the service refused the task {follows.task} that follows: {error.message}") from None

    async def _through(self, middleware: Sequence[Middleware], call: Call, job: AsyncJob) -> Any:
        """Run the call inside the middleware, the first one outermost."""
        if not middleware:
            value, signature = await self._run(call, job), call.task.signature
            if value is not None or not signature.returns_nothing:
                codecs = self._clients.codecs
                encode = partial(signature.encode_result, value, codecs.writes, codecs.of_result(job.id))
                body = await self._aside(encode) if codecs.blocks else encode()
                job.result = None if value is None else codecs.sealed(body)
            return value
        first, *rest = middleware
        await awaited(first.before(call))
        try:
            value = await self._through(rest, call, job)
        except BaseException as error:
            await awaited(first.failed(call, error))
            raise
        await awaited(first.after(call, value))
        return value

    async def _run(self, call: Call, job: AsyncJob) -> Any:
        task = call.task
        gathering = None if task.batch is None else self._gathering(task, task.batch)
        if gathering is not None:
            running = gathering.add(call, job)
        elif task.is_async:
            return await task.call(call.job, call.args, call.kwargs)
        else:
            context = contextvars.copy_context()
            running = self._threads.run(partial(context.run, task.call, call.job, call.args, call.kwargs))
        while True:
            try:
                await until_done(running)
                value = running.result()
            except asyncio.CancelledError:  # a thread cannot be cancelled: its place is taken until it ends
                if gathering is not None:
                    gathering.cancel(running)
                if self._ended or running.cancelled():
                    raise
                if self._ends_process and job.held.stopped:
                    if job.held.at_most_once:
                        raise
                    if job.time_left_ms() == 0:
                        raise _Overdue("its process ends: time limit") from None
                    raise Retry(END_OF_PROCESS_MS, counts=False) from None
            else:
                check_returned(value, of=f"task {task.name}", caller="the worker")
                return value

    async def _aside(self, call: Callable[[], T]) -> T:
        """Call a codec in a thread. If this is cancelled, the place of the task is taken until the thread ends."""
        running = self._threads.run(call)
        try:
            await until_done(running)
        except asyncio.CancelledError:
            if not self._ended:
                await until_done(running)
            raise
        value: T = running.result()
        return value

    def _gathering(self, task: Task[Any, Any, Any], batch: Batch) -> Gathering:
        found = self._gatherings.get(task.name)
        if found is None:
            found = self._gatherings[task.name] = Gathering(task, batch, self._threads.run)
        return found

    def _task(self, item: Item) -> Task[Any, Any, Any]:
        name = (item.headers or {}).get(TASK_HEADER)
        if name is None:
            raise WrongArgument(f"the item has no header {TASK_HEADER}: it was not enqueued as a task")
        task = self._tasks.get(name)
        if task is None:
            raise WrongArgument(f"the task {name} is not registered in this worker{self._hint}")
        return task

    async def _unusable(self, item: Item, job: AsyncJob, error: WrongArgument) -> Exception:
        """Return what ends the attempt of an item that no task takes."""
        if await self._has_dead_letters(item.topic):
            log_line(Job(job), error)
            return error
        log.error("item %s of topic %s waits for %s: %s", item.id, item.topic, _HELD_FOR, error.message)
        return Retry(delay=_HELD_FOR, counts=False)

    async def _has_dead_letters(self, topic: str) -> bool:
        known, until = self._dead.get(topic, (True, 0.0))
        if monotonic() >= until:
            try:
                stats = await self._clients.of_loop.topic_stats(topic)
            except FoqsError:
                return known
            known = bool(stats.policy.get("dead")) or not stats.policy.get("max_attempts")
            self._dead[topic] = known, monotonic() + _POLICY_S
        return known


class Threads:
    """Threads that run one call at a time, made when they are needed. They are daemons, which threads of
    concurrent.futures are not: a process ends although one of them hangs."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._ends: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._posted = False
        self._count = self.busy = 0

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call `call` in a thread. Called in the event loop, as `close`."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.busy += 1
        if self.busy > self._count:
            self._count += 1
            threading.Thread(target=self._work, name=f"foqs-task-{self._count}", daemon=True).start()
        self._calls.put((call, future))
        return future

    def close(self) -> None:
        """End the threads that have no call."""
        for _ in range(self._count):
            self._calls.put(None)

    def _work(self) -> None:
        while (given := self._calls.get()) is not None:
            self._call(*given)
            given = None  # a thread that waits for a call keeps nothing of the last one

    def _call(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        try:
            self._ends.append((future, call(), None))
        except BaseException as error:  # noqa: BLE001 - it is the task's
            self._ends.append((future, None, trimmed(raisable(error, "in a task"))))
        if not self._posted:  # the calls that end before the event loop looks share one wake-up
            self._posted = True
            post(future.get_loop(), self._take_ends)

    def _take_ends(self) -> None:
        self._posted = False  # first: an end that comes now is taken here, or posts again
        while self._ends:
            future, value, error = self._ends.popleft()
            self.busy -= 1
            if future.cancelled():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


def log_line(job: Job, error: Exception) -> None:
    """Log a failure whose cause is in the item, in one line: a traceback would show foqs alone."""
    if job._job is not None:
        held = job._job.held
        log.error("%s has failed before its task began: %s: %s", held, kind_of(error), text_of(error))
        held.along = ()  # the client logs no traceback


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in an event loop of its own, that of uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def _batches(tasks: Mapping[str, Task[Any, Any, Any]], topics: Sequence[str]) -> dict[str, int]:
    """Return the topics of tasks that take batches, with the size of a batch. Raises Invalid for a topic that has other
    tasks, too."""
    of_topics: dict[str, list[Task[Any, Any, Any]]] = {}
    for task in tasks.values():
        of_topics.setdefault(task.default.get("topic", DEFAULT_TOPIC), []).append(task)
    sizes = {}
    for topic in topics:
        for task in of_topics.get(topic, ()):
            if task.batch is None:
                continue
            if len(of_topics[topic]) > 1:
                names = ", ".join(one.name for one in of_topics[topic])
                raise Invalid(
                    f"topic {topic} has the tasks {names}: give {task.name}, which takes batches, its own topic"
                )
            sizes[topic] = task.batch.size
    return sizes


def post(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Have the event loop call `call`, unless it has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def _has_succeeded(job: AsyncJob) -> bool:
    """Return True if the item will be acked after a return of its task."""
    gave_up = job.held.lost is not None and job.held.lost.seen
    return not job.released and not gave_up and job.time_left_ms() != 0


def _rejects(task: Task[Any, Any, Any], error: Exception) -> bool:
    """Return True if the task is not tried again after an exception."""
    if isinstance(error, Retry | Reject):
        return False
    retried = (*task.retry_for, Unavailable)  # that of the store of a result, which the task cannot name
    return isinstance(error, task.reject_for) or (bool(task.retry_for) and not isinstance(error, retried))
