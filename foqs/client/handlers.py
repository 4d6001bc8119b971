"""Which callables are handlers of a worker, the ack policies, and the checks of what handlers say about their items."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from operator import index
from typing import TYPE_CHECKING, Any, Literal

from foqs.bounds import REASON_BYTES
from foqs.checks import I64_MAX, body_not_run
from foqs.client.guard import CALLS_IN_THREADS, IN_LOOP, guarded, is_a, kind_of, text_of
from foqs.errors import FoqsError, Invalid
from foqs.travel import TravellingError

if TYPE_CHECKING:
    from opentelemetry.trace import Span

ACCEPTED = "a handler takes (item) or (item, job), as a function or as the method `handle` of an object or class"
TASK_HEADER = "foqs-task"
"""The header of an item that names its task (`foqs.tasks`)."""
_HINT = "5 s are 5000"
_TRACING = "tracing a handler"

AckPolicyName = Literal["nack_on_error", "ack_first", "reject_on_error", "ack", "manual"]
Returned = None | bool | int | float | str | bytes | list[Any] | tuple[Any, ...] | dict[str, Any]
"""What a handler may return: the Worker ignores it. A type checker refuses coroutines and generators by it."""


class Retry(TravellingError):
    """Raised by a handler that wants its item again: after `delay_ms`, or `delay` as a timedelta (default: as the retry
    rule of the topic's policy says, else after the worker's backoff), with `metadata` in place of the item's (default:
    `job.metadata`, else kept). With `counts=False` the attempt is not counted, as for a Retry-After of another service.

    Raises Invalid unless the delay is whole milliseconds, 0 or more, and `metadata` is bytes, and for two delays."""

    def __init__(
        self,
        delay_ms: int | None = None,
        metadata: bytes | None = None,
        *,
        delay: timedelta | None = None,
        counts: bool = True,
    ) -> None:
        if delay is not None:
            if delay_ms is not None:
                raise WrongArgument("delay_ms and delay are given: give one of the two")
            if not is_a(delay, timedelta):
                raise WrongArgument(f"delay is of type {kind_of(delay)}: give a timedelta, or delay_ms")
            delay_ms = delay // timedelta(milliseconds=1)
        if not is_a(counts, bool):
            raise WrongArgument(f"counts is of type {kind_of(counts)}: give True or False")
        checked_ms = delay_argument(delay_ms, "delay_ms" if delay is None else "delay")
        checked = metadata_argument(metadata)
        super().__init__("the handler asks for another attempt")
        self.delay_ms, self.metadata, self.counts = checked_ms, checked, counts


class Reject(TravellingError):
    """Raised by a handler whose work can never succeed: the item is a dead letter at once, with `reason`, of which the
    first 1,024 bytes are kept. Raises Invalid unless `reason` is text."""

    def __init__(self, reason: str) -> None:
        self.reason = reason_argument(reason)
        super().__init__(self.reason)


class AckPolicy(StrEnum):
    """What a Worker does with an item when its handler returns, raises an exception, or is killed with the process.

    ===============  ===================  ========================================  ==========================
    policy           handler returns      exception                                 process killed
    ===============  ===================  ========================================  ==========================
    NACK_ON_ERROR    ack                  nack as `failed`: a retry, at last a      again, when its lease ends
                                          dead letter
    ACK_FIRST        (acked before)       stays acked                               stays acked
    REJECT_ON_ERROR  ack                  reject: a dead letter at once             again, when its lease ends
    ACK              ack                  ack                                       again, when its lease ends
    MANUAL           as the `Job` says    as the `Job` says                         again, when its lease ends
    ===============  ===================  ========================================  ==========================

    ACK_FIRST: the handler runs when the server confirmed the ack, and does not run if it was refused or not confirmed.
    MANUAL: the handler calls one of `job.ack`, `job.nack` and `job.reject`. An item without any of these keeps its
    lease until that ends by time, as it is not extended after the handler's return.
    """

    NACK_ON_ERROR = "nack_on_error"
    ACK_FIRST = "ack_first"
    REJECT_ON_ERROR = "reject_on_error"
    ACK = "ack"
    MANUAL = "manual"


def check_class(handler: Any, *, awaits: bool) -> None:
    """Raise Invalid if a worker cannot call objects of the class `handler`, as far as that is known without one."""
    try:
        inspect.signature(handler).bind()
    except TypeError as error:
        raise Invalid(
            f"the handler class {_name(handler)} cannot be made without arguments ({error}): each of the worker's "
            "handlers at a time is an object of it; give an object instead to share one"
        ) from None
    except ValueError:  # a class in C says nothing about its arguments
        pass
    _check_runs(handler.handle if hasattr(handler, "handle") else handler.__call__, _name(handler), awaits=awaits)


def callable_of(handler: Any, *, awaits: bool) -> tuple[Callable[..., Any], bool]:
    """Return the function or method to call, and True if it gets the job. Raises Invalid if a worker cannot call it;
    `awaits`: the worker runs coroutines."""
    method = getattr(handler, "handle", None)
    is_method = callable(method)
    call: Any = method if is_method else handler
    if not callable(call):
        raise Invalid(f"the handler {_name(handler)} cannot be called: {ACCEPTED}")
    _check_runs(call, _name(handler), awaits=awaits)
    return call, _takes_job(call, is_method, _name(handler))


def _check_runs(call: Any, name: str, *, awaits: bool) -> None:
    """Raise Invalid if calling `call`, and awaiting the result where the worker `awaits` it, would not run its body."""
    undone = body_not_run(call)
    is_coroutine = undone is not None and undone.startswith("coroutine")
    if awaits and undone is None:
        raise Invalid(
            f"the handler {name} is no coroutine function (async def), so it would block the event loop; {IN_LOOP}"
        )
    if undone is not None and not (awaits and is_coroutine):
        advice = CALLS_IN_THREADS if is_coroutine else "remove its `yield`"
        raise Invalid(f"the handler {name} is a {undone}, which would never run; {advice}")


def _takes_job(call: Callable[..., Any], is_method: bool, name: str) -> bool:
    """Return True if `call` gets the job. Raises Invalid if it takes neither (item) nor (item, job).

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


