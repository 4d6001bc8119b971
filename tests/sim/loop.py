"""The event loop of a simulated host, as in `foqs.server.node.Node`.

It pumps when woken, and ticks when an alarm is due. A host's `later` holds it up while the host is frozen or dead.
"""

from __future__ import annotations

from collections.abc import Callable

from foqs.buffers.checkpoint import NEVER_MS
from foqs.engine.engine import Engine
from tests.kernel.run import Run


class HostLoop:
    engine: Engine

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pumping = False
        self._tick_at = NEVER_MS

    def clock_ms(self) -> int:
        """Return the time of the host's clock."""
        raise NotImplementedError

    def later(self, after_ms: int, do: Callable[[], object]) -> None:
        raise NotImplementedError

    def before_tick(self) -> None:
        """Read the clock of a database, in a host that does."""

    def wake(self) -> None:
        if not self._pumping:
            self._pumping = True
            self.later(0, self._pump)

    def alarm(self, at_ms: int) -> None:
        wait_ms = max(0, at_ms - self.clock_ms())
        at = self._run.time + wait_ms
        if at < self._tick_at:
            self._tick_at = at
            self.later(wait_ms, lambda: self._tick(at))

    def arm(self) -> None:
        self.alarm(self.engine.next_ms(self.clock_ms()))

    def clock_set(self) -> None:
        """Set the alarm again: its time was reckoned by the clock as it was."""
        self._tick_at = NEVER_MS
        self.later(0, self.arm)

    def _pump(self) -> None:
        self._pumping = False
        self.engine.pump(self.clock_ms())

    def _tick(self, at: int) -> None:
        if at == self._tick_at:
            self._tick_at = NEVER_MS
            self.before_tick()
            self.engine.tick(self.clock_ms())
            self.arm()
