"""Stops calls of a script that fails again and again. Pure: the caller's clock is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from foqs.hooks.protocol import Failed, Hook, HookKey, Kind, Outcome

FAILURES_IN_A_ROW = 3
OPEN_MS = 10_000
MOST_ERRORS = 5
_ERROR_CHARACTERS = 300


class HookError(NamedTuple):
    """A failure of a script. `at_ms`: by the host's clock."""

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
        """Return the time until a call is tried; 0 where the breaker is closed."""
        raise NotImplementedError
