"""What a handler of a Worker works with: its item, its job, the lease that the worker holds, and the ack policy.

Also which callables are handlers, and the checks of what they say about their items.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from enum import StrEnum
from math import inf
from operator import index
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Protocol

from foqs.bounds import REASON_BYTES
from foqs.checks import I64_MAX, body_not_run
from foqs.client.guard import CALLS_IN_THREADS, check_returned, guarded, is_a, kind_of, text_of
from foqs.client.items import Delivery, Item, Nack
from foqs.errors import FoqsError, Invalid
from foqs.travel import Local, TravellingError

if TYPE_CHECKING:
    from opentelemetry.trace import Span

ACCEPTED = "a handler takes (item) or (item, job), as a function or as the method `handle` of an object or class"
_HINT = "5 s are 5000"
_TRACING = "tracing a handler"
_closing = threading.Lock()

AckPolicyName = Literal["nack_on_error", "ack_first", "reject_on_error", "ack", "manual"]
Returned = None | bool | int | float | str | bytes | list[Any] | tuple[Any, ...] | dict[str, Any]
"""What a handler may return: the Worker ignores it. A type checker refuses coroutines and generators by it."""


class Job(Local):
    """One handler at work on one item.

    item        the leased item
    lease_lost  an Event: the lease has ended, or could not be extended in time; another consumer may get the item
    time_is_up  an Event: the worker's `time_limit_ms` has passed, so the lease is no longer extended; what the handler
                returns or raises after that is a failure with the reason "time limit"
    stopping    an Event: the worker is asked to stop, and waits for its grace
    metadata    set it to record progress: it replaces the item's metadata if this attempt fails. Raises Invalid
                unless it is bytes (copied here) or None. If the server refuses it, as it is too long, the item fails
                without it, and the reason of the failure says so

    Methods raise Invalid for an argument of a wrong type, or below its range: nothing was done then.

    It stays in the process of its worker: send another process the item.
    """

    instead = "send job.item, and end the job in the process of its worker"

    def __init__(
        self,
        held: Held,
        extend: Callable[[Held, int], None],
        stopping: threading.Event,
        end: Callable[[Held, Nack | None], None] | None = None,
    ) -> None:
        """`extend(held, lease_ms)` extends the lease at once; `end(held, nack)` sends the outcome that a handler of a
        MANUAL worker decides, None for an ack."""
        self.item: Item = held.item
        self.stopping = stopping
        self._metadata: bytes | None = None
        self.open = end is not None
        self.held = held
        self._extend = extend
        self._end = end

    @property
    def metadata(self) -> bytes | None:
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: bytes | None) -> None:
        self._metadata = metadata_argument(metadata)

    @property
    def lease_lost(self) -> threading.Event:
        return self.held.event()

    @property
    def time_is_up(self) -> threading.Event:
        return self.held.time_is_up()

    def time_left_ms(self) -> float | None:
        """The rest of the worker's `time_limit_ms`, at least 0; None without a limit."""
        return None if self.held.stop_at is None else max(0.0, (self.held.stop_at - monotonic()) * 1000)

    def extend(self, lease_ms: int) -> None:
        """Make the lease end `lease_ms` from now at the earliest (the worker extends it as well, by itself).
        Raises StaleLease or NotFound when it is lost.
        """
        checked_ms = delay_argument(lease_ms, "lease_ms", least=1)
        if checked_ms is None:
            raise WrongArgument("lease_ms is None: give whole milliseconds")
        self._extend(self.held, checked_ms)

    def ack(self) -> None:
        """End the item. This and the next two are for workers with the ack policy MANUAL, and exactly one of them is
        called, once, also after the handler's return: else RuntimeError. The worker sends the outcome soon after.
        """
        self._close(None)

    def nack(self, delay_ms: int | None = None, reason: str | None = None) -> None:
        """Give the item back: after `delay_ms`, or without one as a failure, as the topic's policy says."""
        delay_ms = delay_argument(delay_ms)
        text = None if reason is None else bounded(reason_argument(reason))
        failed = delay_ms is None
        self._close(Nack.of(self.held, delay_ms=delay_ms, metadata=self._metadata, failed=failed, reason=text))

    def reject(self, reason: str) -> None:
        """Make the item a dead letter at once: the work can never succeed. `reason`: at most 1,024 bytes, cut."""
        self._close(Nack.of(self.held, reason=bounded(reason_argument(reason)), reject=True))

    def _close(self, nack: Nack | None) -> None:
        if self._end is None:
            raise RuntimeError("the worker decides the item's outcome: only with ack_policy MANUAL a job does")
        with _closing:
            if not self.open:
                raise RuntimeError(f"the outcome of item {self.held.id} was given before")
            self.open = False
        self._end(self.held, nack)


Call = Callable[[Item, Job], object]


class Retry(TravellingError):
    """Raised by a handler that wants its item again: after `delay_ms` (default: as the retry rule of the topic's policy
    says, else after the worker's backoff), with `metadata` in place of the item's (default: `job.metadata`, else
    kept). Raises Invalid unless `delay_ms` is whole milliseconds, 0 or more, and `metadata` is bytes."""

    def __init__(self, delay_ms: int | None = None, metadata: bytes | None = None) -> None:
        checked_ms, checked = delay_argument(delay_ms), metadata_argument(metadata)
        super().__init__("the handler asks for another attempt")
        self.delay_ms, self.metadata = checked_ms, checked


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


