"""Lines of stdin that name items: each has an outcome of its own, and a wrong line stops no other one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from foqs.cli import streams
from foqs.cli.connection import BATCH_ITEMS, stdin_lines
from foqs.cli.errors import fail
from foqs.errors import FoqsError, Invalid
from foqs.travel import bare

T = TypeVar("T", bound=Hashable)

MOST_KNOWN = 100_000
"""A line that repeats another one gets the same outcome if no more lines are between them."""


class Ended(NamedTuple):
    """The outcome of an entry. `line` is its number, 0 for an argument; `entry` is None for a line that names none."""

    line: int
    entry: object
    error: FoqsError | None

    @property
    def message(self) -> str:
        """The error, with the number of the line."""
        assert self.error is not None
        said = self.error.message
        return said if not self.line or said.startswith(f"line {self.line}") else f"line {self.line}: {said}"


class Count:
    """Counts what ended."""

    def __init__(self) -> None:
        self.total = self.failed = 0

    def add(self, ended: Ended) -> None:
        self.total += 1
        self.failed += ended.error is not None

    def report(self, done: str) -> None:
        """End the command with an error if an entry failed; `done` says how the rest ended."""
        if self.failed:
            sys.stdout.flush()
            fail(f"{self.failed} of {self.total} items were not {done}")
        streams.say_done(f"all {self.total} items were {done}")


def entries_of_lines(what: str, read: Callable[[bytes, int], T]) -> Iterator[tuple[int, T | Invalid]]:
    """Yield the number of each line that is not blank, with the entry that `read` makes of it or the error."""
    for number, line in stdin_lines(what):
        if line.strip():
            try:
                yield number, read(line, number)
            except Invalid as error:
                yield number, bare(error)


def settle(
    entries: Iterable[tuple[int, T | Invalid]], send: Callable[[list[T]], Sequence[FoqsError | None]]
) -> Iterator[Ended]:
    """Send the entries that were read, a request at a time, and yield the end of each entry in order."""
    known: dict[T, FoqsError | None] = {}
    left = iter(entries)
    while chunk := list(islice(left, BATCH_ITEMS)):
        new = dict.fromkeys(entry for _, entry in chunk if not isinstance(entry, Invalid) and entry not in known)
        known.update(zip(new, send(list(new)) if new else (), strict=True))
        for number, entry in chunk:
            yield Ended(number, None, entry) if isinstance(entry, Invalid) else Ended(number, entry, known[entry])
        sys.stdout.flush()
        for entry in list(islice(known, max(0, len(known) - MOST_KNOWN))):
            del known[entry]
