"""What the process of a worker measures of its runs: their outcomes and times, and the delay of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from time import monotonic
from typing import Any, Literal

from foqs.client import AsyncJob, Item, Reject, Retry
from foqs.client.handlers import TASK_HEADER
from foqs.counters import Histogram

SECONDS = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
UNKNOWN = "unknown"
"""The task of items that no task of the App takes: their header may hold anything."""

Outcome = Literal["completed", "failed", "retried", "rejected", "released", "lost"]
Handler = Callable[[Item, AsyncJob], Awaitable[None]]


class Meter:
    """Measures the runs of one process, on its event loop. `ended` counts them since the start, and `look`, if there is
    one, is called after each."""

    def __init__(self, tasks: Collection[str], look: Callable[[], object] | None = None) -> None:
        self.ended = 0
        self.lag_s = 0.0
        self._tasks = tasks
        self._look = look
        self._running: set[AsyncJob] = set()
        self._outcomes: Counter[tuple[str, str, str]] = Counter()
        self._seconds: defaultdict[tuple[str, str], Histogram] = defaultdict(partial(Histogram, SECONDS))

    def around(self, handle: Handler) -> Handler:
        """Return what runs an item, measured."""

        async def measured(item: Item, job: AsyncJob) -> None:
            task = (item.headers or {}).get(TASK_HEADER, UNKNOWN)
            task = task if task in self._tasks else UNKNOWN
            began = monotonic()
            self._running.add(job)
            try:
                await handle(item, job)
            except BaseException as error:
                self._outcomes[task, item.topic, outcome_of(job, error, monotonic())] += 1
                raise
            else:
                self._outcomes[task, item.topic, outcome_of(job, None, monotonic())] += 1
            finally:
                self._seconds[task, item.topic].observe(monotonic() - began)
                self._running.discard(job)
                self.ended += 1
                if self._look is not None:
                    self._look()

        return measured

    def over_limit(self, now: float, extra_s: float) -> int:
        """Return how many runs are at work `extra_s` after their time limit."""
        return sum(job.held.stop_at is not None and now >= job.held.stop_at + extra_s for job in self._running)

    @property
    def running(self) -> int:
        return len(self._running)

    def take(self) -> dict[str, Any]:
        """Return the changes since the last call, as JSON."""
        outcomes, self._outcomes = self._outcomes, Counter()
        seconds, self._seconds = self._seconds, defaultdict(self._seconds.default_factory)
        lag_s, self.lag_s = self.lag_s, 0.0
        return {
            "outcomes": [[*labels, count] for labels, count in outcomes.items()],
            "seconds": [[*labels, histogram.counts, histogram.total] for labels, histogram in seconds.items()],
            "in_flight": Counter(job.item.topic for job in self._running),
            "lag_s": lag_s,
        }


def outcome_of(job: AsyncJob, error: BaseException | None, now: float) -> Outcome:
    """Return how a run has ended, as the worker will decide."""
    held = job.held
    if held.gone:
        return "lost"
    late = held.stop_at is not None and now >= held.stop_at
    stopped = held.stopped and (isinstance(error, asyncio.CancelledError) or (isinstance(error, Retry) and not late))
    if job.released or stopped:
        return "lost" if held.at_most_once else "released"
    if late:
        return "failed"
    if error is None:
        return "completed"
    if isinstance(error, Reject):
        return "rejected"
    return "retried" if isinstance(error, Retry) else "failed"
