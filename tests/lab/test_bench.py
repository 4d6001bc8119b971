"""`foqs-lab bench` and `foqs-lab policies`, as users run them, on small numbers."""

import json
import re
import sys
from pathlib import Path

import pytest

from foqs_lab.bench.kinds import Kind
from tests.api.hosts import foqs_lab

SMALL = ("--database", "sqlite", "--shards", "1")
PAIRS = "--against measures pairs: leave out --limit and --rivals"


def test_assignment_is_measured_without_a_server() -> None:
    ran = foqs_lab("bench", "assignment", "--shards", "50", "--hosts", "6", "--rounds", "2", "--json", env={"PATH": ""})
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


def test_transactions_of_a_host_alone_gather_requests() -> None:
    """With 8 callers, two items share their transactions, as they do on a host with a database of its own."""
    ran = foqs_lab("bench", "host", "--batch", "1", "--items", "1000", "--rounds", "1", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["median"]["transactions_per_item"] == pytest.approx(0.5, abs=0.1)


def test_assignment_as_a_table() -> None:
    ran = foqs_lab("bench", "assignment", "--shards", "1", "--hosts", "1", "--rounds", "1", env={"COLUMNS": "120"})
    assert (ran.returncode, ran.stderr) == (0, "")
    for word in ("1 shards on 1 hosts", "fresh", "one host joins", "loads differ"):
        assert word in ran.stdout
    assert "one host leaves" not in ran.stdout


@pytest.mark.parametrize("kind", ["plain", "together"])
@pytest.mark.parametrize("batch", [1, 100])
def test_a_host_alone_is_measured_without_a_server(kind: str, batch: int) -> None:
    words = ("--kind", kind, "--batch", str(batch), "--items", "1000", "--rounds", "2", "--json")
    ran = foqs_lab("bench", "host", *words, env={"PATH": ""})
    assert (ran.returncode, ran.stderr) == (0, "")
    rounds = json.loads(ran.stdout)["rounds"]
    assert len(rounds["host_alone_us_per_item"]) == 2
    assert all(cpu_us > 0 for cpu_us in rounds["host_alone_us_per_item"])
    # Each request commits at least once with those of other callers, and at most once for each item's change.
    assert all(1 / 1000 < transactions <= 3 for transactions in rounds["transactions_per_item"])


@pytest.mark.parametrize(("kind", "batch"), [("plain", 1), ("together", 100)])
def test_a_client_alone_is_measured_without_a_host(kind: str, batch: int) -> None:
    words = ("--kind", kind, "--batch", str(batch), "--items", "1000", "--rounds", "2", "--json")
    ran = foqs_lab("bench", "client", *words, env={"PATH": ""})
    assert (ran.returncode, ran.stderr) == (0, "")
    rounds = json.loads(ran.stdout)["rounds"]
    assert set(rounds) == {f"{name}_us_per_item" for name in ("enqueue", "dequeue", "ack", "ack_and_dequeue")}
    assert all(us > 0 for of in rounds.values() for us in of)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["bench", "compare", "--against", "foqs", "--limit"], PAIRS),
        (["bench", "compare", "--against", "foqs", "--rivals"], PAIRS),
        (["policies", "99"], f"there is no scenario 99: choose from {', '.join(map(str, range(1, 21)))}"),
        (
            ["bench", "topics", "--topics", "300", "--items", "1000"],
            "--items 1000 is not a multiple of --topics 300: each topic gets the same number of items",
        ),
    ],
)
def test_wrong_arguments_are_refused(args: list[str], said: str) -> None:
    ran = foqs_lab(*args)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"foqs: {said}\n")


