"""What a handler works with: its item, its job, and the lease that the worker holds."""

from __future__ import annotations

import asyncio  # async only
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from math import inf
from threading import RLock
from time import monotonic
from typing import Any, Protocol

from foqs.client._async import waits  # async only
from foqs.client._async.waits import AWAITS, Event, Lock, SeenEvent
from foqs.client.guard import check_returned, is_a
from foqs.client.handlers import (
    TASK_HEADER,
    Returned,
    WorkSpan,
    WrongArgument,
    bounded,
    callable_of,
    check_class,
    delay_argument,
    metadata_argument,
    reason_argument,
)
from foqs.client.items import Delivery, Extension, Item, Nack, Progress, check_result
from foqs.errors import Invalid
from foqs.rows import LOG_BYTES
from foqs.travel import Local

_closing = Lock()
_making = RLock()  # a handler may have threads of its own, and is interrupted by signals
_MOST_SHOWN = 20  # async only


class AsyncJob(Local):
    """One handler at work on one item.

    item        the leased item
    lease_lost  an Event: the lease has ended, or could not be extended in time; another consumer may get the item. A
                handler that has found it set and returns does not ack the item, which comes again
    time_is_up  an Event: the worker's `time_limit_ms` has passed, so the lease is no longer extended; what the handler
                returns or raises after that is a failure with the reason "time limit"
    stopping    an Event: the worker is asked to stop, and waits for its grace
    metadata    set it to record progress: it replaces the item's metadata if this attempt fails. Raises Invalid
                unless it is bytes (copied here) or None. If the server refuses it, as it is too long, the item fails
                without it, and the reason of the failure says so
    result      set it to send up to 64 KiB with the ack, for callers of `get_result`. Raises Invalid as `metadata`. If
                the server refuses it, the item fails

    Methods raise Invalid for an argument of a wrong type, or below its range: nothing was done then.

    It stays in the process of its worker: send another process the item.
    """

    instead = "send job.item, and end the job in the process of its worker"

    def __init__(
        self,
        held: Held,
        extend: Callable[[Held, int], Awaitable[None]],
        say: Callable[[Held, Extension], None],
        limit: Callable[[Held, float], None],
        stopping: Event,
        end: Callable[[Held, Nack | None, bytes | None], None] | None = None,
    ) -> None:
        """`extend(held, lease_ms)` extends the lease at once; `say(held, extension)` has what the handler says sent;
        `limit(held, limit_s)` limits the time of the run; `end(held, nack, result)` sends the outcome that a handler of
        a MANUAL worker decides, None for an ack."""
        self.item: Item = held.item
        self.stopping = stopping
        self._metadata: bytes | None = None
        self._result: bytes | None = None
        self._checkpoint = held.item.checkpoint
        self.released = False
        self.open = end is not None
        self.held = held
        self._extend = extend
        self._say = say
        self._limit = limit
        self._end = end

    @property
    def metadata(self) -> bytes | None:
        return self._metadata

    @metadata.setter
    def metadata(self, metadata: bytes | None) -> None:
        self._metadata = metadata_argument(metadata)

    @property
    def result(self) -> bytes | None:
        return self._result

    @result.setter
    def result(self, result: bytes | None) -> None:
        checked = metadata_argument(result, "result")
        check_result("result", checked)
        self._result = checked

    @property
    def id(self) -> int:
        return self.held.id

    @property
    def attempt(self) -> int:
        """1 at the first delivery."""
        return self.held.attempt

    @property
    def headers(self) -> Mapping[str, str]:
        return self.item.headers or {}

    @property
    def last_checkpoint(self) -> bytes | None:
        """The last checkpoint of the item, of this attempt or an earlier one; None before the first."""
        return self._checkpoint

    @property
    def lease_lost(self) -> SeenEvent:
        return self.held.event()

    @property
    def time_is_up(self) -> Event:
        return self.held.time_is_up()

    def time_left_ms(self) -> float | None:
        """The rest of the worker's `time_limit_ms`, at least 0; None without a limit."""
        return None if self.held.stop_at is None else max(0.0, (self.held.stop_at - monotonic()) * 1000)

    async def extend(self, lease_ms: int) -> None:
        """Make the lease end `lease_ms` from now at the earliest (the worker extends it as well, by itself).
        Raises StaleLease or NotFound when it is lost.
        """
        checked_ms = delay_argument(lease_ms, "lease_ms", least=1)
        if checked_ms is None:
            raise WrongArgument("lease_ms is None: give whole milliseconds")
        await self._extend(self.held, checked_ms)

    def progress(self, done: int, total: int | None = None, text: str | None = None) -> None:
        """Show that `done` steps of `total` are done, to operators and callers of `get_result`. `text`: at most 256
        bytes. This and the next two return at once: the worker sends what they say soon, and before the outcome of the
        item. Nothing is sent when the lease is lost."""
        self._say(self.held, Extension(self.held.id, self.held.lease, progress=Progress(done, total, text)))

    def checkpoint(self, state: bytes) -> None:
        """Keep `state`, at most 64 KiB: the next delivery of the item has it as `last_checkpoint`. The service writes
        it up to a second later."""
        self._say(self.held, Extension(self.held.id, self.held.lease, checkpoint=state))
        self._checkpoint = state

    def log(self, text: str) -> None:
        """Add a line to the item's log, of which the last 8 KiB stay. Raises Invalid for a longer line."""
        if is_a(text, str) and len(text.encode("utf-8", "replace")) >= LOG_BYTES:
            raise Invalid(f"a line of log has more than {LOG_BYTES - 1} bytes")
        self._say(self.held, Extension(self.held.id, self.held.lease, log=[text]))

    def release(self) -> None:
        """Have the item come again at once, without an attempt counted, whatever the handler returns or raises. Items
        that are at-most-once do not come again. With the ack policy MANUAL it ends the item, as `ack`."""
        if self._end is not None:
            self._close(Nack.of(self.held, metadata=self._metadata, uncounted=True))
        self.released = True

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

    def use_threads(self, post: Callable[[Callable[[], object]], object]) -> None:  # async only
        """Have what a thread says passed to the event loop, by `post`."""
        say = self._say

        def posted(held: Held, said: Extension) -> None:
            post(lambda: say(held, said))

        self._say = posted

    def limit(self, time_limit_ms: int) -> None:
        """Give this run `time_limit_ms` from now, in place of the worker's."""
        checked_ms = delay_argument(time_limit_ms, "time_limit_ms", least=1)
        if checked_ms is None:
            raise WrongArgument("time_limit_ms is None: give whole milliseconds")
        self._limit(self.held, checked_ms / 1000)

    def _close(self, nack: Nack | None) -> None:
        if self._end is None:
            raise RuntimeError("the worker decides the item's outcome: only with ack_policy MANUAL a job does")
        with _closing:
            if not self.open:
                raise RuntimeError(f"the outcome of item {self.held.id} was given before")
            self.open = False
        self._end(self.held, nack, self._result)


