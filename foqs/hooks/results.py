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
    raise NotImplementedError


def failure_result(fields: Mapping[str, Any], limits: Limits) -> FailureResult:
    """Return what `on_failure` returned, checked. Raises InvalidResult."""
    raise NotImplementedError
