"""The policy of a topic: an entry of the settings, and the policy that all entries for a topic make."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from foqs.errors import Invalid
from foqs.policies.retry import RetryKind, RetryRule
from foqs.rows import AT_LEAST_ONCE, AT_MOST_ONCE

_DAY_MS = 86_400_000
_LONGEST_MS = 366 * _DAY_MS
_MINUTE_MS = 60_000
DEAD_SUFFIX = ".dlq"
_LATER = frozenset({"fair", "throttles", "per_worker", "refuse_late", "keep", "hooks"})
"""Fields of features that this version does not have."""

Duration = Annotated[int, Field(ge=0, le=_LONGEST_MS, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RetryEntry(_Entry):
    kind: Literal["constant", "linear", "exponential"]
    first_ms: Duration = 1_000
    step_ms: Duration = 0
    factor: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 2.0
    longest_ms: Duration = 15 * _MINUTE_MS
    jitter: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5

    @model_validator(mode="after")
    def _fits(self) -> RetryEntry:
        if self.first_ms > self.longest_ms:
            raise ValueError(f"first_ms ({self.first_ms}) is greater than longest_ms ({self.longest_ms})")
        return self

    def rule(self) -> RetryRule:
        return RetryRule(
            RetryKind(self.kind), self.first_ms, self.step_ms, self.factor, self.longest_ms, self.jitter
        )  # fmt: skip


class DeadEntry(_Entry):
    topic: Annotated[str, Field(min_length=1)] | None = None
    ttl_ms: Annotated[int, Field(ge=1, le=_LONGEST_MS, strict=True)] | None = None


class PolicyEntry(_Entry):
    """The value of a settings key `topic.<name or prefix*>`. Only the fields that it names count."""

    priority: Annotated[int, Field(ge=-(1 << 31), le=(1 << 31) - 1, strict=True)] = 0
    lease_ms: Annotated[int, Field(ge=100, le=_DAY_MS // 2, strict=True)] | None = None
    ttl_ms: Annotated[int, Field(ge=1, le=_LONGEST_MS, strict=True)] | None = None
    delay_ms: Duration = 0
    delivery: Literal["at_least_once", "at_most_once"] = "at_least_once"
    paused: Flag = False
    closed: Flag = False
    max_stored: Annotated[int, Field(ge=0, le=1 << 53, strict=True)] | None = None
    retry: RetryEntry | None = RetryEntry(kind="exponential")
    max_attempts: Annotated[int, Field(ge=0, le=(1 << 31) - 1, strict=True)] = 25
    max_total_ms: Duration = 0
    exact_attempts: Flag = False
    stuck_after_ms: Duration = 0
    dead: DeadEntry | None = DeadEntry()


BUILT_IN_ENTRY = PolicyEntry()


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The effective policy of a topic. Times are in milliseconds; None means that there is none.

    `lease_ms`, `ttl_ms`, `delay_ms`, `priority`, `delivery`: for enqueued items that do not set them. `retry`: delays
    of failed items. `max_attempts`, `max_total_ms` since the enqueue, `stuck_after_ms` since the delivery: 0 means no
    bound. `dead_topic`: where items go after their last attempt; without one they are removed.
    """

    priority: int
    lease_ms: int | None
    ttl_ms: int | None
    delay_ms: int
    delivery: int
    paused: bool
    closed: bool
    max_stored: int | None
    retry: RetryRule | None
    max_attempts: int
    max_total_ms: int
    exact_attempts: bool
    stuck_after_ms: int
    dead_topic: str | None
    dead_ttl_ms: int | None


def parse(text: str) -> PolicyEntry:
    """Raises Invalid with every error of the entry, one a line."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Invalid(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Invalid(f"a topic policy is a JSON object, not {text[:40]}")
    later = [f"{name}: this version of foqs does not have it" for name in sorted(_LATER & value.keys())]
    try:
        entry = PolicyEntry.model_validate({name: value[name] for name in value if name not in _LATER})
    except ValidationError as error:
        raise Invalid("\n".join(later + [_line(detail) for detail in error.errors(include_url=False)])) from None
    if later:
        raise Invalid("\n".join(later))
    return entry


def _line(detail: Any) -> str:
    where, what = ".".join(map(str, detail["loc"])), detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        what = "there is no such field"
    elif detail["type"] != "missing" and not detail["msg"].startswith("Value error"):
        what = f"{what} (it is {str(detail['input'])[:60]!r})"
    return f"{where}: {what}"


def effective(topic: str, layers: dict[str, PolicyEntry], *, dead: bool) -> TopicPolicy:
    """Return the policy that the entries in `layers`, which has one for each field, make. `dead`: the topic takes dead
    letters, so it has none of its own."""
    one = {name: getattr(layers[name], name) for name in PolicyEntry.model_fields}
    entry: DeadEntry | None = None if dead else one["dead"]
    return TopicPolicy(
        priority=one["priority"],
        lease_ms=one["lease_ms"],
        ttl_ms=one["ttl_ms"],
        delay_ms=one["delay_ms"],
        delivery=AT_MOST_ONCE if one["delivery"] == "at_most_once" else AT_LEAST_ONCE,
        paused=one["paused"],
        closed=one["closed"],
        max_stored=one["max_stored"],
        retry=one["retry"].rule() if one["retry"] is not None else None,
        max_attempts=0 if dead else one["max_attempts"],
        max_total_ms=0 if dead else one["max_total_ms"],
        exact_attempts=one["exact_attempts"],
        stuck_after_ms=one["stuck_after_ms"],
        dead_topic=None if entry is None else entry.topic or dead_topic_of(topic),
        dead_ttl_ms=None if entry is None else entry.ttl_ms,
    )


def dead_topic_of(topic: str, name_bytes: int = 255) -> str:
    """Return the default name of a topic's dead-letter topic, which has at most `name_bytes` bytes: longer names are
    cut at a character."""
    room = name_bytes - len(DEAD_SUFFIX)
    return topic.encode()[:room].decode(errors="ignore") + DEAD_SUFFIX