Call = Callable[[Item, AsyncJob], Awaitable[object]]


class HandlerObject(Protocol):
    async def handle(self, item: Item, job: AsyncJob, /) -> Returned:
        """Work on one item. Returning acks it, an exception nacks it."""


class ItemHandlerObject(Protocol):
    async def handle(self, item: Item, /) -> Returned:
        """Work on one item, without its job."""


Handler = (
    Callable[[Item], Awaitable[Returned]]
    | Callable[[Item, AsyncJob], Awaitable[Returned]]
    | HandlerObject
    | ItemHandlerObject
    | type[HandlerObject]
    | type[ItemHandlerObject]
)


def check_handler(handler: Handler) -> None:
    """Raise Invalid if a worker cannot call `handler`. A class is checked only as far as that needs no object."""
    if inspect.isclass(handler):
        check_class(handler, awaits=AWAITS)
    else:
        callable_of(handler, awaits=AWAITS)


def handler_call(handler: Handler, *, elsewhere: bool = False) -> Call:
    """Return `handler` as a function of item and job. A class is instantiated here, once for each of the worker's
    handlers at a time. Raises Invalid if the worker cannot call it; the call raises NotRun if the handler only returned
    its work. With `elsewhere`, the handler may return before a thread, an event loop or a process has ended its work.
    """
    call, takes_job = callable_of(handler() if inspect.isclass(handler) else handler, awaits=AWAITS)

    async def work(item: Item, job: AsyncJob) -> object:
        returned = await (call(item, job) if takes_job else call(item))
        if returned is not None:
            check_returned(returned, elsewhere=elsewhere, awaits=AWAITS)
        return returned

    return work


