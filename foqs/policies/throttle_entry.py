"""The limit on deliveries with a throttle key: an entry of the settings."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Annotated

from pydantic import Field

from foqs.policies.entries import Entry, read
from foqs.throttles.throttle import Throttle

_MOST = 1_000_000_000
_MOST_PARSED = 10_000
"""Texts whose entries are remembered: each version of the settings has most texts of the version before."""
_LATER = frozenset({"concurrency", "timeout_ms"})
"""Fields of features that this version does not have."""


class ThrottleEntry(Entry):
    """The value of a settings key `throttle.<key or prefix*>`. Without `burst` it is `per_second`, rounded up."""

    per_second: Annotated[float, Field(ge=0.001, le=_MOST, allow_inf_nan=False)]
    burst: Annotated[int, Field(ge=1, le=_MOST)] | None = None
    shadow: bool = False

    def throttle(self, setting: str) -> Throttle:
        """`setting`: the settings key that has this value."""
        return Throttle(self.per_second, self.burst or ceil(self.per_second), self.shadow, setting)


@lru_cache(maxsize=_MOST_PARSED)
def parse_throttle(text: str) -> ThrottleEntry:
    """Raises Invalid with every error of the entry, one a line."""
    return read(ThrottleEntry, text, "a throttle", _LATER)
