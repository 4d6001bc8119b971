"""An application: its tasks, its clients, and its workers."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from math import isfinite
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from foqs.bounds import DEFAULT_ADDRESS
from foqs.client import AsyncClient, AsyncWorker, Client, FoqsError, Invalid
from foqs.client.arguments import MOST_HELD, check_weights
from foqs.client.guard import kind_of
from foqs.tasks.clients import Clients
from foqs.tasks.codecs import Codec, Codecs
from foqs.tasks.handle import Handle, check_all
from foqs.tasks.item_batch import ItemBatch, New
from foqs.tasks.job import Job
from foqs.tasks.message import Message
from foqs.tasks.middleware import Middleware
from foqs.tasks.options import DEFAULT_TOPIC, Options
from foqs.tasks.periodic import declared
from foqs.tasks.runner import TaskWorker
from foqs.tasks.task import Batch, Call, Task
from foqs.travel import Local

P = ParamSpec("P")
R = TypeVar("R")

_MS = timedelta(milliseconds=1)
_BATCH_WAIT_S = 0.2
_VARIABLES = {
    "address": "FOQS_ADDRESS", "namespace": "FOQS_NAMESPACE", "token": "FOQS_TOKEN", "tls": "FOQS_CLIENT_TLS",
}  # fmt: skip
MOST_BATCH = MOST_HELD // 2
"""A worker holds a second batch while it runs one."""


class HasAddress(Protocol):
    @property
    def address(self) -> str: ...


class App(Local):
    """A registry of tasks, with clients of one namespace of a foqs service.

    >>> app = App("127.0.0.1:7707", namespace="shop")
    >>> @app.task(topic="mail", max_attempts=5)
    ... async def send_mail(to: str, subject: str) -> None: ...
    >>> send_mail.enqueue("ada@example.org", subject="hi")          # doctest: +SKIP
    Handle(281474976710657)
    >>> app.worker().run()                                          # doctest: +SKIP

    address, namespace  as of `Client`
    codec               how arguments and results are written, default JSON. Of several the first one writes, and all
                        are read: calls that wait keep the codec of their enqueue
    options             other options of `Client` and `AsyncClient`, such as `token` and `tls`

    Raises Invalid for arguments that can never work, such as an address that is none. No connection is made, and no
    file of a token or of TLS is read, before the first call. One App serves all threads, event loops and forked
    children of a process: each event loop gets a client of its own.
    """

    instead = "import its module there; tasks of a module may be pickled"

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        namespace: str = "default",
        *,
        codec: Codec | Sequence[Codec] | None = None,
        **options: Any,
    ) -> None:
        self.tasks: dict[str, Task[Any, Any, Any]] = {}
        self.schedules: dict[str, dict[str, Any]] = {}
        self.middleware: list[Middleware] = []
        self._included: list[App] = []
        self._hint = ""  # for the log and the dead letters of workers: what to do about a task that they do not have
        _check_names("App", Client, options)
        self.address, self.namespace, self.options = address, namespace, options
        self._clients = Clients(address, namespace, options, Codecs(namespace, codec))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **options: Any) -> App:
        """Return an App by FOQS_ADDRESS, FOQS_NAMESPACE, FOQS_TOKEN and FOQS_CLIENT_TLS, as commands read them. Options
        that are given count in their place."""
        environ = os.environ if environ is None else environ
        named = {name: environ.get(variable) for name, variable in _VARIABLES.items()}
        return cls(**{**{name: value for name, value in named.items() if value}, **options})

    # ------------------------------------------------------------------------------------- tasks

    @overload
    def task(self, function: Callable[Concatenate[Job, P], Awaitable[R]], /) -> Task[P, Awaitable[R], R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, Awaitable[R], R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Job, P], R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        time_limit: float | timedelta | None = None,
        retry_for: Sequence[type[BaseException]] = (),
        reject_for: Sequence[type[BaseException]] = (),
        **options: Unpack[Options],
    ) -> Decorator: ...
    @overload
    def task(
        self,
        *,
        batch: int,
        batch_wait: float | timedelta = ...,
        arguments: Callable[P, object],
        name: str | None = None,
        time_limit: float | timedelta | None = None,
        retry_for: Sequence[type[BaseException]] = (),
        reject_for: Sequence[type[BaseException]] = (),
        **options: Unpack[Options],
    ) -> BatchDecorator[P]: ...
    @overload
    def task(
        self,
        *,
        batch: int,
        batch_wait: float | timedelta = ...,
        name: str | None = None,
        time_limit: float | timedelta | None = None,
        retry_for: Sequence[type[BaseException]] = (),
        reject_for: Sequence[type[BaseException]] = (),
        **options: Unpack[Options],
    ) -> BatchDecorator[...]: ...
    def task(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        time_limit: float | timedelta | None = None,
        retry_for: Sequence[type[BaseException]] = (),
        reject_for: Sequence[type[BaseException]] = (),
        batch: int | None = None,
        batch_wait: float | timedelta | None = None,
        arguments: Callable[..., object] | None = None,
        **options: Any,
    ) -> Any:
        """Register a function as a task: `@app.task`, or with options: `@app.task(topic="mail")`.

        name        in items; default: the name of the function. Tasks that wait keep the name of their enqueue
        time_limit  seconds, or a timedelta, of one attempt: then a coroutine is cancelled, and `time_is_up` of a
                    thread's job is set; the attempt has failed
        retry_for   exceptions after which the task is tried again, as after `foqs.client.Unavailable`; any other one
                    rejects it. Default: all
        reject_for  exceptions that reject the task: it is a dead letter at once
        batch       the function takes a `list[Call]` of up to this many calls, and returns None, or a list with the
                    result of each. `call.fail(error)` fails one call alone; an exception fails all. The task has a
                    topic of its own, of which a worker runs one batch at a time
        batch_wait  seconds, or a timedelta, that a batch waits for more calls after its first one; default 0.2
        arguments   of a batch: a function or a class, such as a dataclass, with the parameters of a call; default: any
        options     see `Options`

        A parameter that is annotated with `Job` gets the job; as the first one, type checkers know it. Raises Invalid
        for a name that is taken, an unknown option, and a function that cannot be a task.
        """

        def register(function: Callable[..., Any]) -> Task[Any, Any, Any]:
            if isinstance(function, Task):
                raise Invalid(
                    f"task {function.name} is a task already: put other decorators of the App above @app.task"
                )
            known = name or getattr(function, "__name__", "")
            if not known or not isinstance(known, str):
                raise Invalid(f"{function!r} is no function with a name: give @app.task a name")
            given: Any = options
            made: Task[Any, Any, Any] = Task(
                self._clients, function, known, given,
                time_limit_ms=None if time_limit is None else _limit_ms(known, "time_limit", time_limit, 1),
                retry_for=_exceptions(known, "retry_for", retry_for),
                reject_for=_exceptions(known, "reject_for", reject_for),
                batch=_batch(known, batch, batch_wait, arguments),
            )  # fmt: skip
            self._add(made)
            return made

        return register if function is None else register(function)

    def periodic(
        self,
        cron: str,
        *,
        name: str | None = None,
        timezone: str = "UTC",
        catch_up: Literal["none", "last", "all"] = "last",
        overlap: Literal["allow", "skip"] = "allow",
        jitter: timedelta | None = None,
    ) -> Decorator:
        """Have the service enqueue a task at set times, without arguments. Decorates a function, or a task: put it
        above `@app.task`.

        >>> app = App()
        >>> @app.periodic("*/5 * * * *", timezone="Europe/Berlin")
        ... def refresh() -> None: ...

        cron      five fields (minute, hour, day, month, weekday), six that begin with the second, or "@every 10s"
        name      of the schedule, which `foqs schedule` takes; default: the name of the task
        timezone  the fields are in this time zone
        catch_up  which times fire after an outage: none, the last one, or all of a day
        overlap   "skip": a time does not fire while the item of the last one is live
        jitter    each item is delayed by up to this time

        A worker writes the schedule when it starts, if its token may, and `foqs schedule apply` does it for a whole
        deployment. The service fires it then, also while no worker runs. A schedule that is no longer declared stays
        until `foqs schedule remove`.

        Raises Invalid for a wrong `cron` or `timezone`, a name that is taken, a task that needs arguments, and one
        whose options schedules do not have, such as `unique`. Without the extra `tasks` the service checks `cron`.
        """

        def register(function: Any) -> Task[Any, Any, Any]:
            task = function if isinstance(function, Task) else self.task(function)
            fields = declared(task, cron, timezone=timezone, catch_up=catch_up, overlap=overlap, jitter=jitter)
            self._schedule(name or task.name, fields)
            return task

        return cast(Decorator, register)

    def include(self, other: App) -> None:
        """Take the tasks and schedules of another App: they are enqueued by this one from now on, with its codecs.
        Raises Invalid for a name that is taken."""
        if not isinstance(other, App):
            raise Invalid(f"include takes an App, not {kind_of(other)}")
        for task in other.tasks.values():
            self._add(task)
            task.clients = self._clients
        for name, fields in other.schedules.items():
            self._schedule(name, fields)
        self._included.append(other)

    def _schedule(self, name: str, fields: dict[str, Any]) -> None:
        if self.schedules.setdefault(name, fields) is not fields:
            raise Invalid(f"there is a schedule {name} already: give one of the two another name")

    def _add(self, task: Task[Any, Any, Any]) -> None:
        if self.tasks.setdefault(task.name, task) is not task:
            raise Invalid(f"there is a task {task.name} already: give one of the two another name")

    def handle(self, item_id: int) -> Handle[Any]:
        """Return the handle of a call by the id of its item: its result is plain JSON, which `Task.handle` converts."""
        return Handle(self._clients, item_id)

    def worker(
        self, topics: Sequence[str] | Mapping[str, int] | None = None, *, concurrency: int = 8, **options: Any
    ) -> TaskWorker:
        """Return a worker of the tasks, not started.

        topics       default: the topics of the tasks. Name a topic too that only `options` of an enqueue names. A
                     mapping gives the topics weights, as `AsyncWorker` does; topics of batches have their own workers
        concurrency  tasks at a time: coroutines in the event loop, functions in threads
        options      other options of `AsyncWorker`, such as `grace_ms` and `report_errors`
        """
        if topics is not None and (isinstance(topics, str) or not topics):
            raise Invalid(f"topics is {topics!r}: give a list of at least one topic, or None for all of the tasks")
        if isinstance(topics, Mapping):
            check_weights("topics", topics)
        _check_names("worker", AsyncWorker, options)
        named = topics or sorted({task.default.get("topic", DEFAULT_TOPIC) for task in self.tasks.values()})
        if not named:
            raise Invalid("the App has no tasks: import the modules that declare them before the worker is made")
        return TaskWorker(
            self._clients, self.tasks, self.middleware, self.schedules, named,
            concurrency=concurrency, options=options, hint=self._hint,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------- enqueue

    def enqueue_many(self, messages: Iterable[Message[Any]]) -> list[Handle[Any] | FoqsError]:
        """Store calls of tasks (`task.message(...)`) in few requests. Return the handle of each, in order, or the error
        that kept it from being stored."""
        given = check_all("enqueue_many", messages, Message)
        return _handles(given, self.client.enqueue_many([message.spec for message in given]))

    async def aenqueue_many(self, messages: Iterable[Message[Any]]) -> list[Handle[Any] | FoqsError]:
        """Like `enqueue_many`, for coroutines."""
        given = check_all("enqueue_many", messages, Message)
        return _handles(given, await self.aclient.enqueue_many([message.spec for message in given]))

    def batch(
        self,
        *,
        on_success: Message[Any] | None = None,
        on_end: Message[Any] | None = None,
        ttl: timedelta | None = None,
        parent: ItemBatch | None = None,
    ) -> ItemBatch:
        """Return a batch of calls that end together, for a `with` or an `async with`: it creates the batch, and closes
        it at its end. An exception inside cancels the batch, and is raised again.

        >>> with app.batch(on_end=report.message("newsletter")) as batch:        # doctest: +SKIP
        ...     for to in people:
        ...         batch.add(send_mail, to, subject="hi")

        on_success  a call that the service enqueues when all members have succeeded
        on_end      a call that it enqueues when all have ended, in any way. `job.batch_end` tells it how
        ttl         a timedelta from now on, 1 s to 366 days, default 7 days: a batch that has not ended then ends as
                    EXPIRED, also one that was never closed, as its program died
        parent      the batch that this one becomes a member of

        A batch without members ends when it is closed, and has succeeded. Raises Invalid for a wrong value."""
        return ItemBatch(self._clients, new=New(on_success, on_end, ttl, parent))

    def batch_of(self, batch_id: int) -> ItemBatch:
        """Return a batch by its id, which another process created."""
        return ItemBatch(self._clients, batch_id)

    # ------------------------------------------------------------------------------------- clients

    @property
    def client(self) -> Client:
        """The blocking client, made at its first use."""
        return self._clients.blocking

    @property
    def aclient(self) -> AsyncClient:
        """The client of the event loop that runs. Raises RuntimeError if none runs."""
        return self._clients.of_loop

    @contextmanager
    def test_mode(self, server: HasAddress) -> Iterator[App]:
        """Use another service inside the `with`, such as `foqs.testing.server()`: for all tasks, handles and workers of
        the App and of the Apps that it includes. The namespace stays; a token and TLS are left out."""
        with ExitStack() as stack:
            stack.enter_context(self._clients.moved_to(server.address))
            for included in self._included:
                stack.enter_context(included.test_mode(server))
            yield self

    def close(self) -> None:
        """Close the blocking client."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the client of this event loop."""
        await self._clients.aclose()

    def __enter__(self) -> App:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> App:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"App({self.address!r}, {self.namespace!r}, {len(self.tasks)} tasks)"


