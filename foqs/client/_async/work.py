"""The work on one leased item: runs its handler, decides its outcome by the ack policy, and ends handlers that hang."""

from __future__ import annotations

import asyncio  # async only
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from foqs.client._async.client import AsyncClient
from foqs.client._async.job import AsyncJob, Call, Held
from foqs.client._async.leases import Leases
from foqs.client._async.settler import CALL_TIMEOUT_MS, Ending, Outcomes, Settler, sequel
from foqs.client._async.waits import Background, Event
from foqs.client.ending import END_OF_PROCESS_MS, Failure, WorkerHung, delay_of
from foqs.client.guard import NotRun, SafeLog, guarded, is_a, text_of
from foqs.client.handlers import AckPolicy, Reject, Retry, bounded, delay_argument, metadata_argument, reason_of
from foqs.client.items import Item, Nack
from foqs.client.timing import Backoff
from foqs.errors import FoqsError
from foqs.travel import stripped, trimmed

log = SafeLog()

REPORT_S = 5.0
"""Hosts forget a report after three times this period (`foqs.engine.workers`)."""
TIME_LIMIT = "time limit"
"""The reason of the failure of work that took longer than its limit."""
STOPPED = "the worker stopped"
_REPORT_TIMEOUT_MS = 2_000
_REPEATS = (AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR)
"""Policies in which a handler may ask for another attempt."""