@pytest.mark.parametrize("words", [["nonsense"], ["compare", "nonsense"], ["cluster", "--database", "sqlite"]])
def test_a_wrong_choice_is_named(words: list[str]) -> None:
    ran = foqs_lab("bench", *words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert words[-1] in ran.stderr


@pytest.mark.timeout(400)
def test_cycles_are_measured_in_rounds() -> None:
    ran = foqs_lab("bench", "cycle", *SMALL, "--items", "1000", "--rounds", "2", env={"COLUMNS": "120"})
    assert ran.returncode == 0, ran.stderr
    (rate,) = [line for line in ran.stdout.splitlines() if "cycle_items_per_s" in line]
    assert re.search(r"\d", rate)
    (cores,) = [line for line in ran.stdout.splitlines() if "cores of other processes" in line]
    assert len(re.findall(r"\d[\d.]*", cores)) == 5  # median, minimum, maximum, two rounds


@pytest.mark.timeout(400)
def test_topics_are_drained_by_both_kinds_of_consumers() -> None:
    args = ("--database", "sqlite", "--shards", "2", "--topics", "1500", "--items", "3000", "--json")
    ran = foqs_lab("bench", "topics", *args, patience_s=380)
    assert ran.returncode == 0, ran.stderr
    drains = json.loads(ran.stdout)
    assert len(drains) == 4
    for drain in drains.values():
        assert (drain["drained"], drain["finished"]) == (3_000, True)
        assert drain["host_rss_bytes"] > 0


@pytest.mark.timeout(400)
def test_rivals_that_are_not_installed_are_left_out(tmp_path: Path) -> None:
    ran = foqs_lab(
        *("bench", "compare", "callers", *SMALL, "--rounds", "1", "--share", "0.001", "--rivals", "--json"),
        env={"PATH": "", "XDG_CACHE_HOME": str(tmp_path), "FOQS_POSTGRESQL": "/nowhere"},
        patience_s=380,
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
    assert len(said["cores_of_other_processes"]) == 1

    figures, plot = tmp_path / "figures.json", tmp_path / "plot.svg"
    figures.write_text(ran.stdout)
    tables = foqs_lab("bench", "report", figures, "--plot", plot)
    assert "| cycles a second | 8 synchronous callers |" in tables.stdout, tables.stderr
    assert "Not measured: bullmq" in tables.stdout
    assert "8 synchronous callers" in plot.read_text()


def test_a_file_without_figures_is_refused(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    for text in ("", "[]", '{"median": {}}'):
        figures.write_text(text)
        ran = foqs_lab("bench", "report", figures)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert f"{figures} has no figures that `foqs-lab bench compare --json` has printed" in ran.stderr


def wrapper(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.timeout(400)
def test_pairs_with_another_installation(tmp_path: Path) -> None:
    other = wrapper(tmp_path / "foqs-lab", f'echo "$PWD $@" >>{tmp_path}/calls\nexec {sys.executable} -m foqs_lab "$@"')
    ran = foqs_lab(
        "bench", "enqueue", *SMALL, "--items", "1000", "--rounds", "1", "--against", other, "--json", patience_s=380
    )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["against"] == str(other)
    for name in ("enqueue_items_per_s", "enqueue_run_cpu_s"):
        assert said["rounds"][name] == [said["own"][name][0] / said["other"][name][0]]
    assert len(said["cores_of_other_processes"]["enqueue"]) == 1
    (call,) = (tmp_path / "calls").read_text().splitlines()
    folder, *words = call.split()
    assert words[:2] == ["bench", "enqueue"]
    assert folder != str(Path.cwd())  # `python -m foqs_lab` prefers the package in its working directory


@pytest.mark.timeout(400)
def test_pairs_with_a_foqs_that_has_a_bench(tmp_path: Path) -> None:
    """The other installation answers as `foqs bench` did, and gets the names of its options."""
    figures = {"median": {"callers_items_per_s": 100.0, "callers_gone": 1.0}}
    other = wrapper(tmp_path / "before/bin/foqs", f"echo \"$@\" >>{tmp_path}/calls\necho '{json.dumps(figures)}'")
    ran = foqs_lab(
        *("bench", "callers", *SMALL, "--callers", "2", "--items", "100", "--rounds", "1", "--against", other),
        patience_s=380,
        env={"COLUMNS": "160"},
    )
    assert ran.returncode == 0, ran.stderr
    assert "callers_items_per_s" in ran.stdout
    assert "callers: cores of other processes" in ran.stdout
    assert "callers_gone" not in ran.stdout
    assert (tmp_path / "calls").read_text().split() == [
        *("bench", "callers", "--database", "sqlite", "--driver", "pymysql", "--shards", "1"),
        *("--callers", "2", "--callers-items", "100", "--payload-bytes", "256", "--rounds", "1", "--json"),
    ]


def test_another_installation_that_fails_is_reported(tmp_path: Path) -> None:
    broken = wrapper(tmp_path / "foqs", "echo no workload >&2; exit 2")
    (tmp_path / "bare").mkdir()
    for other, reason in (
        (broken, "failed: no workload"),
        (tmp_path / "nothing", "cannot be run"),
        (tmp_path / "bare", "has no .venv/bin/python"),
    ):
        ran = foqs_lab("bench", "enqueue", *SMALL, "--against", other, "--rounds", "1", "--items", "1000")
        assert ran.returncode == 1
        assert str(other) in ran.stderr
        assert reason in ran.stderr


@pytest.mark.timeout(400)
def test_workers_save_a_request_an_item() -> None:
    args = ("--database", "sqlite", "--shards", "2", "--items", "400", "--rounds", "2", "--json")
    ran = foqs_lab("bench", "workers", *args, patience_s=380)
    assert ran.returncode == 0, ran.stderr
    apart, together = json.loads(ran.stdout).values()
    assert [len(figures) for figures in (*apart.values(), *together.values())] == [2] * 8
    assert set(apart["requests_per_item"]) == {2}, "no dequeue waits behind the last item"
    assert max(together["requests_per_item"]) < 1.5
    assert min(apart["items_per_s"] + together["items_per_s"] + together["worker_cpu_us"]) > 0


@pytest.mark.timeout(400)
def test_features_are_compared_with_plain_items() -> None:
    args = ("--database", "sqlite", "--shards", "2", "--items", "1000", "--rounds", "1", "--json")
    ran = foqs_lab("bench", "features", *args, patience_s=380)
    assert ran.returncode == 0, ran.stderr
    kinds = json.loads(ran.stdout)
    assert set(kinds) == set(Kind)
    assert kinds["plain"]["over_plain"] == [1.0]
    assert all(one["items_per_s"][0] > 0 and one["cpu_us"][0]["host"] > 0 for one in kinds.values())


@pytest.mark.timeout(200)
def test_a_backlog_with_rules_is_compared_with_one_rule() -> None:
    args = ("--database", "sqlite", "--items", "2000", "--rounds", "1", "--only", "one-rule", "--only", "rules")
    ran = foqs_lab("bench", "features", *args, "--backlog", "--json", patience_s=180)
    assert ran.returncode == 0, ran.stderr
    kinds = json.loads(ran.stdout)
    assert list(kinds) == ["one-rule", "rules"]
    assert kinds["rules"]["over_one-rule"][0] > 0
    assert foqs_lab("bench", "features", "--only", "nothing").returncode == 2


@pytest.mark.timeout(400)
def test_results_arrive_and_kept_items_go() -> None:
    args = (
        "--database",
        "sqlite",
        "--items",
        "1000",
        "--keep-ms",
        "1500",
        "--callers",
        "2",
        "--rounds",
        "10",
        "--json",
    )
    ran = foqs_lab("bench", "results", *args, patience_s=380)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert (figures["items"], len(figures["wake_ms"])) == (1_000, 20)
    assert min(figures["wake_ms"]) > 0
    assert figures["gone_s"] > 0


@pytest.mark.timeout(200)
def test_a_batch_calls_back_after_its_last_member() -> None:
    ran = foqs_lab("bench", "batch", "--database", "sqlite", "--members", "500", "--json", patience_s=180)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert figures["members"] == 500
    assert min(figures["members_per_s"], figures["callback_s"]) > 0


@pytest.mark.timeout(400)
def test_calls_in_flight_of_both_clients() -> None:
    args = ("--database", "sqlite", "--items", "400", "--calls", "8", "--rounds", "2", "--json")
    ran = foqs_lab("bench", "in-flight", *args, patience_s=380)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert {kind: len(rates) for kind, rates in figures["rates"].items()} == {"threads": 2, "asyncio": 2, "uvloop": 2}
    assert set(figures["ratios"]) == {"asyncio", "uvloop"}
    assert min(figures["ratios"].values()) > 0


@pytest.mark.server
@pytest.mark.mariadb
@pytest.mark.timeout(400)
def test_a_scenario_of_fair_sharing() -> None:
    """A change of weight, counted in deliveries: no speed of the machine changes it."""
    ran = foqs_lab("policies", "5", "--share", "0.05", "--json", patience_s=380)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (outcome,) = json.loads(ran.stdout)
    assert (outcome["number"], outcome["met"]) == (5, True)
    assert outcome["figures"]["share"] == pytest.approx(10 / 11, abs=0.02)


@pytest.mark.server
@pytest.mark.mariadb
@pytest.mark.timeout(400)
def test_the_scenarios_of_hooks() -> None:
    """Small: what they count holds on any machine, while their times do not."""
    ran = foqs_lab("policies", "19", "20", "--share", "0.05", "--json", patience_s=380)
    misbehaving, cost = json.loads(ran.stdout)
    assert [misbehaving["number"], cost["number"]] == [19, 20]
    assert misbehaving["figures"]["failures until the breakers opened"] == 3
    assert misbehaving["figures"]["closed breakers"] == 0
    assert misbehaving["figures"]["back after, s"] >= 9.9
    assert cost["figures"]["failed calls"] == 0
    assert min(cost["figures"][name] for name in ("items a second with", "with over the same fields without")) > 0
