"""A function as a task: its options, its enqueue, and a plain call of it."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import update_wrapper
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, Unpack, get_args, get_origin, overload

from foqs.client import Invalid, Item, ItemSpec
from foqs.client.guard import kind_of
from foqs.client.handlers import WrongArgument
from foqs.tasks.arguments import Signature
from foqs.tasks.chain import Begins, Chain, Follows, Step, checked
from foqs.tasks.clients import Clients
from foqs.tasks.handle import Handle
from foqs.tasks.job import Job
from foqs.tasks.message import Message
from foqs.tasks.options import CallOptions, Options, check_options, spec_of
from foqs.travel import bare

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")
N = TypeVar("N")

KEPT = timedelta(minutes=10)
"""How long the result of a task that declares one is kept."""
_SWALLOWED = "a dependency has swallowed the exception of its task"


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


class Task(Step, Generic[P, C, R]):
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
        self.default = CallOptions()
        self._set({**options} if self.signature.returns_nothing else {"keep": KEPT, **options})
        update_wrapper(self, function, updated=())

    # ------------------------------------------------------------------------------------- enqueue

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call of the task, and return its handle. It is committed then, and stored once, also if a reply was
        lost and the request was repeated.

        Raises Invalid for arguments that do not fit the task, before anything is sent, and Unavailable if the store of
        an OffloadCodec cannot be reached."""
        return self.message(*args, **kwargs).enqueue()

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Like `enqueue`, for coroutines."""
        return await (await self.amessage(*args, **kwargs)).aenqueue()

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message[R]:
        """Return a call of the task, for `App.enqueue_many` or the end of a batch. Raises Invalid as `enqueue`. A codec
        that blocks does so here."""
        if self.default.get("unique") is None:
            for one in ("unique_until", "on_duplicate"):
                if self.default.get(one) is not None:
                    raise Invalid(
                        f"task {self.name}: {one} has no effect without unique: give task.options(unique=...)"
                    )
        codecs = self.clients.codecs
        body = self.signature.encode(args, kwargs, codecs.writes, codecs.of_arguments(self.name))
        return Message(self, spec_of(self.name, self.default, body, codecs.writes.content_type))

    async def amessage(self, *args: P.args, **kwargs: P.kwargs) -> Message[R]:
        """Like `message`, for coroutines: a codec that blocks does so in a thread."""
        if self.clients.codecs.blocks:
            return await asyncio.to_thread(self.message, *args, **kwargs)
        return self.message(*args, **kwargs)

    @overload
    def then(self: Task[P, C, None], other: Begins[N]) -> Chain[P, None, N]: ...
    @overload
    def then(self, other: Follows[R, N]) -> Chain[P, R, N]: ...
    def then(self, other: Any) -> Chain[P, Any, Any]:
        """Return the task with another one after it, which is enqueued when this one has succeeded, with its result as
        the first argument: without an argument if the result is annotated with None. `then` of the chain adds a further
        one. Each has the options that it was given. Raises Invalid for a task that cannot be called so.

        >>> load.then(resize.options(tenant="acme")).then(publish).enqueue("a.png")  # doctest: +SKIP
        """
        return Chain(self, (self, checked(other)))

    def template(self) -> ItemSpec:
        return spec_of(self.name, self.default, b"")

    def handle(self, item_id: int) -> Handle[R]:
        """Return the handle of a call by the id of its item, such as one that another process enqueued."""
        return Handle(self.clients, item_id, self.signature)

    def options(self, **options: Unpack[CallOptions]) -> Task[P, C, R]:
        """Return the task with other `CallOptions`, for one enqueue or several. Raises Invalid for a wrong one.

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
        check_options(self.name, changes)
        if "at" in changes or "delay" in changes:  # one of the two replaces the other
            changes = {"at": None, "delay": None, **changes}
        self.default = CallOptions(**{**self.default, **changes})  # type: ignore[typeddict-item]
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


def _with_options(task: Task[P, C, R], options: CallOptions) -> Task[P, C, R]:
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
