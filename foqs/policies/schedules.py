"""Schedules: the value of a settings key `schedule.<name>`, and which of its times fire.

A time that fires is an enqueue whose deduplication key is the name and the time, so it may be repeated. The last one is
kept by the coordinator of the name, in the shard that has the name's hash slot.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from foqs.bounds import DAY_MS
from foqs.checks import I32_MAX, is_text
from foqs.errors import Invalid
from foqs.policies.entries import (
    MOST_PARSED,
    Duration,
    Entry,
    RetryEntry,
    checked,
    name_error,
    read,
    throttle_key_error,
    throttles_error,
)
from foqs.rules import ItemRules, RetryRule
from foqs.ticks import UTC, Cron, Every, ticks_of

RECENT_MS = 60_000
"""Times of this long fire whatever `catch_up` says: a new coordinator takes over in less."""
MOST_COUNTED = 100
"""Missed times of an outage that are counted: counting takes time."""
NEXT_TIMES = 5
NAME_HEADER, TIME_HEADER = OWN_HEADERS = "schedule", "schedule_at_ms"
"""Headers of the items: the name, and the time."""
CatchUp = Literal["none", "last", "all"]


class RulesEntry(Entry):
    """Rules of the scheduled items, in place of the policy of their topic: an unset rule is the policy's."""

    retry: RetryEntry | None = None
    """The delays of failed items."""
    max_attempts: Annotated[int, Field(ge=0, le=I32_MAX)] | None = None
    """The attempts of an item; 0: no limit."""
    max_total_ms: Duration | None = None
    """The time after the first possible delivery within which an attempt may end; 0: no limit."""
    dead_topic: Annotated[str, checked(name_error)] | None = None
    """Where an item goes after its last attempt."""
    keep_ms: Duration | None = None
    """How long an item is kept after its end; 0: not at all."""
    exact_attempts: bool | None = None
    """A crash of a host gives an item no extra attempt."""

    def rules(self) -> ItemRules:
        given = {name: getattr(self, name) for name in self.model_fields_set - {"retry"}}
        retry = self.retry
        if retry is not None:
            given["retry"] = RetryRule(**{name: getattr(retry, name) for name in retry.model_fields_set})
        return ItemRules(**given)


def _text_error(text: str) -> str | None:
    return None if is_text(text) else "it is not UTF-8"


def _header_error(name: str) -> str | None:
    return f"each item has its own header {name}" if name in OWN_HEADERS else _text_error(name)


class ScheduleEntry(Entry):
    """The value of a settings key `schedule.<name>`. The texts are the help of `foqs schedule set`."""

    cron: str
    """Five fields (minute, hour, day, month, weekday), six that begin with the second, or "@every 10s"."""
    timezone: str = UTC
    """The time zone of the fields, such as Europe/Berlin."""
    topic: Annotated[str, checked(name_error)]
    """The topic of the items."""
    payload: Annotated[str, checked(_text_error)] = ""
    """Their payload, as text."""
    payload_base64: str | None = None
    """Their payload, in base64."""
    headers: dict[Annotated[str, checked(_header_error)], Annotated[str, checked(_text_error)]] | None = None
    """Their headers."""
    priority: Annotated[int, Field(ge=-I32_MAX - 1, le=I32_MAX)] = 0
    """Their priority; lower is more urgent."""
    fairness_key: Annotated[str, checked(name_error)] | None = None
    """Their tenant."""
    throttle_keys: Annotated[
        tuple[Annotated[str, checked(throttle_key_error)], ...], Field(strict=False), checked(throttles_error)
    ] = ()
    """Their throttle keys."""
    rules: RulesEntry | None = None
    """Their rules, in place of the policy of the topic."""
    catch_up: CatchUp = "last"
    """Which times fire after an outage: none, the last one, or all of up to a day."""
    overlap: Literal["allow", "skip"] = "allow"
    """`skip`: a time does not fire while the item of the last one is live."""
    jitter_ms: Annotated[int, Field(ge=0, le=DAY_MS)] = 0
    """Each item is delayed by a part of this time."""
    paused: bool = False
    """No time fires."""

    @model_validator(mode="after")
    def _fits(self) -> ScheduleEntry:
        if self.payload_base64 is not None:
            if "payload" in self.model_fields_set:
                raise ValueError("both payload and payload_base64 are given: give one of the two")
            try:
                base64.b64decode(self.payload_base64, validate=True)
            except (binascii.Error, ValueError):
                raise ValueError("payload_base64 is not base64") from None
        try:
            self.times()
        except Invalid as error:
            raise ValueError(error.message) from None
        return self

    def times(self) -> Every | Cron:
        return ticks_of(self.cron, self.timezone)

    def times_key(self) -> tuple[str, str, bool]:
        """Return what says when it fires. A schedule begins when it changes."""
        return self.cron, self.timezone, self.paused

    def body(self) -> bytes:
        """Return the payload of the items."""
        given = self.payload_base64
        return self.payload.encode() if given is None else base64.b64decode(given)

    def next_times(self, after_ms: int) -> list[int]:
        """Return the next few times."""
        return [] if self.paused else list(islice(self.times().after(after_ms), NEXT_TIMES))


@lru_cache(maxsize=MOST_PARSED)
def parse_schedule(text: str) -> ScheduleEntry:
    """Raises Invalid with every error of the entry, one a line."""
    return read(ScheduleEntry, text, "a schedule")


def check_schedule(text: str) -> None:
    """Check an entry that a user puts. Some cron texts are read much faster than it takes to find their first time.

    Raises Invalid."""
    if next(parse_schedule(text).times().after(0), None) is None:
        raise Invalid("cron: it never fires")


class Due(NamedTuple):
    """Times that fire now, the earliest first; how many times before them are missed, and up to when all is decided."""

    fires: Iterator[int]
    missed: int


def due(entry: ScheduleEntry, last_ms: int, now_ms: int, window_ms: int = DAY_MS) -> Due:
    """Return which times behind `last_ms` fire at `now_ms`. Deduplication keys are known for `window_ms`: an older time
    could fire twice."""
    times, since_ms = entry.times(), max(last_ms, now_ms - min(window_ms, DAY_MS))
    if entry.catch_up == "all":
        return Due(_until(times, since_ms, now_ms), _count(times, last_ms, since_ms))
    recent_ms = max(since_ms, now_ms - RECENT_MS - 1)
    missed = _count(times, last_ms, recent_ms)
    recent = list(islice(_until(times, recent_ms, now_ms), 1))
    if not recent and missed and entry.catch_up == "last" and (late_ms := times.last(recent_ms)) > since_ms:
        return Due(iter([late_ms]), missed - 1)
    return Due(_until(times, recent_ms, now_ms), missed)


def _until(times: Every | Cron, after_ms: int, to_ms: int) -> Iterator[int]:
    for at_ms in times.after(after_ms):
        if at_ms > to_ms:
            return
        yield at_ms


def _count(times: Every | Cron, after_ms: int, to_ms: int) -> int:
    return sum(1 for _ in islice(_until(times, after_ms, to_ms), MOST_COUNTED)) if after_ms < to_ms else 0
