"""The work of the demo without a queue, the count of its results, and the comparison with a plain loop.

A worker sends its result as an item to a second topic and acks the file only after that enqueue was answered,
which means that it was committed. So wherever the worker dies, either the ack was made and the result is in the
queue, or the file is delivered again. A result may come twice: the worker died, or lost its lease, between the two. A
result names its file, and the file is the key here, so the second one replaces nothing and adds nothing. (The other
order, ack first, would lose the result of a worker that dies in between, without a trace.)
"""

from __future__ import annotations

import ast
import json
import math
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

# Installed packages are not the standard library; Debian has another name for their folder.
_SKIPPED = {"site-packages", "dist-packages", "__pycache__"}
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


class Source(NamedTuple):
    """One file: its path below the library's folder, and its size in bytes."""

    name: str
    size: int


class Measure(NamedTuple):
    """Counts of one file. A file that does not parse has lines, but no functions and no classes."""

    lines: int
    functions: int
    classes: int
    parses: bool = True


def library() -> Path:
    """The folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def find(root: Path, limit: int | None = None) -> list[Source]:
    """The readable `.py` files below `root`, by name; `limit` takes that many, from the smallest to the largest
    in even steps."""
    sources = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _SKIPPED)
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix == ".py" and path.is_file() and os.access(path, os.R_OK):
                sources.append(Source(str(path.relative_to(root)), path.stat().st_size))
    if limit is not None and limit < len(sources):
        by_size = sorted(sources, key=lambda source: (source.size, source.name))
        step = (len(by_size) - 1) / max(1, limit - 1)
        sources = sorted(by_size[round(n * step)] for n in range(limit))
    return sources


def measure(path: Path) -> Measure:
    """Counts lines, functions and classes (nested ones and methods too) of one file."""
    source = path.read_bytes()
    lines = len(source.splitlines())
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the library tests its parser with such files
        return Measure(lines, 0, 0, parses=False)
    functions = classes = 0
    for statement in _statements(tree):
        functions += isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        classes += isinstance(statement, ast.ClassDef)
    return Measure(lines, functions, classes)


def plain_loop(root: Path, names: Iterable[str], done: Callable[[int], None]) -> dict[str, Measure]:
    """Count all files in one process without a queue; call `done` with the number of finished files."""
    measured = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the files' own code
        for name in names:
            measured[name] = measure(root / name)
            done(len(measured))
    return measured


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    # `ast.walk` takes ten times the time, because it visits expressions, which contain no def or class.
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        for block in _BLOCKS:
            children: list[ast.AST] = getattr(node, block, [])
            if isinstance(children, list):  # a lambda's or a conditional's is an expression
                todo += children
                yield from children


_SHOWN_DIFFERENCES = 5


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker says of one file.

    `attempt` counts deliveries from 1; `nacked` when an attempt before ended with the nack on purpose; `wait_ms`
    is the time from when the file could be delivered until work on it began.
    """

    file: str
    lines: int
    functions: int
    classes: int
    parses: bool
    attempt: int
    nacked: bool
    wait_ms: int

    @property
    def measure(self) -> Measure:
        return Measure(self.lines, self.functions, self.classes, self.parses)

    def to_payload(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_payload(cls, payload: bytes) -> Result:
        return cls(**json.loads(payload))


class Totals(NamedTuple):
    """Sums over files."""

    files: int
    lines: int
    functions: int
    classes: int
    unparsable: int


class Tally:
    """Results by file. `repeated` counts results for a file that had one."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}
        self.repeated = 0
        self._attempts: dict[str, int] = {}

    def add(self, result: Result) -> bool:
        """Counts a result; False when its file was counted before."""
        self._attempts[result.file] = max(result.attempt, self._attempts.get(result.file, 0))
        if result.file in self.results:
            self.repeated += 1
            return False
        self.results[result.file] = result
        return True

    def __len__(self) -> int:
        return len(self.results)

    @property
    def redeliveries(self) -> int:
        """Deliveries of files beyond the first of each."""
        return sum(attempt - 1 for attempt in self._attempts.values())

    @property
    def nacked(self) -> int:
        """Files that were nacked on purpose and came again."""
        return sum(result.nacked for result in self.results.values())

    def measures(self) -> dict[str, Measure]:
        return {name: result.measure for name, result in self.results.items()}


def totals(measures: Mapping[str, Measure]) -> Totals:
    counted = measures.values()
    return Totals(
        files=len(measures),
        lines=sum(m.lines for m in counted),
        functions=sum(m.functions for m in counted),
        classes=sum(m.classes for m in counted),
        unparsable=sum(not m.parses for m in counted),
    )


def differences(queued: Mapping[str, Measure], plain: Mapping[str, Measure]) -> list[str]:
    """Where two sets of results differ, file by file; empty when they are the same."""
    lines = []
    for name in sorted(queued.keys() | plain.keys()):
        through, without = queued.get(name), plain.get(name)
        if through is None:
            lines.append(f"{name}: the queue delivered no result")
        elif without is None:
            lines.append(f"{name}: the queue delivered a result for an unknown file")
        elif through != without:
            lines.append(f"{name}: {_counts(through)} through the queue, {_counts(without)} in the plain loop")
    if len(lines) > _SHOWN_DIFFERENCES:
        lines[_SHOWN_DIFFERENCES:] = [f"and {len(lines) - _SHOWN_DIFFERENCES} files more"]
    return lines


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest of `values` that `percent` of them do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1] if ordered else 0.0


def _counts(measure: Measure) -> str:
    if not measure.parses:
        return f"{measure.lines} lines that do not parse"
    return f"{measure.lines} lines, {measure.functions} functions, {measure.classes} classes"


@dataclass(frozen=True, slots=True)
class Killed:
    """The worker that was killed, and how many leases of items it was working on it took with it."""

    worker: int
    held: int


@dataclass(frozen=True, slots=True)
class Queued:
    """Results of the queue, in `seconds` from the first enqueue until the topic of files was empty.

    Workers nacked `told_to_fail` files at their first delivery; `result_waits_ms` are the times from the
    enqueue of each result to its delivery; `left` has the number of items in each topic at the end.
    """

    tally: Tally
    seconds: float
    told_to_fail: int
    killed: Killed | None
    result_waits_ms: list[float]
    left: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both ways over the same files. `plain_seconds` is what the loop took in one process."""

    library: str
    workers: int
    queued: Queued
    plain: Mapping[str, Measure]
    plain_seconds: float

    def problems(self) -> list[str]:
        """Return a line for each fault; none if the run was good."""
        queued = self.queued
        lines = differences(queued.tally.measures(), self.plain)
        lines += [f"{_items(count)} left in topic {topic}" for topic, count in queued.left.items() if count]
        if queued.tally.nacked != queued.told_to_fail:
            lines.append(f"{queued.told_to_fail} files were nacked on purpose, {queued.tally.nacked} delivered again")
        if queued.killed is None:
            lines.append("no worker was killed at work: none held a lease")
        elif queued.tally.redeliveries < queued.told_to_fail + 1:
            lines.append("the items of the killed worker were not delivered again")
        return lines


def _items(count: int) -> str:
    return "1 item is" if count == 1 else f"{count:,} items are"
