"""From the reply of a process to the outcome of a call. The process is not trusted. Pure."""

from __future__ import annotations

from typing import Any

from foqs.bounds import Limits
from foqs.hooks.protocol import Answered, Failed, Hook, HookCall, Kind
from foqs.hooks.results import InvalidResult, enqueue_result, failure_result

_BY_SCRIPT = {str(kind): kind for kind in (Kind.ERROR, Kind.TIMEOUT, Kind.MEMORY, Kind.INVALID)}
_MOST = 1 << 40
_MOST_CHARACTERS = 1_000
_NO_REPLY = Failed(Kind.INVALID, "the process of the script sent no result")


def outcome_of(call: HookCall, reply: Any, limits: Limits) -> Answered | Failed:
    """Return the outcome, with its result checked."""
    if reply.__class__ is not list or len(reply) < 3:
        return _NO_REPLY
    elapsed_us, memory_bytes, fields = reply[:3]
    numbers = elapsed_us.__class__ is int and memory_bytes.__class__ is int
    if not (numbers and 0 <= elapsed_us < _MOST and 0 <= memory_bytes < _MOST):
        return _NO_REPLY
    if fields.__class__ is not dict:
        known = len(reply) == 4 and isinstance(fields, str) and fields in _BY_SCRIPT and isinstance(reply[3], str)
        return Failed(_BY_SCRIPT[fields], _text(reply[3]), elapsed_us, memory_bytes) if known else _NO_REPLY
    try:
        if call.key.hook is Hook.ON_ENQUEUE:
            result: Any = enqueue_result(fields, limits, may_throttle=call.script.sets_throttle_keys)
        else:
            result = failure_result(fields, limits)
    except InvalidResult as error:
        return Failed(Kind.INVALID, str(error), elapsed_us, memory_bytes)
    except UnicodeEncodeError:
        return Failed(Kind.INVALID, "the result has a text that is not UTF-8", elapsed_us, memory_bytes)
    return Answered(result, elapsed_us, memory_bytes)


def _text(given: str) -> str:
    return given[:_MOST_CHARACTERS].encode(errors="replace").decode()
