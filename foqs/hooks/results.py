"""What a script may return. A wrong result is an error of the script, with the field and the value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from foqs.limits import MOST_WEIGHT, Limits
from foqs.policies.names import name_error, throttle_key_error, throttles_error

REFUSE_BYTES = 1_024
_LEAST_PRIORITY, _MOST_PRIORITY = -(1 << 31), (1 << 31) - 1
_VALUE_CHARACTERS = 60


class Action(StrEnum):
    """What becomes of an item that failed."""

    RETRY = "retry"
    DEAD = "dead"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """The fields that `on_enqueue` sets; None where it sets none. `refuse`: the item is INVALID with this text, and the
    result has no other field. `throttle_keys` are sorted; an empty set means none."""

    refuse: str | None = None
    fairness_key: str | None = None
    weight: int | None = None
    throttle_keys: tuple[str, ...] | None = None
    priority: int | None = None
    delay_ms: int | None = None
    ttl_ms: int | None = None


@dataclass(frozen=True, slots=True)
class FailureResult:
    """What `on_failure` decides. `action` None: as the policy says. `delay_ms` None: the policy's delay."""

    action: Action | None = None
    delay_ms: int | None = None


class InvalidResult(Exception):
    """A script returned something that it may not return."""


def enqueue_result(fields: Mapping[str, Any], limits: Limits, *, may_throttle: bool) -> EnqueueResult:
    """Return what `on_enqueue` returned, checked. `may_throttle`: the source has the text `throttle_keys`.

    Raises InvalidResult."""
    _refuse_unknown(fields, EnqueueResult)
    if "refuse" in fields:
        if len(fields) > 1:
            raise InvalidResult("refuse stands beside other fields: return one or the other")
        return EnqueueResult(refuse=_refusal(fields["refuse"]))
    throttle_keys = None
    if "throttle_keys" in fields:
        if not may_throttle:
            raise InvalidResult(
                "throttle_keys: the source of the script does not have this name; write it out, so that foqs knows "
                "that the script sets throttle keys"
            )
        throttle_keys = _throttle_keys(fields["throttle_keys"], limits)
    return EnqueueResult(
        None,
        _fairness_key(fields),
        _whole(fields, "weight", 1, MOST_WEIGHT),
        throttle_keys,
        _whole(fields, "priority", _LEAST_PRIORITY, _MOST_PRIORITY),
        _whole(fields, "delay_ms", 0, limits.delay_max_ms),
        _whole(fields, "ttl_ms", 1, limits.ttl_max_ms),
    )


def failure_result(fields: Mapping[str, Any], limits: Limits) -> FailureResult:
    """Return what `on_failure` returned, checked. Raises InvalidResult."""
    _refuse_unknown(fields, FailureResult)
    action = None
    if "action" in fields:
        try:
            action = Action(fields["action"])
        except ValueError:
            raise InvalidResult(f"action is {_shown(fields['action'])}, not retry, dead or drop") from None
    delay_ms = _whole(fields, "delay_ms", 0, limits.delay_max_ms)
    if delay_ms is not None and action in (Action.DEAD, Action.DROP):
        raise InvalidResult(f"delay_ms stands beside action {action}: only an item that is tried again has a delay")
    return FailureResult(action, delay_ms)


def _refuse_unknown(fields: Mapping[str, Any], kind: type[EnqueueResult] | type[FailureResult]) -> None:
    known = kind.__dataclass_fields__.keys()
    if unknown := sorted(fields.keys() - known):
        raise InvalidResult(f"there is no field {_shown(unknown[0])}: a result has {', '.join(known)}")


def _refusal(given: object) -> str:
    if not isinstance(given, str) or not given:
        raise InvalidResult(f"refuse is {_shown(given)}, not a text that says why")
    if len(given.encode()) > REFUSE_BYTES:
        raise InvalidResult(f"refuse has {len(given.encode())} bytes, more than {REFUSE_BYTES}")
    return given


def _fairness_key(fields: Mapping[str, Any]) -> str | None:
    """The empty text is the tenant of items without a key."""
    given = fields.get("fairness_key")
    if given is None or given == "":
        return given
    if not isinstance(given, str):
        raise InvalidResult(f"fairness_key is {_shown(given)}, not a text")
    if error := name_error(given):
        raise InvalidResult(f"fairness_key {_shown(given)}: {error}")
    return given


def _throttle_keys(given: object, limits: Limits) -> tuple[str, ...]:
    if not isinstance(given, list):
        raise InvalidResult(f"throttle_keys is {_shown(given)}, not a list of texts")
    for key in given:
        if error := throttle_key_error(key):
            raise InvalidResult(f"throttle_keys: {_shown(key)}: {error}")
    if error := throttles_error(given, limits.throttle_keys, limits.throttle_keys_bytes):
        raise InvalidResult(f"throttle_keys: {error}")
    return tuple(sorted(given))


def _whole(fields: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    given = fields.get(name)
    if given is None:
        return None
    if given.__class__ is float and given.is_integer():  # in Lua 8 / 2 is 4.0
        given = int(given)
    if given.__class__ is not int:
        raise InvalidResult(f"{name} is {_shown(given)}, not a whole number")
    if not low <= given <= high:
        raise InvalidResult(f"{name} is {given}, not in {low}..{high}")
    return int(given)


def _shown(value: object) -> str:
    """Return a value as an error names it."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, list):
        text = "a list"
    else:
        text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS else text[:_VALUE_CHARACTERS] + "..."
