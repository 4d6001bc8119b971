"""The ticker keeps one timer for the engine, and writes its time into the engine."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from foqs.clock import Clock
from foqs.leases.deadlines import NEVER_MS
from foqs.server.ticker import Ticker


class Ticked:
    """Stands for the engine: its next work is always due in an hour."""

    def __init__(self) -> None:
        self.timer_ms = NEVER_MS
        self.ticked: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def next_ms(self, now_ms: int) -> int:
        return now_ms + 3_600_000

    def tick(self, now_ms: int) -> None:
        assert self.timer_ms == NEVER_MS, "an alarm that the tick asks for would not be set"
        self.ticked.set_result(now_ms)


async def _run(use: Any) -> None:
    engine, clock = Ticked(), Clock()
    ticker = Ticker(lambda: engine, lambda: SimpleNamespace(look=lambda: None), clock, asyncio.get_running_loop())  # type: ignore[arg-type, return-value]
    try:
        await use(engine, ticker, clock.now_ms())
    finally:
        ticker.stop()


def test_only_an_earlier_alarm_moves_the_timer() -> None:
    async def use(engine: Ticked, ticker: Ticker, now_ms: int) -> None:
        seen = []
        for after_ms in (60_000, 70_000, 50_000):
            ticker.alarm(now_ms + after_ms)
            seen.append(engine.timer_ms - now_ms)
        assert seen == [60_000, 60_000, 50_000]

    asyncio.run(_run(use))


def test_a_tick_sets_the_timer_to_the_next_work() -> None:
    async def use(engine: Ticked, ticker: Ticker, now_ms: int) -> None:
        ticker.alarm(now_ms)
        at_ms = await engine.ticked
        assert engine.timer_ms >= at_ms + 3_600_000

    asyncio.run(_run(use))
