"""`foqs bench`: the assignment workload needs no database, and the topics workload drains every topic."""

import json
import sys
from pathlib import Path

import pytest

from tests.api.hosts import foqs


def test_assignment_is_measured_without_a_server() -> None:
    ran = foqs(
        "bench", "assignment", "--shards-total", "50", "--hosts", "6", "--rounds", "2", "--json", env={"PATH": ""}
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    said = json.loads(ran.stdout)
    cases = said["cases"]
    assert (said["shards"], said["hosts"]) == (50, 6)
    assert {name: case["changed"] for name, case in cases.items() if case["needed"] is not None} == {
        "fresh": 50,
        "one host joins": 7,
        "one host leaves": 9,
    }
    for case in cases.values():
        assert case["needed"] in (None, case["changed"])
        assert len(case["rounds_ms"]) == 2
        assert case["median_ms"] >= 0
    # 9 or 8 shards a host of 50 / 6, then 8 or 7 of 50 / 7.
    assert cases["fresh"]["imbalance"] == pytest.approx(6 / 50)
    assert cases["one host joins"]["imbalance"] == pytest.approx(7 / 50)
    assert cases["one host leaves"]["imbalance"] == 0
    assert cases["loads differ"]["imbalance"] < 0.2


def test_assignment_as_a_table() -> None:
    ran = foqs("bench", "assignment", "--shards-total", "1", "--hosts", "1", "--rounds", "1", env={"COLUMNS": "120"})
    assert (ran.returncode, ran.stderr) == (0, "")
    for word in ("1 shards on 1 hosts", "fresh", "one host joins", "loads differ"):
        assert word in ran.stdout
    assert "one host leaves" not in ran.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["assignment", "cycle"], "foqs: assignment is measured by itself: name no other workload\n"),
        (
            ["nonsense"],
            "foqs: there is no workload 'nonsense': choose from cycle, single, callers, enqueue, drain, latency, "
            "assignment, cluster, topics, workers, policies\n",
        ),
        *(
            (
                [*words, "--against", "foqs"],
                "foqs: --against measures pairs of cycle, single, callers, enqueue, drain, latency, without --limit "
                "and --compare\n",
            )
            for words in (["cluster"], ["cycle", "--limit"], ["cycle", "--compare"])
        ),
        (
            ["policies", "--scenario", "99"],
            "foqs: there is no scenario 99: choose from 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, "
            "19, 20\n",
        ),
        (
            ["policies", "--database", "sqlite"],
            "foqs: policies needs a database server: give --database mariadb or --database mysql\n",
        ),
        (
            ["topics", "--topics", "300", "--items", "1000"],
            "foqs: --items 1000 is not a multiple of --topics 300: each topic gets the same number of items\n",
        ),
    ],
)
def test_wrong_workloads_are_refused(args: list[str], said: str) -> None:
    ran = foqs("bench", *args)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", said)


@pytest.mark.timeout(400)
def test_topics_are_drained_by_both_kinds_of_consumers() -> None:
    args = ("--database", "sqlite", "--shards", "2", "--topics", "1500", "--items", "3000", "--json")
    ran = foqs("bench", "topics", *args, patience_s=380)
    assert ran.returncode == 0, ran.stderr
    drains = json.loads(ran.stdout)
    assert len(drains) == 4
    for drain in drains.values():
        assert (drain["drained"], drain["finished"]) == (3_000, True)
        assert drain["host_rss_bytes"] > 0


SMALL = ("--database", "sqlite", "--shards", "1", "--rounds", "1")
CALLERS = ("--callers", "2", "--callers-items", "101")


