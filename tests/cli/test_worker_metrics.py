"""`/metrics` and `/healthz` of `foqs worker`."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from foqs.cli.worker_metrics import FAMILIES, SILENT_S, Totals
from foqs.tasks.meter import SECONDS
from tests.api.hosts import HostProcess
from tests.cli.worker_rig import Shop, Start, pids, reached, ready
from tests.client.peer import LATER

LABELS = ("topic", "task", "outcome", "reason")


def asked(worker: HostProcess, path: str) -> tuple[int, str]:
    reached(worker, lambda: "worker.metrics" in worker.said())
    (address,) = re.findall(r"worker\.metrics +address=(\S+)", worker.said())
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=LATER) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def values(text: str) -> dict[tuple[str, ...], float]:
    """By name and labels."""
    return {
        (sample.name, *(sample.labels[label] for label in LABELS if label in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name.startswith("foqs_worker") and "le" not in sample.labels
    }


@pytest.mark.process
def test_the_metrics_of_all_processes(shop: Shop, start: Start) -> None:
    worker = start("--processes", 2, "--metrics-port", 0, "--lease-ms", 1_000)
    ready(worker, 2)
    tasks = shop.tasks
    for n in range(5):
        tasks.pid.enqueue(n).result(LATER)
    for kind in ("raise", "reject", "retry"):
        tasks.bad.enqueue(kind)
    tasks.app.client.enqueue("bad", b"{}", headers={"foqs-task": "gone"})
    tasks.waits.enqueue()
    outcomes = {("bad", "bad", "failed"): 2, ("bad", "bad", "rejected"): 1, ("bad", "bad", "retried"): 1,
                ("quick", "pid", "completed"): 5}  # fmt: skip

    def found() -> dict[Any, float]:
        return values(asked(worker, "/metrics")[1])

    wanted = {("foqs_worker_tasks_total", *labels): count for labels, count in outcomes.items()}
    wanted |= {
        ("foqs_worker_restarts_total", "died"): 0,
        ("foqs_worker_in_flight", "waits"): 1,
        ("foqs_worker_processes",): 2,
        ("foqs_worker_silent_processes",): 0,
        ("foqs_worker_in_flight", "quick"): 0,
        ("foqs_worker_concurrency", "quick"): 16,
        ("foqs_worker_task_seconds_count", "quick", "pid"): 5,
    }
    reached(worker, lambda: found().items() >= wanted.items())
    reached(worker, lambda: ("foqs_worker_tasks_total", "bad", "unknown", "failed") in found())
    assert asked(worker, "/healthz") == (200, "alive\n")
    assert asked(worker, "/other")[0] == 404
    os.kill(shop.noted("waits")[0][1], signal.SIGKILL)
    reached(worker, lambda: found()["foqs_worker_restarts_total", "died"] == 1)
    shop.open_gate()
    reached(worker, lambda: ("foqs_worker_tasks_total", "waits", "waits", "completed") in found())
    assert found()["foqs_worker_tasks_total", "quick", "pid", "completed"] == 5
    reached(worker, lambda: asked(worker, "/healthz")[0] == 200)


@pytest.mark.process
def test_a_worker_that_has_not_started_is_not_healthy(shop: Shop, start: Start) -> None:
    (shop.folder / "tasks.py").write_text("import time\ntime.sleep(60)")
    worker = start("--metrics-port", 0)
    assert asked(worker, "/healthz") == (503, "process 1 has not started\n")
    found = values(asked(worker, "/metrics")[1])
    assert (found["foqs_worker_processes",], found["foqs_worker_silent_processes",]) == (0, 1)
    reached(worker, lambda: pids(worker))


@pytest.mark.process
def test_a_port_that_is_taken(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = start("--metrics-port", port)
        assert worker.wait() == 1
        assert f"foqs: --metrics-port: cannot listen on 127.0.0.1:{port}: " in worker.said()


REPORT = {"namespace": "shop", "places": {"t": 8, "idle": 8},
          "outcomes": [["a", "t", "completed", 2]], "seconds": [["a", "t", [1] * (len(SECONDS) + 1), 3.5]],
          "in_flight": {"t": 4}, "lag_s": 0.5}  # fmt: skip


@pytest.mark.memory
def test_a_silent_process_is_named() -> None:
    totals = Totals(["1", "2"])
    assert totals.sick(0) == "process 1 has not started"
    totals.add("1", REPORT, 100)
    totals.add("2", REPORT, 109)
    assert totals.sick(109) == ""
    assert totals.sick(100 + SILENT_S + 1) == "process 1 has not reported for 11 s"
    silent = [totals.rows(now)["foqs_worker_silent_processes"] for now in (109, 100 + SILENT_S + 1, 130)]
    assert silent == [[((), 0)], [((), 1)], [((), 2)]]
    totals.ended("2", "reload")
    assert totals.sick(101) == "process 2 has not started"


@pytest.mark.memory
def test_sums_outlive_a_process_and_gauges_do_not() -> None:
    totals = Totals(["1", "2"])
    for process in ("1", "2", "2"):
        totals.add(process, REPORT, 0)
    totals.ended("2", "max_jobs")
    rows = {name: dict(found) for name, found in totals.rows(0).items()}
    assert rows["foqs_worker_tasks_total"] == {("shop", "t", "a", "completed"): 6}
    assert rows["foqs_worker_task_seconds"][("shop", "t", "a")].total == 10.5  # type: ignore[union-attr]
    assert rows["foqs_worker_in_flight"] == {("shop", "t"): 4, ("shop", "idle"): 0}
    assert rows["foqs_worker_concurrency"] == {("shop", "t"): 8, ("shop", "idle"): 8}
    assert rows["foqs_worker_restarts_total"] == {
        ("died",): 0, ("hard_limit",): 0, ("max_jobs",): 1, ("max_memory",): 0, ("reload",): 0
    }  # fmt: skip
    assert rows["foqs_worker_processes"] == {(): 1}
    assert rows.keys() == FAMILIES.keys()
