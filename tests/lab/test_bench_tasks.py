"""`foqs-lab bench tasks`: workers of task libraries complete a whole backlog, and are counted in their handlers."""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from foqs_lab.bench import task_queues, tasks
from foqs_lab.bench.clients import Measured
from foqs_lab.bench.noop import tally
from foqs_lab.bench.task_queues import CeleryPrefork, CeleryThreads, Dramatiq, Procrastinate, TaskQueue, TaskQueues
from foqs_lab.servers import ServerUnavailable
from tests.api.hosts import foqs_lab

ITEMS = 40


@pytest.mark.timeout(400)
def test_workers_of_foqs_without_rivals(tmp_path: Path) -> None:
    args = ("--database", "sqlite", "--shards", "1", "--items", "1000", "--rounds", "2", "--json")
    nothing = {"XDG_CACHE_HOME": str(tmp_path)}
    ran = foqs_lab("bench", "tasks", *args, "--rivals", env=nothing, patience_s=380)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert set(said["missing"]) == {"celery_threads", "celery_prefork", "dramatiq", "procrastinate"}
    assert all("script/setup rivals" in line for line in ran.stderr.splitlines())
    assert {name: len(rates) for name, rates in said["items_per_s"].items()} == {"foqs_async": 2, "foqs_threads": 2}
    assert all(set(parts) == {"worker", "host"} for runs in said["cpu_us"].values() for parts in runs)
    assert said["ratios"] == {}


@pytest.mark.server
@pytest.mark.timeout(200)
@pytest.mark.parametrize("make", [CeleryThreads, CeleryPrefork, Dramatiq, Procrastinate])
def test_a_rival_completes_its_backlog(make: type[CeleryThreads | CeleryPrefork | Dramatiq | Procrastinate]) -> None:
    rival = make()
    try:
        rival.start()
    except ServerUnavailable as error:
        pytest.skip(error.reason)
    try:
        for topic in ("first", "second"):
            measured = tasks.worked(rival, ITEMS, topic)
            assert measured.items_per_s > 0
            assert set(measured.cpu_us) == {"worker", "server"}
        assert rival.version
    finally:
        rival.close()


@pytest.mark.process
def test_completions_of_threads_and_processes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tally.read(tmp_path) == (0, 0.0, 0.0)
    for name, value in tally.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_completes, args=(count,)) for count in (3, 4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = tally.read(tmp_path)
    assert found.completed == 4 * (3 + 4)
    assert 0 < found.first_s <= found.last_s


def _completes(count: int) -> None:
    threads = [threading.Thread(target=lambda: [tally.completed() for _ in range(count)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_rate_is_of_all_completions_but_one() -> None:
    found = tasks.measured(tally.Tally(101, 5.0, 7.0), 50, {"worker": 0.1})
    assert (found.items_per_s, found.cpu_us) == (50.0, {"worker": 2_000.0})


class Broken(TaskQueue):
    name = "dramatiq"
    title = "dramatiq"
    version = "1"

    def __init__(self, program: str) -> None:
        self._program = program

    def start(self) -> None: ...

    def close(self) -> None: ...

    def servers(self) -> dict[str, int]:
        return {}

    def environment(self) -> dict[str, str]:
        return {}

    def store(self, items: int) -> Sequence[str]:
        return ["-c", self._program]

    def work(self) -> Sequence[str]:
        return ["-c", "print('no broker'); raise SystemExit(3)"]


@pytest.mark.process
@pytest.mark.parametrize(("program", "said"), [("raise SystemExit('no route')", "no route"), ("", "no broker")])
def test_a_rival_that_fails_is_left_out(program: str, said: str) -> None:
    queues = TaskQueues([Broken(program)])
    figures = tasks.measure(queues, 2, 10, lambda _: None)
    assert (queues.running, figures.runs) == ([], {})
    assert said in figures.missing["dramatiq"]


@pytest.mark.process
def test_a_worker_that_completes_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_START_S", 0.2)
    silent = Broken("")
    monkeypatch.setattr(silent, "work", lambda: ["-c", "import time; time.sleep(1000)"])
    with pytest.raises(tasks.WorkerFailed, match="took too long"):
        tasks.worked(silent, 10, "t")


def figures(rates: dict[str, Sequence[float]]) -> tasks.Figures:
    runs = {name: [Measured(rate, {"worker": 1.0, "host": 2.0}) for rate in of] for name, of in rates.items()}
    return tasks.Figures(10, {name: name for name in rates}, {}, {}, runs, [0.0] * 2)


def test_ratios_are_within_a_round() -> None:
    found = figures({"foqs_async": (6, 9), "foqs_threads": (4, 4), "foqs_async_before": (3, 9), "dramatiq": (2, 8)})
    assert found.ratios() == {
        "foqs_async_over_foqs_async_before": [2.0, 1.0],
        "foqs_async_over_dramatiq": [3.0, 9 / 8],
        "foqs_threads_over_dramatiq": [2.0, 0.5],
    }
    assert found.as_json()["median"]["foqs_threads_over_dramatiq"] == 1.25


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    from rich.console import Console

    def show(found: tasks.Figures) -> str:
        found.show(Console(width=200, file=sys.stdout))
        return capsys.readouterr().out

    yield show


def test_a_missed_aim_is_said(shown: Any) -> None:
    text = shown(figures({"foqs_threads": (4, 4), "dramatiq": (8, 8)}))
    assert ">= 1: missed" in text
    assert "missed" not in shown(figures({"foqs_threads": (8, 8), "dramatiq": (8, 8)}))


def test_every_worker_has_a_name_of_its_own() -> None:
    names = [make.name for make in (*task_queues.OWN, *task_queues._RIVALS)]
    assert len(set(names)) == len(names)
    assert {other for _, other in tasks.AIMS} <= set(names)
