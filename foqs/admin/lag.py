"""Measures the delay of the event loop."""

from __future__ import annotations

import asyncio

from foqs.counters import SECONDS, Histogram

_EVERY_S = 0.1


class LoopLag:
    """A histogram of delays, measured from `start` to `stop`."""

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        wanted = loop.time() + _EVERY_S

        def rang() -> None:
            self.seconds.observe(max(0.0, loop.time() - wanted))
            self.start()

        self._timer = loop.call_at(wanted, rang)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
