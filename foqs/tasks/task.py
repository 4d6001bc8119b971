"""A function as a task: its options, its enqueue, and a plain call of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar
from uuid import uuid4

from foqs.client import DedupUntil, Delivery, Duplicate, Invalid, ItemRules, ItemSpec, OnDuplicate, Replaced, RetryRule
from foqs.client.handlers import TASK_HEADER
from foqs.tasks.arguments import Signature
from foqs.tasks.clients import Clients
from foqs.tasks.handle import Handle
from foqs.tasks.job import Job

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")

KEPT = timedelta(minutes=10)
"""How long the result of a task that declares one is kept."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a task is enqueued. Of `task` and `options` alike; a value of `options` holds for one enqueue.

    topic         the topic of its items
    priority      lower is more urgent, default 0
    delay         a timedelta before it may run, or
    at            the time from which it may run: a datetime with a time zone
    ttl           a timedelta after the enqueue: a task that has not begun is removed then
    tenant        the fairness key: tenants of a topic share its workers
    weight        share of the tenant against other tenants, 1 to 1,000
    throttle      keys of rate limits and of limits on jobs at a time that the task waits for
    unique        a text: while a task has it, another enqueue stores nothing, and its handle is that task's
    unique_until  when `unique` is free again: DONE (default), STARTED, or WINDOW (a day after the enqueue)
    on_duplicate  REPLACE gives a task that has not begun the arguments and the time of the new one
    max_attempts  the number of failed attempts after which the task is a dead letter; 0: no limit; default: the topic's
                  policy
    retry         the delays after failed attempts (`RetryRule`); default: the topic's policy
    keep          a timedelta: how long the end of the task and its result are kept; default 10 minutes if the function
                  is annotated with a result, else 0
    at_most_once  never deliver it twice: a task whose worker dies is lost
    headers       fixed text pairs
    """

    topic: str = "default"
    priority: int = 0
    delay: timedelta | None = None
    at: datetime | None = None
    ttl: timedelta | None = None
    tenant: str | None = None
    weight: int | None = None
    throttle: Sequence[str] | None = None
    unique: str | None = None
    unique_until: DedupUntil = DedupUntil.DONE
    on_duplicate: OnDuplicate | None = None
    max_attempts: int | None = None
    retry: RetryRule | None = None
    keep: timedelta | None = None
    at_most_once: bool = False
    headers: Mapping[str, str] | None = None

    def spec(self, task: str, body: bytes) -> ItemSpec:
        """Return the item. Raises Invalid for a wrong option."""
        at: Any = self.at
        if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
            raise Invalid(f"task {task}: at is {at!r}: give a datetime with a time zone")
        keep_ms = _ms(task, "keep", self.keep)
        rules = (self.retry, self.max_attempts, keep_ms)
        return ItemSpec(
            self.topic,
            body,
            priority=self.priority,
            delay_ms=_ms(task, "delay", self.delay),
            deliver_after_ms=None if at is None else int(at.timestamp() * 1000),
            ttl_ms=_ms(task, "ttl", self.ttl),
            fairness_key=self.tenant,
            weight=self.weight,
            throttle_keys=self.throttle,
            dedup_key=uuid4().hex if self.unique is None else self.unique,
            dedup_until=None if self.unique is None else self.unique_until,
            on_duplicate=self.on_duplicate,
            rules=None if rules == (None, None, None) else ItemRules(self.retry, self.max_attempts, keep_ms=keep_ms),
            delivery=Delivery.AT_MOST_ONCE if self.at_most_once else Delivery.AT_LEAST_ONCE,
            headers={**(self.headers or {}), TASK_HEADER: task, "content-type": "application/json"},
        )


@dataclass(frozen=True, slots=True)
class Message(Generic[R]):
    """A call of a task that is not enqueued yet; `App.enqueue_many` takes several."""

    task: Task[Any, Any, R]
    spec: ItemSpec

    def handle(self, item_id: int) -> Handle[R]:
        """Return the handle of the item that stores the call."""
        # A repeated request finds its own item by the random key.
        there = isinstance(item_id, Duplicate | Replaced) and self.spec.dedup_until is not None
        return Handle(self.task.clients, int(item_id), self.task.signature, duplicate=there)


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
    ) -> None:
        self.clients = clients
        self.name = name
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = Signature(function, name)
        self.time_limit_ms = time_limit_ms
        self.retry_for = retry_for
        self.reject_for = reject_for
        if options.keep is None and not self.signature.returns_nothing:
            options = replace(options, keep=KEPT)
        self.default = options
        self._inject = _injection(function, name) if self.signature.dependencies else None
        update_wrapper(self, function, updated=())

    # ------------------------------------------------------------------------------------- enqueue

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call of the task, and return its handle. It is committed then, and stored once, also if a reply was
        lost and the request was repeated.

        Raises Invalid for arguments that do not fit the task, before anything is sent."""
        message = self.message(*args, **kwargs)
        return message.handle(self.clients.enqueue(message.spec))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Like `enqueue`, for coroutines."""
        message = self.message(*args, **kwargs)
        return message.handle(await self.clients.aenqueue(message.spec))

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message[R]:
        """Return a call of the task for `App.enqueue_many`. Raises Invalid as `enqueue`."""
        return Message(self, self.default.spec(self.name, self.signature.encode(args, kwargs)))

    def options(self, **options: Any) -> Task[P, C, R]:
        """Return the task with other `Options`, for one enqueue or several.

        >>> send_mail.options(delay=timedelta(minutes=5), tenant="acme").enqueue("ada@example.org")  # doctest: +SKIP
        """
        other = copy(self)
        other.default = changed(self.default, self.name, options)
        return other

    # ------------------------------------------------------------------------------------- call

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function here and now."""
        return self.call(Job(), args, kwargs)  # type: ignore[no-any-return]

    def call(self, job: Job, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the function with its job and its dependencies; a coroutine function gives a coroutine."""
        call = self._inject or self.function
        if self.signature.job is None:
            return call(*args, **kwargs)
        if self.signature.job_first:
            return call(job, *args, **kwargs)
        return call(*args, **kwargs, **{self.signature.job: job})

    def __repr__(self) -> str:
        return f"Task({self.name})"


def changed(options: Options, task: str, changes: Mapping[str, Any]) -> Options:
    """Return options with some replaced. Raises Invalid for an unknown name."""
    for name in changes:
        if name not in Options.__dataclass_fields__:
            known = ", ".join(Options.__dataclass_fields__)
            raise Invalid(f"task {task}: unknown option {name}: there are {known}")
    if "at" in changes and "delay" not in changes:
        changes = {**changes, "delay": None}
    if "delay" in changes and "at" not in changes:
        changes = {**changes, "at": None}
    return replace(options, **changes)


def _ms(task: str, name: str, duration: timedelta | None) -> int | None:
    if duration is None:
        return None
    if not isinstance(duration, timedelta):
        raise Invalid(f"task {task}: {name} is {duration!r}: give a timedelta")
    return duration // timedelta(milliseconds=1)


def _injection(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return `function` with its dependencies filled in, each once in a call, and ended after it."""
    from fast_depends.core import build_call_model
    from fast_depends.use import global_provider

    try:
        model = build_call_model(function, dependency_provider=global_provider)
    except AssertionError as error:
        raise Invalid(f"task {name}: {error}") from None

    async def solved_async(*args: Any, **kwargs: Any) -> Any:
        async with AsyncExitStack() as stack:
            return await model.asolve(*args, stack=stack, cache_dependencies={}, **kwargs)

    def solved(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            return model.solve(*args, stack=stack, cache_dependencies={}, **kwargs)

    return solved_async if model.is_async else solved
