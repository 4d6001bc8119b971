"""A function as a task: its options, its enqueue, and a plain call of it."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, TypedDict, TypeVar, Unpack, get_args, get_origin
from uuid import uuid4

from foqs.client import (
    DedupUntil,
    Delivery,
    Duplicate,
    Invalid,
    Item,
    ItemRules,
    ItemSpec,
    OnDuplicate,
    Replaced,
    RetryRule,
)
from foqs.client.arguments import check_item
from foqs.client.guard import kind_of
from foqs.client.handlers import TASK_HEADER, WrongArgument
from foqs.tasks.arguments import Signature
from foqs.tasks.clients import Clients
from foqs.tasks.codecs import CONTENT_TYPE, JSON
from foqs.tasks.handle import Handle
from foqs.tasks.job import Job
from foqs.travel import bare

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")

DEFAULT_TOPIC = "default"
_SWALLOWED = "a dependency has swallowed the exception of its task"
_KINDS: Mapping[str, type] = {
    "topic": str, "tenant": str, "unique": str, "order_key": str, "delay": timedelta, "ttl": timedelta,
    "keep": timedelta,
    "unique_until": DedupUntil, "on_duplicate": OnDuplicate, "max_attempts": int, "retry": RetryRule,
    "at_most_once": bool, "headers": Mapping,
}  # fmt: skip
_OF_DECORATOR = ("name", "time_limit", "retry_for", "reject_for", "batch", "batch_wait", "arguments")
_ELSEWHERE = {
    "countdown": "give delay, a timedelta", "delay_ms": "give delay, a timedelta", "eta": "give at, a datetime",
    "expires": "give ttl, a timedelta", "queue": "give topic", "max_retries": "give max_attempts",
}  # fmt: skip
"""What takes the place of options of other libraries, and of `Client.enqueue`."""
KEPT = timedelta(minutes=10)
"""How long the result of a task that declares one is kept."""


class Options(TypedDict, total=False):
    """How a task is enqueued, for `@app.task` and `task.options`.

    topic         the topic of its items, default "default"
    priority      lower is more urgent, default 0
    delay         a timedelta before it may run, or
    at            the time from which it may run: a datetime with a time zone
    ttl           a timedelta after the enqueue: a task that has not begun is removed then
    tenant        the fairness key: tenants of a topic share its workers
    weight        share of the tenant against other tenants, 1 to 1,000
    throttle      keys of rate limits and of limits on jobs at a time that the task waits for
    order_key     a text: tasks with it run one after the other, in the order of their enqueues (docs/ordered.md). Not
                  with `unique`. An enqueue is not repeated after a lost reply, which raises OutcomeUnknown
    unique        a text: while a task has it, another enqueue stores nothing, and its handle is that task's
    unique_until  when `unique` is free again: DONE (default), STARTED, or WINDOW (a day after the enqueue). It and
                  `on_duplicate` may be defaults of the task; an enqueue without `unique` is Invalid then
    on_duplicate  REPLACE gives a task that has not begun the arguments and the time of the new one
    max_attempts  the number of failed attempts after which the task is a dead letter; 0: no limit; default: the topic's
                  policy
    retry         the delays after failed attempts (`RetryRule`); default: the topic's policy
    keep          a timedelta: how long the end of the task and its result are kept; default 10 minutes if the function
                  is annotated with a result, else 0
    at_most_once  never deliver it twice: a task whose worker dies is lost
    headers       fixed text pairs
    """

    topic: str
    priority: int
    delay: timedelta | None
    at: datetime | None
    ttl: timedelta | None
    tenant: str | None
    weight: int | None
    throttle: Sequence[str] | None
    order_key: str | None
    unique: str | None
    unique_until: DedupUntil
    on_duplicate: OnDuplicate | None
    max_attempts: int | None
    retry: RetryRule | None
    keep: timedelta | None
    at_most_once: bool
    headers: Mapping[str, str] | None


def check_options(task: str, options: Mapping[str, Any]) -> None:
    """Raise Invalid for an option of a wrong type."""
    at = options.get("at")
    if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
        raise Invalid(f"task {task}: at is {at!r}: give a datetime with a time zone")
    for name, kind in _KINDS.items():
        value = options.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise Invalid(f"task {task}: {name} is {value!r}: give a {kind.__name__}")
        if value == "":
            raise Invalid(f"task {task}: {name} is empty")
    again = next((name for name in ("retry", "max_attempts") if options.get(name) not in (None, 1)), None)
    if options.get("at_most_once") and again is not None:
        raise Invalid(f"task {task}: {again} has no effect with at_most_once: the task is never tried again")
    throttle = options.get("throttle")
    listed = isinstance(throttle, Sequence) and not isinstance(throttle, str | bytes)
    if throttle is not None and not (listed and all(isinstance(key, str) for key in throttle)):
        raise Invalid(f"task {task}: throttle is {throttle!r}: give a list of keys")
    headers = options.get("headers") or {}
    if not all(isinstance(part, str) for pair in headers.items() for part in pair):
        raise Invalid(f"task {task}: headers is {headers!r}: give texts by their names")


def spec_of(task: str, options: Options, body: bytes, content_type: str = JSON.content_type) -> ItemSpec:
    """Return the item of a call, for options that were checked. Raises Invalid for a wrong value."""
    at = options.get("at")
    retry, attempts, unique = options.get("retry"), options.get("max_attempts"), options.get("unique")
    order_key = options.get("order_key")
    if order_key is not None and unique is not None:
        raise Invalid(f"task {task}: unique and order_key exclude each other: each of them decides the shard")
    keep_ms = _ms("keep", options)
    spec = ItemSpec(
        options.get("topic", DEFAULT_TOPIC),
        body,
        priority=options.get("priority", 0),
        delay_ms=_ms("delay", options),
        deliver_after_ms=None if at is None else int(at.timestamp() * 1000),
        ttl_ms=_ms("ttl", options),
        fairness_key=options.get("tenant"),
        weight=options.get("weight"),
        throttle_keys=options.get("throttle"),
        order_key=order_key,
        dedup_key=uuid4().hex if unique is None and order_key is None else unique,
        dedup_until=None if unique is None else options.get("unique_until", DedupUntil.DONE),
        on_duplicate=options.get("on_duplicate"),
        rules=None if (retry, attempts, keep_ms) == (None, None, None) else ItemRules(retry, attempts, keep_ms=keep_ms),
        delivery=Delivery.AT_MOST_ONCE if options.get("at_most_once") else Delivery.AT_LEAST_ONCE,
        headers={**(options.get("headers") or {}), TASK_HEADER: task, CONTENT_TYPE: content_type},
    )
    try:
        check_item(spec)
    except Invalid as error:
        raise Invalid(f"task {task}: {error.message}") from None
    return spec


@dataclass(slots=True)
class Call:
    """One run of a task. `kwargs` may be changed by `before` of middleware, and `state` is for it to keep values in;
    `error`: what `fail` said."""

    task: Task[Any, Any, Any]
    item: Item
    job: Job
    args: list[Any]
    kwargs: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Fail this call of a batch alone, as if its own task had raised `error`."""
        if not isinstance(error, BaseException):
            raise WrongArgument(f"task {self.task.name}: fail takes an exception, not {kind_of(error)}")
        self.error = error


