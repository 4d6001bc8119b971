"""The checkpoint of one time-ordered scan (due timers, or TTLs).

Deleted rows at the low end of an index stay in the tree until purge, so a scan must not begin at zero. The rule is
exact because the owner is the only writer: when a scan is done (all it found is committed), the checkpoint becomes
the smallest of its bound, every time inserted since the scan began, and every row it left where it was. It never
moves on a failure.
"""

from __future__ import annotations

from typing import NamedTuple

NEVER_MS = 1 << 62
RETRY_MS = 50
"""Pause before a scan that failed, or that left a due row where it was, is made again."""


class Range(NamedTuple):
    """What to read: from_ms <= time <= to_ms, of from_ms the rows with an id behind `after_id`."""

    from_ms: int
    to_ms: int
    sweep: bool
    after_id: int = 0


class Checkpoint:
    """Invariant: no row of the index is below `from_ms`, once the sweep is done.

    A new owner does not trust the saved checkpoint alone, as a clock may have been wrong. It also sweeps everything
    below the checkpoint once.

    A read that its limit cut is followed by a read of the next rows, if rows were left: these must not hold up the rows
    behind them. All these reads are one scan.

    `next_ms` is the earliest time at which a row can be due, and `due_ms` when the next scan begins; NEVER_MS during a
    scan. `outstanding` counts the changes of the present scan that are not committed.
    """

    __slots__ = (
        "_complete",
        "_floor_ms",
        "_last",
        "_left",
        "_more",
        "_not_before_ms",
        "_sweep",
        "due_ms",
        "from_ms",
        "next_ms",
        "outstanding",
        "scan",
    )

    def __init__(self, from_ms: int) -> None:
        self.from_ms = from_ms
        self.next_ms = 0
        self.due_ms = 0
        self.outstanding = 0
        self.scan: Range | None = None
        self._sweep: Range | None = Range(0, from_ms, sweep=True)
        self._floor_ms = 0
        self._not_before_ms = 0
        self._complete = self._left = False
        self._last = (0, 0)
        self._more: Range | None = None

    def inserted(self, at_ms: int) -> None:
        """A row with this time is being committed."""
        self.from_ms = min(self.from_ms, at_ms)
        self._floor_ms = min(self._floor_ms, at_ms)
        self.next_ms = min(self.next_ms, at_ms)
        self._plan()

    def nothing(self) -> None:
        """The index has no row, so no scan begins before one is inserted."""
        self.next_ms, self._sweep = NEVER_MS, None
        self._plan()

    def shift(self, by_ms: int) -> None:
        """Follow the host's clock, which was set by `by_ms`: a pause ends no later."""
        if self._not_before_ms:
            self._not_before_ms += by_ms
            self._plan()

    def _plan(self) -> None:
        """Decide when the next scan begins."""
        if self.scan is not None:
            self.due_ms = NEVER_MS
        elif self._more is not None:
            self.due_ms = 0
        else:
            self.due_ms = max(0 if self._sweep is not None else self.next_ms, self._not_before_ms)

    def begin(self, now_ms: int) -> Range:
        """Return the next range to read: the rest of a scan, due rows from the checkpoint on, the sweep below it."""
        self.outstanding, self.due_ms = 0, NEVER_MS
        if self._more is not None:
            self.scan, self._more = self._more, None
            return self.scan
        if self._sweep is not None and now_ms < self.next_ms:
            self.scan = self._sweep
        else:
            self.scan = Range(self.from_ms, now_ms, sweep=False)
            self.next_ms = NEVER_MS
        self._floor_ms = self.scan.to_ms
        self._left = False
        return self.scan

    def read(self, last_ms: int, complete: bool, next_ms: int, last_id: int = 0) -> None:
        """The range was read. `last_ms` is its last row's time, for a read that its limit cut (not `complete`), and
        `last_id` that row's id, 0 if a read cannot begin behind it. `next_ms` is the first time behind the range, 0 if
        there is none."""
        self._complete = complete
        self._last = last_ms, last_id
        if self.scan is not None and not self.scan.sweep:
            self.next_ms = min(self.next_ms, (next_ms or NEVER_MS) if complete else last_ms)

    def left(self, at_ms: int) -> None:
        """A row of the range stays where it is for now."""
        self._left = True
        self._floor_ms = min(self._floor_ms, at_ms)
        self.next_ms = min(self.next_ms, at_ms)

    def failed(self, now_ms: int) -> None:
        """The range could not be read: nothing moves."""
        assert self.scan is not None
        if not self.scan.sweep:
            self.next_ms = min(self.next_ms, self.from_ms)  # the scan is repeated as a whole
        self.scan = None
        self._not_before_ms = now_ms + RETRY_MS
        self._plan()

    def finish(self, now_ms: int) -> None:
        """All that the scan found is committed or was `left`."""
        scan, self.scan = self.scan, None
        assert scan is not None and self.outstanding == 0
        if not self._complete:
            last_ms, last_id = self._last
            if self._left and last_id:
                self._more = Range(last_ms, scan.to_ms, scan.sweep, last_id)
                self._not_before_ms = self.due_ms = 0
                return
            self._floor_ms = min(self._floor_ms, last_ms)
        if not scan.sweep:
            self.from_ms = self._floor_ms
        elif self._complete and not self._left:
            self._sweep = None
        else:
            self._sweep = Range(min(self._floor_ms, scan.to_ms), scan.to_ms, sweep=True)
        self._not_before_ms = now_ms + RETRY_MS if self._left else 0
        self._plan()

    def __repr__(self) -> str:
        return f"Checkpoint(from={self.from_ms} next={self.next_ms} scan={self.scan} outstanding={self.outstanding})"