def test_rivals_that_are_not_installed_are_left_out(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    ran = foqs(
        *("bench", "callers", *SMALL, *CALLERS, "--compare", "--json", "--plot", plot),
        env={"PATH": "", "XDG_CACHE_HOME": str(tmp_path), "FOQS_POSTGRESQL": "/nowhere"},
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert set(said["missing"]) == {"pgmq", "graphile_worker", "bullmq", "beanstalkd"}
    lines = ran.stderr.splitlines()
    assert len(lines) == 4
    assert all("script/setup" in line for line in lines)
    for name in ("callers", "callers_lean"):
        for figure in ("items_per_s", "cpu_us", "host_cpu_us", "clients_cpu_us", "enqueue_p50_ms"):
            assert said["median"][f"{name}_{figure}"] > 0
    assert "2 synchronous callers" in plot.read_text()

    figures = tmp_path / "figures.json"
    figures.write_text(ran.stdout)
    again = foqs("bench", "--read", figures, "--json", env={"PATH": ""})
    assert json.loads(again.stdout) == said
    tables = foqs("bench", "--read", figures, "--markdown").stdout
    assert "| cycles a second | 2 synchronous callers |" in tables
    assert "Not measured: bullmq" in tables


def test_a_file_without_figures_is_refused(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    for text in ("", "[]", '{"median": {}}'):
        figures.write_text(text)
        ran = foqs("bench", "--read", figures)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert f"{figures} has no figures that `foqs bench --json` has printed" in ran.stderr


def test_pairs_with_another_installation(tmp_path: Path) -> None:
    other = tmp_path / "foqs"
    other.write_text(f'#!/bin/sh\necho "$PWD $@" >>{tmp_path}/calls\nexec {sys.executable} -m foqs "$@"\n')
    other.chmod(0o755)
    ran = foqs("bench", "enqueue", *SMALL, "--items", "1000", "--against", other, "--json")
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["against"] == str(other)
    for name in ("enqueue_items_per_s", "enqueue_run_cpu_s"):
        assert said["rounds"][name] == [said["own"][name][0] / said["other"][name][0]]
    (call,) = (tmp_path / "calls").read_text().splitlines()
    folder, *words = call.split()
    assert words[:2] == ["bench", "enqueue"]
    assert folder != str(Path.cwd())  # `python -m foqs` prefers the package in its working directory


def test_another_installation_that_fails_is_reported(tmp_path: Path) -> None:
    other = tmp_path / "foqs"
    for body, reason in (("echo no workload >&2; exit 2", "failed: no workload"), (None, "cannot be run")):
        other.unlink(missing_ok=True)
        if body is not None:
            other.write_text(f"#!/bin/sh\n{body}\n")
            other.chmod(0o755)
        ran = foqs("bench", "enqueue", *SMALL, "--against", other)
        assert ran.returncode == 1
        assert str(other) in ran.stderr
        assert reason in ran.stderr


@pytest.mark.timeout(400)
def test_workers_save_a_request_an_item() -> None:
    args = ("--database", "sqlite", "--shards", "2", "--single-items", "400", "--rounds", "2", "--json")
    ran = foqs("bench", "workers", *args, patience_s=380)
    assert ran.returncode == 0, ran.stderr
    apart, together = json.loads(ran.stdout).values()
    assert [len(figures) for figures in (*apart.values(), *together.values())] == [2] * 8
    assert min(apart["requests_per_item"]) >= 2
    assert max(together["requests_per_item"]) < 1.5
    assert min(apart["items_per_s"] + together["items_per_s"] + together["worker_cpu_us"]) > 0


@pytest.mark.timeout(400)
def test_a_scenario_of_fair_sharing() -> None:
    """A change of weight, counted in deliveries: no speed of the machine changes it."""
    ran = foqs("bench", "policies", "--scenario", "5", "--share", "0.05", "--json", patience_s=380)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (outcome,) = json.loads(ran.stdout)
    assert (outcome["number"], outcome["met"]) == (5, True)
    assert outcome["figures"]["share"] == pytest.approx(10 / 11, abs=0.02)


@pytest.mark.timeout(400)
def test_the_scenarios_of_hooks() -> None:
    """Small: what they count holds on any machine, while their times do not."""
    ran = foqs("bench", "policies", "--scenario", "19", "--scenario", "20", "--share", "0.05", "--json", patience_s=380)
    misbehaving, cost = json.loads(ran.stdout)
    assert [misbehaving["number"], cost["number"]] == [19, 20]
    assert misbehaving["figures"]["failures until the breakers opened"] == 3
    assert misbehaving["figures"]["closed breakers"] == 0
    assert misbehaving["figures"]["back after, s"] >= 9.9
    assert cost["figures"]["failed calls"] == 0
    assert min(cost["figures"][name] for name in ("items a second with", "with over the same fields without")) > 0