class Held:
    """One lease. Times are of the monotonic clock, in seconds.

    `id`, `lease`, `topic`, `attempt` and `delivery` are the item's as they came: a handler may change its item.

    `gone`: the server said that the lease has ended. `settling`: the item's ack or nack is being sent to the
    server. `doubtful`: an ack was sent and its reply lost. `lost`: the handler's event, once there is a
    handler. `traced`: the span of its work, where that is traced. `asked`: how often an extension was answered, or
    given up. `waits`: the server takes the item as not begun. `stop_at`: the end of the time limit of its work; `up`:
    the handler's event then. `said`: words of the handler that the server does not know, to be sent at `say_at`;
    `inf`: it has said nothing yet. `late`: the lease is not extended, as the time is up, or the item was acked first.
    `along`: the items that failed with it; empty if the log entry of another item names it.
    """

    __slots__ = (
        "along",  # async only
        "asked", "attempt", "delivery", "doubtful", "expires", "extend_at", "gone", "id", "item", "late", "lease",
        "lost", "said", "say_at", "settling", "stop_at",
        "stopped", "task",  # async only
        "topic", "traced", "up", "waits",
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
        self.said: Extension | None = None
        self.say_at = inf
        self.stop_at: float | None = None
        self.lost: SeenEvent | None = None
        self.up: Event | None = None
        self.traced: WorkSpan | None = None
        self.task: asyncio.Task[BaseException | None] | None = None  # async only
        self.stopped = False  # async only
        self.along: Sequence[int] | None = None  # async only

    @property
    def at_most_once(self) -> bool:
        return self.delivery == Delivery.AT_MOST_ONCE

    def usable(self, now: float) -> bool:
        """Return True if work on the item may be begun."""
        return not self.gone and now < self.expires

    def event(self) -> SeenEvent:
        """Set when the lease has ended, or may have. Called by the handler only, in any thread; made when it is asked
        for."""
        with _making:
            if self.lost is None:
                self.lost = SeenEvent()  # first: the end of a lease is noted, and then the event is looked for
                if not self.usable(monotonic()):
                    self.lost.set()
            return self.lost

    def time_is_up(self) -> Event:
        """Set at the end of the time limit. Made before the limit is set, or when it is asked for."""
        if self.up is None:
            self.up = Event()
        return self.up

    async def in_task(self, attempt: Coroutine[Any, Any, BaseException | None]) -> BaseException | None:  # async only
        """Run `attempt` in a task of its own, which `cancel` ends."""
        self.task = task = waits.quiet_task(attempt, "foqs-attempt")
        try:
            await waits.until_done(task)
        except asyncio.CancelledError:  # the event loop ends
            task.cancel()
            raise
        finally:
            self.task = None
        return asyncio.CancelledError() if task.cancelled() else task.result()

    def cancel(self, *, stopped: bool = False) -> None:  # async only
        """Cancel the handler at work. `stopped`: the worker ends, and the handler did not fail."""
        if self.task is not None:
            self.stopped = stopped
            self.task.cancel()

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
        headers = self.item.headers
        task = headers.get(TASK_HEADER) if type(headers) is dict else None
        named = f" task={task!r}" if type(task) is str else ""
        return f"Item({self.id} topic={self.topic!r}{named} attempt={self.attempt})"

    def in_log(self) -> str | None:  # async only
        """Return the item and those that failed along with it, for the log. None: the entry of another item has it."""
        if self.along is None:
            return str(self)
        if not self.along:
            return None
        shown = ", ".join(map(str, self.along[:_MOST_SHOWN]))
        more = "" if len(self.along) <= _MOST_SHOWN else ", ..."
        return f"{self} and {len(self.along)} more of its batch ({shown}{more})"

    def __repr__(self) -> str:
        return f"Held({self} {'gone' if self.gone else 'until'} {self.expires:.3f})"
