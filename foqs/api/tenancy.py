"""The fields of an enqueued item that say whose turn it takes, and which throttles hold it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from foqs.bounds import MOST_WEIGHT, Limits
from foqs.checks import is_text
from foqs.errors import Invalid
from foqs.policies.entries import name_error, throttle_key_error, throttles_error


def tenancy(spec: Any, limits: Limits) -> tuple[str, tuple[str, ...], int]:
    """Return (fairness key, sorted throttle keys, weight) of an ItemSpec: ('', (), 0) where it sets none of them.

    Raises Invalid."""
    fairness = "" if spec.fairness_key is None else fairness_key(spec.fairness_key)
    throttles: tuple[str, ...] = ()
    if spec.throttle_keys:
        throttles = _throttles(spec.throttle_keys, limits)
    weight = spec.weight
    if weight is None:
        weight = 0
    elif not 1 <= weight <= MOST_WEIGHT:
        raise Invalid(f"weight is {weight}, not in 1..{MOST_WEIGHT}")
    return fairness, throttles, weight


def fairness_key(given: object) -> str:
    """Check a fairness key; "" is none. Raises Invalid."""
    key = _text(given, "fairness_key")
    if key:
        _refuse("fairness_key", name_error(key))
    return key


def fairness_keys_fit(given: Iterable[str]) -> bool:
    """Whether `fairness_key` takes all of these texts."""
    return not any(key and name_error(key) for key in set(given))


def _throttles(keys: Any, limits: Limits) -> tuple[str, ...]:
    for key in keys[: limits.throttle_keys]:
        _refuse("throttle_keys", throttle_key_error(_text(key, "throttle_keys")))
    _refuse("throttle_keys", throttles_error(keys, limits.throttle_keys, limits.throttle_keys_bytes))
    return tuple(sorted(keys))


def _text(value: object, what: str) -> str:
    if not is_text(value):
        raise Invalid(f"{what} is not UTF-8")
    return value


def _refuse(what: str, error: str | None) -> None:
    if error is not None:
        raise Invalid(f"{what}: {error}")
