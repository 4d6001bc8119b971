"""Folds the lines of a host's log that repeat while a shard, a database, ZooKeeper or another host stays bad.

It is a step of the log, and not of its callers, so that a new event is folded without any further code. The first line
of an event is written at once. Its repeats are counted, and one line a minute, and one at the end, has their number.
What one event is: its name, the fields that name its subject, and the kind of its error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from datetime import UTC, datetime
from time import monotonic
from typing import Any, NamedTuple

from foqs.policies.failures import fingerprint

EVERY_S = 60.0
QUIET_S = 30.0
"""An event that does not repeat for this time has ended."""
BURST = 5
"""Lines that are written before the first is counted, of events that name single requests or are good news."""
KEPT_APART = frozenset({"foqs.audit", "foqs.processes", "foqs.config.load", "foqs.log"})
"""Loggers whose lines are all written: what callers did, deaths of processes (which pause), answers to SIGHUP."""
NOT_FOLDED = frozenset({"shard.not_opened"})
"""One line for all shards, with a pause that grows to a minute (`foqs.server.outages`)."""
_SUBJECTS = (
    "shard", "node", "to", "ns", "topic", "name", "host", "root", "path", "method", "hook", "script", "what", "state",
    "scheme", "thread", "of",
)  # fmt: skip
_ERRORS = ("reason", "error", "errors", "warning", "warnings", "said", "why", "kind")
_MOST = 10_000
_LOOK_S = 1.0

Event = MutableMapping[str, Any]


class Last(NamedTuple):
    """A line of an event that repeats, as `logger` and `level` would write it."""

    logger: str
    level: str
    event: dict[str, Any]


class _Run:
    __slots__ = ("last", "last_s", "left_out", "line_s", "new", "since", "written")

    def __init__(self, now_s: float, since: str) -> None:
        self.line_s = self.last_s = now_s
        self.since = since
        self.written = 1
        self.left_out = 0
        self.new = False  # repeats since the last line
        self.last: Last | None = None  # without its exception, which would keep frames


class Repeats:
    """The events that repeat. Times are seconds of a monotonic clock. Not thread-safe."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def writes(self, last: Last, burst: int, now_s: float, since: str) -> bool:
        """Return True if the line is written, False if it is counted. `since`: the present time, for people."""
        key = key_of(last)
        run = self._runs.get(key)
        if run is None or now_s - run.last_s >= QUIET_S:
            if len(self._runs) >= _MOST:
                self._runs = {one: kept for one, kept in self._runs.items() if now_s - kept.last_s < QUIET_S}
            if len(self._runs) < _MOST:  # else it is written, as any other: no kind of error is lost
                self._runs[key] = _Run(now_s, since)
            return True
        run.last_s = now_s
        if run.written < burst:
            run.written += 1
            return True
        run.left_out += 1
        run.new = True
        run.last = last._replace(event={name: value for name, value in last.event.items() if name != "exc_info"})
        return False

    def due(self, now_s: float, *, all_end: bool = False) -> Iterator[Last]:
        """Yield the lines about repeats that are due. `all_end`: nothing comes after."""
        for key, run in list(self._runs.items()):
            ended = all_end or now_s - run.last_s >= QUIET_S
            if ended:
                del self._runs[key]
            if run.last is not None and (ended or (run.new and now_s - run.line_s >= EVERY_S)):
                run.line_s, run.new = now_s, False
                more: dict[str, Any] = {"repeats": run.left_out, "since": run.since}
                yield run.last._replace(event={**run.last.event, **more, **({"ended": True} if ended else {})})


def key_of(line: Last) -> Hashable:
    """Return what lines of one event have in common."""
    event, error = line.event, line.event.get("exc_info")
    subjects = tuple(str(event[name]) for name in _SUBJECTS if name in event)
    kinds = [fingerprint(str(event[name])) for name in _ERRORS if name in event]
    if isinstance(error, BaseException):
        kinds += [hash(type(error).__name__), fingerprint(str(error))]
    text = event["event"]
    return line.logger, line.level, text if line.logger.startswith("foqs") else fingerprint(text), subjects, *kinds


def burst_of(line: Last) -> int:
    """Return how many lines of an event are written before the first one is counted."""
    return BURST if line.level == "info" or not {"left_out", "request_id"}.isdisjoint(line.event) else 1


class Fold:
    """A step of the log that counts repeats, with a thread that writes their lines while there are any. Thread-safe.

    `write(line)` writes a line that it yields; such a line passes the step as it is."""

    def __init__(self, write: Callable[[Last], None], now_s: Callable[[], float] = monotonic) -> None:
        self._write = write
        self._now_s = now_s
        self._repeats = Repeats()
        self._lock = threading.RLock()  # a signal handler may log
        self._looks = False

    def passes(self, logger: str, level: str, event: Mapping[str, Any]) -> bool:
        """Return True to write the line, False if it is counted."""
        if level == "debug" or logger in KEPT_APART or event["event"] in NOT_FOLDED or "repeats" in event:
            return True
        line = Last(logger, level, dict(event))
        with self._lock:
            passes = self._repeats.writes(line, burst_of(line), self._now_s(), _now())
            if not passes and not self._looks:
                self._looks = True
                threading.Thread(target=self._look, name="foqs-repeats", daemon=True).start()
        return passes

    def end(self) -> None:
        """Write the last counts, at the end of the host."""
        self._looks_again(all_end=True)

    def _look(self) -> None:
        pause = threading.Event()
        while self._looks_again():
            pause.wait(_LOOK_S)

    def _looks_again(self, *, all_end: bool = False) -> bool:
        """Write the lines that are due. Return False if no event repeats."""
        with self._lock:
            due = list(self._repeats.due(self._now_s(), all_end=all_end))
            self._looks = looks = len(self._repeats) > 0
        for line in due:
            self._write(line)
        return looks


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