class Work:
    """Each task works on one item at a time. `backoff` sets the delay of a failed item."""

    def __init__(
        self, client: AsyncClient, leases: Leases, settler: Settler, outcomes: Outcomes, stopping: Event, *,
        policy: AckPolicy, backoff: Backoff, time_limit_ms: int | None, report_errors: bool,
    ) -> None:  # fmt: skip
        self._client = client
        self._leases = leases
        self._settler = settler
        self._outcomes = outcomes
        self._stopping = stopping
        self._policy = policy
        self._backoff = backoff
        self._time_limit_s = None if time_limit_ms is None else time_limit_ms / 1000
        self._report_errors = report_errors

    async def run(self, call: Call, held: Held) -> None:
        """Work on an item whose lease is live, and have its outcome sent."""
        try:
            await self._run(call, held)
        except (asyncio.CancelledError, GeneratorExit):  # async only
            raise  # the event loop ends, or was left
        except BaseException as error:  # such as of a job whose attributes the handler has replaced
            if held.settling or self._settler.inherited:
                raise
            log.error("the outcome of %s cannot be read, so it has failed", held, exc_info=error)
            self._failed(held, error)
        finally:
            if held.stop_at is not None and not self._settler.inherited:
                self._leases.work_ended(held)

    async def _run(self, call: Call, held: Held) -> None:
        if self._policy is AckPolicy.ACK_FIRST and not await self._acked(held):
            return
        if self._time_limit_s is not None:
            self._leases.limit(held, self._time_limit_s)
        end = self._put if self._policy is AckPolicy.MANUAL else None
        job = AsyncJob(held, self._leases.extend, self._leases.say, self._leases.limit, self._stopping, end)
        attempt = _attempt(self._traced(call, held), held.item, job)
        attempt = held.in_task(attempt)  # async only
        error = await attempt
        if held.say_at < inf:
            await self._leases.tell_rest(held)
        try:
            self._settle(held, job, error)
        finally:
            del error  # its traceback holds this frame

    def _settle(self, held: Held, job: AsyncJob, error: BaseException | None) -> None:
        """Decide the outcome of work that ended, with an error or without one."""
        self._settler.check_process()
        if held.stopped and is_a(error, asyncio.CancelledError) and self._not_done(held, job):  # async only
            return
        late = held.stop_at is not None and monotonic() >= held.stop_at
        if self._policy is AckPolicy.ACK_FIRST:
            self._report(held, error, "it stays acked")
            self._outcomes.ended(held, "done" if error is None and not late else "failed")
        elif self._policy is AckPolicy.MANUAL:
            self._report(held, error, "its outcome is the job's")
            if job.open:
                self._outcomes.ended(held, "left_open")
        elif job.released or (error is None and not late and self._gave_up(held)):
            self._put(held, Nack.of(held, metadata=job.metadata, uncounted=True))
        elif error is None and not late:
            self._put(held, None, job.result)
        else:
            nack = self._nack(held, job.metadata, error, late=late)
            self._put(held, nack, failure=self._failure(held, error, late=late))

    def _gave_up(self, held: Held) -> bool:
        """Return True if the handler knew that its lease may have ended: its return does not say that the work is done,
        and the lease may still hold."""
        return held.lost is not None and held.lost.seen and self._policy is not AckPolicy.ACK

    def _not_done(self, held: Held, job: AsyncJob) -> bool:  # async only
        """Give back an item whose handler was cancelled by the end of the worker. Return False if its policy, or its
        handler, has decided how it ends."""
        if (
            held.at_most_once
            or self._policy is AckPolicy.ACK_FIRST
            or (self._policy is AckPolicy.MANUAL and not job.open)
        ):
            return False
        job.open = False
        self._put(held, Nack.of(held, metadata=job.metadata, reason=STOPPED, uncounted=True))
        return True

    def cut_off(self, held: Held) -> bool:
        """Give back the item of a handler that works until the process ends. Return False if its lease has to run
        out: its policy, or its handler, decides how it ends."""
        if held.settling or held.gone or held.at_most_once or self._policy in (AckPolicy.ACK_FIRST, AckPolicy.MANUAL):
            return False
        self._put(held, Nack.of(held, delay_ms=END_OF_PROCESS_MS, reason=STOPPED, uncounted=True))
        return True

    def release(self, held: Held) -> None:
        """Give back an item that was not begun."""
        self._settler.put(Ending(held, Nack.of(held, release=True)))

    # ------------------------------------------------------------------------------------- inside

    async def _acked(self, held: Held) -> bool:
        """Ack the item. Return True if the server confirmed that. Its handler is not called otherwise, and the item
        is delivered again unless the ack was carried out without a confirmation."""
        try:
            await self._client.ack(held, timeout_ms=CALL_TIMEOUT_MS)
        except FoqsError as error:
            self._outcomes.settled([(Ending(held, None), error)])
            return False
        held.acked()
        self._outcomes.note(Ending(held, None), None)
        return True

    def _traced(self, call: Call, held: Held) -> Call:
        tracing = self._client.tracing
        if tracing is not None and (span := guarded("tracing a handler", tracing.process, held)) is not None:
            return _in_span(span, call)
        return call

    def _nack(self, held: Held, metadata: bytes | None, error: BaseException | None, *, late: bool) -> Nack | None:
        """Return the outcome of failed work, None for an ack."""
        if self._policy is AckPolicy.ACK:
            return None
        delay_ms = delay_of(self._backoff, held.attempt)
        if late or error is None:
            return Nack.of(held, delay_ms=delay_ms, metadata=metadata, reason=TIME_LIMIT, failed=True)
        of = ""
        if is_a(error, Retry):
            retry: Any = error  # its attributes may have been changed to anything
            try:
                asked_ms, own = delay_argument(retry.delay_ms), metadata_argument(retry.metadata)
                counts = retry.counts is not False
            except BaseException as broken:
                log.error("what a Retry asks for %s cannot be read, so it has failed", held, exc_info=broken)
                error, of = stripped(broken), "Retry: "
            else:
                return Nack.of(
                    held, delay_ms=delay_ms if asked_ms is None else asked_ms, reason="Retry",
                    metadata=metadata if own is None else own, failed=counts and asked_ms is None, uncounted=not counts,
                )  # fmt: skip
        rejects = self._policy is AckPolicy.REJECT_ON_ERROR or is_a(error, Reject)
        reason = bounded(of + (text_of(error) if is_a(error, Reject) else reason_of(error, text=self._report_errors)))
        if rejects:
            return Nack.of(held, reason=reason, reject=True)
        return Nack.of(held, delay_ms=delay_ms, metadata=metadata, reason=reason, failed=True)

    def _failed(self, held: Held, error: BaseException) -> None:
        """End work whose outcome could not be read."""
        if self._policy is AckPolicy.ACK_FIRST:
            self._outcomes.ended(held, "failed")
        elif self._policy is AckPolicy.MANUAL:
            self._outcomes.ended(held, "left_open")
        else:
            self._put(held, self._nack(held, None, error, late=False))

    def _report(self, held: Held, error: BaseException | None, sequel: str) -> None:
        """Log a failure that no nack follows."""
        if (failure := self._failure(held, error)) is not None:
            failure.log(sequel)

    def _failure(self, held: Held, error: BaseException | None, *, late: bool = False) -> Failure | None:
        """Return what the log has of work that ended by an error, or after its time limit. None: nothing."""
        if error is not None:
            trimmed(error)
        what: str | None = str(held)
        what = held.in_log()  # async only
        if what is None or (error is None and not late):
            return None
        failure = partial(Failure, what, held.attempt)
        raised = error
        raised = None if is_a(error, asyncio.CancelledError) else error  # async only
        if late:
            return failure("the time limit of %s has passed", raised)
        if raised is None and (held.stopped or held.gone):  # async only
            said = "the worker stopped while the handler worked on %s"
            return None if held.gone else failure(said, None, logging.WARNING)  # the log has that the lease was lost
        assert error is not None, "the work failed"
        if is_a(error, Retry):
            cause, repeats = _cause_of(error), not held.at_most_once and self._policy in _REPEATS
            asked = "the handler asked for another attempt of %s"
            level = logging.WARNING if repeats else logging.ERROR
            return None if repeats and cause is None else failure(asked, cause, level)
        if is_a(error, Reject):
            why = f"the handler rejected %s with {_escaped(text_of(error))!r}"
            return failure(why, error.__cause__, logging.WARNING, logging.WARNING)
        if is_a(error, NotRun):
            return failure(f"{_escaped(text_of(error))}; %s", None)
        return failure("the handler failed with %s", error)

    def _put(
        self, held: Held, nack: Nack | None, result: bytes | None = None, failure: Failure | None = None
    ) -> None:  # fmt: skip
        if failure is not None and (held.gone or nack is None):  # no answer to a nack comes
            failure.log(sequel(held, nack))
            failure = None
        if held.gone:
            self._outcomes.ended(held, "lost")
        else:
            self._settler.put(Ending(held, nack, result, failure))


