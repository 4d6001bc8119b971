"""The alert rules by Prometheus's own checker, and by what hosts export. tests/cluster/test_alerts.py has them fire."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.deploy.exported import unknown
from tests.deploy.prometheus import promtool
from tests.deploy.promql import PROMETHEUS, ROOT, RULES, alert_rules

CASES = PROMETHEUS / "foqs.rules.test.yaml"
ALERT_ROW = re.compile(r"^\| `(Foqs\w+)` \| (\w+) \| (?:(\d+) min)? ?\|", re.MULTILINE)


@pytest.mark.server
def test_what_promtool_says() -> None:
    promtool("check", "rules", RULES)
    promtool("check", "config", PROMETHEUS / "prometheus.yml")
    promtool("test", "rules", CASES)


def test_each_alert_has_a_firing_and_a_silent_case() -> None:
    fires: dict[str, set[bool]] = {rule["alert"]: set() for rule in alert_rules()}
    labels: dict[str, set[str]] = {}
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for expected in case["promql_expr_test"]:
            (name,) = re.findall(r'^ALERTS\{alertname="(\w+)", alertstate="firing"\}$', expected["expr"])
            fires[name].add(bool(expected["exp_samples"]))
            for sample in expected["exp_samples"]:
                labels.setdefault(name, set()).update(re.findall(r"(\w+)=\"", sample["labels"]))
    assert {name for name, seen in fires.items() if seen != {True, False}} == set()
    for rule in alert_rules():  # an annotation shows nothing for a label that its alert lacks
        said = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", said)) <= labels[rule["alert"]], rule["alert"]


def test_each_alert_says_how_bad_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alert_rules()]
    assert len(set(names)) == len(names)
    for rule in alert_rules():
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}


def test_rules_ask_for_what_hosts_export() -> None:
    assert {rule["alert"]: wrong for rule in alert_rules() if (wrong := unknown(rule["expr"]))} == {}


def test_the_page_has_every_alert() -> None:
    told = ALERT_ROW.findall((ROOT / "docs" / "metrics.md").read_text())
    rules = [(one["alert"], one["labels"]["severity"], one.get("for", "").removesuffix("m")) for one in alert_rules()]
    assert told == rules
