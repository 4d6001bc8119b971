"""What a script may return. A wrong result is an error of the script, with the field and the value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from foqs.bounds import MOST_WEIGHT, Limits
from foqs.policies.entries import name_error, throttle_key_error, throttles_error

_LEAST_PRIORITY, _MOST_PRIORITY = -(1 << 31), (1 << 31) - 1
_VALUE_CHARACTERS = 60


class Action(StrEnum):
    """The decision about an item that failed."""

    RETRY = "retry"
    DEAD = "dead"
    DROP = "drop"


class EnqueueResult(NamedTuple):
    """The fields that `on_enqueue` sets; None where it sets none. `refuse`: the item is INVALID with this text, and the
    result has no other field. `throttle_keys` are sorted; an empty set means none."""

    refuse: str | None = None
    fairness_key: str | None = None
    weight: int | None = None
    throttle_keys: tuple[str, ...] | None = None
    priority: int | None = None
    delay_ms: int | None = None
    ttl_ms: int | None = None


class FailureResult(NamedTuple):
    """What `on_failure` decides. `action` None: as the policy says. `delay_ms` None: the policy's delay."""

    action: Action | None = None
    delay_ms: int | None = None


class InvalidResult(Exception):
    """A script returned something that it may not return."""


def enqueue_result(fields: Mapping[str, Any], limits: Limits, *, may_throttle: bool) -> EnqueueResult:
    """Return what `on_enqueue` returned, checked. `may_throttle`: the source has the text `throttle_keys`.

    Raises InvalidResult."""
    checked: dict[str, Any] = {}
    for name, given in fields.items():
        check = _CHECKS.get(name)
        if check is None:
            raise _unknown(name, EnqueueResult)
        checked[name] = check(name, given, limits)
    if "refuse" in checked and len(checked) > 1:
        raise InvalidResult("refuse stands beside other fields: return one or the other")
    if "throttle_keys" in checked and not may_throttle:
        raise InvalidResult(
            "throttle_keys: the source of the script does not have this name; write it out: then foqs knows that the "
            "script sets throttle keys"
        )
    return EnqueueResult(**checked)


def failure_result(fields: Mapping[str, Any], limits: Limits) -> FailureResult:
    """Return what `on_failure` returned, checked. Raises InvalidResult."""
    action, delay_ms = None, None
    for name, given in fields.items():
        if name == "action":
            action = _action(given)
        elif name == "delay_ms":
            delay_ms = _delay_ms(name, given, limits)
        else:
            raise _unknown(name, FailureResult)
    if delay_ms is not None and action in (Action.DEAD, Action.DROP):
        raise InvalidResult(f"delay_ms stands beside action {action}: only an item that is tried again has a delay")
    return FailureResult(action, delay_ms)


def _unknown(name: str, kind: type[EnqueueResult] | type[FailureResult]) -> InvalidResult:
    return InvalidResult(f"there is no field {_shown(name)}: a result has {', '.join(kind._fields)}")


def _action(given: object) -> Action:
    try:
        return Action(str(given))
    except ValueError:
        raise InvalidResult(f"action is {_shown(given)}, not retry, dead or drop") from None


def _refusal(_: str, given: object, limits: Limits) -> str:
    if not isinstance(given, str) or not given:
        raise InvalidResult(f"refuse is {_shown(given)}, not a text that says why")
    if len(given.encode()) > limits.reason_bytes:
        raise InvalidResult(f"refuse has {len(given.encode())} bytes, more than {limits.reason_bytes}")
    return given


def _fairness_key(_: str, given: object, __: Limits) -> str:
    """The empty text is the tenant of items without a key."""
    if not isinstance(given, str):
        raise InvalidResult(f"fairness_key is {_shown(given)}, not a text")
    if given and (error := name_error(given)):
        raise InvalidResult(f"fairness_key {_shown(given)}: {error}")
    return given


def _throttle_keys(_: str, given: object, limits: Limits) -> tuple[str, ...]:
    if not isinstance(given, list):
        raise InvalidResult(f"throttle_keys is {_shown(given)}, not a list of texts")
    for key in given:
        if key.__class__ is not str:
            raise InvalidResult(f"throttle_keys holds {_shown(key)}, not a text")
        if error := throttle_key_error(key):
            raise InvalidResult(f"throttle_keys: {_shown(key)}: {error}")
    if error := throttles_error(given, limits.throttle_keys, limits.throttle_keys_bytes):
        raise InvalidResult(f"throttle_keys: {error}")
    return tuple(sorted(given))


def _whole(name: str, given: object, low: int, high: int) -> int:
    if given.__class__ is int or (isinstance(given, float) and given.is_integer()):  # in Lua 8 / 2 is 4.0
        assert isinstance(given, int | float)
        if low <= given <= high:
            return int(given)
        raise InvalidResult(f"{name} is {_shown(given)}, not in {low}..{high}")
    raise InvalidResult(f"{name} is {_shown(given)}, not a whole number")


def _weight(name: str, given: object, _: Limits) -> int:
    return _whole(name, given, 1, MOST_WEIGHT)


def _priority(name: str, given: object, _: Limits) -> int:
    return _whole(name, given, _LEAST_PRIORITY, _MOST_PRIORITY)


def _delay_ms(name: str, given: object, limits: Limits) -> int:
    return _whole(name, given, 0, limits.delay_max_ms)


def _ttl_ms(name: str, given: object, limits: Limits) -> int:
    return _whole(name, given, 1, limits.ttl_max_ms)


_CHECKS: Mapping[str, Callable[[str, object, Limits], object]] = {
    "refuse": _refusal,
    "fairness_key": _fairness_key,
    "weight": _weight,
    "throttle_keys": _throttle_keys,
    "priority": _priority,
    "delay_ms": _delay_ms,
    "ttl_ms": _ttl_ms,
}


def _shown(value: object) -> str:
    """Return a value as an error names it."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, list):
        text = "a list"
    else:
        text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS else text[:_VALUE_CHARACTERS] + "..."
