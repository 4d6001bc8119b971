"""The alert rules by Prometheus's own checker, and by what hosts export. tests/cluster/test_alerts.py has them fire."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.exported import unknown
from tests.deploy.prometheus import promtool
from tests.deploy.promql import PROMETHEUS, ROOT, RULES, WORKER_RULES, alert_rules

CASES = {RULES: PROMETHEUS / "foqs.rules.test.yaml", WORKER_RULES: PROMETHEUS / "workers.rules.test.yaml"}
ALL = alert_rules(*CASES)
MOST_SAID = 300
"""Characters of a description: a pager shows no more."""
ALERT_ROW = re.compile(r"^\| \[`(Foqs\w+)`\]\(\.\./run/runbook\.md#\w+\) \| (\w+) \| ?(?:(\d+) min)? ?\|", re.MULTILINE)


@pytest.mark.server
def test_what_promtool_says() -> None:
    promtool("check", "rules", RULES)
    promtool("check", "config", PROMETHEUS / "prometheus.yml")
    promtool("test", "rules", CASES[RULES])


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.name)
def test_each_alert_has_a_firing_and_a_silent_case(file: Path) -> None:
    fires: dict[str, set[bool]] = {rule["alert"]: set() for rule in alert_rules(file)}
    labels: dict[str, set[str]] = {}
    for case in yaml.safe_load(CASES[file].read_text())["tests"]:
        for expected in case["promql_expr_test"]:
            names = re.findall(r'^ALERTS\{alertname="(\w+)", alertstate="firing"\}$', expected["expr"])
            if not names and file == WORKER_RULES:
                continue  # a case of a rule that records
            (name,) = names
            fires[name].add(bool(expected["exp_samples"]))
            for sample in expected["exp_samples"]:
                labels.setdefault(name, set()).update(re.findall(r"(\w+)=\"", sample["labels"]))
    assert {name for name, seen in fires.items() if seen != {True, False}} == set()
    for rule in alert_rules(file):  # an annotation shows nothing for a label that its alert lacks
        said = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", said)) <= labels[rule["alert"]], rule["alert"]


def test_each_alert_says_how_bad_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in ALL]
    assert len(set(names)) == len(names)
    for rule in ALL:
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        said = rule["annotations"]
        assert said.keys() == {"summary", "description", "runbook_url"}
        assert said["runbook_url"] == f"docs/run/runbook.md#{rule['alert'].lower()}"
        assert len(said["description"]) <= MOST_SAID, f"{rule['alert']}: the runbook has room for more"


def test_links_lead_to_where_the_pages_are(tmp_path: Path) -> None:
    """The program that wraps the rules puts another address in place of the folder."""
    shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    made = tmp_path / "k8s" / "components" / "monitoring" / "rules.yaml"
    made.parent.mkdir(parents=True)
    for argument, begins in ((), "docs/"), (("https://wiki.example/foqs",), "https://wiki.example/foqs/"):
        subprocess.run([tmp_path / "prometheus" / "wrap", *argument], check=True, timeout=60)
        groups = yaml.safe_load(made.read_text())["spec"]["groups"]
        links = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]]
        assert links == [f"{begins}run/runbook.md#{rule['alert'].lower()}" for rule in alert_rules()]


def test_rules_ask_for_what_hosts_and_workers_export() -> None:
    assert {rule["alert"]: wrong for rule in ALL if (wrong := unknown(rule["expr"]))} == {}


def test_the_page_has_every_alert() -> None:
    told = ALERT_ROW.findall((ROOT / "docs/reference/metrics.md").read_text())
    rules = [(one["alert"], one["labels"]["severity"], one.get("for", "").removesuffix("m")) for one in ALL]
    assert told == rules
