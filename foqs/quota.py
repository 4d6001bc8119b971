"""The bounds on the enqueues of a namespace or a topic, and on the deliveries of items with a throttle key."""

from __future__ import annotations

from dataclasses import dataclass

NANO = 1_000_000_000
"""A token is counted in so many parts."""

Bounded = tuple[str, str]
"""(namespace, topic), with "" for the topic the whole namespace, or (namespace, THROTTLE + throttle key)."""

THROTTLE = "\1"
"""Stands before a throttle key; no topic begins with it."""


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `burst` + `per_second` * t items in any t seconds; no more when `stored_items` are stored. None: no
    bound.

    A token is the right to store one item, or to deliver one with a throttle key."""

    per_second: float | None
    burst: int
    stored_items: int | None

    @property
    def nano_per_ms(self) -> int | None:
        """Billionths of a token that accrue in a millisecond: an integer, so that tokens add up exactly."""
        return None if self.per_second is None else int(self.per_second * 1_000_000)

    def ms_for(self, tokens: int) -> int:
        """How long it takes until so many more are there; there are never more than `burst` at a time."""
        nano = self.nano_per_ms
        return 0 if nano is None else -(-min(tokens, self.burst) * NANO // max(1, nano))
