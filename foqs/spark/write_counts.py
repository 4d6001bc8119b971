"""How many equal rows a task has seen: in memory for a small partition, on the task's disk for a large one."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from struct import Struct
from tempfile import TemporaryFile

IN_MEMORY_ROWS = 1 << 19
"""Distinct rows up to which a task uses no file."""
_SLOT = Struct("=QQ")
"""The hash of a row, and its count plus one; an empty slot has a 0 there."""
_PROBE_BYTES = 4 * _SLOT.size
_RUN_BYTES = _SLOT.size << 12

Counted = Iterable[tuple[int, int]]
"""Pairs of a row and its count."""


class RowCounts:
    """Counts of rows by their hashes of 8 bytes. The memory in use does not depend on the number of rows."""

    def __init__(self, in_memory_rows: int = IN_MEMORY_ROWS) -> None:
        self._most = in_memory_rows
        self._few: dict[int, int] = {}
        self._table: _Table | None = None

    def add(self, row: int) -> int:
        """Count a row. Return how many equal ones were counted before. Raises OSError if the disk is full."""
        if self._table is not None:
            return self._table.add(row, 1)
        before = self._few.get(row, 0)
        self._few[row] = before + 1
        if len(self._few) > self._most:
            self._table = _Table()
            self._table.fill(2 * len(self._few), self._few.items())
            self._few = {}
        return before

    def forget(self, row: int) -> None:
        """Set the count of a row to 0."""
        if self._table is not None:
            self._table.forget(row)
        else:
            self._few.pop(row, None)

    def hashes(self) -> bytes:
        """Return the hashes of the counted rows, 8 bytes each, in no order."""
        if self._table is None:
            return array("Q", self._few).tobytes()
        runs = (array("Q", [row for row, count in run if count]) for run in self._table.runs())
        return b"".join(run.tobytes() for run in runs)

    def repeats(self) -> dict[int, int]:
        """Return the counts above 1."""
        found = self._few.items() if self._table is None else chain.from_iterable(self._table.runs())
        return {row: count for row, count in found if count > 1}

    def close(self) -> None:
        if self._table is not None:
            self._table.close()


class _Table:
    """Hash table with linear probing, in a file without a name. Read and written by slots, not mapped: pages of a
    mapped file count as memory of the process."""

    def __init__(self) -> None:
        self._open()

    def fill(self, slots: int, counts: Counted) -> None:
        """Make the empty table one of at least `slots`, with these counts."""
        self._slots = 1 << (slots - 1).bit_length()
        self._file.truncate(self._slots * _SLOT.size)
        for row, count in counts:
            self.add(row, count)

    def add(self, row: int, count: int) -> int:
        """Add to the count of a row, and return the count before."""
        at, kept = self._find(row)
        if not kept:
            if 2 * self._used >= self._slots:
                self._grow()
                at, _ = self._find(row)
            self._used += 1
            kept = 1
        os.pwrite(self._number, _SLOT.pack(row, kept + count), at)
        return kept - 1

    def forget(self, row: int) -> None:
        at, kept = self._find(row)
        if kept:
            os.pwrite(self._number, _SLOT.pack(row, 1), at)

    def runs(self) -> Iterator[Counted]:
        """Yield the rows with their counts, one run after the other."""
        return _runs(self._number)

    def close(self) -> None:
        self._file.close()

    def _open(self) -> None:
        self._file = TemporaryFile(dir=local_folder())  # noqa: SIM115 - open until `close`
        self._number = self._file.fileno()
        self._slots = self._used = 0

    def _find(self, row: int) -> tuple[int, int]:
        """Return where the row's slot is, or the empty one for it, with the count plus one."""
        at = (row & (self._slots - 1)) * _SLOT.size
        while True:
            for found, kept in _SLOT.iter_unpack(os.pread(self._number, _PROBE_BYTES, at)):
                if not kept or found == row:
                    return at, kept
                at += _SLOT.size
            at %= self._slots * _SLOT.size

    def _grow(self) -> None:
        slots = self._slots
        with self._file as old:
            self._open()
            self.fill(2 * slots, chain.from_iterable(_runs(old.fileno())))


def _runs(file: int) -> Iterator[Counted]:
    at = 0
    while run := os.pread(file, _RUN_BYTES, at):
        at += len(run)
        yield [(row, kept - 1) for row, kept in _SLOT.iter_unpack(run) if kept]


def local_folder() -> str | None:
    """Return Spark's folder for temporary files, if the process has one."""
    return next(filter(os.path.isdir, os.environ.get("SPARK_LOCAL_DIRS", "").split(",")), None)