class Batch(NamedTuple):
    """How a task takes several calls at once: up to `size`, `wait_ms` after the first one. `arguments` is a function or
    a class with the parameters of a call; None: any."""

    size: int
    wait_ms: int
    arguments: Callable[..., Any] | None


@dataclass(frozen=True, slots=True)
class Message(Generic[R]):
    """A call of a task that is not enqueued yet; `App.enqueue_many` takes several."""

    task: Task[Any, Any, R]
    spec: ItemSpec

    def handle(self, item_id: int) -> Handle[R]:
        """Return the handle of the item that stores the call."""
        # A repeated request finds its own item by the random key.
        there = isinstance(item_id, Duplicate | Replaced) and self.spec.dedup_until is not None
        key = self.spec.dedup_key if self.spec.dedup_until is None else None
        return Handle(self.task.clients, int(item_id), self.task.signature, duplicate=there, key=key)


class Task(Generic[P, C, R]):
    """A function that may be enqueued. Called directly, it is the function, with its dependencies."""

    def __init__(
        self,
        clients: Clients,
        function: Callable[..., Any],
        name: str,
        options: Options,
        *,
        time_limit_ms: int | None = None,
        retry_for: tuple[type[BaseException], ...] = (),
        reject_for: tuple[type[BaseException], ...] = (),
        batch: Batch | None = None,
    ) -> None:
        self.clients = clients
        self.name = name
        self.function = function
        check_function(function, name)
        self.is_async = inspect.iscoroutinefunction(function)
        self.batch = batch
        own = self.signature = Signature(function, name)
        if batch is not None:
            self.signature = Signature(batch.arguments or _anything, name, returns=_returns_of_batch(own))
        self.time_limit_ms = time_limit_ms
        self.retry_for = retry_for
        self.reject_for = reject_for
        self._declared: Task[P, C, R] | None = None  # of one with other options
        self._inject: Callable[..., Any] | None = None
        self._jobs: Sequence[str] = ()
        if own.dependencies:
            self._inject, self._jobs = _injection(function, own)
            if batch is not None and self._jobs:
                raise Invalid(f"task {name}: a dependency of a batch gets no job: each call has its own")
        self.default = Options()
        self._set({**options} if self.signature.returns_nothing else {"keep": KEPT, **options})
        update_wrapper(self, function, updated=())

    # ------------------------------------------------------------------------------------- enqueue

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call of the task, and return its handle. It is committed then, and stored once, also if a reply was
        lost and the request was repeated.

        Raises Invalid for arguments that do not fit the task, before anything is sent, and Unavailable if the store of
        an OffloadCodec cannot be reached."""
        message = self.message(*args, **kwargs)
        item_id, sent = self.clients.enqueue(message.spec)
        return Message(self, sent).handle(item_id)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Like `enqueue`, for coroutines."""
        if self.clients.codecs.blocks:
            message = await asyncio.to_thread(self.message, *args, **kwargs)
        else:
            message = self.message(*args, **kwargs)
        item_id, sent = await self.clients.aenqueue(message.spec)
        return Message(self, sent).handle(item_id)

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message[R]:
        """Return a call of the task for `App.enqueue_many`. Raises Invalid as `enqueue`. A codec that blocks does so
        here: coroutines use `asyncio.to_thread` then."""
        if self.default.get("unique") is None:
            for one in ("unique_until", "on_duplicate"):
                if self.default.get(one) is not None:
                    raise Invalid(
                        f"task {self.name}: {one} has no effect without unique: give task.options(unique=...)"
                    )
        codecs = self.clients.codecs
        body = self.signature.encode(args, kwargs, codecs.writes, codecs.of_arguments(self.name))
        return Message(self, spec_of(self.name, self.default, body, codecs.writes.content_type))

    def handle(self, item_id: int) -> Handle[R]:
        """Return the handle of a call by the id of its item, such as one that another process enqueued."""
        return Handle(self.clients, item_id, self.signature)

    def options(self, **options: Unpack[Options]) -> Task[P, C, R]:
        """Return the task with other `Options`, for one enqueue or several. Raises Invalid for a wrong one.

        >>> send_mail.options(delay=timedelta(minutes=5), tenant="acme").enqueue("ada@example.org")  # doctest: +SKIP
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._declared = self._declared or self
        other._set({**options})
        return other

    def __reduce__(self) -> Any:
        """Pickle by reference, as functions do: another process has the task of the App there. A copy is the task."""
        if self._declared is not None:
            return _with_options, (self._declared, dict(self.default))
        place: str = self.__dict__.get("__qualname__", self.name)
        found: Any = sys.modules.get(self.__module__)
        for name in place.split("."):
            found = getattr(found, name, None)
        if found is not self:
            raise TypeError(
                f"task {self.name} cannot be pickled: it is not {self.__module__}.{place}, where another process would "
                f"look for it; declare it there, or send its name and take app.tasks[{self.name!r}]"
            )
        return place

    def _set(self, changes: dict[str, Any]) -> None:
        for name in changes:
            if name in _OF_DECORATOR:
                raise Invalid(f"task {self.name}: {name} is an option of @app.task only")
            if name not in Options.__annotations__:
                known = _ELSEWHERE.get(name) or f"there are {', '.join((*Options.__annotations__, *_OF_DECORATOR))}"
                raise Invalid(f"task {self.name}: unknown option {name}: {known}")
        check_options(self.name, changes)
        if "at" in changes or "delay" in changes:  # one of the two replaces the other
            changes = {"at": None, "delay": None, **changes}
        self.default = Options(**{**self.default, **changes})  # type: ignore[typeddict-item]
        spec_of(self.name, self.default, b"")

    # ------------------------------------------------------------------------------------- call

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function here and now, with a batch of this call alone if it takes batches."""
        if self.batch is None:
            return self.call(Job(), args, kwargs)  # type: ignore[no-any-return]
        rest, named = self.signature.split(self.signature.bind(args, kwargs))
        calls = [Call(self, Item(), Job(), rest, named)]
        returned = self.run_batch(calls)
        if self.is_async:
            return self._awaited(calls, returned)  # type: ignore[return-value]
        return self._only(calls, returned)  # type: ignore[no-any-return]

    async def _awaited(self, calls: list[Call], returned: Awaitable[Any]) -> Any:
        return self._only(calls, await returned)

    def _only(self, calls: list[Call], returned: Any) -> Any:
        if calls[0].error is not None:
            raise bare(calls[0].error)
        return self.results_of(calls, returned)[0]

    def call(self, job: Job, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the function with its job and its dependencies; a coroutine function gives a coroutine."""
        call = self._inject or self.function
        kwargs = {**kwargs, **dict.fromkeys(self._jobs, job)}
        if self.signature.job is None:
            return call(*args, **kwargs)
        if self.signature.job_first:
            return call(job, *args, **kwargs)
        return call(*args, **kwargs, **{self.signature.job: job})

    def run_batch(self, calls: list[Call]) -> Any:
        """Call the function with a batch; a coroutine function gives a coroutine."""
        return (self._inject or self.function)(calls)

    def results_of(self, calls: Sequence[Call], returned: Any) -> list[Any]:
        """Return the results of a batch, one for each call. Raises WrongArgument for other values."""
        if returned is None:
            return [None] * len(calls)
        if isinstance(returned, list) and len(returned) == len(calls):
            return returned
        what = f"a list of {len(returned)}" if isinstance(returned, list) else kind_of(returned)
        raise WrongArgument(
            f"task {self.name} returned {what}: return a list of {len(calls)} results, one for each call, or None"
        )

    def __repr__(self) -> str:
        return f"Task({self.name})"


def _with_options(task: Task[P, C, R], options: Options) -> Task[P, C, R]:
    return task.options(**options)


def _anything(*args: Any, **kwargs: Any) -> None: ...


def _returns_of_batch(own: Signature) -> Any:
    """Return the type of one result of a function that takes a batch. Raises Invalid for another function."""
    takes = list(own.parameters.parameters.values())
    if own.job is not None or len(takes) != 1:
        raise Invalid(f"task {own.name}: a batch is one parameter, `calls: list[Call]`, and dependencies")
    if own.returns_nothing:
        return own.returns
    if get_origin(own.returns) is not list:
        raise Invalid(f"task {own.name} returns {own.returns}: annotate a list with a result for each call, or None")
    return get_args(own.returns)[0]


def _ms(name: Literal["delay", "ttl", "keep"], options: Options) -> int | None:
    duration = options.get(name)
    return None if duration is None else duration // timedelta(milliseconds=1)


def check_function(function: Any, name: str) -> None:
    """Raise Invalid if a call of `function` would not do its work."""
    if inspect.isclass(function) or not callable(function):
        raise Invalid(f"task {name} is no function")
    plain = inspect.unwrap(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise Invalid(f"task {name} is a generator function, which would never run: remove its `yield`")
    if inspect.iscoroutinefunction(plain) and not inspect.iscoroutinefunction(function):
        raise Invalid(f"task {name} is a coroutine function in a plain one: let its decorator return an `async def`")


def _injection(function: Callable[..., Any], signature: Signature) -> tuple[Callable[..., Any], Sequence[str]]:
    """Return `function` with its dependencies filled in, each once in a call, and ended after it. Also the names of the
    dependencies' parameters that get the job."""
    from fast_depends.core import build_call_model
    from fast_depends.use import global_provider

    name = signature.name
    try:
        model = build_call_model(function, dependency_provider=global_provider)
    except AssertionError as error:
        raise Invalid(f"task {name}: {error}") from None
    jobs = [one.field_name for one in model.flat_params if one.field_type is Job and one.field_name != signature.job]
    known = {*signature.parameters.parameters, signature.job, *jobs}
    for one in model.flat_params:
        if one.field_name not in known and one.default_value is ...:
            raise Invalid(f"task {name}: a dependency needs {one.field_name}, which is no parameter of the task")

    async def solved_async(*args: Any, **kwargs: Any) -> Any:
        async with AsyncExitStack() as stack:
            return await model.asolve(*args, stack=stack, cache_dependencies={}, **kwargs)
        raise RuntimeError(_SWALLOWED)

    def solved(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            return model.solve(*args, stack=stack, cache_dependencies={}, **kwargs)
        raise RuntimeError(_SWALLOWED)

    return (solved_async if model.is_async else solved), jobs
