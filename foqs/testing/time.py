"""The time of a host in a test: it stands still until the test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from heapq import heappop, heappush
from itertools import count

NEVER_MS = 1 << 62
_STEPS = 100
_BEFORE_MS = 5_000
"""Work of each second, such as the confirmation of shards, is done for this time before other work."""


class Timer:
    def __init__(self, do: Callable[[], None]) -> None:
        self.do: Callable[[], None] | None = do

    def cancel(self) -> None:
        self.do = None


class MovedTime:
    """The clock of a host and its timers (`HostClock`, `HostTimers`), used on its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ms: int) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._order = count()
        self._timers: list[tuple[int, int, Timer]] = []
        self.turns = 0
        """Calls that wait for the next turn of the event loop."""

    # ------------------------------------------------------------------------------------- what a host reads

    def now_ms(self) -> int:
        return self._now_ms

    monotonic_ms = now_ms

    def at_ms(self, monotonic_ns: int) -> int:
        """Return the present time: it stands still whatever the machine's clock says."""
        return self._now_ms

    def machine_ahead_ms(self) -> int:
        return 0

    def set(self, by_ms: int) -> None:
        raise RuntimeError(f"the clock of a test was set by {by_ms} ms")

    def soon(self, do: Callable[[], None], /) -> None:
        self.turns += 1
        self._loop.call_soon(self._turn, do)

    def later(self, after_ms: int, do: Callable[[], None], /) -> Timer:
        timer = Timer(do)
        if after_ms <= 0:
            self.soon(lambda: self._ring(timer))
        else:
            heappush(self._timers, (self._now_ms + after_ms, next(self._order), timer))
        return timer

    def _turn(self, do: Callable[[], None]) -> None:
        self.turns -= 1
        do()

    @staticmethod
    def _ring(timer: Timer) -> None:
        if (do := timer.do) is not None:
            do()

    # ------------------------------------------------------------------------------------- what a test does

    def go_back(self, by_ms: int) -> None:
        """Begin again for another host. Timers of an earlier host are dropped."""
        self._timers.clear()
        self._now_ms -= by_ms

    def due_ms(self, *, without: Collection[Callable[[], None]]) -> int:
        """Return when the next timer rings that does none of `without`; `NEVER_MS` if there is none."""
        return min(
            [at_ms for at_ms, _, timer in self._timers if timer.do and timer.do not in without], default=NEVER_MS
        )

    async def advance(
        self, by_ms: int, settle: Callable[[], Awaitable[None]], quiet_ms: Callable[[], int] | None = None
    ) -> None:
        """Go from one due timer to the next, and `settle` before the first one and after each. Up to shortly before
        `quiet_ms()` timers do only what they do each second, so it is done once."""
        until_ms = self._now_ms + by_ms
        await settle()
        for step in count(1):
            if not self._timers or self._timers[0][0] > until_ms:
                break
            if step % _STEPS == 0:
                await asyncio.sleep(0)  # requests come in between
            skip_ms = 0 if quiet_ms is None else min(quiet_ms(), until_ms) - _BEFORE_MS
            self._now_ms = max(self._timers[0][0], skip_ms)
            while self._timers and self._timers[0][0] <= self._now_ms:
                self._ring(heappop(self._timers)[2])
            await settle()
        self._now_ms = until_ms
