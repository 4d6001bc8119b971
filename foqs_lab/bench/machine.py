"""Processor time of this run, and of the machine's other processes, which slow a round down and spoil its ratios."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.table import Table

LOUD_CORES = 0.15
"""A ratio is marked if other processes used more than this in its round."""
LOUD = f"* other processes used more than {LOUD_CORES} cores in this round"
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_BUSY = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_COUNTED = {"user", "nice", "system", "steal"}
"""Interrupts are left out: no field says for which process they were."""


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and of its descendants, ended and reaped ones included.

    On a system without /proc it is 0.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        children = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # the process has just ended, or there is no /proc
        return 0.0
    ticks = sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / _TICKS_A_SECOND + sum(cpu_s(int(child)) for child in " ".join(children).split())


def busy_s(stat: str) -> float:
    """Return the time in which the machine's processors were busy, from the text of /proc/stat."""
    for line in stat.splitlines():
        name, *ticks = line.split()
        if name == "cpu":
            counted = dict(zip(_BUSY, map(int, ticks), strict=False))
            return sum(counted.get(part, 0) for part in _COUNTED) / _TICKS_A_SECOND
    return 0.0


def used_by_others(busy: float, own: float, took: float) -> float:
    """Return how many cores other processes used, from seconds of all processes, of this run, and of the clock."""
    return max(0.0, busy - own) / took if took > 0 else 0.0


class OtherProcesses:
    """A meter of the processor time of other processes: all but this one and its descendants."""

    def __init__(self) -> None:
        self._began = self._read()

    def cores(self) -> float:
        """Return the cores of other processes since the last call, or since the start."""
        before, self._began = self._began, self._read()
        busy, own, took = (now - then for now, then in zip(self._began, before, strict=True))
        return used_by_others(busy, own, took)

    def _read(self) -> tuple[float, float, float]:
        try:
            stat = Path("/proc/stat").read_text()
        except OSError:
            stat = ""
        return busy_s(stat), cpu_s(os.getpid()), time.monotonic()


def table(title: str, *columns: str, caption: str | None = None) -> Table:
    """Return an empty table; the first column is text, the next ones are numbers."""
    made = Table(title=title, caption=caption)
    for at, column in enumerate(columns):
        made.add_column(column, justify="right" if at else "left")
    return made


def marked(values: Iterable[float], cores: Iterable[float], text: Callable[[float], str] = "{:.3f}".format) -> str:
    """Return the value of each round; `*` marks values of rounds with more than LOUD_CORES of other processes."""
    return " ".join(text(value) + "*" * (loud > LOUD_CORES) for value, loud in zip(values, cores, strict=True))
