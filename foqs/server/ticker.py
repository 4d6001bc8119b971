"""Run the engine when a shard has a batch to send, and when the next deadline is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from foqs.clock import Clock
from foqs.engine import batch_build
from foqs.engine.calls import NEVER_MS
from foqs.engine.engine import Engine
from foqs.server.database_clock import DatabaseClock

_STOPPED_S = 0.5
"""A tick that comes this late finds a process that was stopped: by SIGSTOP, or with its virtual machine."""
_CATCH_UP_S = 0.05


class Ticker:
    """`wake` and `alarm` are the engine's callbacks. One timer, on the event loop.

    The engine needs them when it is made, and the timekeeper needs the engine: both are asked for when they are used.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        timekeeper: Callable[[], DatabaseClock],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._engine = engine
        self._timekeeper = timekeeper
        self._clock = clock
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0  # of the timer, by the loop's time
        self._pump_due = False
        self._catches_up = False

    def arm(self) -> None:
        """Set the timer to the engine's next deadline."""
        self.alarm(self._engine().next_ms(self._clock.now_ms()))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def wake(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        engine, now_ms = self._engine(), self._clock.now_ms()
        dirty = list(engine.dirty)
        engine.pump(now_ms)
        for shard in dirty:
            if shard.in_flight is None:  # a shard with a batch in flight is pumped again when its result arrives
                self.alarm(batch_build.next_ms(shard, now_ms))

    def alarm(self, at_ms: int) -> None:
        """Set the timer to `at_ms`, unless it is set to an earlier time."""
        engine = self._engine()
        if at_ms >= engine.timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        engine.timer_ms = at_ms
        self._ring_after(max(0.0, (at_ms - self._clock.now_ms()) / 1000))

    def _ring_after(self, delay_s: float) -> None:
        self._due_s = self._loop.time() + delay_s
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._loop.time() - self._due_s > _STOPPED_S and not self._catches_up:
            # Answers came since, and the engine would count the stop as the silence of databases.
            self._catches_up = True
            self._ring_after(_CATCH_UP_S)
            return
        self._catches_up = False
        engine = self._engine()
        engine.timer_ms = NEVER_MS
        self._timekeeper().look()
        engine.tick(self._clock.now_ms())
        self.arm()
