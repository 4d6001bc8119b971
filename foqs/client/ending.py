"""How the work on an item ends: its outcome, and the parts left out of a refused nack. Also the end of a worker whose
handlers hang."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from time import monotonic, sleep
from typing import Any, Literal

from foqs import __version__
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
END_OF_PROCESS_MS = 3_000
"""A process that ends with its worker runs no handler after this time, so their items come again then."""
_END_S = 2.0
"""The time for the clean-up of a program whose handlers still work, before the rest of END_OF_PROCESS_MS."""
MOST_NAMED = 20
OnHang = Literal["warn", "exit"]
_NOTE_BYTES = 300
_METADATA, _DELAY, _REASON = "metadata", "delay_ms", "reason"
Outcome = Literal["done", "failed", "released", "lost", "unsettled", "left_open", "hung", "abandoned"]


@dataclass(slots=True)
class Counts(Value):
    """Outcomes of the items that a worker got. `done`: acked; with ACK_FIRST, the handler returned as well. `failed`:
    nacked, rejected, or an exception after ACK_FIRST. `lost`: the lease had ended before the outcome could be sent, or
    before work was begun, so the item is delivered again; `unsettled`: the server did not take the outcome in time.
    `left_open`: the handler of a MANUAL worker returned without an outcome. `hung`: handlers that ran longer than the
    worker's `time_limit_ms`, each counted once when its time is up, and again by its outcome if it ends. `abandoned`:
    handlers that were at work when the grace of a stop ended, each counted again by its outcome.
    """

    done: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    unsettled: int = 0
    left_open: int = 0
    hung: int = 0
    abandoned: int = 0

    def __str__(self) -> str:
        shown = [f"{getattr(self, one.name)} {one.name}" for one in fields(self)]
        return ", ".join(one for one in shown if not one.startswith("0 ")) or "no items"


@dataclass(slots=True, eq=False)
class Life:
    """Beginning and end of a worker. `tells`: both are in the log. `process_ends`: with the worker. `abandoned`: the
    items of handlers that were at work when the grace ended, for the log."""

    tells: bool = True
    process_ends: bool = False
    began: float = 0.0
    abandoned: list[str] = field(default_factory=list)

    def begin(self, topics: Sequence[str], client: Any, handlers: int, lease_ms: float, grace_ms: float) -> None:
        self.began = monotonic()
        if self.tells:
            log.info(
                "a worker begins: topics %s of namespace %s at %s, %d at a time, lease %s, grace %s; foqs %s",
                ", ".join(topics), client.namespace, client.address, handlers, shown_ms(lease_ms), shown_ms(grace_ms),
                __version__,
            )  # fmt: skip

    def end(self, counts: Counts) -> None:
        if self.tells:
            log.info("the worker has ended after %s: %s", shown_ms((monotonic() - self.began) * 1000), counts)


def outcome_of(nack: Nack | None, error: FoqsError | None) -> Outcome:
    if error is not None:
        return "lost" if isinstance(error, StaleLease | NotFound) else "unsettled"
    if nack is None:
        return "done"
    return "released" if nack.release or nack.uncounted else "failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of one attempt, for the log. `what`: the item, as the log names it; `attempt` is the number of the
    attempt. `said` is what happened: a text with one `%s`, for `what`. `error` is logged with its traceback. `level`
    counts where it is not known what happens to the item, and `last` where it is not tried again."""

    what: str
    attempt: int
    said: str
    error: BaseException | None
    level: int = logging.ERROR
    last: int = logging.ERROR

    def log(self, sequel: str, after: Any = None) -> None:
        """Log it. `sequel` says what happens to the item where its host does not (`after`)."""
        level = self.level
        if after is not None:
            sequel, again = sequel_of(after, self.attempt)
            level = logging.WARNING if again else self.last
        log.log(level, f"{self.said}: %s", self.what, sequel, exc_info=self.error)


def sequel_of(after: Any, attempt: int) -> tuple[str, bool]:
    """Return what happens to an item after a failed attempt, for the log, and True if it is tried again. `after` is the
    host's answer.

    >>> from types import SimpleNamespace as After
    >>> sequel_of(After(again_in_ms=8_000, max_attempts=25, dead_topic=None), 3)
    ('attempt 3 of 25, again in 8 s', True)
    """
    of = "" if after.max_attempts is None else f" of {after.max_attempts}"
    if after.again_in_ms is not None:
        return f"attempt {attempt}{of}, again in {shown_ms(after.again_in_ms)}", True
    if after.dead_topic is not None:
        return f"attempt {attempt}{of}, it is in the dead-letter topic {after.dead_topic}", False
    return f"attempt {attempt}{of}, it is not tried again, and its topic has no dead letters", False


def shown_ms(duration_ms: float) -> str:
    """Return a duration for people.

    >>> shown_ms(0), shown_ms(250), shown_ms(8_000), shown_ms(90_000), shown_ms(7_200_000)
    ('0 ms', '250 ms', '8 s', '90 s', '2 h')
    """
    if duration_ms < 1_000:
        return f"{duration_ms:.0f} ms"
    if duration_ms < 120_000:
        return f"{duration_ms / 1_000:.3g} s"
    return f"{duration_ms / 60_000:.3g} min" if duration_ms < 7_200_000 else f"{duration_ms / 3_600_000:.3g} h"


def cut_off(items: Sequence[str], going_on: int) -> tuple[int, str, str]:
    """Return the arguments of the log line about handlers that were at work when the grace ended. `going_on`: how many
    leases run out, as their handlers cannot be ended and the process lives on."""
    named = ", ".join(items[:MOST_NAMED]) + ", ..." * (len(items) > MOST_NAMED)
    sequel = f"{going_on} still at work: their leases run out" if going_on else "they come again, no attempt counted"
    return len(items), named, sequel


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


def end_process_soon() -> None:
    """End the process in 2 s, if it still runs: handlers would still work on items given back, and an event loop
    waits for them at its end."""

    def end() -> None:
        sleep(_END_S)
        log.error("the process ends with handlers at work: its worker ended %.1f s ago", _END_S)
        os._exit(EXIT_CODE)

    threading.Thread(target=end, name="foqs-exit", daemon=True).start()


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
