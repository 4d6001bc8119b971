"""The results as they come in, each file counted once; and the comparison with the plain loop. No I/O.

A worker sends its result as an item to a second topic and acks the file only after that enqueue was answered,
which means that it was committed. So wherever the worker dies, either the ack was made and the result is in the
queue, or the file is delivered again. The one thing that can happen is a result that comes twice: the worker died,
or lost its lease, between the two. A result names its file, and the file is the key here, so the second one
replaces nothing and adds nothing. (The other order, ack first, would lose the result of a worker that dies in
between, and nothing would tell.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from foqs_lab.demo.files import Measure

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
    """Results by file. `repeated` counts those that came for a file that had one."""

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
