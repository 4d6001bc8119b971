"""The pure parts of a call: its requests, and its outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Any, NamedTuple, TypeVar

from foqs.bounds import LIMITS
from foqs.client.items import Items
from foqs.client.routes import Address
from foqs.errors import FoqsError, NotSent
from foqs.second_answer import END_ITEM, Duplicate, Replaced, Verdict, judge, last_word

T = TypeVar("T")

AGAIN = (Verdict.AGAIN, Verdict.AGAIN_DOUBTFUL)

_until: ContextVar[float] = ContextVar("foqs_until", default=-inf)


@contextmanager
def tried_until(until: float) -> Iterator[None]:
    """Have the log and `on_retry` name this end (of the monotonic clock, in seconds) for calls made inside: they are
    parts of a call that goes on after each of them."""
    token = _until.set(until)
    try:
        yield
    finally:
        _until.reset(token)


def end_of_tries(deadline: float) -> float:
    """Return when a call with this deadline is given up, or the one that it is a part of."""
    return max(deadline, _until.get())


class ClientClosed(FoqsError):
    """The client was closed."""


class Busy(NotSent):
    """All connections are in use."""


class First(NamedTuple):
    """The first request of a call for one item, which did not succeed. `found`: its outcomes from the host `by`, or why
    there are none."""

    begun: float
    deadline: float
    request_id: str
    found: Sequence[Any] | FoqsError
    by: Address | None = None


class Taken(NamedTuple):
    """`outcomes`: None for each ack that succeeded, else its error, in order. `error` is why there are no items; None
    where no item was ready."""

    outcomes: list[FoqsError | None]
    items: Items
    error: FoqsError | None


def id_of(answer: Any) -> int:
    """Return the id of an EnqueueOutcome."""
    if not answer.duplicate:
        return answer.id  # type: ignore[no-any-return]
    return Replaced(answer.id) if answer.replaced else Duplicate(answer.id)


def single(outcomes: list[T | FoqsError]) -> T:
    """Return the outcome of a call for one item, or raise it if it is an error."""
    outcome = outcomes.pop(0)
    if isinstance(outcome, FoqsError):
        try:
            raise outcome
        finally:
            del outcome  # or it would hold itself, by this frame
    return outcome


LEASE_BYTES = 64
"""Most bytes of a lease, with its fields, in a request."""


def requests_of(items: Iterable[T], max_bytes: int) -> Iterator[Sequence[T]]:
    """Cut `items` into what one request holds. If some know their `size_bytes`, they are also cut by bytes."""
    everything: Sequence[T] = items if isinstance(items, list | tuple) else list(items)
    sized = len(everything) > 1 and any(hasattr(kind, "size_bytes") for kind in set(map(type, everything)))
    start = size = 0
    for position, item in enumerate(everything) if sized else ():
        item_bytes: int = getattr(item, "size_bytes", LEASE_BYTES)
        if position > start and (size + item_bytes > max_bytes or position - start == LIMITS.request_items):
            yield everything[start:position]
            start, size = position, 0
        size += item_bytes
    for at in range(start, len(everything), LIMITS.request_items):
        yield everything[at : at + LIMITS.request_items]


def after_doubt(error: FoqsError | None) -> FoqsError | None:
    """Return the outcome of an ack that is repeated after one whose outcome is unknown."""
    verdict = Verdict.DONE if error is None else judge(END_ITEM, error, doubtful=True)
    if error is None or verdict is Verdict.DONE:
        return None
    return error if verdict is Verdict.FAILED else last_word(END_ITEM, error, doubtful=True)
