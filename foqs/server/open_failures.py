"""Decide when to log which shards cannot be opened: one line for all of them, with a growing pause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import NamedTuple

_COLLECT_MS = 200  # several shards of one database server fail at about the same time
_FIRST_PAUSE_MS = 2_000
_LONGEST_PAUSE_MS = 60_000
_FORGET_MS = 5_000
_MOST_NUMBERS = 20


class Line(NamedTuple):
    """`reason` is the most frequent one; `reasons` counts the different ones. `again_ms`: the pause until the next."""

    shards: list[int]
    not_open: int
    reason: str
    reasons: int
    waiting: int
    again_ms: int


class _Failure(NamedTuple):
    reason: str
    held: bool
    at_ms: int


class OpenFailures:
    """The shards whose last attempt to open them failed. Times are milliseconds of a monotonic clock."""

    def __init__(self) -> None:
        self._failures: dict[int, _Failure] = {}
        self._said: dict[int, bool] = {}  # the shards of the lines so far, and whether another host had them
        self._pause_ms = _FIRST_PAUSE_MS
        self._line_ms: int | None = None
        self.due_ms: int | None = None
        """Return the time of the next call of `line`."""

    def failed(self, shard: int, reason: str, now_ms: int, *, held: bool) -> None:
        """`held`: another host has the shard, so this one is a standby. That is said once."""
        self._failures[shard] = _Failure(reason, held, now_ms)
        if shard not in self._said or (self._said[shard] and not held):
            first = now_ms + _COLLECT_MS
            soon = first if self._line_ms is None else max(first, self._line_ms + _FIRST_PAUSE_MS)
            self.due_ms = soon if self.due_ms is None else min(self.due_ms, soon)
        elif self.due_ms is None and not held and self._line_ms is not None:
            self.due_ms = self._line_ms + self._pause_ms

    def opened(self, shard: int) -> None:
        self._failures.pop(shard, None)
        self._said.pop(shard, None)
        if not self._failures:
            self._pause_ms = _FIRST_PAUSE_MS
            self.due_ms = None

    def line(self, assigned: Container[int], now_ms: int) -> Line | None:
        """Return what to log now, None if all shards were opened or given to other hosts."""
        for shard, failure in list(self._failures.items()):
            if shard not in assigned and failure.at_ms + _FORGET_MS < now_ms:  # between two attempts it is not either
                self.opened(shard)
        self.due_ms = None
        if not self._failures:
            return None
        again_ms = self._pause_ms
        self._pause_ms = min(2 * again_ms, _LONGEST_PAUSE_MS)
        self._line_ms = now_ms
        if any(not failure.held for failure in self._failures.values()):
            self.due_ms = now_ms + again_ms
        self._said = {shard: failure.held for shard, failure in self._failures.items()}
        reasons = Counter(failure.reason for failure in self._failures.values())
        ((reason, _),) = reasons.most_common(1)
        waiting = sum(failure.held for failure in self._failures.values())
        shards = sorted(self._failures)[:_MOST_NUMBERS]
        return Line(shards, len(self._failures), reason, len(reasons), waiting, again_ms)
