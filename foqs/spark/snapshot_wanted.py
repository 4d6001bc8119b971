"""The wanted content of a snapshot as values, and ranges of ids. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

STATES = ("ready", "delayed", "leased")
"""State by its number in the databases' answers."""
MAX_ID = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """Wanted property of the items; None means any."""

    namespace: str | None = None
    topic: str | None = None
    state: str | None = None

    @property
    def all_lanes(self) -> bool:
        return self.namespace is None and self.topic is None


def ranges(least: int | None, greatest: int | None, parts: int) -> list[tuple[int, int]]:
    """Return `parts` or fewer ranges low < id <= high of equal width between the least and the greatest existing id.
    They are open at both ends, so together they contain every id, also later ones."""
    if least is None or greatest is None:
        return [(0, MAX_ID)]
    width = greatest - least + 1
    inner = sorted({least - 1 + width * part // parts for part in range(1, parts)} - {least - 1})
    bounds = [0, *inner, MAX_ID]
    return list(pairwise(bounds))
