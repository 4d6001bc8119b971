"""What a worker does about handlers that hang: a warning, a report to the hosts, and the end of the process."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from math import inf
from time import sleep
from typing import Literal

from foqs.client.client import Client
from foqs.client.guard import SafeLog, guarded
from foqs.client.held import Held
from foqs.client.outcome_counts import Outcomes
from foqs.client.time_limits import Over, TimeLimits
from foqs.errors import FoqsError, Invalid

log = SafeLog()

OnHang = Literal["warn", "exit"]
REPORT_S = 5.0
"""Hosts forget a report after three times this period (`foqs.engine.workers`)."""
EXIT_CODE = 1
_CALL_TIMEOUT_MS = 2_000


class WorkerHung(FoqsError):
    """All handlers of a Worker, or all that `per_worker` allows, are over its time limit. It would take no item."""


def check_on_hang(on_hang: OnHang, time_limit_ms: int | None) -> None:
    """Raises Invalid."""
    if on_hang == "exit" and time_limit_ms is None:
        raise Invalid("on_hang='exit' needs time_limit_ms: without a limit no handler counts as hung")


class Hangs:
    """Thread-safe. When all handlers hang, `end(error)` ends the worker, or `give_back()` gives back the items that
    wait for a handler: their leases would be extended for ever. `places()` is how many items the worker may have. When
    the handlers of all of them hang, it would take no item again, and `end` is called as well."""

    def __init__(
        self, client: Client, limits: TimeLimits, outcomes: Outcomes, name: Callable[[], str | None], handlers: int,
        end: Callable[[WorkerHung], None] | None, give_back: Callable[[], None], places: Callable[[], int],
    ) -> None:  # fmt: skip
        self._client = client
        self._limits = limits
        self._outcomes = outcomes
        self._name = name
        self._handlers = handlers
        self._end = end
        self._give_back = give_back
        self._places = places
        self._lock = threading.Lock()
        self._reporting = False
        self._closed = threading.Event()
        limits.found = self.found

    @property
    def all_hang(self) -> bool:
        return self._limits.over_now >= self._handlers

    def found(self, over: list[Over]) -> None:
        """Some more handlers are over their time limit."""
        for one in over:
            log.warning(
                "the handler of %s hangs: it has run for %.3f s, longer than the time limit; %s",
                one.held, one.took_s, _sequel(one.held),
            )  # fmt: skip
        self._outcomes.hung(len(over))
        if self.all_hang:
            if self._end is not None:
                self._end(WorkerHung(f"all {self._handlers} handlers of the worker hang: each is over time_limit_ms"))
                return
            self._give_back()
        elif self._end is not None and (items := self._limits.items_over) >= self._places():
            self._end(WorkerHung(f"all {items} handlers that per_worker allows hang: each is over time_limit_ms"))
            return
        with self._lock:
            if self._reporting or self._closed.is_set():
                return
            thread = threading.Thread(target=self._report, name="foqs-hung", daemon=True)
            guarded("the thread that reports hung handlers", thread.start)
            self._reporting = thread.is_alive()

    def close(self) -> None:
        """Report no more."""
        self._closed.set()

    def _report(self) -> None:
        """Have `foqs topic stats` show the hung handlers, whose leases end, while there are any."""
        while True:
            with self._lock:
                over = self._limits.over()
                if not over or self._closed.is_set():
                    self._reporting = False
                    return
            guarded("reporting hung handlers", self._ask, over)
            self._closed.wait(REPORT_S)

    def _ask(self, over: Counter[str]) -> None:
        try:
            self._client.report_hung(over, worker=self._name() or "", timeout_ms=_CALL_TIMEOUT_MS)
        except FoqsError as error:
            log.debug("the hung handlers are not reported: %s", error)


def _sequel(held: Held) -> str:
    """The next step of the item of a handler that hangs, for the log."""
    if held.settling or held.expires == inf:
        return "the outcome of the item was given before"
    sequel = "the item is lost, as it is at-most-once" if held.at_most_once else "the item is delivered again"
    return f"the lease is not extended any longer, so {sequel}"


def end_process_after_main(grace_s: float) -> None:
    """End the process `grace_s` after its main thread has ended, if it still runs: Python waits for threads that are no
    daemons, such as those of an executor of a handler that hangs. While the main thread works this does nothing."""
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
