"""Stops calls of a script that fails again and again. Pure: the caller's clock is passed in."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from foqs.hooks.protocol import Failed, Kind

FAILURES_IN_A_ROW = 3
OPEN_MS = 10_000
MOST_ERRORS = 5
UNBOUNDED = 1 << 30
_ERROR_CHARACTERS = 300


class HookError(NamedTuple):
    """A failure of a script. `at_ms`: epoch milliseconds."""

    at_ms: int
    kind: Kind
    text: str


class Breaker:
    """Of one hook of a topic. `FAILURES_IN_A_ROW` failures open it for `OPEN_MS`; then one call is tried, whose success
    closes it and whose failure opens it again.

    `script` is the name of the script that was called last. `last_errors`: the last one comes last."""

    __slots__ = ("_failed", "_open_until_ms", "_trying", "calls", "failures", "last_errors", "script")

    def __init__(self) -> None:
        self.script = ""
        self.calls = 0
        self.failures = 0
        self.last_errors: deque[HookError] = deque(maxlen=MOST_ERRORS)
        self._failed = 0
        self._open_until_ms: int | None = None
        self._trying = False

    @property
    def is_open(self) -> bool:
        """Whether calls are stopped, or the one that is tried has no outcome yet."""
        return self._open_until_ms is not None

    def retry_after_ms(self, now_ms: int) -> int:
        """Return the time until a call is tried; 0 where calls run, or where one is tried now."""
        return 0 if self._open_until_ms is None else max(0, self._open_until_ms - now_ms)

    def room(self, now_ms: int) -> int:
        """Return the number of calls that may begin now. None may while one is tried: they wait for its outcome."""
        if self._open_until_ms is None:
            return UNBOUNDED
        return int(not self._trying and now_ms >= self._open_until_ms)

    def begin(self) -> None:
        """Note that a call begins."""
        self._trying = self._open_until_ms is not None

    def abandon(self) -> None:
        """Note that a call that began has no outcome."""
        self._trying = False

    def succeeded(self, script: str) -> None:
        self.script = script
        self.calls += 1
        self._failed = 0
        if self._trying:
            self._trying = False
            self._open_until_ms = None

    def failed(self, script: str, failure: Failed, now_ms: int, at_ms: int) -> bool:
        """Count a failure that blames the script. `now_ms`: by the clock of `room`; `at_ms`: by the host's clock.

        Return whether the failure opened the breaker."""
        self.script = script
        self.calls += 1
        self.failures += 1
        self._failed += 1
        self.last_errors.append(HookError(at_ms, failure.kind, failure.text[:_ERROR_CHARACTERS]))
        closed = self._open_until_ms is None
        if self._trying or (closed and self._failed >= FAILURES_IN_A_ROW):
            self._trying = False
            self._failed = 0
            self._open_until_ms = now_ms + OPEN_MS
            return True
        return False
