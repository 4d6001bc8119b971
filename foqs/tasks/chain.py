"""Chains: the result of each task is the first argument of the next task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from foqs.client import Invalid, ItemSpec
from foqs.client.guard import kind_of
from foqs.tasks.arguments import Signature
from foqs.tasks.follow_ups import THEN_HEADER, header_of
from foqs.tasks.handle import Handle
from foqs.tasks.message import Message

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L")
N = TypeVar("N")
A_contra = TypeVar("A_contra", contravariant=True)


class Follows(Protocol[A_contra, R]):
    """A task that may be called with one argument."""

    def template(self) -> ItemSpec: ...
    def enqueue(self, result: A_contra, /) -> Handle[R]: ...


class Begins(Protocol[R]):
    """A task that may be called without arguments."""

    def template(self) -> ItemSpec: ...
    def enqueue(self) -> Handle[R]: ...


class Step(ABC):
    """A task, as a chain sees it."""

    name: str
    signature: Signature

    @abstractmethod
    def template(self) -> ItemSpec:
        """Return the item of a call, without its arguments."""


class First(Protocol[P, R]):
    """The task that a chain begins with."""

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message[R]: ...
    async def amessage(self, *args: P.args, **kwargs: P.kwargs) -> Message[R]: ...


class Chain(Generic[P, R, L]):
    """Tasks in an order: the success of each enqueues the next task, with the result as its first argument. Made by
    `task.then(other)`. For type checkers, `R` is the result of the first task, and `L` that of the last one.

    A handle is that of the first call. The options of each task count for its own call; a failed one ends the chain."""

    def __init__(self, first: First[P, R], tasks: Sequence[Step]) -> None:
        """`first` is also the first one of `tasks`. Raises Invalid for a task that cannot follow its predecessor."""
        self._first = first
        self._tasks = tuple(tasks)
        for before, after in pairwise(tasks):
            args = () if before.signature.passes_nothing else (None,)
            try:
                after.signature.bind(args, {})
            except Invalid as error:
                what = "no argument" if not args else "the result as its one argument"
                raise Invalid(
                    f"task {after.name} cannot follow {before.name}: it gets {what}; {error.message}"
                ) from None
        self._header = header_of([task.template() for task in tasks[1:]])

    @overload
    def then(self: Chain[P, R, None], other: Begins[N]) -> Chain[P, R, N]: ...
    @overload
    def then(self, other: Follows[L, N]) -> Chain[P, R, N]: ...
    def then(self, other: Any) -> Chain[P, R, Any]:
        """Return the chain with a further task, as `Task.then`."""
        return Chain(self._first, (*self._tasks, checked(other)))

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message[R]:
        """Return a call of the chain, as `Task.message`."""
        return self._followed(self._first.message(*args, **kwargs))

    async def amessage(self, *args: P.args, **kwargs: P.kwargs) -> Message[R]:
        """Like `message`, for coroutines."""
        return self._followed(await self._first.amessage(*args, **kwargs))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call of the first task, and return its handle, as `Task.enqueue`."""
        return self.message(*args, **kwargs).enqueue()

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Like `enqueue`, for coroutines."""
        return await (await self.amessage(*args, **kwargs)).aenqueue()

    def _followed(self, message: Message[R]) -> Message[R]:
        headers = {**(message.spec.headers or {}), THEN_HEADER: self._header}
        return replace(message, spec=replace(message.spec, headers=headers))

    def __repr__(self) -> str:
        return f"Chain({', '.join(task.name for task in self._tasks)})"


def checked(given: object) -> Step:
    """Return what follows a task. Raises Invalid for another object."""
    if isinstance(given, Step):
        return given
    what = "the tasks of a chain one by one, a.then(b).then(c)" if isinstance(given, Chain) else "it without arguments"
    raise Invalid(f"a task follows a task, not {kind_of(given)}: give {what}")
