"""The metrics of `foqs worker`: the sums of what its processes report.

The processes report differences, so that counters outlive them.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from foqs.admin.exposition import Rows
from foqs.admin.families import Family
from foqs.counters import Histogram
from foqs.tasks.meter import SECONDS

SILENT_S = 10.0
"""A process that has not reported for this time is not healthy."""
_TOPIC = ("namespace", "topic")
_REASONS = ("died", "hard_limit", "max_jobs", "max_memory", "reload")
_ALL = (
    Family(
        "foqs_worker_tasks_total",
        "counter",
        "Runs that ended: `completed`, `failed` (an exception, or the time limit), `retried` (`Retry`), "
        "`rejected`, `released` (given back without an attempt counted), `lost` (another worker may have the "
        "item, or an at-most-once item was interrupted). `task` is `unknown` for items of tasks that the App "
        "does not have.",
        (*_TOPIC, "task", "outcome"),
    ),
    Family("foqs_worker_in_flight", "gauge", "Tasks at work.", _TOPIC),
    Family("foqs_worker_task_seconds", "histogram", "Duration of a run.", (*_TOPIC, "task")),
    Family(
        "foqs_worker_concurrency",
        "gauge",
        "Tasks of the topic that all processes may run at a time. Topics without batches share it.",
        _TOPIC,
    ),
    Family(
        "foqs_worker_loop_lag_seconds",
        "gauge",
        "The longest delay of an event loop in the last second, of all processes. A coroutine that blocks shows here.",
    ),
    Family("foqs_worker_processes", "gauge", "Processes that run tasks."),
    Family(
        "foqs_worker_silent_processes",
        "gauge",
        "Processes that have not started, or have not reported in the last 10 s.",
    ),
    Family(
        "foqs_worker_restarts_total",
        "counter",
        "Processes that were replaced: `died`, `hard_limit`, `max_jobs`, `max_memory`, `reload`.",
        ("reason",),
    ),
)
FAMILIES = {family.name: family for family in _ALL}


class Totals:
    """The sums of what the processes report. Thread-safe: requests are answered in threads."""

    def __init__(self, processes: Collection[str]) -> None:
        self._processes = processes
        self._namespace = ""  # that of the App, once a process has reported
        self._lock = threading.Lock()
        self._outcomes: Counter[tuple[str, ...]] = Counter()
        self._seconds: defaultdict[tuple[str, ...], Histogram] = defaultdict(partial(Histogram, SECONDS))
        self._restarts = Counter(dict.fromkeys(_REASONS, 0))  # or a rate misses the first one
        self._last: dict[str, tuple[float, Mapping[str, Any]]] = {}  # the time and the report of each process

    def add(self, process: str, report: Mapping[str, Any], now: float) -> None:
        with self._lock:
            self._last[process] = now, report
            self._namespace = report["namespace"]
            for task, topic, outcome, count in report["outcomes"]:
                self._outcomes[topic, task, outcome] += count
            for task, topic, counts, total in report["seconds"]:
                histogram = self._seconds[topic, task]
                histogram.counts = [a + b for a, b in zip(histogram.counts, counts, strict=True)]
                histogram.total += total

    def ended(self, process: str, why: str) -> None:
        """Take the end of a process, after which another one starts."""
        with self._lock:
            self._last.pop(process, None)
            self._restarts[why] += 1

    def sick(self, now: float) -> str:
        """Return which process has not reported; empty if each has."""
        with self._lock:
            return next(self._sick(now), "")

    def _sick(self, now: float) -> Iterator[str]:
        for process in self._processes:
            if process not in self._last:
                yield f"process {process} has not started"
            elif (silent_s := now - self._last[process][0]) > SILENT_S:
                yield f"process {process} has not reported for {silent_s:.0f} s"

    def rows(self, now: float) -> Rows:
        with self._lock:
            silent = sum(1 for _ in self._sick(now))
            reports = [report for _, report in self._last.values()]
            at_work: Counter[str] = Counter()
            places: Counter[str] = Counter()
            for report in reports:
                at_work.update({**dict.fromkeys(report["places"], 0), **report["in_flight"]})
                places.update(report["places"])

            def of_topics(counts: Mapping[str, int]) -> list[Any]:
                return [((self._namespace, topic), count) for topic, count in counts.items()]

            return {
                "foqs_worker_tasks_total": [((self._namespace, *of), count) for of, count in self._outcomes.items()],
                "foqs_worker_in_flight": of_topics(at_work),
                "foqs_worker_task_seconds": [
                    ((self._namespace, *of), each.copy()) for of, each in self._seconds.items()
                ],
                "foqs_worker_concurrency": of_topics(places),
                "foqs_worker_loop_lag_seconds": [((), max((report["lag_s"] for report in reports), default=0.0))],
                "foqs_worker_processes": [((), len(reports))],
                "foqs_worker_silent_processes": [((), silent)],
                "foqs_worker_restarts_total": [((why,), count) for why, count in self._restarts.items()],
            }