class Hangs:
    """What a worker does about handlers that hang: a warning, and a report to the hosts.

    When all handlers hang, `end(error)` ends the worker, or `give_back()` gives back the items that wait for a handler:
    their leases would be extended for ever. When the handlers of all items that `per_worker` allows for `topics` hang,
    the worker would take no item again, and `end` is called as well. `name` is the worker's, once it has started."""

    name = ""

    def __init__(
        self, client: AsyncClient, leases: Leases, outcomes: Outcomes, topics: Sequence[str],
        end: Callable[[WorkerHung], None] | None, give_back: Callable[[], None],
    ) -> None:  # fmt: skip
        self._client = client
        self._leases = leases
        self._change = leases.change
        self._limits = leases.limits
        self._outcomes = outcomes
        self._topics = topics
        self._end = end
        self._give_back = give_back
        self._reporter = Background("foqs-hung", self._report)
        self._closed = Event()
        self._limits.found = self.found

    def found(self, over: list[tuple[Held, float]]) -> None:
        """Act on more handlers that exceed their time limit."""
        for held, took_s in over:
            log.warning(
                "the handler of %s hangs: it has run for %.3f s, longer than the time limit; %s",
                held, took_s, _hung_sequel(held),
            )  # fmt: skip
        self._outcomes.count("hung", len(over))
        items, share = self._limits.items_over, self._leases.share
        which = ""
        if self._limits.all_hang:
            if self._end is None:
                self._give_back()
            which = f"all {self._limits.handlers} handlers of the worker hang"
        elif share is not None and items >= share.most(self._topics):
            which = f"all {items} handlers that per_worker allows hang"
        if which and self._end is not None:
            self._end(WorkerHung(f"{which}: each is over time_limit_ms"))
            return
        with self._change:
            if not self._closed.is_set():
                guarded("the task that reports hung handlers", self._reporter.begin)

    def close(self) -> None:
        """Report no more."""
        self._closed.set()

    async def _report(self) -> None:
        """Have `foqs topic stats` show the hung handlers, whose leases end, while there are any."""
        while True:
            with self._change:
                over = self._limits.over()
                if not over or self._closed.is_set():
                    self._reporter.running = False
                    return
            await self._ask(over)
            await self._closed.wait(REPORT_S)

    async def _ask(self, over: Counter[str]) -> None:
        try:
            await self._client.report_hung(over, worker=self.name, timeout_ms=_REPORT_TIMEOUT_MS)
        except Exception as error:
            log.debug("the hung handlers are not reported", exc_info=error)


def _cause_of(error: BaseException) -> BaseException | None:
    """Return the exception that `error` was raised from, or while it was handled. None: there is none, or an exit."""
    cause = error.__cause__
    if cause is None and not error.__suppress_context__:
        cause = error.__context__
    return trimmed(cause) if cause is not None and is_a(cause, Exception) else None


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _hung_sequel(held: Held) -> str:
    """Return the next step of the item of a handler that hangs, for the log."""
    if held.settling or held.expires == inf:
        return "the outcome of the item was given before"
    sequel = "the item is lost, as it is at-most-once" if held.at_most_once else "the item is delivered again"
    return f"the lease is not extended any longer, so {sequel}"


async def _attempt(call: Call, item: Item, job: AsyncJob) -> BaseException | None:
    """Call the handler. Return what ended it by an error."""
    try:
        await call(item, job)
    except BaseException as error:  # noqa: BLE001 - whatever ends a handler is the outcome of its item
        return error
    return None


def _in_span(span: AbstractContextManager[None], call: Call) -> Call:
    async def traced(item: Item, job: AsyncJob) -> object:
        with span:
            return await call(item, job)

    return traced
