"""Runs the scripts of hooks in child processes, and ends a process that a script holds up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from foqs.config.schema import HooksSection
from foqs.hooks.breaker import Breaker
from foqs.hooks.protocol import HookCall, HookKey, Kind, Outcome
from foqs.limits import Limits

Done = Callable[[list[Outcome]], None]


class HookPool:
    """All methods run on the event loop, and none of them waits. The first call starts the processes.

    `limits` is the host's, and bounds results. Public for /metrics: `calls`, `failures` (by kind), `kills`, `queued`
    (calls that no process has), `children` (processes that are ready)."""

    def __init__(
        self, hooks: HooksSection, limits: Limits, loop: asyncio.AbstractEventLoop, monotonic_ms: Callable[[], int]
    ) -> None:
        self.limits = limits
        self.calls = 0
        self.failures: Counter[Kind] = Counter()
        self.kills = 0

    @property
    def missing(self) -> str | None:
        """Return why no script can run on this host, and what to do; None where scripts can."""
        raise NotImplementedError

    def run(self, calls: Sequence[HookCall], within_ms: int, done: Done) -> None:
        """Call `done` once, later, with an outcome for each call, in their order. A call without an outcome `within_ms`
        from now is UNAVAILABLE. `done` is never called before `run` returns."""
        raise NotImplementedError

    def breaker(self, key: HookKey) -> Breaker | None:
        """Return the breaker of a hook; None if it has had no call since the host started."""
        raise NotImplementedError

    def reconfigure(self, hooks: HooksSection) -> None:
        """Apply live keys."""
        raise NotImplementedError

    async def close(self) -> None:
        """End all processes. Calls without an outcome are UNAVAILABLE."""
        raise NotImplementedError
