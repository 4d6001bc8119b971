"""deploy/k8s applied to the API server, controllers and scheduler of Kubernetes; kwok plays the nodes.

What runs in the pods is in test_life.py and test_stores.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.control_plane import NODES, PROGRAMS, ControlPlane, find_assets
from tests.deploy.manifests import DEPLOY, Object, render
from tests.deploy.metrics_server import MetricsServer
from tests.deploy.test_helm import make_chart

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = DEPLOY.parent
PAGE = (ROOT / "docs/run/kubernetes.md").read_text()
TOO_MANY_REQUESTS = "Cannot evict pod as it would violate the pod's disruption budget"


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    assets = find_assets()
    if assets is None:
        pytest.skip(f"no {', '.join(PROGRAMS)}: `script/kubernetes build` makes them")
    with ControlPlane(assets, tmp_path_factory.mktemp("kubernetes")) as plane:
        plane.kubectl("apply", "--server-side", "-f", assets.definitions)
        plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", assets.definitions)
        yield plane


class Hosts:
    """The host pods of a namespace, and the job that they wait for."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace

    def pods(self, component: str = "host") -> dict[str, Object]:
        """Pods that are not being deleted, by name."""
        selector = f"app.kubernetes.io/name=foqs,app.kubernetes.io/component={component}"
        found = self.plane.get("pods", self.namespace, selector)
        return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}

    def ready(self) -> set[str]:
        return {name for name, pod in self.pods().items() if is_ready(pod)}

    def waiting(self) -> set[str]:
        """Pods whose first container runs."""
        return {name for name, pod in self.pods().items() if pod["status"].get("initContainerStatuses")} - self.ready()

    def finish(self, *pods: str) -> None:
        """End the first container of hosts, or the container of a job."""
        self.plane.kubectl("annotate", "--overwrite", "pod", "-n", self.namespace, *pods, "done=yes")

    def finish_job(self, job: str = "foqs-shards") -> None:
        self.plane.until(lambda: phases(self.pods("shards")) == {"Running"}, "the job to run")
        self.finish(*self.pods("shards"))
        self.plane.kubectl("wait", "-n", self.namespace, "--for=condition=Complete", "--timeout=60s", f"job/{job}")

    def wait_for(self, count: int) -> None:
        """Until `count` hosts are ready and there is no other."""
        self.plane.until(lambda: len(self.ready()) == len(self.pods()) == count, f"{count} hosts to be ready")

    def served(self, service: str) -> set[str]:
        """The pods to which the Service sends connections."""
        slices = self.plane.get("endpointslices", self.namespace, f"kubernetes.io/service-name={service}")
        points = [point for one in slices for point in one["endpoints"] or ()]
        return {point["targetRef"]["name"] for point in points if point["conditions"]["ready"]}

    def evict(self, pod: str) -> subprocess.CompletedProcess[str]:
        """Evict a pod with the request that `kubectl drain` sends."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.namespace}}
        return self.plane.try_kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))


def is_ready(pod: Object) -> bool:
    return any((one["type"], one["status"]) == ("Ready", "True") for one in pod["status"].get("conditions", ()))


def phases(pods: dict[str, Object]) -> set[str]:
    return {pod["status"]["phase"] for pod in pods.values()}


def commands(heading: str) -> str:
    """The first block of commands below a heading of the page."""
    section = re.split(r"^#+ ", PAGE.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    (block, *_) = re.findall(r"^```sh[^\n]*\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(block)


def test_dev_as_the_page_applies_it(plane: ControlPlane, tmp_path: Path) -> None:
    """The job comes before the hosts; an update and a scale-down take one host at a time."""
    hosts = Hosts(plane, "foqs-dev")
    script = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", commands("Apply")],
        cwd=ROOT,
        env=plane.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        plane.until(lambda: script.poll() is not None or hosts.waiting() == {"foqs-0", "foqs-1"}, "hosts to wait")
        plane.until(lambda: hosts.served("foqs-hosts") == {"foqs-0", "foqs-1"}, "hosts to have names")
        assert hosts.served("foqs") == set()
        assert script.poll() is None, "`rollout status` waits"
        hosts.finish_job()
        hosts.finish("foqs-0", "foqs-1")
        said, warned = script.communicate(timeout=60)
        assert (script.returncode, warned) == (0, ""), warned
        assert "2" in said.splitlines()[-1], said
    finally:
        script.kill()
    plane.until(lambda: hosts.served("foqs") == {"foqs-0", "foqs-1"}, "the Service to have both hosts")
    for name in ("zookeeper", "mysql"):
        plane.kubectl("rollout", "status", "-n", "foqs-dev", f"statefulset/{name}", "--timeout=60s")

    copy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, copy)
    settings = copy / "k8s" / "overlays" / "dev" / "settings.env"
    settings.write_text(settings.read_text().replace("LEVEL=info", "LEVEL=debug"))
    before = {name: pod["metadata"]["uid"] for name, pod in hosts.pods().items()}
    apply = ["apply", "--server-side", "-k", settings.parent]
    assert "field is immutable" in plane.try_kubectl(*apply).stderr, "so that the page has the job deleted"
    plane.kubectl("delete", "job", "-n", "foqs-dev", "foqs-shards")
    plane.kubectl(*apply)
    for pod, other in (("foqs-1", "foqs-0"), ("foqs-0", "foqs-1")):
        plane.until(lambda pod=pod: hosts.waiting() == {pod}, f"{pod} to be replaced")  # type: ignore[misc]
        assert hosts.ready() == {other}
        assert hosts.pods()[pod]["metadata"]["uid"] != before[pod]
        if pod == "foqs-1":
            assert hosts.pods()[other]["metadata"]["uid"] == before[other]
            hosts.finish_job()
        hosts.finish(pod)
    plane.kubectl("rollout", "status", "-n", "foqs-dev", "statefulset/foqs", "--timeout=60s")

    plane.kubectl("scale", "-n", "foqs-dev", "statefulset/foqs", "--replicas=1")
    plane.until(lambda: set(hosts.pods()) == {"foqs-0"}, "the last host to leave")
    assert hosts.ready() == {"foqs-0"}


@pytest.fixture(scope="session")
def prod(plane: ControlPlane) -> Hosts:
    """Three hosts at work."""
    apply_prod(plane)
    hosts = Hosts(plane, "foqs")
    plane.until(lambda: len(hosts.waiting()) == 3, "the autoscaler to ask for its minimum")
    hosts.finish_job()
    hosts.finish(*hosts.waiting())
    hosts.wait_for(3)
    return hosts


def apply_prod(plane: ControlPlane) -> None:
    overlay = DEPLOY / "k8s" / "overlays" / "prod"
    plane.kubectl("apply", "--server-side", "--validate=strict", "-f", overlay / "namespace.yaml")
    plane.kubectl("apply", "--server-side", "--validate=strict", "-k", overlay)


def test_hosts_of_prod_are_apart_and_go_first(prod: Hosts) -> None:
    pods = prod.pods()
    assert {NODES[pod["spec"]["nodeName"]] for pod in pods.values()} == {"zone-a", "zone-b", "zone-c"}
    assert {pod["spec"]["priority"] for pod in pods.values()} == {1_000_000}
    for pod in pods.values():
        secrets = [volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume]
        assert {secret["defaultMode"] for secret in secrets} == {0o400}
        assert len(secrets) == 4


def test_the_report_can_be_made_at_once(prod: Hosts) -> None:
    prod.plane.kubectl("create", "job", "-n", "foqs", "--from=cronjob/foqs-report", "now")
    prod.plane.until(lambda: phases(prod.pods("report")) == {"Running"}, "the report to be made")
    prod.finish(*prod.pods("report"))
    prod.plane.kubectl("wait", "-n", "foqs", "--for=condition=Complete", "--timeout=60s", "job/now")
    prod.plane.kubectl("delete", "job", "-n", "foqs", "now")


def test_nodes_are_emptied_of_one_host_at_a_time(prod: Hosts) -> None:
    prod.wait_for(3)
    first, second, third = sorted(prod.ready())
    evicted = prod.evict(first)
    assert evicted.returncode == 0, evicted.stderr
    prod.plane.until(lambda: prod.waiting() == {first}, "the host to be back, and to wait")
    refused = prod.evict(second)
    assert (refused.returncode, TOO_MANY_REQUESTS in refused.stderr) == (1, True), refused
    prod.finish(first)
    prod.wait_for(3)

    unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    for pod in (first, second):
        prod.plane.kubectl("patch", "pod", "-n", "foqs", pod, "--subresource=status", "-p", json.dumps(unready))
    prod.plane.until(lambda: budget(prod)["currentHealthy"] == 1, "the budget to see two hosts that are not ready")
    assert TOO_MANY_REQUESTS in prod.evict(third).stderr
    for pod in (first, second):
        assert prod.evict(pod).returncode == 0, "a host that is not ready does not keep its node"
    prod.plane.until(lambda: prod.waiting() == {first, second}, "both to be back")
    prod.finish(first, second)
    prod.wait_for(3)


def budget(hosts: Hosts) -> Any:
    return hosts.plane.get("pdb/foqs", hosts.namespace)["status"]


def test_hosts_follow_the_delay_of_their_event_loops(prod: Hosts, kubectl: str) -> None:
    """Two more in two minutes, one less in five, and none less while a figure is unknown."""
    plane = prod.plane
    scaler = render(kubectl, "prod").one("HorizontalPodAutoscaler", "foqs")
    behavior = scaler["spec"]["behavior"]
    for direction in behavior.values():
        direction["stabilizationWindowSeconds"] = 0  # a test does not wait for 15 minutes

    def wanted() -> int:
        return int(plane.get("statefulset/foqs", "foqs")["spec"]["replicas"])

    def until_it_says(reason: str) -> None:
        name = scaler["metadata"]["name"]
        plane.until(lambda: reason in reasons(plane.get(f"hpa/{name}", "foqs")), f"the autoscaler to say {reason}")

    target = float(scaler["spec"]["metrics"][1]["pods"]["target"]["averageValue"].removesuffix("m")) / 1000
    with MetricsServer("foqs", "foqs_event_loop_lag_seconds") as metrics:
        metrics.value = 10 * target
        plane.define([*metrics.objects(), scaler])
        until_it_says("ScaleUpLimit")
        assert wanted() == 3, "there were two more just now: from one, the default, to three"
        behavior["scaleUp"]["policies"][0]["periodSeconds"] = 1
        plane.define([scaler])
        plane.until(lambda: len(prod.waiting()) == 6, "the largest number of hosts")
        prod.finish(*prod.waiting())
        prod.wait_for(9)

        metrics.value, metrics.knows_cpu = target / 100, False
        until_it_says("FailedGetResourceMetric")
        assert wanted() == 9
        # An autoscaler removes hosts that it added within the period at once. This one added none.
        plane.kubectl("delete", "hpa", "-n", "foqs", "foqs")
        scaler["metadata"]["name"] = "without-a-past"
        plane.define([scaler])
        metrics.knows_cpu = True
        until_it_says("ScaleDownLimit")
        prod.wait_for(8)
        plane.kubectl("delete", "hpa", "-n", "foqs", "without-a-past")
    apply_prod(plane)
    assert wanted() == 8, "applying it again changes nothing of it"
    scaler["metadata"]["name"] = "foqs"
    plane.kubectl("scale", "-n", "foqs", "statefulset/foqs", "--replicas=0")  # for an upgrade with all hosts stopped
    until_it_says("ScalingDisabled")
    assert wanted() == 0
    plane.kubectl("scale", "-n", "foqs", "statefulset/foqs", "--replicas=3")
    plane.until(lambda: len(prod.waiting()) == 3, "hosts to be back")
    prod.finish(*prod.waiting())
    prod.wait_for(3)


def reasons(scaler: Object) -> set[str]:
    return {one["reason"] for one in scaler["status"].get("conditions", ())}


# ------------------------------------------------------------------------------------------ refusals


def test_a_field_that_nothing_knows_is_refused(plane: ControlPlane, kubectl: str) -> None:
    """Of each kind, also of operators."""
    plane.kubectl("apply", "--server-side", "-f", DEPLOY / "k8s" / "overlays" / "prod" / "namespace.yaml")
    objects = {one["kind"]: one for one in render(kubectl, "prod").objects if "spec" in one}
    assert {"ServiceMonitor", "PrometheusRule", "StatefulSet"} <= objects.keys()
    for one in objects.values():
        wrong = yaml.safe_dump({**one, "spec": {**one["spec"], "unheardOf": 1}})
        done = plane.try_kubectl(
            "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=wrong
        )
        assert (done.returncode, "unheardOf" in done.stderr) == (1, True), one["kind"]


def test_a_pod_with_more_rights_is_refused(plane: ControlPlane, kubectl: str) -> None:
    plane.kubectl("apply", "--server-side", "-f", DEPLOY / "k8s" / "overlays" / "prod" / "namespace.yaml")
    template = render(kubectl, "prod").host
    spec = {**template.spec, "serviceAccountName": "default"}
    spec["securityContext"] = {**spec["securityContext"], "runAsNonRoot": False}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": "foqs"}, "spec": spec}
    done = plane.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))
    assert 'violates PodSecurity "restricted:latest": runAsNonRoot != true' in done.stderr, done


def test_the_chart_is_installed_and_upgraded(plane: ControlPlane, kubectl: str, tmp_path: Path) -> None:
    namespace: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "by-helm"}}
    namespace["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.define([namespace])
    hosts = Hosts(plane, "by-helm")
    release = ("foqs", make_chart(tmp_path / "foqs", kubectl), "-n", "by-helm", "--set", "priorityClass=by-helm")
    plane.helm("install", *release)
    plane.until(lambda: len(hosts.waiting()) == 3, "hosts to wait")
    hosts.finish_job("foqs-shards-1")
    hosts.finish(*hosts.waiting())
    hosts.wait_for(3)
    plane.helm("upgrade", *release, "--set", "settings.FOQS_LOG__LEVEL=debug")
    plane.until(lambda: hosts.waiting() == {"foqs-2"}, "the first host to be replaced")
    assert hosts.ready() == {"foqs-0", "foqs-1"}
    hosts.finish_job("foqs-shards-2")
    hosts.finish("foqs-2")
    plane.helm("uninstall", "foqs", "-n", "by-helm")


def test_the_optional_parts_are_valid(plane: ControlPlane, tmp_path: Path) -> None:
    """The examples for workers, and the certificates."""
    copy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, copy)
    mine = copy / "k8s" / "overlays" / "mine"
    mine.mkdir()
    parts = {"resources": ["../prod"], "components": ["../../components/certificates"]}
    (mine / "kustomization.yaml").write_text(
        yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"} | parts)
    )
    strictly = ("apply", "--server-side", "--validate=strict")
    plane.kubectl(*strictly, "-f", DEPLOY / "k8s" / "overlays" / "prod" / "namespace.yaml")
    said = plane.kubectl(*strictly, "--dry-run=server", "-k", mine)
    assert said.count("certificate.cert-manager.io/") == 2
    namespace: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
    namespace["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.define([namespace])
    for name in ("worker", "hpa", "keda"):
        plane.kubectl(*strictly, "-n", "shop", "-f", DEPLOY / "k8s" / "workers" / f"{name}.yaml")
    plane.kubectl("rollout", "status", "-n", "shop", "deployment/shop-worker", "--timeout=60s")
