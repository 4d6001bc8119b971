"""The processor time of other processes, and the command lines for another installation."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.main import get_command

from foqs_lab.bench.clients import SHAPES, Shape
from foqs_lab.bench.machine import LOUD_CORES, OtherProcesses, busy_s, cpu_s, marked, used_by_others
from foqs_lab.bench.pairs import OPTIONS, Pairs, Program, program_at
from foqs_lab.cli import app

STAT = "cpu  1000 200 300 9000 800 70 60 50 9 8\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 1\n"


def test_busy_time_is_of_programs_and_of_other_machines() -> None:
    """Idle time, the wait for disks and interrupts do not count."""
    assert busy_s(STAT) == pytest.approx((1000 + 200 + 300 + 50) / 100)
    assert busy_s("") == busy_s("cpu0 1 2 3 4\n") == 0


def test_cores_of_other_processes() -> None:
    assert used_by_others(busy=7.0, own=5.0, took=4.0) == 0.5
    assert used_by_others(busy=5.0, own=5.1, took=4.0) == 0  # the clocks of both differ a little
    assert used_by_others(busy=5.0, own=1.0, took=0.0) == 0


WORK = "import time\nuntil = time.process_time() + 0.5\nwhile time.process_time() < until: pass\n"


def test_work_of_a_child_is_of_this_run() -> None:
    before = cpu_s(os.getpid())
    subprocess.run([sys.executable, "-c", WORK], check=True)
    assert cpu_s(os.getpid()) - before > 0.4


def test_work_of_a_living_child_of_a_thread_is_of_this_run() -> None:
    """The kernel keeps the children of each thread apart, and the lab starts its servers in a thread."""
    before = cpu_s(os.getpid())
    argv = [sys.executable, "-c", f"{WORK}print(flush=True)\ninput()"]
    with ThreadPoolExecutor(1) as thread:
        child = thread.submit(subprocess.Popen, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE).result()
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            assert cpu_s(os.getpid()) - before > 0.4


def test_work_of_another_process_is_seen() -> None:
    """Its parent has ended, so it is no descendant."""
    meter, began, before = OtherProcesses(), time.monotonic(), cpu_s(os.getpid())
    elsewhere = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {WORK!r}], start_new_session=True)"
    subprocess.run([sys.executable, "-c", elsewhere], check=True)
    time.sleep(3)
    assert cpu_s(os.getpid()) - before < 0.4
    assert meter.cores() * (time.monotonic() - began) > 0.3


def test_a_ratio_of_a_loud_round_is_marked() -> None:
    assert marked([1.0, 0.98765, 2.0], [0.0, LOUD_CORES, LOUD_CORES + 0.01]) == "1.000 0.988 2.000*"
    assert marked([0.2], [0.2], "{:.2f}".format) == "0.20*"
    with pytest.raises(ValueError, match="longer"):
        marked([1.0], [0.0, 0.0])


def test_the_table_of_pairs() -> None:
    pairs = Pairs("before")
    before = {"cycle_items_per_s": 100.0, "run_cpu_s": 4.0}
    pairs.add("cycle", {"cycle_items_per_s": 90.0, "run_cpu_s": 2.0, "new": 1.0}, before, 0.01)
    pairs.add("cycle", {"cycle_items_per_s": 120.0, "run_cpu_s": 3.0}, before, 0.3)
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    pairs.show(console)
    rows = {line.split("│")[1].strip(): line for line in console.export_text().splitlines() if "│" in line}
    assert "0.900 1.200*" in rows["cycle_items_per_s"]
    assert "0.500 0.750*" in rows["cycle_run_cpu_s"]
    assert "0.01 0.30*" in rows["cycle: cores of other processes"]
    assert "new" not in rows
    said = pairs.as_json()
    assert said["median"]["cycle_items_per_s"] == pytest.approx(1.05)
    assert said["cores_of_other_processes"] == {"cycle": [0.01, 0.3]}


def test_each_workload_has_all_options_of_its_command() -> None:
    """An option that pairs leave out would not reach the runs."""
    command: Any = get_command(app).commands["bench"]  # type: ignore[attr-defined]
    common = {"--database", "--driver", "--shards", "--rounds", "--against", "--json"}
    assert OPTIONS.keys() == SHAPES.keys()
    for name, options in OPTIONS.items():
        assert {one.opts[0] for one in command.commands[name].params} - common == options.keys(), name


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ("cycle", "--items 7 --batch 3 --producers 1 --consumers 2 --payload-bytes 9"),
        ("single", "--single-items 7 --payload-bytes 9"),
        ("callers", "--callers 1 --callers-items 7 --payload-bytes 9"),
        ("enqueue", "--items 7 --batch 3 --producers 1 --payload-bytes 9"),
        ("drain", "--backlog 7 --delayed 5 --batch 3 --consumers 2"),
        ("latency", "--latency-rounds 7"),
    ],
)
def test_options_as_foqs_bench_named_them(workload: str, words: str) -> None:
    shape = Shape(7, 3, 1, 2, 9, 5)
    of_foqs, of_lab = Program(("program",), Path(), True), Program(("program",), Path(), False)
    old, new = (one.command(workload, shape, ["--shards", "1"]) for one in (of_foqs, of_lab))
    assert " ".join(old) == f"program bench {workload} --shards 1 {words} --rounds 1 --json"
    plain = words.replace("--single-items", "--items").replace("--callers-items", "--items")
    assert " ".join(new) == " ".join(old).replace(words, plain.replace("--latency-rounds", "--items"))


def test_what_kind_of_program_is_at_a_path(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    for name, package in (("new", "foqs_lab"), ("old", "foqs")):
        for part in (".venv/bin", package):
            (tmp_path / name / part).mkdir(parents=True)
        for program in ("python", package.replace("_", "-")):
            (tmp_path / name / ".venv/bin" / program).touch()
    for name, package in (("new", "foqs_lab"), ("old", "foqs")):
        folder = tmp_path / name
        assert program_at(folder, empty) == ((f"{folder}/.venv/bin/python", "-m", package), folder, name == "old")
    lab = tmp_path / "new/.venv/bin/foqs-lab"
    assert program_at(lab, empty) == program_at(lab.with_name("foqs"), empty) == ((str(lab),), empty, False)
    before = tmp_path / "old/.venv/bin/foqs"
    assert program_at(before, empty) == ((str(before),), empty, True)
