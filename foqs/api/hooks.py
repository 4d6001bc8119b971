"""TryHook: a script runs on a sample of an item, and nothing is stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from foqs.api import validation
from foqs.api.enqueue_hooks import read_by_script, set_fields
from foqs.bounds import Limits
from foqs.errors import Invalid, NotFound, Unavailable
from foqs.hooks.protocol import EnqueueResult, Failed, Hook, HookCall, HookKey, Kind, Outcome, Script, source_error
from foqs.hooks.topic_hooks import TopicHooks
from foqs.idl import idl
from foqs.policies.entries import script_name_error
from foqs.rows import FailureCause
from foqs.rpc.call import Call

_TRIED = "tried"
"""Name of a script that is given as a source."""
_CAUSES = (FailureCause.FAILED, FailureCause.EXPIRED, FailureCause.REJECTED)
_MOST_ATTEMPTS = (1 << 31) - 1


class HookMethods:
    """`limits` is called for each request."""

    def __init__(self, hooks: TopicHooks, limits: Callable[[], Limits], now_ms: Callable[[], int]) -> None:
        self._hooks = hooks
        self._limits = limits
        self._now_ms = now_ms

    def try_hook(self, call: Call) -> None:
        """Raises Invalid, NotFound, Unavailable."""
        request, limits = call.request, self._limits()
        ns = validation.name(request.ns, "ns", limits)
        if request.hook not in list(Hook):
            raise Invalid(f"hook is {request.hook!r}, not one of {', '.join(Hook)}")
        hook = Hook(request.hook)
        within_ms = min(validation.timeout_ms(request, limits), self._hooks.request_ms())
        script = self._script(ns, request)
        item = self._sample(ns, hook, request)
        if self._hooks.pool.missing is not None:
            raise Unavailable(self._hooks.pool.missing)
        key = HookKey(ns, item["topic"], hook)
        tried = HookCall(script, key, item, self._hooks.entries(ns), guarded=False)
        self._hooks.pool.run([tried], within_ms, partial(_answer, call))

    def _script(self, ns: str, request: Any) -> Script:
        if (request.script is None) is (request.source is None):
            raise Invalid("exactly one of script and source is needed")
        if request.source is not None:
            source = validation.text(request.source, "source")
            error = source_error(source)
            if error is not None:
                raise Invalid(f"source: {error}")
            return Script(ns, _TRIED, source)
        name = validation.text(request.script, "script")
        error = script_name_error(name)
        if error is not None:
            raise Invalid(f"script: {error}")
        script = self._hooks.script(ns, name)
        if script is None:
            raise NotFound(f"the settings of {ns} have no script.{name}")
        return script

    def _sample(self, ns: str, hook: Hook, request: Any) -> dict[str, Any]:
        if request.sample is None:
            raise Invalid("sample is missing")
        taken = validation.Intake(ns, self._limits(), self._now_ms())
        taken.take([request.sample])
        for error in taken.errors.values():
            raise Invalid(f"sample: {error.message}")
        item = read_by_script(request.sample)
        if hook is Hook.ON_ENQUEUE:
            return item
        attempt = validation.within(request.attempt, "attempt", 1, _MOST_ATTEMPTS, 1)
        cause = FailureCause.FAILED if request.cause is None else request.cause
        if cause not in _CAUSES:
            raise Invalid(f"cause is {cause}, not one of {', '.join(str(int(one)) for one in _CAUSES)}")
        reason = validation.text(request.reason or "", "reason")
        if len(reason.encode()) > self._limits().reason_bytes:
            raise Invalid(f"reason has more than {self._limits().reason_bytes} bytes")
        return item | {"attempt": attempt, "cause": FailureCause(cause).name.lower(), "reason": reason}


def _answer(call: Call, outcomes: list[Outcome]) -> None:
    (outcome,) = outcomes
    made = idl.TryHookResponse(elapsed_us=outcome.elapsed_us, memory_bytes=outcome.memory_bytes)
    if isinstance(outcome, Failed):
        if outcome.kind is Kind.UNAVAILABLE:
            call.fail(Unavailable(outcome.text))
            return
        made.error = f"{outcome.kind.value}: {outcome.text}"
    elif not isinstance(outcome.result, EnqueueResult):
        made.delay_ms = outcome.result.delay_ms
        made.action = None if outcome.result.action is None else outcome.result.action.value
    elif outcome.result.refuse is not None:
        made.refuse = outcome.result.refuse
    else:
        made.item = call.request.sample
        set_fields(made.item, outcome.result)
    call.reply(made)