class WorkSpan:
    """The span of one handler's work. Thread-safe, as spans are. Raises nothing: processors of spans are the user's,
    and the threads that call this send outcomes and extend leases. Works without OpenTelemetry installed."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._lost = False

    def lease_lost(self) -> None:
        """Note the loss; may be called more than once."""
        if not self._lost:
            self._lost = True
            guarded(_TRACING, self._note, "lease_lost", None)

    def settled(self, what: str, error: FoqsError | None) -> None:
        """Note that the server took an "ack" or "nack", or that `error` is why not."""
        guarded(_TRACING, self._note, what, error)

    def end(self) -> None:
        guarded(_TRACING, end_span, self._span)

    def _note(self, what: str, error: FoqsError | None) -> None:
        if self._span.is_recording():
            self._span.add_event(what, None if error is None else {"error.type": type(error).__name__})


def end_span(span: Span) -> None:
    """End a span that has not ended."""
    if span.is_recording():
        span.end()


def reason_of(error: BaseException, *, text: bool) -> str:
    """Return the reason that the server gets: the type's name, with the error's `text` only if asked for, as it may
    hold what a payload held. At most REASON_BYTES bytes. Never raises, whatever the error's methods do.

    >>> reason_of(ValueError("no such user: 7"), text=True)
    'ValueError: no such user: 7'
    """
    name = kind_of(error)
    if not text and not is_a(error, WrongArgument):
        return bounded(name)
    said = text_of(error)
    return bounded(f"{name}: {said}" if said else name)


def bounded(reason: str, most_bytes: int = REASON_BYTES) -> str:
    """Return `reason`, cut at a character if it is too long for the server."""
    return reason.encode("utf-8", "replace")[: max(0, most_bytes)].decode(errors="ignore")


class WrongArgument(Invalid):
    """A value of a wrong type, or below its range. Its text shows numbers and types, and never a text or bytes: these
    may be of a payload, and the server gets the text as the reason of the failure."""


def delay_argument(value: Any, what: str = "delay_ms", *, least: int = 0) -> int | None:
    """Return `value` as a plain int of milliseconds, or None. Raises WrongArgument."""
    if value is None:
        return None
    if is_a(value, bool) or not hasattr(type(value), "__index__"):
        raise WrongArgument(f"{what} is of type {kind_of(value)}: give whole milliseconds as an int ({_HINT})")
    number = int.__index__(index(value))
    if number < least:
        raise WrongArgument(f"{what} is {_shown(number)}: give {least} or more milliseconds")
    if number > I64_MAX:
        raise WrongArgument(f"{what} is {_shown(number)}: give at most {I64_MAX} milliseconds")
    return number


def metadata_argument(value: Any, what: str = "metadata") -> bytes | None:
    """Return a copy of `value` that is plain bytes, or None. Raises WrongArgument."""
    if value is None or type(value) is bytes:
        return value
    if not is_a(value, (bytes, bytearray, memoryview)):
        raise WrongArgument(f"{what} is of type {kind_of(value)}: give bytes, or None to keep the item's")
    return memoryview(value).tobytes()


def reason_argument(value: Any) -> str:
    """Return `value` as a plain str that can be encoded. Raises WrongArgument."""
    if not is_a(value, str):
        raise WrongArgument(f"reason is of type {kind_of(value)}: give a text (str)")
    return str.encode(value, "utf-8", "replace").decode()


def _shown(number: int) -> str:
    return str(number) if number.bit_length() <= 256 else f"a number of {number.bit_length()} bits"
