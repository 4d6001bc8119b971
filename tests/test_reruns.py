"""script/test's reruns, each checked by a pytest of its own on a folder with a few tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.real import MARKERS
from tests.support.reruns import allowed, verdict

ROOT = Path(__file__).resolve().parents[1]
FLAKY = """
import pathlib, pytest, threading

def in_a_thread(work=lambda: None):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def fails_the_first(times, name):
    in_a_thread()
    fails_without_threads_the_first(times, name)

def fails_without_threads_the_first(times, name):
    runs = pathlib.Path(__file__).with_name(name + ".runs")
    with runs.open("a") as file:
        file.write("x")
    assert len(runs.read_text()) > times, f"an order of events in {name}"
"""


def run(folder: Path, body: str, *options: str, plugin: bool = True) -> tuple[int, str]:
    (folder / "test_it.py").write_text(FLAKY + body)
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -ra -p no:cacheprovider\nmarkers =\n"
        + "".join(f"    {name}: x\n" for name in ("server", "process", "spark", "threads"))
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *(["-p", "tests.support.reruns"] if plugin else []), *options, str(folder)],
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return ended.returncode, ended.stdout + ended.stderr


def runs_of(folder: Path, name: str) -> int:
    return len((folder / f"{name}.runs").read_text())


@pytest.mark.process
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_deterministic_test_is_not_rerun(tmp_path: Path, workers: str) -> None:
    code, output = run(tmp_path, "def test_plain():\n    fails_without_threads_the_first(1, 'plain')\n", "-n", workers)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert runs_of(tmp_path, "plain") == 1
    assert "reruns:" not in output
    assert "1 failed" in output.splitlines()[-1]


@pytest.mark.process
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_flaky_marked_test_is_rerun_and_reported(tmp_path: Path, workers: str) -> None:
    body = "@pytest.mark.process\ndef test_rare():\n    print('its output')\n    fails_the_first(2, 'rare')\n"
    code, output = run(tmp_path, body, "-n", workers)
    assert code == pytest.ExitCode.OK, output
    assert runs_of(tmp_path, "rare") == 3
    _, report = output.split("reruns: the first failure of each test")
    assert "test_it.py::test_rare, rerun 2 of at most 2 times" in report
    assert "AssertionError: an order of events in rare" in report
    assert re.search(r"test_it\.py:\d+: AssertionError", report)
    assert "its output" in report
    assert "reruns: 1 of 1 tests that may be rerun" in report
    assert "1 passed, 2 rerun" in output.splitlines()[-1]


@pytest.mark.process
def test_each_marker_of_real_parts_allows_a_rerun(tmp_path: Path) -> None:
    body = "".join(
        f"@pytest.mark.{marker}\ndef test_{marker}():\n    fails_the_first(1, '{marker}')\n"
        for marker in sorted(MARKERS)
    )
    run(tmp_path, body)
    assert {marker: runs_of(tmp_path, marker) for marker in MARKERS} == dict.fromkeys(MARKERS, 2)


@pytest.mark.process
def test_a_marked_test_that_starts_nothing_is_not_rerun(tmp_path: Path) -> None:
    body = "@pytest.mark.process\ndef test_pure():\n    fails_without_threads_the_first(1, 'pure')\n"
    code, output = run(tmp_path, body)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert runs_of(tmp_path, "pure") == 1


@pytest.mark.process
def test_a_test_without_marker_may_start_nothing(tmp_path: Path) -> None:
    body = """
import socket, subprocess, sys

def test_thread():
    in_a_thread()

def test_process():
    subprocess.run([sys.executable, "-c", ""])

def test_socket():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))

def test_thread_of_a_fixture(made):
    pass

@pytest.fixture
def made():
    in_a_thread()

def test_plain(tmp_path):
    (tmp_path / "x").write_text("x")
