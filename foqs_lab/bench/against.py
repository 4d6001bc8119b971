"""Two installations of foqs, measured in interleaved pairs: each run is a `foqs bench` of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

import foqs

_WHOLE = "run_cpu_s"
Options = Mapping[str, Sequence[str]]
"""The options of each workload. An older installation need not know those of other workloads."""


@dataclass(slots=True)
class Pairs:
    """`values` are the figures of the runs: of this installation first, then of the other one."""

    other: str
    values: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)

    def add(self, workload: str, own: Mapping[str, float], other: Mapping[str, float]) -> None:
        """Add the figures of a pair that both have."""
        for name, value in own.items():
            if name in other:
                key = f"{workload}_{name}" if name == _WHOLE else name
                pair = self.values.setdefault(key, ([], []))
                pair[0].append(value)
                pair[1].append(other[name])

    def ratios(self) -> dict[str, list[float]]:
        """This installation over the other one, by figure; without the figures that were 0."""
        return {
            name: [a / b for a, b in zip(own, other, strict=True)]
            for name, (own, other) in self.values.items()
            if all(other)
        }

    def as_json(self) -> dict[str, Any]:
        ratios = self.ratios()
        return {
            "against": self.other,
            "median": {name: median(values) for name, values in ratios.items()},
            "rounds": ratios,
            "own": {name: own for name, (own, _) in self.values.items()},
            "other": {name: other for name, (_, other) in self.values.items()},
        }


def measure(other: Path, options: Options, rounds: int, step: Callable[[str], None]) -> Pairs:
    """Each pair runs one workload with both installations; the first one alternates.

    Raises RuntimeError if a run fails.
    """
    pairs = Pairs(str(other))
    own_folder = Path(foqs.__file__).parent.parent
    with tempfile.TemporaryDirectory(prefix="foqs-bench-") as empty:
        # `python -m foqs` prefers the package in its working directory.
        sides = {
            "this": (own_folder, [sys.executable, "-m", "foqs"]),
            "other": (Path(empty), [str(other.absolute())]),
        }
        for at in range(rounds):
            for workload, words in options.items():
                found = {}
                for name in sorted(sides, reverse=at % 2 == 1):
                    step(f"{workload}, {name}")
                    folder, program = sides[name]
                    found[name] = run(folder, [*program, "bench", workload, *words, "--rounds", "1", "--json"])
                pairs.add(workload, found["this"], found["other"])
    return pairs


def run(folder: Path, argv: Sequence[str]) -> dict[str, float]:
    """The figures of one `foqs bench`, and the processor time of all processes of that run."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryFile("w+") as complaints:
        try:
            process = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=complaints, text=True, cwd=folder, env=environment
            )
        except OSError as error:
            raise RuntimeError(f"{argv[0]} cannot be run: {error.strerror}") from error
        assert process.stdout is not None
        with process.stdout:
            said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        complaints.seek(0)
        if process.returncode != 0:
            reason = complaints.read().strip() or f"exit status {process.returncode}"
            raise RuntimeError(f"{' '.join(argv)} failed: {reason}")
    figures: dict[str, float] = json.loads(said)["median"]
    return {**figures, _WHOLE: usage.ru_utime + usage.ru_stime}


def show(pairs: Pairs, console: Console) -> None:
    """Print the ratio of each figure, with the medians of both installations."""
    table = Table(title=f"foqs bench over {pairs.other}")
    table.add_column("figure")
    for column in ("ratio", "min", "max", "this", "other"):
        table.add_column(column, justify="right")
    for name, ratios in pairs.ratios().items():
        own, other = pairs.values[name]
        spread = (f"{value:.3f}" for value in (median(ratios), min(ratios), max(ratios)))
        table.add_row(name, *spread, *(f"{median(values):,.4g}" for values in (own, other)))
    console.print(table)
