"""Batches of calls that end together, and what their end enqueues. (`batches.py`: one call that handles many items.)"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from time import monotonic, sleep
from typing import Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar

from foqs.client import Batch, BatchCounts, BatchState, FoqsError, Invalid, ItemSpec, OutcomeUnknown, Unavailable
from foqs.client.guard import kind_of
from foqs.client.handlers import WrongArgument
from foqs.tasks.clients import Clients
from foqs.tasks.handle import Handle, check_all, until_of
from foqs.tasks.message import Message
from foqs.travel import Local, bare

P = ParamSpec("P")
R = TypeVar("R")

HEADER = "foqs-batch"
_STATE, _COUNTS, _FAILED = "foqs-batch-state", "foqs-batch-counts", "foqs-batch-failed"
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_ANSWER_MS = 1_000
_UNFIT = {"dedup_until": "unique", "order_key": "order_key", "deliver_after_ms": "at", "batch": "batch"}
"""Options that a callback cannot have, by the fields of its item."""


class Adds(Protocol[P, R]):
    """A task, or a chain of tasks."""

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message[R]: ...
    async def amessage(self, *args: P.args, **kwargs: P.kwargs) -> Message[R]: ...


class BatchEnd(NamedTuple):
    """What the headers of a call say that a batch has enqueued at its end. `counts` are None for `on_success`;
    `failed_ids`: the first 100 members that failed."""

    id: int
    state: BatchState
    counts: BatchCounts | None
    failed_ids: tuple[int, ...]


def end_in(headers: Mapping[str, str]) -> BatchEnd | None:
    """Return what the headers of an item say of a batch that has enqueued it. Raises WrongArgument for headers that no
    batch has."""
    given = headers.get(HEADER)
    if given is None:
        return None
    try:
        state = BatchState[headers.get(_STATE, BatchState.SUCCEEDED.name)]
        told = json.loads(headers.get(_COUNTS, "null"))
        counts = None if told is None else BatchCounts(*[int(told.get(name, 0)) for name in BatchCounts._fields])
        failed = tuple(int(one) for one in headers.get(_FAILED, "").split(",") if one)
        return BatchEnd(int(given), state, counts, failed)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WrongArgument(f"the headers {HEADER} are not as a batch has them: {error}") from None


class New(NamedTuple):
    """A batch that is not created yet."""

    on_success: Message[Any] | None
    on_end: Message[Any] | None
    ttl: timedelta | None
    parent: ItemBatch | None

    def fields(self) -> dict[str, Any]:
        """Return the arguments of `Client.create_batch`. Raises Invalid for a wrong one."""
        if self.ttl is not None and not isinstance(self.ttl, timedelta):
            raise Invalid(f"ttl is {self.ttl!r}: give a timedelta")
        if self.parent is not None and not isinstance(self.parent, ItemBatch):
            raise Invalid(f"parent is {self.parent!r}: give a batch, such as job.batch or app.batch_of(id)")
        return {
            "on_success": _callback("on_success", self.on_success), "on_end": _callback("on_end", self.on_end),
            "ttl_ms": None if self.ttl is None else self.ttl // timedelta(milliseconds=1),
            "parent": None if self.parent is None else self.parent.id,
        }  # fmt: skip


def _callback(name: str, message: Message[Any] | None) -> ItemSpec | None:
    if message is None:
        return None
    if not isinstance(message, Message):
        raise Invalid(f"{name} is of type {kind_of(message)}: give a call of a task, task.message(...)")
    for one, option in _UNFIT.items():
        if getattr(message.spec, one) is not None:
            raise Invalid(f"{name}: a call at the end of a batch has no {option}: it is stored once, by the service")
    return replace(message.spec, dedup_key=None)


class ItemBatch(Local):
    """Calls that end together: made by `app.batch(...)`, by `app.batch_of(id)` and as `job.batch`. In a `with`, or an
    `async with`, it is created at the start and closed at the end; an exception cancels it and is raised again.

    Methods raise NotFound for a batch that the service does not have, or no more: it knows one for a day after its end.
    """

    instead = "send its id, and make one there by app.batch_of(id)"

    def __init__(self, clients: Clients, batch_id: int | None = None, new: New | None = None) -> None:
        """`new`: what `with` creates; None for a batch that there is."""
        self._clients = clients
        self._id = batch_id
        self._fields = None if new is None else new.fields()

    @property
    def id(self) -> int:
        """Raises Invalid before the batch is created."""
        if self._id is None:
            raise Invalid("the batch is not created yet: use it inside `with app.batch() as batch:`")
        return self._id

    def __enter__(self) -> Self:
        self._id = self._clients.blocking.create_batch(**self._created())
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self.close()
            return
        with _noted(self.id, error):
            self.cancel()

    async def __aenter__(self) -> Self:
        self._id = await self._clients.of_loop.create_batch(**self._created())
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            await self.aclose()
            return
        with _noted(self.id, error):
            await self.acancel()

    def _created(self) -> dict[str, Any]:
        if self._fields is None or self._id is not None:
            raise Invalid("the batch is created already: `with` takes what app.batch() returns, once")
        return self._fields

    # ------------------------------------------------------------------------------------- members

    def add(self, task: Adds[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call as a member, and return its handle. The tasks of a chain are members, each once it is enqueued.
        Raises what `Task.enqueue` raises, and Invalid for a batch that has ended or was cancelled."""
        return task.message(*args, **kwargs).in_batch(self.id).enqueue()

    async def aadd(self, task: Adds[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Like `add`, for coroutines."""
        return await (await task.amessage(*args, **kwargs)).in_batch(self.id).aenqueue()

    def add_many(self, messages: Iterable[Message[Any]]) -> list[Handle[Any]]:
        """Store calls (`task.message(...)`) as members in few requests, and return their handles, in order. Raises the
        first error of a call that was not stored, when all were tried: a batch without it must not succeed."""
        members = self._members(messages)
        return _handles(members, self._clients.blocking.enqueue_many([member.spec for member in members]))

    async def aadd_many(self, messages: Iterable[Message[Any]]) -> list[Handle[Any]]:
        """Like `add_many`, for coroutines."""
        members = self._members(messages)
        return _handles(members, await self._clients.of_loop.enqueue_many([member.spec for member in members]))

    def _members(self, messages: Iterable[Message[Any]]) -> list[Message[Any]]:
        return [message.in_batch(self.id) for message in check_all("add_many", messages, Message)]

    # ------------------------------------------------------------------------------------- its life

    def info(self) -> Batch:
        """Return its state, and how its members have ended, as of about 0.3 s ago."""
        return self._clients.blocking.get_batch(self.id)

    async def ainfo(self) -> Batch:
        return await self._clients.of_loop.get_batch(self.id)

    def wait(self, timeout: float | timedelta | None = None) -> Batch:
        """Return how it has ended, once it has. Raises TimeoutError after `timeout` (seconds or a timedelta; None: no
        limit)."""
        waiting = _Waiting(self.id, timeout)
        while True:
            with waiting.judged():
                found = self._clients.blocking.get_batch(self.id, timeout_ms=waiting.answer_ms())
            if found.ended:
                return found
            sleep(waiting.pause_s(found))

    async def await_(self, timeout: float | timedelta | None = None) -> Batch:  # noqa: ASYNC109 - as `wait`
        """Like `wait`, for coroutines."""
        waiting = _Waiting(self.id, timeout)
        while True:
            with waiting.judged():
                found = await self._clients.of_loop.get_batch(self.id, timeout_ms=waiting.answer_ms())
            if found.ended:
                return found
            await asyncio.sleep(waiting.pause_s(found))

    def close(self) -> None:
        """Let it end with its last member. A member may still add members. A `with` does it."""
        self._clients.blocking.close_batch(self.id)

    async def aclose(self) -> None:
        """Like `close`, for coroutines."""
        await self._clients.of_loop.close_batch(self.id)

    def cancel(self) -> None:
        """Remove the members that no worker has, and refuse further ones. It ends when the other ones have ended."""
        self._clients.blocking.cancel_batch(self.id)

    async def acancel(self) -> None:
        """Like `cancel`, for coroutines."""
        await self._clients.of_loop.cancel_batch(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ItemBatch) and other._id == self._id and self._id is not None

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"ItemBatch({'' if self._id is None else self._id})"


class _Waiting:
    """The pauses between two looks at a batch, which grow, up to the end of the caller's time."""

    def __init__(self, batch: int, timeout: float | timedelta | None) -> None:
        self._batch = batch
        self._until = until_of(timeout)
        self._pause_s = _FIRST_PAUSE_S

    def answer_ms(self) -> int | None:
        """Return how long an answer may take, where the caller has a limit."""
        return None if self._until is None else max(_ANSWER_MS, int((self._until - monotonic()) * 1000))

    @contextmanager
    def judged(self) -> Iterator[None]:
        """Raise TimeoutError in place of an error of the service after the caller's time."""
        try:
            yield
        except (Unavailable, OutcomeUnknown) as error:
            self._check(error.message)
            raise

    def pause_s(self, found: Batch) -> float:
        counts = found.counts
        self._check(f"{counts.ended} of {counts.members} members have ended, and it is {found.state.name}")
        pause_s, self._pause_s = self._pause_s, min(1.5 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s if self._until is None else min(pause_s, max(0.0, self._until - monotonic()))

    def _check(self, why: str) -> None:
        if self._until is not None and monotonic() >= self._until:
            raise TimeoutError(f"batch {self._batch} has not ended: {why}")


@contextmanager
def _noted(batch: int, error: BaseException) -> Iterator[None]:
    """Leave the error of the caller in place of one of the service, which becomes a note of it."""
    try:
        yield
    except FoqsError as failed:
        error.add_note(f"batch {batch} was not cancelled, and stays open until its TTL ends: {failed.message}")


def _handles(members: Sequence[Message[Any]], outcomes: Sequence[int | FoqsError]) -> list[Handle[Any]]:
    handles = []
    for member, outcome in zip(members, outcomes, strict=True):
        if isinstance(outcome, FoqsError):
            raise bare(outcome)
        handles.append(member.handle(outcome))
    return handles
