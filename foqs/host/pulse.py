"""When a host's decisions are asked for: as soon as something is to be sent, and when the next thing is due."""

from __future__ import annotations

import asyncio

from foqs.clock import Clock
from foqs.host import rounds
from foqs.host.host import Host
from foqs.host.timekeeper import Timekeeper
from foqs.leases.deadlines import NEVER_MS


class Pulse:
    """Takes over `host.wake` and `host.alarm`. One timer, on the event loop."""

    def __init__(self, host: Host, clock: Clock, timekeeper: Timekeeper, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._clock = clock
        self._timekeeper = timekeeper
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER_MS
        self._pump_due = False
        host.wake = self._wake
        host.alarm = self._alarm

    def arm(self) -> None:
        """Has the timer ring when the host has something to do next."""
        self._alarm(self._host.next_ms(self._clock.now_ms()))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        dirty = list(self._host.dirty)
        now_ms = self._clock.now_ms()
        self._host.pump(now_ms)
        for shard in dirty:
            if shard.flight is None:  # one with a trip under way is pumped again when that is back
                self._alarm(rounds.next_ms(shard, now_ms))

    def _alarm(self, at_ms: int) -> None:
        """Has the timer ring at `at_ms`, unless it rings before."""
        if at_ms >= self._timer_ms and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = at_ms
        delay_s = max(0.0, (at_ms - self._clock.now_ms()) / 1000)
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_ms = NEVER_MS
        self._timekeeper.look()
        self._host.tick(self._clock.now_ms())
        self.arm()
