"""Two installations of foqs, measured in interleaved pairs: each run is a bench command of its own."""

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
from typing import Any, NamedTuple

from rich.console import Console

import foqs
from foqs_lab.bench.clients import Shape
from foqs_lab.bench.machine import LOUD, OtherProcesses, marked, table

_WHOLE = "run_cpu_s"
_BATCHES = {
    "--items": "items",
    "--batch": "batch",
    "--producers": "producers",
    "--consumers": "consumers",
    "--payload-bytes": "payload_bytes",
}
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "cycle": _BATCHES,
    "single": {"--items": "items", "--payload-bytes": "payload_bytes"},
    "callers": {"--callers": "producers", "--items": "items", "--payload-bytes": "payload_bytes"},
    "enqueue": {name: part for name, part in _BATCHES.items() if name != "--consumers"},
    "drain": {"--backlog": "items", "--delayed": "delayed", "--batch": "batch", "--consumers": "consumers"},
    "latency": {"--items": "items"},
}
"""The options of each workload, and which part of its shape each one is."""
_OF_FOQS_BENCH = {
    ("single", "--items"): "--single-items",
    ("callers", "--items"): "--callers-items",
    ("latency", "--items"): "--latency-rounds",
}
"""Options whose names were different when the bench was `foqs bench`, one command with the options of all workloads."""


class Program(NamedTuple):
    """A program with a bench, which runs in `folder`. `of_foqs`: its bench is `foqs bench`."""

    argv: tuple[str, ...]
    folder: Path
    of_foqs: bool

    def command(self, workload: str, shape: Shape, rig: Sequence[str]) -> list[str]:
        """Return the command line that measures one round of a workload."""
        words = [*self.argv, "bench", workload, *rig]
        for name, part in OPTIONS[workload].items():
            old = _OF_FOQS_BENCH.get((workload, name), name)
            words += [old if self.of_foqs else name, str(getattr(shape, part))]
        return [*words, "--rounds", "1", "--json"]


def program_at(path: Path, empty: Path) -> Program:
    """Return the program of a checkout with a .venv, or the program at `path`: `foqs-lab`, or a `foqs` with a bench.

    Raises RuntimeError if there is none. A program runs in the folder `empty`.
    """
    if path.is_dir():
        folder = path.absolute()
        python, of_foqs = folder / ".venv/bin/python", not (folder / "foqs_lab").is_dir()
        if not python.exists():
            raise RuntimeError(f"{path} has no .venv/bin/python: run script/setup demo there")
        # `python -m` prefers the package in its working directory.
        return Program((str(python), "-m", "foqs" if of_foqs else "foqs_lab"), folder, of_foqs)
    beside = path.with_name("foqs-lab")
    found = beside if beside.exists() else path
    return Program((str(found.absolute()),), empty, found.name != "foqs-lab")


class Pair(NamedTuple):
    """The figures of a workload by round: of this installation, and of the other one."""

    workload: str
    own: list[float]
    other: list[float]

    def ratios(self) -> list[float]:
        return [one / other for one, other in zip(self.own, self.other, strict=True)]


@dataclass(slots=True)
class Pairs:
    """`cores`: what other processes used, by workload and round; of two runs, the higher number."""

    other: str
    figures: dict[str, Pair] = field(default_factory=dict)
    cores: dict[str, list[float]] = field(default_factory=dict)

    def add(self, workload: str, own: Mapping[str, float], other: Mapping[str, float], cores: float) -> None:
        """Add the figures of a pair that both have."""
        self.cores.setdefault(workload, []).append(cores)
        for name, value in own.items():
            if name in other:
                key = f"{workload}_{name}" if name == _WHOLE else name
                pair = self.figures.setdefault(key, Pair(workload, [], []))
                pair.own.append(value)
                pair.other.append(other[name])

    def with_ratios(self) -> dict[str, Pair]:
        """Return the figures other than 0."""
        return {name: pair for name, pair in self.figures.items() if all(pair.other)}

    def as_json(self) -> dict[str, Any]:
        pairs = self.with_ratios()
        return {
            "against": self.other,
            "median": {name: median(pair.ratios()) for name, pair in pairs.items()},
            "rounds": {name: pair.ratios() for name, pair in pairs.items()},
            "cores_of_other_processes": self.cores,
            "own": {name: pair.own for name, pair in self.figures.items()},
            "other": {name: pair.other for name, pair in self.figures.items()},
        }

    def show(self, console: Console) -> None:
        """Print the ratios of each figure, and the cores of other processes in each round."""
        columns = ("figure", "ratio", "min", "max", "this", "other")
        shown = table(f"foqs-lab bench over {self.other}", *columns, caption=LOUD)
        shown.add_column("rounds")
        for name, pair in self.with_ratios().items():
            ratios = pair.ratios()
            spread = (f"{value:.3f}" for value in (median(ratios), min(ratios), max(ratios)))
            middles = (f"{median(values):,.4g}" for values in (pair.own, pair.other))
            shown.add_row(name, *spread, *middles, marked(ratios, self.cores[pair.workload]))
        for workload, cores in self.cores.items():
            shown.add_row(
                f"{workload}: cores of other processes", "", "", "", "", "", marked(cores, cores, "{:.2f}".format)
            )
        console.print(shown)


def measure(
    other: Path, shapes: Mapping[str, Shape], rig: Sequence[str], rounds: int, step: Callable[[str], None]
) -> Pairs:
    """Measure pairs. Each one runs a workload with both installations; the first one alternates.

    `rig` are the options of the database. Raises RuntimeError if a run fails.
    """
    pairs = Pairs(str(other))
    with tempfile.TemporaryDirectory(prefix="foqs-bench-") as empty:
        own = Program((sys.executable, "-m", "foqs_lab"), Path(foqs.__file__).parent.parent, False)
        sides = {"this": own, "other": program_at(other, Path(empty))}
        for at in range(rounds):
            for workload, shape in shapes.items():
                found, cores = {}, []
                for name in sorted(sides, reverse=at % 2 == 1):
                    step(f"{workload}, {name}")
                    meter = OtherProcesses()
                    found[name] = run(sides[name].folder, sides[name].command(workload, shape, rig))
                    cores.append(meter.cores())
                pairs.add(workload, found["this"], found["other"], max(cores))
    return pairs


def run(folder: Path, argv: Sequence[str]) -> dict[str, float]:
    """Return the figures of a bench command, and the processor time of all processes of that run."""
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
