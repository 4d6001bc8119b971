"""`foqs demo` counts some files correctly, reports a wrong result, and leaves no process or file behind."""

import ast
import dataclasses
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foqs.cli import run
from foqs_lab.demo import story
from foqs_lab.demo.count import (
    Killed,
    Measure,
    Outcome,
    Queued,
    Result,
    Tally,
    differences,
    find,
    library,
    measure,
    percentile,
    plain_loop,
    totals,
)
from foqs_lab.demo.crew import leases_held
from tests.support.waiting import wait_until as eventually

ROOT = Path(__file__).parent.parent.parent
LATER_S = 60.0


# ------------------------------------------------------------------------------------------------ the command


class Demo:
    """A running `foqs demo` with a folder for temporary files of its own, by which all its processes are known."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._out, self._err = folder.with_suffix(".out"), folder.with_suffix(".err")
        folder.mkdir()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self._out.open("w") as out, self._err.open("w") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "foqs", "demo", *options],
                stdout=out,
                stderr=err,
                env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": path},
                cwd=folder,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_for(self, text: str) -> None:
        eventually(lambda: text in self.err or self._process.poll() is not None)
        assert text in self.err, self.out + self.err

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(LATER_S)

    def processes(self, what: str = "") -> list[int]:
        """Its children that live and have `what` in their command line."""
        mark = f"TMPDIR={self.folder}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                ours = [one for one in (process / "environ").read_bytes().split(b"\0") if one.startswith(mark)]
                if ours and what in (process / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                    found.append(int(process.name))
            except OSError:
                continue
        return [pid for pid in found if pid != self._process.pid]

    def left_behind(self) -> list[Any]:
        return [*self.folder.iterdir(), *self.processes()]

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """`start("--files", "20")` runs `foqs demo --files 20`."""
    demos: list[Demo] = []

    def started(*options: str) -> Demo:
        demos.append(Demo(tmp_path / f"demo-{len(demos)}", *options))
        return demos[-1]

    yield started
    for each in demos:
        each.end()


def figures(table_row: str, text: str) -> list[int]:
    line = next(line for line in text.splitlines() if line.strip().startswith(table_row))
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", line)]


def test_a_killed_worker_does_not_change_the_totals(start: Callable[..., Demo]) -> None:
    run = start("--files", "60", "--workers", "2")
    assert run.wait() == 0, run.out + run.err

    sources = find(library(), 60)
    expected = totals(plain_loop(library(), [source.name for source in sources], lambda done: None))
    for name, total in zip(("files", "lines", "functions", "classes"), expected, strict=False):
        assert figures(name, run.out)[:2] == [total, total]
    redelivered, nacked, by_kill = figures("redeliveries", run.out)
    assert nacked == 5
    assert by_kill >= 1
    assert redelivered == nacked + by_kill
    assert figures("left in the queue", run.out) == [0]
    assert "was killed at work on" in run.err
    assert "\x1b" not in run.out + run.err, "no terminal, no colours"
    assert run.left_behind() == []


def test_keep_leaves_shards_and_logs(start: Callable[..., Demo]) -> None:
    run = start("--files", "10", "--workers", "1", "--keep")
    assert run.wait() == 0, run.out + run.err
    (folder,) = run.folder.iterdir()
    assert str(folder) in run.err
    assert sorted(path.name for path in folder.iterdir()) == ["data", "host.log", "worker-1.log", "worker-2.log"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_it_started(start: Callable[..., Demo], number: signal.Signals) -> None:
    run = start("--workers", "2")
    run.wait_for("was killed at work on")
    while run.runs:  # an impatient second one changes nothing, whenever it comes
        run.send(number)
    assert run.wait() == 130
    assert run.err.splitlines()[-1] == "foqs: interrupted"
    assert run.left_behind() == []


def test_says_so_when_the_host_dies(start: Callable[..., Demo]) -> None:
    run = start("--workers", "2")
    run.wait_for("was killed at work on")
    (host,) = run.processes("foqs dev")
    os.kill(host, signal.SIGKILL)
    assert run.wait() == 1
    assert "foqs: the demo failed: the host ended by itself" in run.err
    assert run.left_behind() == []


def test_the_death_of_another_worker_is_reported(start: Callable[..., Demo]) -> None:
    run = start("--workers", "2")
    run.wait_for("was killed at work on")
    os.kill(run.processes("demo.worker")[0], signal.SIGKILL)
    assert run.wait() == 1
    assert re.search(r"foqs: the demo failed: worker \d ended by itself", run.err)
    assert run.left_behind() == []


# ------------------------------------------------------------------------------------------------ the comparison

PLAIN = {"a.py": Measure(10, 2, 1), "b.py": Measure(20, 3, 0), "c.py": Measure(5, 0, 0, parses=False)}


def result(name: str, attempt: int = 1, *, nacked: bool = False) -> Result:
    return Result(name, *PLAIN[name], attempt=attempt, nacked=nacked, wait_ms=7)


NACKED = result("b.py", 2, nacked=True)


def tallied(*results: Result) -> Tally:
    tally = Tally()
    for each in results:
        tally.add(each)
    return tally


def good_outcome() -> Outcome:
    tally = tallied(result("a.py"), NACKED, result("c.py", 2))
    queued = Queued(tally, 1.0, 1, Killed(worker=1, held=1), [1.0, 2.0, 3.0], {"files": 0, "results": 0})
    return Outcome("Python 3", 2, queued, PLAIN, 1.0)


def tampered(**changes: Any) -> Outcome:
    """Return a good outcome with `changes` to the results of the queue."""
    outcome = good_outcome()
    return dataclasses.replace(outcome, queued=dataclasses.replace(outcome.queued, **changes))


WRONG = {
    "a result with a function too many": (
        {"tally": tallied(dataclasses.replace(result("a.py"), functions=3), NACKED, result("c.py", 2))},
        "a.py: 10 lines, 3 functions, 1 classes through the queue, 10 lines, 2 functions, 1 classes in the plain loop",
    ),
    "a lost result": (
        {"tally": tallied(NACKED, result("c.py", 2))},
        "a.py: the queue delivered no result",
    ),
    "a result for no file": (
        {"tally": tallied(*good_outcome().queued.tally.results.values(), Result("d.py", 1, 0, 0, True, 1, False, 0))},
        "d.py: the queue delivered a result for an unknown file",
    ),
    "an item left": ({"left": {"files": 1, "results": 0}}, "1 item is left in topic files"),
    "items left": ({"left": {"files": 0, "results": 1200}}, "1,200 items are left in topic results"),
    "a nacked file that did not come again": ({"told_to_fail": 2}, "2 files were nacked on purpose, 1 delivered again"),
    "nothing from the killed worker": (
        {"tally": tallied(result("a.py"), NACKED, result("c.py"))},
        "the items of the killed worker were not delivered again",
    ),
    "no worker killed": ({"killed": None}, "no worker was killed at work: none held a lease"),
}  # fmt: skip


def command(monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> Any:
    """Run the command with a stub of the demo that returns `outcome`."""
    monkeypatch.setattr(story, "run", lambda plan, screen: outcome)
    return CliRunner().invoke(run.app, ["demo"])


def test_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = command(monkeypatch, good_outcome())
    assert answer.exit_code == 0
    assert "Every file was counted once" in answer.output


@pytest.mark.parametrize("wrong", WRONG)
def test_fails_and_says_why(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    changes, line = WRONG[wrong]
    answer = command(monkeypatch, tampered(**changes))
    assert answer.exit_code == 1
    assert f"foqs: the demo failed:\n  {line}\n" in answer.output
    assert "Every file was counted once" not in answer.output


def test_a_result_that_comes_twice_counts_once() -> None:
    tally = tallied(result("a.py"), result("a.py", 2), result("b.py"), result("c.py"))
    assert tally.measures() == PLAIN
    assert (len(tally), tally.repeated, tally.redeliveries) == (3, 1, 1)


def test_many_differences_are_cut_short() -> None:
    lines = differences({}, {f"{n}.py": Measure(1, 0, 0) for n in range(20)})
    assert len(lines) == 6
    assert lines[-1] == "and 15 files more"


def test_result_survives_the_way_through_the_queue() -> None:
    odd = Result("lib/\udcff€.py", 1, 2, 3, parses=True, attempt=4, nacked=True, wait_ms=5)
    assert Result.from_payload(odd.to_payload()) == odd


def test_percentiles() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, p) for p in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert (percentile([3.0], 50), percentile([], 50)) == (3.0, 0.0)


# ------------------------------------------------------------------------------------------------ the parts


def test_leases_held_are_those_that_begin_and_do_not_end() -> None:
    assert leases_held("") == set()
    assert leases_held("begin 1\nbegin 2\nsome warning\nend 1\n") == {2}
    assert leases_held("begin 1\nend 1\nbegin 1\nbegin 3\n") == {1, 3}, "a redelivery to the same worker"
    assert leases_held("begin 1\nend 1\n") == set()


def test_find_picks_library_files_of_all_sizes_and_no_packages(tmp_path: Path) -> None:
    everything = find(library())
    assert len(everything) > 300
    assert "ast.py" in {source.name for source in everything}
    assert not [s for s in everything if "site-packages" in s.name or "dist-packages" in s.name]
    some = find(library(), 10)
    assert len(some) == 10
    assert {min(s.size for s in everything), max(s.size for s in everything)} <= {s.size for s in some}
    assert find(tmp_path) == []


def test_counts_like_ast_walk() -> None:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    for name, _ in find(library(), 40):
        source = (library() / name).read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            measured = measure(library() / name)
            try:
                nodes = list(ast.walk(ast.parse(source)))
            except (SyntaxError, ValueError):
                assert not measured.parses
                continue
        counted = [sum(isinstance(node, kind) for node in nodes) for kind in (functions, ast.ClassDef)]
        assert [measured.functions, measured.classes] == counted, name


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (b"", Measure(0, 0, 0)),
        (b"def f():\n    class A:\n        async def g(self): pass\n", Measure(3, 2, 1)),
        (b"match 1:\n  case 1:\n    try: pass\n    except E:\n      def f(): lambda: 1\n", Measure(5, 1, 0)),
        (b"x = (lambda: 1) if y else (lambda: 2)", Measure(1, 0, 0)),
        (b"print 'two'\nlines", Measure(2, 0, 0, parses=False)),
        (b"\0", Measure(1, 0, 0, parses=False)),
        (b"# coding: no-such\n", Measure(1, 0, 0, parses=False)),
    ],
)
def test_measures(tmp_path: Path, source: bytes, expected: Measure) -> None:
    (tmp_path / "a.py").write_bytes(source)
    assert measure(tmp_path / "a.py") == expected
