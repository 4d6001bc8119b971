"""Handlers of a Worker: which callables it accepts, and how it calls them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol

from foqs.checks import body_not_run
from foqs.client.items import Item
from foqs.client.job import Call, Job
from foqs.client.returned import CALLS_IN_THREADS, check_returned
from foqs.errors import Invalid

ACCEPTED = "a handler takes (item) or (item, job), as a function or as the method `handle` of an object or class"
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


def handler_call(handler: Handler, *, elsewhere: bool = False) -> Call:
    """Return `handler` as a function of item and job. A class is instantiated here, once for each thread that calls
    this. Raises Invalid if the Worker cannot call it; the call raises NotRun if the handler only returned its work.
    With `elsewhere`, the handler may return before a thread, an event loop or a process has ended its work.
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
                check_returned(returned, elsewhere=elsewhere)
            return returned

        return with_job

    def without_job(item: Item, job: Job) -> object:
        returned = call(item)
        if returned is not None:
            check_returned(returned, elsewhere=elsewhere)
        return returned

    return without_job


def _check_runs(call: Any, name: str) -> None:
    """Raises Invalid if calling `call` would not run its body."""
    undone = body_not_run(call)
    if undone is None:
        return
    advice = "remove its `yield`" if undone.startswith("generator") else CALLS_IN_THREADS
    raise Invalid(f"the handler {name} is a {undone}, which would never run; {advice}")


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


def _name(handler: Any) -> str:
    while isinstance(handler, functools.partial):
        handler = handler.func
    return str(getattr(handler, "__qualname__", None) or f"of type {type(handler).__qualname__}")