class Decorator:
    """What `@app.task(...)` and `@app.periodic(...)` are, for type checkers."""

    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], Awaitable[R]], /) -> Task[P, Awaitable[R], R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, Awaitable[R], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R], /) -> Task[P, R, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Any, /) -> Any:
        raise NotImplementedError


class BatchDecorator(Generic[P]):
    """What `@app.task(batch=...)` is, for type checkers."""

    @overload
    def __call__(self, function: Callable[[list[Call]], Awaitable[None]], /) -> Task[P, Awaitable[None], None]: ...
    @overload
    def __call__(self, function: Callable[[list[Call]], Awaitable[list[R]]], /) -> Task[P, Awaitable[R], R]: ...
    @overload
    def __call__(self, function: Callable[[list[Call]], None], /) -> Task[P, None, None]: ...
    @overload
    def __call__(self, function: Callable[[list[Call]], list[R]], /) -> Task[P, R, R]: ...
    def __call__(self, function: Any, /) -> Any:
        raise NotImplementedError


def _limit_ms(task: str, name: str, limit: float | timedelta, least: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int | float | timedelta):
        raise Invalid(f"task {task}: {name} is {limit!r}: give seconds, or a timedelta")
    if isinstance(limit, float) and not isfinite(limit):
        raise Invalid(f"task {task}: {name} is {limit!r}: give seconds, or None")
    limit_ms = limit // _MS if isinstance(limit, timedelta) else int(limit * 1000)
    if limit_ms < least:
        raise Invalid(f"task {task}: {name} is {limit!r}: give {least} ms or more")
    return limit_ms


