"""The rules and examples of deploy/ for autoscalers of workers."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.api.hosts import foqs
from tests.deploy.exported import EXPORTED
from tests.deploy.manifests import DEPLOY, selects
from tests.deploy.prometheus import promtool
from tests.deploy.promql import PROMETHEUS, selectors
from tests.deploy.promql import WORKER_RULES as RULES

EXAMPLES = DEPLOY / "k8s" / "workers"


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))


def rules() -> dict[str, str]:
    """Return the rules that record, without alerts: test_rules.py has these."""
    found = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return {rule["record"]: rule["expr"] for rule in found if "record" in rule}


@pytest.mark.server
def test_the_formula() -> None:
    promtool("check", "rules", RULES)
    promtool("test", "rules", PROMETHEUS / "workers.rules.test.yaml")


def test_the_rules_ask_for_known_metrics() -> None:
    known: dict[str, set[str]] = {**EXPORTED, **{name: {"namespace", "topic"} for name in rules()}}
    for rule in rules().values():
        for asked in selectors(rule):
            assert asked.labels <= known[asked.metric], asked
            assert {"namespace", "topic"} <= known[asked.metric], asked


@pytest.mark.parametrize("version", ["1.28", "1.31"])
def test_kubernetes_knows_the_objects(version: str) -> None:
    for one in (objects("worker")[0], *objects("hpa")):
        kubernetes_validate.validate(one, version, strict=True)


def test_autoscalers_are_for_the_worker_and_its_topics() -> None:
    deployment, monitor = objects("worker")
    (keda,), (hpa,), (adapter,) = objects("keda"), objects("hpa"), objects("hpa-adapter-values")
    assert keda["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert hpa["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    (topics,) = [re.findall(r"\w+", one.partition("=")[2]) for one in container["args"] if one.startswith("--topics=")]
    topics = [topic for topic in topics if topic.isalpha()]
    (query,) = [trigger["metadata"]["query"] for trigger in keda["spec"]["triggers"]]
    (asked,) = selectors(query)
    assert asked.metric in rules()
    assert f'topic=~"{"|".join(topics)}"' in query
    metric = hpa["spec"]["metrics"][0]["external"]["metric"]
    assert metric["name"] == adapter["rules"]["external"][0]["seriesQuery"] == asked.metric
    assert metric["selector"]["matchExpressions"][0]["values"] == topics
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert selects(monitor["spec"]["selector"], labels)
    assert selects({"matchLabels": {"foqs-client": "true"}}, labels), "the network policy of hosts lets it connect"
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in {port["name"] for port in container["ports"]}


def test_the_command_of_the_example_has_its_options() -> None:
    program, command, _, *options = objects("worker")[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert (program, command) == ("foqs", "worker")
    known = foqs("worker", "--help", env={"COLUMNS": "200"}).stdout
    assert [option for option in options if f"{option.partition('=')[0]} " not in known] == []