"""
    code, output = run(tmp_path, body)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "4 failed, 1 passed" in output.splitlines()[-1]
    started = re.findall(r"^the test starts a (\w+) \(.*test_it\.py:\d+\) and has no marker", output, re.MULTILINE)
    assert sorted(started) == ["process", "socket", "thread", "thread"]


@pytest.mark.process
def test_a_test_that_fails_three_times_fails_the_run(tmp_path: Path) -> None:
    code, output = run(tmp_path, "@pytest.mark.process\ndef test_broken():\n    fails_the_first(9, 'broken')\n")
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert runs_of(tmp_path, "broken") == 3
    assert "1 failed, 2 rerun" in output.splitlines()[-1]


@pytest.mark.process
def test_a_failing_fixture_of_a_marked_test_is_rerun(tmp_path: Path) -> None:
    body = "@pytest.fixture\ndef made():\n    fails_the_first(1, 'made')\n"
    code, output = run(tmp_path, body + "@pytest.mark.server\ndef test_uses_it(made):\n    pass\n")
    assert code == pytest.ExitCode.OK, output
    assert "an order of events in made" in output.split("reruns: the first failure of each test")[1]


@pytest.mark.process
@pytest.mark.parametrize("workers", ["0", "2"])
def test_more_than_one_percent_of_reruns_fails_the_run(tmp_path: Path, workers: str) -> None:
    body = "@pytest.mark.process\n@pytest.mark.parametrize('n', range({tests}))\ndef test_one(n):\n"
    body += "    fails_the_first(int(n < {flaky}), f'one{{n}}')\n"
    body += "def test_plain():\n    pass\n"  # the rate does not count it
    code, output = run(tmp_path, body.format(tests=199, flaky=2), "-n", workers)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "2 of 199 tests that may be rerun needed a rerun; at most 1 may" in output
    closing = output.splitlines()[-1]
    assert "200 passed" in closing
    assert "1 error" in closing

    for runs in tmp_path.glob("*.runs"):
        runs.unlink()
    code, output = run(tmp_path, body.format(tests=200, flaky=2), "-n", workers)
    assert code == pytest.ExitCode.OK, output
    assert "error" not in output.splitlines()[-1]


@pytest.mark.process
def test_a_skipped_test_does_not_lower_the_rate(tmp_path: Path) -> None:
    body = "@pytest.mark.process\n@pytest.mark.parametrize('n', range(300))\ndef test_one(n):\n"
    body += "    in_a_thread()\n    if n >= 2:\n        pytest.skip('no')\n    fails_the_first(1, f'one{n}')\n"
    code, output = run(tmp_path, body)
    assert code == pytest.ExitCode.TESTS_FAILED, output


@pytest.mark.process
def test_a_plain_pytest_never_reruns(tmp_path: Path) -> None:
    body = "@pytest.mark.process\ndef test_rare():\n    fails_the_first(1, 'rare')\n"
    code, output = run(tmp_path, body, plugin=False)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert runs_of(tmp_path, "rare") == 1


@pytest.mark.process
def test_a_marker_flaky_set_by_hand_is_refused(tmp_path: Path) -> None:
    code, output = run(tmp_path, "@pytest.mark.flaky(reruns=9)\ndef test_plain():\n    pass\n")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "@pytest.mark.flaky is set by tests/support/reruns.py alone" in output


def test_one_rerun_is_allowed_in_a_small_selection() -> None:
    assert [allowed(tests) for tests in (1, 199, 200, 1_500)] == [1, 1, 2, 15]
    assert verdict(1, 1) == ""
    assert verdict(15, 1_500) == ""
    assert verdict(16, 1_500).startswith("16 of 1500 tests")


def test_only_runs_of_real_processes_load_the_reruns() -> None:
    scripts = [path for path in (ROOT / "script").iterdir() if path.is_file()]
    loads = {path.name for path in scripts if "tests.support.reruns" in path.read_text()}
    assert loads == {"test", "test-python"}
    assert "reruns" not in (ROOT / "pyproject.toml").read_text().split("[tool.pytest.ini_options]")[1]
