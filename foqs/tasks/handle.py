"""What the caller of a task keeps: the id of its item, and the way to its result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from math import isnan
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar, cast

from foqs.bounds import LIMITS
from foqs.client import (
    Failure,
    FailureCause,
    FoqsError,
    Forbidden,
    Invalid,
    ItemState,
    NotFound,
    OutcomeUnknown,
    Progress,
    Result,
    Unavailable,
)
from foqs.client.call import single
from foqs.client.guard import kind_of
from foqs.client.handlers import WrongArgument
from foqs.tasks.arguments import Signature
from foqs.tasks.clients import Clients
from foqs.travel import Local

R = TypeVar("R")
T = TypeVar("T")

_ANSWER_MS = 1_000
_WITHOUT_REASON: dict[int, str] = {
    FailureCause.EXPIRED: "its worker has died, or did not extend the lease",
    FailureCause.LIMIT: "it was to run again, and has no attempt left",
}


class TaskFailed(FoqsError):
    """The task has failed for good. `failure` says why, if that is known: its `reason` has the type of the exception,
    and its text if the worker has `report_errors`."""

    def __init__(self, item_id: int, failure: Failure | None) -> None:
        self.failure = failure
        super().__init__(f"the task of item {item_id} failed{'' if failure is None else _why(failure)}")


def _why(failure: Failure) -> str:
    reason = failure.reason or _WITHOUT_REASON.get(failure.cause, "without a reason")
    return f" after {failure.attempts} attempt{'s' * (failure.attempts != 1)}: {reason}"


class ResultLost(NotFound):
    """The task ended and its item was not kept, or it was cancelled."""


class Handle(Local, Generic[R]):
    """One enqueued task. `id` is that of its item; `app.handle(id)` makes a handle in another process. `duplicate` is
    True if there was a task with the same `unique`: the handle belongs to it.

    Methods raise ResultLost when the task ended before the call and was not kept (see `keep` of a task), or was
    cancelled."""

    instead = "send its id, and make one there by app.handle(id)"

    def __init__(
        self,
        clients: Clients,
        item_id: int,
        signature: Signature | None = None,
        *,
        duplicate: bool = False,
        key: str | None = None,
    ) -> None:
        """`key`: a deduplication key that no other item ever has."""
        self.id = item_id
        self.duplicate = duplicate
        self._key = key
        self._clients = clients
        self._signature = signature

    def result(self, timeout: float | timedelta | None = None) -> R:
        """Return what the task returned, once it has ended. Raises TaskFailed, TimeoutError after `timeout` (seconds
        or a timedelta; None: no limit), and Invalid for a result that the App cannot read."""
        return self._value(self._ended(until_of(timeout)))

    async def aresult(self, timeout: float | timedelta | None = None) -> R:  # noqa: ASYNC109 - as `result`
        """Like `result`, for coroutines."""
        until = until_of(timeout)
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

    async def alog(self) -> tuple[str, ...]:
        return (await self._alook(0)).log

    def cancel(self) -> bool:
        """Remove the task, also while it runs. Return False if there was nothing to remove. Needs the right `produce`;
        `admin` for a task with `unique`, for a handle that was made by an id, and once the service has forgotten the
        key of the call, after a day.

        A worker learns of it when it extends the lease, after a third of that (10 s): a coroutine is cancelled then,
        and the `lease_lost` of a thread's job is set."""
        client = self._clients.blocking
        if self._key is not None:
            with suppress(NotFound):
                return client.cancel(self._key, leased=True)
        try:
            return _removed(client.delete_items([self.id]))
        except Forbidden:
            with suppress(ResultLost):
                if self._key is None or not self._look(0).ended:
                    raise
            return False

    async def acancel(self) -> bool:
        """Like `cancel`, for coroutines."""
        client = self._clients.of_loop
        if self._key is not None:
            with suppress(NotFound):
                return await client.cancel(self._key, leased=True)
        try:
            return _removed(await client.delete_items([self.id]))
        except Forbidden:
            with suppress(ResultLost):
                if self._key is None or not (await self._alook(0)).ended:
                    raise
            return False

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
        return ResultLost(f"{error.message}; a task that was cancelled is not kept, nor one whose `keep` is 0")

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


def wait(handles: Iterable[Handle[Any]], timeout: float | timedelta | None = None) -> Waited:
    """Wait until all tasks have ended, at most `timeout` (seconds, or a timedelta; None: no limit), and return which
    have. A task that failed, was cancelled or was not kept has ended: `result` of its handle raises why.

    In coroutines, use `asyncio.gather(*[handle.aresult() for handle in handles])`."""
    until = until_of(timeout)
    waited = Waited([], [])
    for handle in check_all("wait", handles, Handle):
        try:
            handle._ended(until)
        except TimeoutError:
            waited.not_done.append(handle)
            continue
        except ResultLost:
            pass
        waited.done.append(handle)
    return waited


def check_all(what: str, given: Iterable[T], kind: type[T]) -> list[T]:
    """Return the list of `given`. Raises Invalid for another element than of `kind`."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise Invalid(f"{what} takes several of class {kind.__name__}, not {kind_of(given)}")
    found = list(given)
    for at, one in enumerate(found):
        if not isinstance(one, kind):
            raise Invalid(f"{what}: entry {at} is of type {kind_of(one)}, not a {kind.__name__}")
    return found


def until_of(timeout: Any) -> float | None:
    """Return the time of `monotonic`. Raises Invalid for a wrong timeout."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or isnan(seconds):
        raise Invalid(f"timeout is {timeout!r}: give seconds, a timedelta, or None")
    return monotonic() + float(seconds)


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
