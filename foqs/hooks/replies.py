"""From the reply of a process to the outcome of a call. The process is not trusted. Pure."""

from __future__ import annotations

from typing import Any

from foqs.hooks.protocol import Answered, Failed, Hook, HookCall, Kind
from foqs.hooks.results import InvalidResult, enqueue_result, failure_result
from foqs.limits import Limits

_BY_SCRIPT = (Kind.ERROR, Kind.TIMEOUT, Kind.MEMORY, Kind.INVALID)


def outcome_of(call: HookCall, reply: Any, limits: Limits) -> Answered | Failed:
    """Return the outcome, with its result checked."""
    match reply:
        case [int(elapsed_us), int(memory_bytes), dict(fields)]:
            pass
        case [int(elapsed_us), int(memory_bytes), str(kind), str(text)] if kind in _BY_SCRIPT:
            return Failed(Kind(kind), text, elapsed_us, memory_bytes)
        case _:
            return Failed(Kind.INVALID, "the process of the script sent no result")
    try:
        if call.key.hook is Hook.ON_ENQUEUE:
            result: Any = enqueue_result(fields, limits, may_throttle=call.script.sets_throttle_keys)
        else:
            result = failure_result(fields, limits)
    except InvalidResult as error:
        return Failed(Kind.INVALID, str(error), elapsed_us, memory_bytes)
    return Answered(result, elapsed_us, memory_bytes)
