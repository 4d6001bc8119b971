"""The limit on deliveries with a throttle key: an entry of the settings."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Annotated

from pydantic import Field, model_validator

from foqs.policies.entries import Entry, read
from foqs.throttles.throttle import Throttle

_MOST = 1_000_000_000
_MOST_SLOTS = 1_000_000
_LONGEST_MS = 366 * 86_400_000
_MOST_PARSED = 10_000
"""Texts whose entries are remembered: each version of the settings has most texts of the version before."""
TIMEOUT_MS = 60_000


class ThrottleEntry(Entry):
    """The value of a settings key `throttle.<key or prefix*>`: a rate, a number of leases at a time, or both. Without
    `burst` it is `per_second`, rounded up."""

    per_second: Annotated[float, Field(ge=0.001, le=_MOST, allow_inf_nan=False)] | None = None
    burst: Annotated[int, Field(ge=1, le=_MOST)] | None = None
    concurrency: Annotated[int, Field(ge=1, le=_MOST_SLOTS)] | None = None
    timeout_ms: Annotated[int, Field(ge=0, le=_LONGEST_MS)] | None = None
    shadow: bool = False

    @model_validator(mode="after")
    def _fits(self) -> ThrottleEntry:
        if self.per_second is None and self.concurrency is None:
            raise ValueError("per_second or concurrency is needed")
        if self.burst is not None and self.per_second is None:
            raise ValueError("burst needs per_second")
        if self.timeout_ms is not None and self.concurrency is None:
            raise ValueError("timeout_ms needs concurrency")
        return self

    def throttle(self, setting: str) -> Throttle:
        """`setting`: the settings key that has this value."""
        burst = self.burst or ceil(self.per_second or 0)
        if self.concurrency is None:
            return Throttle(self.per_second, burst, self.shadow, setting)
        timeout_ms = TIMEOUT_MS if self.timeout_ms is None else self.timeout_ms
        return Throttle(self.per_second, burst, self.shadow, setting, self.concurrency, timeout_ms)


@lru_cache(maxsize=_MOST_PARSED)
def parse_throttle(text: str) -> ThrottleEntry:
    """Raises Invalid with every error of the entry, one a line."""
    return read(ThrottleEntry, text, "a throttle", frozenset())
