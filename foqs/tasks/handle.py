"""What the caller of a task keeps: the id of its item, and the way to its result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar, cast

from foqs.bounds import LIMITS
from foqs.client import Failure, FoqsError, ItemState, NotFound, OutcomeUnknown, Progress, Result, Unavailable
from foqs.client.call import single
from foqs.client.guard import kind_of
from foqs.client.handlers import WrongArgument
from foqs.tasks.arguments import Signature
from foqs.tasks.clients import Clients
from foqs.travel import Local

R = TypeVar("R")

_ANSWER_MS = 1_000


class TaskFailed(FoqsError):
    """The task has failed for good. `failure` says why, if that is known: its `reason` has the type of the exception,
    and its text if the worker has `report_errors`."""

    def __init__(self, item_id: int, failure: Failure | None) -> None:
        self.failure = failure
        why = "" if failure is None else f" after {failure.attempts} attempts: {failure.reason or 'without a reason'}"
        super().__init__(f"the task of item {item_id} failed{why}")


class ResultLost(NotFound):
    """The task ended and its item was not kept, or it was cancelled."""


class Handle(Local, Generic[R]):
    """One enqueued task. `id` is that of its item; `app.handle(id)` makes a handle in another process. `duplicate` is
    True if there was a task with the same `unique`: the handle belongs to it.

    Methods raise ResultLost when the task ended before the call and was not kept (see `keep` of a task), or was
    cancelled."""

    instead = "send its id, and make one there by app.handle(id)"

    def __init__(
        self, clients: Clients, item_id: int, signature: Signature | None = None, *, duplicate: bool = False
    ) -> None:
        self.id = item_id
        self.duplicate = duplicate
        self._clients = clients
        self._signature = signature

    def result(self, timeout: float | None = None) -> R:
        """Return what the task returned, once it has ended. Raises TaskFailed, TimeoutError after `timeout` seconds
        (None: no limit), and Invalid for a result that the App cannot read."""
        return self._value(self._ended(None if timeout is None else monotonic() + timeout))

    async def aresult(self, timeout: float | None = None) -> R:  # noqa: ASYNC109 - as `result`
        """Like `result`, for coroutines."""
        until = None if timeout is None else monotonic() + timeout
        while True:
            try:
                found = await self._alook(_wait_ms(until), until)
            except (Unavailable, OutcomeUnknown) as error:
                self._check(until, error.message)
                raise
            if found.ended:
                blocks = self._clients.codecs.blocks
                return await asyncio.to_thread(self._value, found) if blocks else self._value(found)
            self._check(until, f"it is {found.state.name}")

    def state(self) -> ItemState:
        """Return the present state of the item."""
        return self._look(0).state

    async def astate(self) -> ItemState:
        return (await self._alook(0)).state

    def progress(self) -> Progress | None:
        """Return the progress that the task has shown; None before the first."""
        return self._look(0).progress

    async def aprogress(self) -> Progress | None:
        return (await self._alook(0)).progress

    def log(self) -> tuple[str, ...]:
        """Return the last lines that the task has logged."""
        return self._look(0).log

    def cancel(self) -> bool:
        """Remove the task, also while it runs. Return False if there was nothing to remove.

        A worker learns of it when it extends the lease, after a third of that (10 s): a coroutine is cancelled then,
        and the `lease_lost` of a thread's job is set."""
        return _removed(self._clients.blocking.delete_items([self.id]))

    async def acancel(self) -> bool:
        """Like `cancel`, for coroutines."""
        return _removed(await self._clients.of_loop.delete_items([self.id]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Handle({self.id})"

    # ------------------------------------------------------------------------------------- inside

    def _ended(self, until: float | None) -> Result:
        while True:
            try:
                found = self._look(_wait_ms(until), until)
            except (Unavailable, OutcomeUnknown) as error:
                self._check(until, error.message)
                raise
            if found.ended:
                return found
            self._check(until, f"it is {found.state.name}")

    def _look(self, wait_ms: int, until: float | None = None) -> Result:
        try:
            return self._clients.blocking.get_result(self.id, wait_ms=wait_ms, timeout_ms=_timeout_ms(until))
        except NotFound as error:
            raise self._lost(error) from None

    async def _alook(self, wait_ms: int, until: float | None = None) -> Result:
        try:
            return await self._clients.of_loop.get_result(self.id, wait_ms=wait_ms, timeout_ms=_timeout_ms(until))
        except NotFound as error:
            raise self._lost(error) from None

    def _check(self, until: float | None, why: str) -> None:
        if until is not None and monotonic() >= until:
            raise TimeoutError(f"the task of item {self.id} has not ended: {why}")

    def _lost(self, error: NotFound) -> ResultLost:
        return ResultLost(f"{error.message}; a task whose `keep` is not 0 is kept after its end")

    def _value(self, found: Result) -> R:
        if found.state is ItemState.FAILED:
            raise TaskFailed(self.id, found.failure)
        if found.result is None:
            return cast(R, None)
        codecs = self._clients.codecs
        context = codecs.of_result(self.id)
        try:
            codec, body = codecs.opened(found.result)
            if self._signature is None:
                return cast(R, codec.decode(body, context))
            return cast(R, self._signature.decode_result(body, codec, context))
        except WrongArgument as error:
            raise WrongArgument(f"the result of item {self.id} cannot be read: {error.message}") from None
        except (ValueError, TypeError, KeyError) as error:
            kind = codec.content_type
            raise WrongArgument(f"the result of item {self.id} is no {kind}: {kind_of(error)}") from None


class Waited(NamedTuple):
    """Which tasks have ended, each in the order of the handles."""

    done: list[Handle[Any]]
    not_done: list[Handle[Any]]


def wait(handles: Iterable[Handle[Any]], timeout: float | None = None) -> Waited:
    """Wait until all tasks have ended, at most `timeout` seconds (None: no limit). A task that failed, was cancelled or
    was not kept has ended: `result` of its handle raises why.

    In coroutines, use `asyncio.gather(*[handle.aresult() for handle in handles])`."""
    until = None if timeout is None else monotonic() + timeout
    waited = Waited([], [])
    for handle in handles:
        try:
            handle._ended(until)
        except TimeoutError:
            waited.not_done.append(handle)
            continue
        except ResultLost:
            pass
        waited.done.append(handle)
    return waited


def _wait_ms(until: float | None) -> int:
    longest_ms = LIMITS.result_wait_max_ms
    return longest_ms if until is None else max(0, min(longest_ms, int((until - monotonic()) * 1000)))


def _timeout_ms(until: float | None) -> int | None:
    """Return how long the answer may take after the wait, where the caller has a limit."""
    return None if until is None else _ANSWER_MS


def _removed(outcomes: list[FoqsError | None]) -> bool:
    if isinstance(outcomes[0], NotFound):
        return False
    single(outcomes)
    return True
