"""How the work on an item ends: its outcome, and the parts left out of a refused nack. Also the end of a worker whose
handlers hang."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass, replace
from time import sleep
from typing import Literal

from foqs.bounds import REASON_BYTES
from foqs.client.guard import SafeLog
from foqs.client.handlers import bounded, delay_argument
from foqs.client.items import Nack
from foqs.client.timing import Backoff
from foqs.errors import FoqsError, NotFound, StaleLease
from foqs.travel import Value

log = SafeLog()

SHORT_REASON_BYTES = 64
EXIT_CODE = 1
OnHang = Literal["warn", "exit"]
_NOTE_BYTES = 300
_METADATA, _DELAY, _REASON = "metadata", "delay_ms", "reason"
Outcome = Literal["done", "failed", "released", "lost", "unsettled", "left_open", "hung"]


@dataclass(slots=True)
class Counts(Value):
    """Outcomes of the items that a worker got. `done`: acked; with ACK_FIRST, the handler returned as well. `failed`:
    nacked, rejected, or an exception after ACK_FIRST. `lost`: the lease had ended before the outcome could be sent, or
    before work was begun, so the item is delivered again; `unsettled`: the server did not take the outcome in time.
    `left_open`: the handler of a MANUAL worker returned without an outcome. `hung`: handlers that ran longer than the
    worker's `time_limit_ms`, each counted once when its time is up, and again by its outcome if it ends.
    """

    done: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    unsettled: int = 0
    left_open: int = 0
    hung: int = 0


def outcome_of(nack: Nack | None, error: FoqsError | None) -> Outcome:
    if error is not None:
        return "lost" if isinstance(error, StaleLease | NotFound) else "unsettled"
    if nack is None:
        return "done"
    return "released" if nack.release or nack.uncounted else "failed"


def word_of(nack: Nack | None) -> str:
    if nack is None:
        return "ack"
    if nack.reject:
        return "reject"
    return "release" if nack.release else "nack"


def without_refused(nack: Nack, why: str, delay_ms: int) -> Nack | None:
    """Return `nack` without the part that `why`, the text of the error, begins with. If it names none, that is the
    metadata if there are any, else the delay. The reason names the refused part. None if there is nothing to leave out,
    so repeated calls end. A nack that is not sent again would lose the reason of the failure.

    `delay_ms` takes the place of a delay that a handler asked for: the item has failed then, so a retry rule counts.
    """
    named = why.partition(" ")[0]
    if named == _REASON:
        if nack.reason is None:
            return None
        shorter = bounded(nack.reason, SHORT_REASON_BYTES)
        return replace(nack, reason=None if shorter == nack.reason else shorter)
    parts = (named,) if named in (_METADATA, _DELAY) else (_METADATA, _DELAY)
    refused = next((part for part in parts if getattr(nack, part) is not None), None)
    if refused is None:
        return None
    reason = bounded(f"sent without {refused}, which was refused: {why}", _NOTE_BYTES)
    if nack.reason:
        reason = f"{bounded(nack.reason, REASON_BYTES - len(reason.encode()) - 2)}; {reason}"
    if refused == _METADATA:
        return replace(nack, reason=reason, metadata=None)
    return replace(nack, reason=reason, failed=True, delay_ms=None if nack.failed else delay_ms)


def delay_of(backoff: Backoff, attempt: int) -> int:
    """Return the delay of a failed item by `backoff`, or by the default one if that raises an error or gives no whole
    milliseconds: it may be a class of the user, and the item must not wait for its repair."""
    try:
        delay_ms = delay_argument(backoff.delay_ms(attempt, random.random))
        if delay_ms is not None:
            return delay_ms
    except BaseException as error:
        log.error("the backoff of the worker gave no delay; the default one counts", exc_info=error)
    return Backoff().delay_ms(attempt, random.random)


class WorkerHung(FoqsError):
    """All handlers of a Worker, or all that `per_worker` allows, exceed its time limit. It would take no item."""


def end_process_after_main(grace_s: float) -> None:
    """End the process `grace_s` after its main thread has ended, if it still runs: Python waits for threads that are no
    daemons, such as threads of an executor of a handler that hangs. While the main thread works this does nothing."""
    ends = threading.Event()
    try:
        # Runs before the interpreter waits for executors, and so before the main thread counts as ended.
        threading._register_atexit(ends.set)  # type: ignore[attr-defined]  # as concurrent.futures does
    except RuntimeError:  # it ends already
        ends.set()

    def wait() -> None:
        ends.wait()
        sleep(grace_s)
        log.error("the process ends with hung threads: its main thread ended %.1f s ago", grace_s)
        os._exit(EXIT_CODE)

    threading.Thread(target=wait, name="foqs-exit", daemon=True).start()
