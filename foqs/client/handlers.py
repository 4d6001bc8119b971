"""Handlers of a Worker: which callables it accepts, and how it calls them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Protocol

from foqs.client.items import Item
from foqs.client.job import Call, Job
from foqs.errors import Invalid

ACCEPTED = "a handler takes (item) or (item, job), as a function or as the method `handle` of an object or class"
_ADVICE = (
    "a Worker calls handlers in threads and awaits nothing: make it an ordinary function, for example "
    "`def handle(item): asyncio.run(work(item))`"
)


Returned = None | bool | int | float | str | bytes | list[Any] | tuple[Any, ...] | dict[str, Any]
"""What a handler may return: the Worker ignores it. A type checker refuses coroutines and generators by it."""


class HandlerObject(Protocol):
    def handle(self, item: Item, job: Job, /) -> Returned:
        """Works on one item. Returning acks it, an exception nacks it."""


class ItemHandlerObject(Protocol):
    def handle(self, item: Item, /) -> Returned:
        """Works on one item, without its job."""


Handler = (
    Callable[[Item], Returned]
    | Callable[[Item, Job], Returned]
    | HandlerObject
    | ItemHandlerObject
    | type[HandlerObject]
    | type[ItemHandlerObject]
)


class NotRun(Invalid):
    """The handler returned an awaitable or a generator: the work in it was never begun."""


def check_handler(handler: Handler) -> None:
    """Raises Invalid if a Worker cannot call `handler`. A class is checked only as far as that needs no object."""
    if not inspect.isclass(handler):
        handler_call(handler)
        return
    try:
        inspect.signature(handler).bind()
    except TypeError as error:
        raise Invalid(
            f"the handler class {_name(handler)} cannot be made without arguments ({error}): each thread makes an "
            "object of it; give an object instead to share one"
        ) from None
    except ValueError:  # a class in C says nothing about its arguments
        pass
    _check_runs(handler.handle if hasattr(handler, "handle") else handler.__call__, _name(handler))


def handler_call(handler: Handler) -> Call:
    """Return `handler` as a function of item and job. A class is instantiated here, once for each thread that calls
    this. Raises Invalid if the Worker cannot call it; the call raises NotRun if the handler only returned its work.
    """
    target: Any = handler() if inspect.isclass(handler) else handler
    method = getattr(target, "handle", None)
    is_method = callable(method)
    call: Any = method if is_method else target
    if not callable(call):
        raise Invalid(f"the handler {_name(target)} cannot be called: {ACCEPTED}")
    _check_runs(call, _name(target))
    if _takes_job(call, is_method, _name(target)):

        def with_job(item: Item, job: Job) -> object:
            returned = call(item, job)
            if returned is not None:
                _check_returned(returned)
            return returned

        return with_job

    def without_job(item: Item, job: Job) -> object:
        returned = call(item)
        if returned is not None:
            _check_returned(returned)
        return returned

    return without_job


def _check_runs(call: Any, name: str) -> None:
    """Raises Invalid if calling `call` would not run its body."""
    while isinstance(call, functools.partial):
        call = call.func
    candidates = (call, getattr(type(call), "__call__", None))  # noqa: B004 - the function itself is looked at
    if any(map(inspect.iscoroutinefunction, candidates)):
        raise Invalid(f"the handler {name} is a coroutine function (async def), which would never run; {_ADVICE}")
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in candidates):
        raise Invalid(f"the handler {name} is a generator function, whose body would never run: remove its `yield`")


def _takes_job(call: Callable[..., Any], is_method: bool, name: str) -> bool:
    """Whether to give the job to `call`. Raises Invalid if it takes neither (item) nor (item, job).

    Where both fit, a method `handle` gets the job. Another callable gets it only if its second parameter is named
    `job`: a default of its own must not be replaced.
    """
    try:
        # A decorator may add arguments of its own, so the wrapped function does not say how it is called.
        signature = inspect.signature(call, follow_wrapped=False)
    except (TypeError, ValueError):  # a callable in C says nothing about its arguments
        return is_method
    one, two = (_binds(signature, count) for count in (1, 2))
    if one and two:
        return is_method or _names_job(call)
    if not one and not two:
        raise Invalid(f"the handler {name}{signature} cannot be called with an item: {ACCEPTED}")
    return two


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*(None,) * count)
    except TypeError:
        return False
    return True


def _names_job(call: Callable[..., Any]) -> bool:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in inspect.signature(call).parameters.values() if p.kind in positional]
    return names[1:2] == ["job"]


def _check_returned(returned: object) -> None:
    """Raises NotRun if `returned` is work that nothing runs, and closes it."""
    if inspect.isawaitable(returned):
        kind, advice = "an awaitable", _ADVICE
    elif isinstance(returned, GeneratorType | AsyncGeneratorType):
        kind, advice = "a generator", "let the handler do the work itself, without `yield`"
    else:
        return
    if inspect.iscoroutine(returned) or isinstance(returned, GeneratorType):
        with suppress(Exception):  # it may have been begun, and fail as it ends
            returned.close()  # or Python warns that it was never awaited
    raise NotRun(f"the handler returned {kind} ({type(returned).__name__}) and the Worker did not run it; {advice}")


def _name(handler: Any) -> str:
    while isinstance(handler, functools.partial):
        handler = handler.func
    return str(getattr(handler, "__qualname__", None) or f"of type {type(handler).__qualname__}")
