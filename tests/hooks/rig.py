"""A pool with real processes, on a loop of its own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from foqs.bounds import Limits
from foqs.config.schema import HooksSection
from foqs.hooks.protocol import Answered, EnqueueResult, Entries, Failed, Hook, HookCall, HookKey, Outcome, Script
from foqs.server.clock import monotonic_ms
from foqs.server.hook_pool import HookPool

GOOD = """
function on_enqueue(item)
  local customer = item.headers.customer
  return {fairness_key = customer, weight = foqs.get("plans/" .. customer) == "gold" and 4 or 1}
end
"""
STUCK = "string.find(('a'):rep(60), ('.-'):rep(12) .. 'b')"
ECHO = "function on_enqueue(item) return {fairness_key = item.headers.n} end"
ITEM: Mapping[str, Any] = {"topic": "jobs", "priority": 0, "payload_size": 3, "headers": {"customer": "acme"}}
ENTRIES = Entries("shop", {"plans/acme": "gold"})
NONE = Entries("shop", {})


def call_of(
    source: str,
    topic: str = "jobs",
    hook: Hook = Hook.ON_ENQUEUE,
    item: Mapping[str, Any] = ITEM,
    entries: Entries = ENTRIES,
    *,
    guarded: bool = True,
) -> HookCall:
    return HookCall(Script("shop", "route", source), HookKey("shop", topic, hook), item, entries, guarded)


def on_enqueue(body: str) -> str:
    return f"function on_enqueue(item)\n{body}\nend"


SLOW = on_enqueue("local n = 0 for i = 1, 150000 do n = n + i % 7 end return {weight = 1}")


def numbered(source: str, count: int, topic: str = "jobs") -> list[HookCall]:
    """Calls whose items have their number in a header."""
    return [call_of(source, topic, item={**ITEM, "headers": {"n": f"n{number}"}}) for number in range(count)]


def keys_of(outcomes: list[Outcome]) -> list[str | None]:
    return [
        outcome.result.fairness_key
        if isinstance(outcome, Answered) and isinstance(outcome.result, EnqueueResult)
        else None
        for outcome in outcomes
    ]


def kinds_of(outcomes: list[Outcome]) -> Counter[str]:
    return Counter("answered" if isinstance(one, Answered) else one.kind for one in outcomes)


class Hooks:
    """A pool whose calls can be awaited."""

    def __init__(self, pool: HookPool) -> None:
        self.pool = pool

    async def run(self, *calls: HookCall, within_ms: int = 30_000) -> list[Outcome]:
        future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self.pool.run(calls, within_ms, future.set_result)
        return await future

    async def one(self, source: str, **given: Any) -> Outcome:
        [outcome] = await self.run(call_of(source, **given))
        return outcome

    async def answered(self, source: str, **given: Any) -> EnqueueResult:
        outcome = await self.one(source, **given)
        assert isinstance(outcome, Answered), outcome
        assert isinstance(outcome.result, EnqueueResult)
        return outcome.result

    async def failed(self, source: str, **given: Any) -> Failed:
        outcome = await self.one(source, **given)
        assert isinstance(outcome, Failed), outcome
        return outcome

    async def prove(self, source: str, topic: str = "jobs") -> None:
        """Let the script become a proven one."""
        await self.run(*numbered(source, 40, topic))

    @property
    def pids(self) -> list[int]:
        """Of the processes that are ready."""
        return [place.process.pid for place in self.pool._places if place.process is not None and place.ready]

    async def still_good(self) -> None:
        """Another script answers, in the same process as the calls before."""
        assert await self.answered(GOOD, topic="good") == EnqueueResult(fairness_key="acme", weight=4)


@asynccontextmanager
async def hooks(now_ms: Callable[[], int] = monotonic_ms, **settings: Any) -> AsyncIterator[Hooks]:
    """`now_ms`: the clock of breakers."""
    pool = HookPool(
        HooksSection(**settings), Limits(), asyncio.get_running_loop(), now_ms, lambda: int(time.time() * 1000)
    )
    try:
        yield Hooks(pool)
    finally:
        await pool.close()