class HandlerObject(Protocol):
    def handle(self, item: Item, job: Job, /) -> Returned:
        """Work on one item. Returning acks it, an exception nacks it."""


class ItemHandlerObject(Protocol):
    def handle(self, item: Item, /) -> Returned:
        """Work on one item, without its job."""


Handler = (
    Callable[[Item], Returned]
    | Callable[[Item, Job], Returned]
    | HandlerObject
    | ItemHandlerObject
    | type[HandlerObject]
    | type[ItemHandlerObject]
)


def check_handler(handler: Handler) -> None:
    """Raise Invalid if a Worker cannot call `handler`. A class is checked only as far as that needs no object."""
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
    takes_job = _takes_job(call, is_method, _name(target))

    def work(item: Item, job: Job) -> object:
        returned = call(item, job) if takes_job else call(item)
        if returned is not None:
            check_returned(returned, elsewhere=elsewhere)
        return returned

    return work


def _check_runs(call: Any, name: str) -> None:
    """Raise Invalid if calling `call` would not run its body."""
    undone = body_not_run(call)
    if undone is None:
        return
    advice = "remove its `yield`" if undone.startswith("generator") else CALLS_IN_THREADS
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


class Held:
    """One lease. Times are of the monotonic clock, in seconds.

    `id`, `lease`, `topic`, `attempt` and `delivery` are the item's as they came: a handler may change its item.

    `gone`: the server said that the lease has ended. `settling`: the item's ack or nack is being sent to the
    server. `doubtful`: an ack was sent and its reply lost. `lost`: the handler's event, once there is a
    handler. `traced`: the span of its work, where that is traced. `asked`: how often an extension was answered, or
    given up. `waits`: the server takes the item as not begun. `stop_at`: the end of the time limit of its work; `up`:
    the handler's event then. `late`: the lease is not extended, as the time is up, or the item was acked first.
    """

    __slots__ = (
        "asked", "attempt", "delivery", "doubtful", "expires", "extend_at", "gone", "id", "item", "late", "lease",
        "lost", "settling", "stop_at", "topic", "traced", "up", "waits",
    )  # fmt: skip

    def __init__(self, item: Item, expires: float, extend_at: float) -> None:
        self.item = item
        self.id = item.id
        self.lease = item.lease
        self.topic = item.topic
        self.attempt = item.attempt
        self.delivery = item.delivery
        self.expires = expires
        self.extend_at = extend_at
        self.asked = 0
        self.gone = False
        self.settling = False
        self.doubtful = False
        self.waits = False
        self.late = False
        self.stop_at: float | None = None
        self.lost: threading.Event | None = None
        self.up: threading.Event | None = None
        self.traced: WorkSpan | None = None

    @property
    def at_most_once(self) -> bool:
        return self.delivery == Delivery.AT_MOST_ONCE

    def usable(self, now: float) -> bool:
        """Return True if work on the item may be begun."""
        return not self.gone and now < self.expires

    def event(self) -> threading.Event:
        """Set when the lease has ended, or may have. Called by the handler's thread only; made when it is asked for."""
        if self.lost is None:
            self.lost = threading.Event()
            if not self.usable(monotonic()):
                self.lost.set()
        return self.lost

    def time_is_up(self) -> threading.Event:
        """Set at the end of the time limit. Made before the limit is set, or when it is asked for."""
        if self.up is None:
            self.up = threading.Event()
        return self.up

    def acked(self) -> None:
        """Note that the item was acked before the work: there is no lease to extend, or to lose."""
        self.late = True
        self.expires = inf

    def end(self) -> None:
        """Note that the server said that the lease has ended."""
        self.gone = True
        self.tell()

    def tell(self) -> None:
        """Set the handler's event: the lease has ended, or may have."""
        if self.traced is not None:  # first: a handler that hears of it may return at once, and its span end
            self.traced.lease_lost()
        if self.lost is not None:
            self.lost.set()

    def __str__(self) -> str:
        """Return the item, for a line of the log."""
        return f"Item({self.id} topic={self.topic!r} attempt={self.attempt})"

    def __repr__(self) -> str:
        return f"Held({self} {'gone' if self.gone else 'until'} {self.expires:.3f})"


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


def metadata_argument(value: Any) -> bytes | None:
    """Return a copy of `value` that is plain bytes, or None. Raises WrongArgument."""
    if value is None or type(value) is bytes:
        return value
    if not is_a(value, (bytes, bytearray, memoryview)):
        raise WrongArgument(f"metadata is of type {kind_of(value)}: give bytes, or None to keep the item's")
    return memoryview(value).tobytes()


def reason_argument(value: Any) -> str:
    """Return `value` as a plain str that can be encoded. Raises WrongArgument."""
    if not is_a(value, str):
        raise WrongArgument(f"reason is of type {kind_of(value)}: give a text (str)")
    return str.encode(value, "utf-8", "replace").decode()


def _shown(number: int) -> str:
    return str(number) if number.bit_length() <= 256 else f"a number of {number.bit_length()} bits"
