"""Counts completions in the processes of a worker, for the process that measures them: a file for each process.

Workers of all queues import this module, so it has nothing but the standard library.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import NamedTuple

_SLOT = struct.Struct("=Qdd")
_lock = Lock()
_slot: mmap.mmap | None = None
_count = 0
_first_s = 0.0


def completed() -> None:
    """Count one more completion of this process. A handler calls it last."""
    global _slot, _count, _first_s  # noqa: PLW0603 - a counter of the process, at the least cost for each queue
    with _lock:
        now_s = time.monotonic()
        if _slot is None:
            _slot, _first_s = _file(), now_s
        _count += 1
        _SLOT.pack_into(_slot, 0, _count, _first_s, now_s)


def _file() -> mmap.mmap:
    path = Path(os.environ["FOQS_BENCH_TALLY"]) / str(os.getpid())
    path.write_bytes(bytes(_SLOT.size))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), _SLOT.size)


class Tally(NamedTuple):
    """`completed` tasks of all processes, from `first_s` to `last_s` of the machine's monotonic clock."""

    completed: int
    first_s: float
    last_s: float


def read(folder: Path) -> Tally:
    """Return what the workers have completed so far. The last time may be older than the last count."""
    slots = [_SLOT.unpack(data) for path in folder.iterdir() if len(data := path.read_bytes()) == _SLOT.size]
    slots = [slot for slot in slots if slot[0]]
    if not slots:
        return Tally(0, 0.0, 0.0)
    counts, firsts, lasts = zip(*slots, strict=True)
    return Tally(sum(counts), min(firsts), max(lasts))


def environment(folder: Path) -> Mapping[str, str]:
    return {"FOQS_BENCH_TALLY": str(folder)}
