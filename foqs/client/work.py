"""The work on one leased item: runs its handler, and decides its outcome by the ack policy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from foqs.client.ack_policy import AckPolicy, bounded, reason_of
from foqs.client.client import Client
from foqs.client.guard import SafeLog, guarded, is_a
from foqs.client.held import Held
from foqs.client.items import Nack
from foqs.client.job import Call, Job, Retry, asked_by
from foqs.client.leases import Leases
from foqs.client.outcome_counts import Outcomes
from foqs.client.returned import NotRun
from foqs.client.settler import CALL_TIMEOUT_MS, Ending, Settler
from foqs.errors import FoqsError
from foqs.travel import stripped

log = SafeLog()

TIME_LIMIT = "time limit"
"""The reason of the failure of work that took longer than its limit."""
_REPEATS = (AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR)
"""Policies in which a handler may ask for another attempt."""


class Work:
    """Thread-safe: each thread works on one item at a time. `delay_ms(held)` is the delay of a failed item."""

    def __init__(
        self, client: Client, leases: Leases, settler: Settler, outcomes: Outcomes, stopping: threading.Event, *,
        policy: AckPolicy, delay_ms: Callable[[Held], int], time_limit_ms: int | None, report_errors: bool,
    ) -> None:  # fmt: skip
        self._client = client
        self._leases = leases
        self._settler = settler
        self._outcomes = outcomes
        self._stopping = stopping
        self._policy = policy
        self._delay_ms = delay_ms
        self._time_limit_s = None if time_limit_ms is None else time_limit_ms / 1000
        self._report_errors = report_errors

    def run(self, call: Call, held: Held) -> None:
        """Work on an item whose lease stands, and have its outcome sent."""
        try:
            self._run(call, held)
        except BaseException as error:  # such as of a job whose attributes the handler has replaced
            if held.settling or self._settler.inherited:
                raise
            log.error("the outcome of %s cannot be read, so it has failed", held, exc_info=error)
            self._failed(held, error)
        finally:
            if self._time_limit_s is not None and not self._settler.inherited:
                self._leases.work_ended(held)

    def _run(self, call: Call, held: Held) -> None:
        if self._policy is AckPolicy.ACK_FIRST and not self._acked(held):
            return
        if self._time_limit_s is not None:
            self._leases.limit(held, self._time_limit_s)
        end = self._ended_by_job if self._policy is AckPolicy.MANUAL else None
        job = Job(held, self._leases.extend, self._stopping, end)
        error = self._failure(call, held, job)
        try:
            self._settle(held, job, error)
        finally:
            del error  # its traceback holds this frame

    def _settle(self, held: Held, job: Job, error: BaseException | None) -> None:
        """Decide the outcome of work that ended, with an error or without one."""
        self._settler.check_process()
        late = held.stop_at is not None and monotonic() >= held.stop_at
        if self._policy is AckPolicy.ACK_FIRST:
            self._report(held, error, "it stays acked")
            self._outcomes.worked(held, failed=error is not None or late)
        elif self._policy is AckPolicy.MANUAL:
            self._report(held, error, "its outcome is the job's")
            if job.open:
                self._outcomes.left_open(held)
        elif error is None and not late:
            self._put(held, None)
        else:
            nack = self._nack(held, job.metadata, error, late=late)
            self._report(held, error, _sequel(held, nack))
            self._put(held, nack)

    def release(self, held: Held) -> None:
        """Give back an item that was not begun."""
        self._settler.put(Ending(held, Nack.of(held, release=True)))

    # ------------------------------------------------------------------------------------- inside

    def _acked(self, held: Held) -> bool:
        """Ack the item, and return whether the server confirmed that. Its handler is not called otherwise, and the item
        is delivered again unless the ack was carried out without a confirmation."""
        try:
            self._client.ack(held, timeout_ms=CALL_TIMEOUT_MS)
        except FoqsError as error:
            self._outcomes.settled([(Ending(held, None), error)])
            return False
        held.acked()
        self._outcomes.note(Ending(held, None), None)
        return True

    def _failure(self, call: Call, held: Held, job: Job) -> BaseException | None:
        tracing = self._client.tracing
        if tracing is not None:
            call = guarded("tracing a handler", tracing.process, held, call) or call
        try:
            call(held.item, job)
        except BaseException as error:  # noqa: BLE001 - whatever ends a handler is the outcome of its item
            return error
        return None

    def _nack(self, held: Held, metadata: bytes | None, error: BaseException | None, *, late: bool) -> Nack | None:
        """Return the outcome of failed work, None for an ack."""
        if self._policy is AckPolicy.ACK:
            return None
        delay_ms = self._delay_ms(held)
        if late or error is None:
            return Nack.of(held, delay_ms=delay_ms, metadata=metadata, reason=TIME_LIMIT, failed=True)
        of = ""
        if is_a(error, Retry):
            try:
                asked_ms, own = asked_by(error)
            except BaseException as broken:
                log.error("what a Retry asks for %s cannot be read, so it has failed", held, exc_info=broken)
                error, of = stripped(broken), "Retry: "
            else:
                return Nack.of(
                    held, delay_ms=delay_ms if asked_ms is None else asked_ms, reason="Retry", failed=asked_ms is None,
                    metadata=metadata if own is None else own,
                )  # fmt: skip
        reason = bounded(of + reason_of(error, text=self._report_errors))
        if self._policy is AckPolicy.REJECT_ON_ERROR:
            return Nack.of(held, reason=reason, reject=True)
        return Nack.of(held, delay_ms=delay_ms, metadata=metadata, reason=reason, failed=True)

    def _failed(self, held: Held, error: BaseException) -> None:
        """The work is over, and its outcome could not be read."""
        if self._policy is AckPolicy.ACK_FIRST:
            self._outcomes.worked(held, failed=True)
        elif self._policy is AckPolicy.MANUAL:
            self._outcomes.left_open(held)
        else:
            self._put(held, self._nack(held, None, error, late=False))

    def _report(self, held: Held, error: BaseException | None, sequel: str) -> None:
        if error is None:
            return
        if is_a(error, Retry):
            if held.at_most_once or self._policy not in _REPEATS:
                log.error("the handler asked for another attempt of %s: %s", held, sequel)
        elif is_a(error, NotRun):
            log.error("%s; %s: %s", error, held, sequel)
        else:
            log.error("the handler failed with %s: %s", held, sequel, exc_info=error)

    def _ended_by_job(self, job: Job, nack: Nack | None) -> None:
        self._put(job.held, nack)

    def _put(self, held: Held, nack: Nack | None) -> None:
        if held.gone:
            self._outcomes.lost(held)
        else:
            self._settler.put(Ending(held, nack))


def _sequel(held: Held, nack: Nack | None) -> str:
    """The next step of an item after a failed attempt, for the log."""
    if nack is None:
        return "it is acked all the same"
    if nack.reject:
        return "it is rejected"
    if held.at_most_once:
        return "it is lost, as an at-most-once item is not delivered again"
    if held.gone:
        return "its lease is lost, so it is delivered again without this nack"
    if nack.failed:
        return "again, or a dead letter, as its topic's policy says"
    return f"again in {nack.delay_ms} ms"