def _batch(task: str, size: Any, wait: float | timedelta | None, arguments: Callable[..., Any] | None) -> Batch | None:
    if size is None:
        for name, given in (("arguments", arguments), ("batch_wait", wait)):
            if given is not None:
                raise Invalid(f"task {task}: `{name}` is for a batch: give batch=")
        return None
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MOST_BATCH:
        raise Invalid(f"task {task}: batch is {size!r}: give 1 to {MOST_BATCH} calls")
    if arguments is not None and not callable(arguments):
        raise Invalid(
            f"task {task}: arguments is {arguments!r}: give a function or a class with the parameters of a call"
        )
    return Batch(size, _limit_ms(task, "batch_wait", _BATCH_WAIT_S if wait is None else wait, 0), arguments)


def _exceptions(task: str, name: str, kinds: Any) -> tuple[type[BaseException], ...]:
    given = (kinds,) if isinstance(kinds, type) else tuple(kinds)
    for kind in given:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise Invalid(f"task {task}: {name} has {kind!r}: give classes of exceptions")
    return given


def _check_names(what: str, kind: type, options: Mapping[str, Any]) -> None:
    known = inspect.signature(kind).parameters
    for name in options:
        if name not in known:
            raise Invalid(f"{what} has no option {name}: there are {', '.join(known)}")


def _handles(messages: list[Message[Any]], outcomes: list[int | FoqsError]) -> list[Handle[Any] | FoqsError]:
    return [
        outcome if isinstance(outcome, FoqsError) else message.handle(outcome)
        for message, outcome in zip(messages, outcomes, strict=True)
    ]
