"""Code around every task of a worker."""

from __future__ import annotations

import inspect
from typing import Any

from foqs.tasks.task import Call


class Middleware:
    """Subclass it, and append an object to `app.middleware`. Each method may be a coroutine function. They run in the
    event loop of the worker, so they must not block.

    `before` runs in the order of the list, and `after` or `failed` in the reverse order, where `before` has returned.
    An exception of `before` or `after` is that of the task; an exception of `failed` takes its place."""

    def before(self, call: Call) -> Any:
        """The arguments fit the task, which begins next."""

    def after(self, call: Call, result: Any) -> Any:
        """The task has returned `result`."""

    def failed(self, call: Call, error: BaseException) -> Any:
        """The task has raised `error`, or was cancelled."""


async def awaited(value: Any) -> Any:
    """Return the value, awaited if it is a coroutine."""
    return await value if inspect.isawaitable(value) else value
