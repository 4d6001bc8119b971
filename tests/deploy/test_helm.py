"""The chart that deploy/helm/make writes: with its defaults it is overlays/prod, and each value has a place."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import required
from tests.deploy.manifests import DEPLOY, Object, find_helm, render

pytestmark = pytest.mark.server
HELM = DEPLOY / "helm"


def make_chart(folder: Path, kubectl: str) -> Path:
    done = subprocess.run(
        [sys.executable, HELM / "make", folder], env={"FOQS_KUBECTL": kubectl, "PATH": "/usr/bin:/bin"}, timeout=60
    )
    assert done.returncode == 0
    return folder


@pytest.fixture(scope="module")
def helm() -> str:
    found = find_helm()
    if found is None:
        (pytest.fail if required() else pytest.skip)("no helm, 3.14 or newer: script/kubectl gets one")
    return found


@pytest.fixture(scope="module")
def chart(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chart(tmp_path_factory.mktemp("chart") / "foqs", kubectl)


def rendered(helm: str, chart: Path, *options: str) -> str:
    argv = [helm, "template", "foqs", chart, "--namespace", "foqs", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str) -> dict[tuple[str, str], Object]:
    """By kind and name. Without the namespace, and without the hash or the revision at the end of a name."""
    text = re.sub(r"(foqs-settings)-\w{10}|(foqs-shards)-1$", r"\1\2", text, flags=re.MULTILINE)
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one is not None}
    for one in found.values():
        one["metadata"].pop("namespace", None)
    return found


def test_helm_finds_nothing_wrong(helm: str, chart: Path) -> None:
    done = subprocess.run([helm, "lint", "--strict", chart], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_defaults_are_the_overlay(helm: str, chart: Path, kubectl: str) -> None:
    manifests = [one for one in render(kubectl, "prod").objects if one["kind"] != "Namespace"]
    wanted = objects(yaml.safe_dump_all(manifests))
    found = objects(rendered(helm, chart))
    assert found.keys() == wanted.keys()
    assert {key: one for key, one in found.items() if one != wanted[key]} == {}


def leaves(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key, value


def test_each_value_has_a_place(helm: str, chart: Path) -> None:
    values = yaml.safe_load((HELM / "values.yaml").read_text())
    plain = rendered(helm, chart)
    for path, value in leaves(values):
        other: Any = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value}x"
        if path != "workers":
            assert rendered(helm, chart, "--set-json", f"{path}={json.dumps(other)}") != plain, path


def test_without_an_operator(helm: str, chart: Path) -> None:
    found = objects(rendered(helm, chart, "--set", "monitoring.enabled=false"))
    assert not any(one["apiVersion"].startswith("monitoring.coreos.com/") for one in found.values())
    scaler = found["HorizontalPodAutoscaler", "foqs"]
    assert [metric["type"] for metric in scaler["spec"]["metrics"]] == ["Resource"]


def test_a_worker_is_that_of_the_example(helm: str, chart: Path) -> None:
    example = objects((DEPLOY / "k8s" / "workers" / "worker.yaml").read_text())
    spec = example["Deployment", "shop-worker"]["spec"]["template"]["spec"]
    container = spec["containers"][0]
    worker = {key: container[key] for key in ("image", "args", "env", "resources")}
    worker |= {"name": "shop-worker", "secret": spec["volumes"][0]["secret"]["secretName"]}
    found = objects(rendered(helm, chart, "--set-json", f"workers={json.dumps([worker])}"))
    assert {key: found[key] for key in example} == example


def test_a_place_that_is_gone_is_an_error(kubectl: str, tmp_path: Path) -> None:
    """Or a value would be without effect."""
    copy = tmp_path / "deploy"
    subprocess.run(["cp", "-r", DEPLOY, copy], check=True)
    class_ = "      priorityClassName: foqs\n"
    hosts = copy / "k8s" / "base" / "hosts.yaml"
    assert class_ in hosts.read_text()
    hosts.write_text(hosts.read_text().replace(class_, ""))
    argv = [sys.executable, copy / "helm" / "make", tmp_path / "chart"]
    done = subprocess.run(argv, env={"FOQS_KUBECTL": kubectl, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert (done.returncode, "priorityClassName" in done.stderr) == (1, True)
