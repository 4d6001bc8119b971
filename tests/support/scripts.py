"""Python functions in place of scripts, for hosts in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foqs.hooks.call_queues import Breaker
from foqs.hooks.protocol import Answered, EnqueueResult, Failed, FailureResult, HookCall, HookKey, Kind, Outcome

Function = Callable[[Mapping[str, Any]], EnqueueResult | FailureResult | Failed]


class Functions:
    """A pool that calls Python functions, by the names of scripts. A source with "syntax error" does not compile.

    `soon` takes a function that the event loop calls in its next turn. While the pool is `held`, calls wait in `open`
    as (within_ms, function that answers)."""

    def __init__(self, soon: Callable[[Callable[[], None]], object], missing: str | None = None) -> None:
        self.missing = missing
        self.functions: dict[str, Function] = {}
        self.calls: list[HookCall] = []
        self.breakers: dict[HookKey, Breaker] = {}
        self.held = False
        self.open: list[tuple[int, Callable[[], None]]] = []
        self._soon = soon

    def run(self, calls: Sequence[HookCall], within_ms: int, done: Callable[[list[Outcome]], None]) -> None:
        self.calls += calls

        def answer() -> None:
            done([self._outcome(call) for call in calls])

        if self.held:
            self.open.append((within_ms, answer))
        else:
            self._soon(answer)

    def breaker(self, key: HookKey) -> Breaker | None:
        return self.breakers.get(key)

    def _outcome(self, call: HookCall) -> Outcome:
        if self.missing is not None:
            return Failed(Kind.UNAVAILABLE, self.missing)
        if "syntax error" in call.script.source:
            return Failed(Kind.ERROR, "it does not compile")
        if call.script.name not in self.functions:
            return Answered(EnqueueResult())
        found = self.functions[call.script.name](call.item)
        return found if isinstance(found, Failed) else Answered(found, 7, 99)
