"""Objects of the Prometheus operator by the npm package that has its kinds, and the query of the hosts' autoscaler.

test_kubernetes.py applies the objects to an API server with the operator's definitions, which knows each field.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import required
from tests.deploy.exported import unknown
from tests.deploy.manifests import DEPLOY, Object, Rendered, render
from tests.deploy.prometheus import promtool

MONITORING = DEPLOY / "k8s" / "components" / "monitoring"
CHECK = """
for (const one of JSON.parse(process.argv[1])) {
    const kind = (await import(`@kubernetes-models/prometheus-operator/${one.apiVersion}/${one.kind}`))[one.kind];
    new kind(one).validate();
}
"""


@pytest.fixture(scope="module")
def kinds() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foqs"
    found = sorted(cache.glob("operator-kinds-*/node_modules"))
    if not found or shutil.which("node") is None:
        (pytest.fail if required() else pytest.skip)("no node with the operator's kinds: script/operator-kinds")
    return found[-1].parent


def said(kinds: Path, *objects: Object) -> str:
    """Return the errors of the objects; an empty text if there is none."""
    argv = ["node", "--input-type=module", "--eval", CHECK, json.dumps(objects)]
    done = subprocess.run(argv, cwd=kinds, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr


@pytest.fixture
def prod(kubectl: str) -> Rendered:
    return render(kubectl, "prod")


def test_the_package_knows_the_objects(prod: Rendered, kinds: Path) -> None:
    objects = [one for one in prod.objects if one["apiVersion"].startswith("monitoring.coreos.com/")]
    assert [one["kind"] for one in objects] == ["PrometheusRule", "ServiceMonitor"]
    workers = list(yaml.safe_load_all((DEPLOY / "k8s" / "workers" / "worker.yaml").read_text()))
    monitors = [one for one in workers if one["kind"] == "PodMonitor"]
    assert monitors
    assert said(kinds, *objects, *monitors) == ""


@pytest.mark.parametrize("kind", ["PrometheusRule", "ServiceMonitor"])
def test_a_wrong_object_is_found(prod: Rendered, kinds: Path, kind: str) -> None:
    (one,) = prod.of(kind)
    wrong = deepcopy(one)
    if kind == "PrometheusRule":
        del wrong["spec"]["groups"][0]["rules"][0]["expr"]
    else:
        wrong["spec"]["endpoints"][0]["interval"] = "15 seconds"
    assert "/spec/" in said(kinds, wrong)


def test_all_are_for_the_same_operator(prod: Rendered) -> None:
    objects = [one for one in prod.objects if one["apiVersion"].startswith("monitoring.coreos.com/")]
    assert {one["metadata"]["labels"]["release"] for one in objects} == {"kube-prometheus-stack"}


# ------------------------------------------------------------------------------------------ the autoscaler


def adapter() -> Any:
    (rule,) = yaml.safe_load((MONITORING / "adapter-values.yaml").read_text())["rules"]["custom"]
    return rule


def test_the_autoscaler_and_the_adapter_mean_one_metric(prod: Rendered) -> None:
    (monitor,), rule = prod.of("ServiceMonitor"), adapter()
    metrics = prod.one("HorizontalPodAutoscaler", "foqs")["spec"]["metrics"]
    assert [one["pods"]["metric"]["name"] for one in metrics if one["type"] == "Pods"] == [rule["name"]["as"]]
    labels = {one["targetLabel"] for one in monitor["spec"]["endpoints"][0]["relabelings"] if "targetLabel" in one}
    assert rule["resources"]["overrides"].keys() == labels | {"pod"}


@pytest.mark.server
def test_the_query_is_the_mean_delay_of_each_host(tmp_path: Path) -> None:
    rule = adapter()
    query = (
        rule["metricsQuery"].replace("<<.GroupBy>>", "pod").replace("<<.LabelMatchers>>", 'kubernetes_namespace="foqs"')
    )
    assert unknown(query.replace('{kubernetes_namespace="foqs"}', "").replace(" by (pod)", "")) == []
    rules = {"groups": [{"name": "x", "rules": [{"record": "lag", "expr": query}]}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    delays = {"foqs-0": 0.05, "foqs-1": 0.001}
    series = [
        {
            "series": f'foqs_event_loop_lag_seconds_{name}{{kubernetes_namespace="foqs",pod="{pod}"}}',
            "values": f"0+{grows:g}x40",
        }
        for pod, delay in delays.items()
        for name, grows in (("sum", 150 * delay), ("count", 150))  # ten timers a second, scraped every 15 s
    ]
    samples = [{"labels": f'{{pod="{pod}"}}', "value": delay} for pod, delay in delays.items()]
    asked = {"expr": "round(lag, 0.0001)", "eval_time": "5m", "exp_samples": samples}
    case = {"interval": "15s", "input_series": series, "promql_expr_test": [asked]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [case]}))
    promtool("test", "rules", tmp_path / "test.yaml")
