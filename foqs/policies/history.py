"""The history of a document that has copies: which of two is newer, or whether they were made apart."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

PAST = 32
"""Versions whose marks a copy has. A copy knows an older version by the mark of the first version alone."""


class History(NamedTuple):
    """`past`: the marks of this version and of those before it, the newest first. `born`: the mark of version 1.

    A mark is 16 hexadecimal digits that no other change has, on any host. A document that was written by hand has none.
    """

    version: int = 0
    born: str = ""
    past: tuple[str, ...] = ()

    def next(self, seed: str) -> History:
        """Return the history of the next version. `seed` differs for each change."""
        mark = blake2b(f"{self.past[:1]}\0{self.version}\0{seed}".encode(errors="replace"), digest_size=8).hexdigest()
        return History(self.version + 1, self.born or mark, (mark, *self.past[: PAST - 1]))

    def leads_to(self, later: History) -> bool:
        """Return True if `later` is this version, or was made from it by changes."""
        steps = later.version - self.version
        if steps < 0 or self.version == 0:
            return steps >= 0
        if steps < len(later.past):
            return later.past[steps : steps + 1] == self.past[:1]
        return self.born == later.born
