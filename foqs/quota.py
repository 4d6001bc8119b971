"""The bounds on the enqueues of a namespace, or of a topic."""

from __future__ import annotations

from dataclasses import dataclass

Bounded = tuple[str, str]
"""(namespace, topic), or with "" for the topic the whole namespace."""


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `burst` + `per_second` * t items in any t seconds; no more when `stored_items` are stored. None: no
    bound.

    A token is the right to store one item: an enqueue in a namespace with a quota spends one for each item."""

    per_second: int | None
    burst: int
    stored_items: int | None

    def ms_for(self, tokens: int) -> int:
        """How long it takes until so many more are there; there are never more than `burst` at a time."""
        return 0 if self.per_second is None else -(-min(tokens, self.burst) * 1_000 // self.per_second)
