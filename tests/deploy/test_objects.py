"""The objects of both overlays are valid for Kubernetes and unique. They refer only to existing objects, and the pods
have few rights."""

from __future__ import annotations

import re

import kubernetes_validate
import pytest
import yaml

from tests.deploy.manifests import Rendered, selects
from tests.deploy.promql import DASHBOARD, RULES

KUBERNETES = ("1.28", "1.31")


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_knows_every_field(rendered: Rendered, version: str) -> None:
    known = [one for one in rendered.objects if not one["apiVersion"].startswith("monitoring.coreos.com/")]
    for one in known:
        kubernetes_validate.validate(one, version, strict=True)
    assert len(known) >= 15


def test_a_field_that_kubernetes_does_not_know_is_found(rendered: Rendered) -> None:
    one = rendered.one("StatefulSet", "foqs")
    wrong = {**one, "spec": {**one["spec"], "replica": 3}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[0], strict=True)


def test_no_object_is_there_twice_and_all_are_in_one_namespace(rendered: Rendered) -> None:
    named = [(one["kind"], one["metadata"]["name"]) for one in rendered.objects]
    assert len(set(named)) == len(named)
    inside = [one for one in rendered.objects if one["kind"] not in ("Namespace", "PriorityClass")]
    assert {one["metadata"].get("namespace") for one in inside} == {rendered.namespace}


def test_all_objects_are_found_by_one_label(rendered: Rendered) -> None:
    labels = [one["metadata"].get("labels", {}) for one in rendered.objects]
    assert {found.get("app.kubernetes.io/part-of") for found in labels} == {"foqs"}


def test_secrets_are_named_and_never_contained(rendered: Rendered) -> None:
    assert rendered.of("Secret") == []
    for one in rendered.of("ConfigMap"):
        assert not any(word in str(one["data"]).lower() for word in ("password", "credential", "://"))
    for pod in rendered.pods.values():
        for container in pod.containers:
            plain = {variable["name"] for variable in container.get("env", ()) if "value" in variable}
            contained = {name for name in plain if not name.endswith("_FILE")}
            assert not any(word in name for name in contained for word in ("PASSWORD", "CREDENTIAL", "SECRET", "URL"))


# --------------------------------------------------------------------------------------------- what pods may do


def test_pods_are_confined(rendered: Rendered) -> None:
    """What the pod security standard `restricted` asks for, and a root that cannot be written."""
    labels = rendered.of("Namespace")[0]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    account = rendered.of("ServiceAccount")[0]["metadata"]["name"]
    for pod in rendered.pods.values():
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod.spec["automountServiceAccountToken"] is False
        assert pod.spec["serviceAccountName"] == account
        assert not pod.spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        allowed = {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}
        assert all(volume.keys() - {"name"} <= allowed for volume in pod.spec["volumes"])
        for container in pod.containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            resources = container["resources"]
            assert resources["requests"].keys() == resources["limits"].keys() == {"cpu", "memory"}


def test_kubernetes_sets_no_variable_that_looks_like_a_setting(rendered: Rendered) -> None:
    """For a Service `foqs` it would be FOQS_PORT=tcp://..."""
    assert all(pod.spec["enableServiceLinks"] is False for pod in rendered.pods.values())


def test_images_are_pinned(rendered: Rendered) -> None:
    """By digest where it matters. Where the manifests cannot know it, they name one that no registry has."""
    for pod in rendered.pods.values():
        for container in pod.containers:
            image = container["image"]
            if rendered.overlay == "prod":
                assert re.fullmatch(r"[^@:]+@sha256:[0-9a-f]{64}", image), image
            else:
                assert re.fullmatch(r"[^@:]+:(?!latest)[\w.-]+", image), image


def test_only_the_user_and_the_group_read_secrets(rendered: Rendered) -> None:
    """Kubernetes adds the group's right to read, for the fsGroup: 0440."""
    secrets = [
        volume["secret"] for pod in rendered.pods.values() for volume in pod.spec["volumes"] if "secret" in volume
    ]
    assert secrets
    assert {secret["defaultMode"] for secret in secrets} == {0o400}


# ----------------------------------------------------------------------------------------- references are valid


def test_what_pods_mount_is_there(rendered: Rendered) -> None:
    claims = {one["metadata"]["name"] for one in rendered.of("PersistentVolumeClaim")}
    maps = {one["metadata"]["name"] for one in rendered.of("ConfigMap")}
    for pod in rendered.pods.values():
        for volume in pod.spec["volumes"]:
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
        templates = rendered.one(pod.kind, pod.name)["spec"].get("volumeClaimTemplates", ())
        volumes = {one["name"] for one in pod.spec["volumes"]} | {one["metadata"]["name"] for one in templates}
        mounted = {mount["name"] for container in pod.containers for mount in container["volumeMounts"]}
        assert mounted == volumes
        named = {source["configMapRef"]["name"] for one in pod.containers for source in one.get("envFrom", ())}
        assert named <= maps


def test_selectors_find_the_pods_they_are_for(rendered: Rendered) -> None:
    pods = rendered.pods.values()
    for one in rendered.of("StatefulSet"):
        found = [pod for pod in pods if selects(one["spec"]["selector"], pod.labels)]
        assert [pod.name for pod in found] == [one["metadata"]["name"]]
        headless = rendered.one("Service", one["spec"]["serviceName"])["spec"]
        assert headless["clusterIP"] == "None"
        assert selects({"matchLabels": headless["selector"]}, found[0].labels)
    for one in rendered.of("Service"):
        (pod,) = [pod for pod in pods if selects({"matchLabels": one["spec"]["selector"]}, pod.labels)]
        assert all(pod.ports[port["targetPort"]] == port["port"] for port in one["spec"]["ports"])
    for one in rendered.of("PodDisruptionBudget"):
        found = [pod for pod in pods if selects(one["spec"]["selector"], pod.labels)]
        assert [pod.name for pod in found] == [one["metadata"]["name"]]
    for one in rendered.of("HorizontalPodAutoscaler"):
        target = one["spec"]["scaleTargetRef"]
        assert rendered.one(target["kind"], target["name"])["apiVersion"] == target["apiVersion"]


def test_hosts_stay_apart_where_they_can(rendered: Rendered) -> None:
    rules = rendered.host.spec["affinity"]["podAntiAffinity"]
    assert rules.keys() == {"preferredDuringSchedulingIgnoredDuringExecution"}
    terms = [one["podAffinityTerm"] for one in rules["preferredDuringSchedulingIgnoredDuringExecution"]]
    assert [term["topologyKey"] for term in terms] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    for term in terms:
        assert [pod.name for pod in rendered.pods.values() if selects(term["labelSelector"], pod.labels)] == ["foqs"]


def test_priorities_exist(rendered: Rendered) -> None:
    """Hosts must not take the place of what they wait for."""
    classes = {one["metadata"]["name"] for one in rendered.of("PriorityClass")}
    named = {pod.name: pod.spec["priorityClassName"] for pod in rendered.pods.values() if pod.name != "foqs-report"}
    assert set(named.values()) == classes


def test_prometheus_finds_all_hosts(rendered: Rendered) -> None:
    monitors = rendered.of("ServiceMonitor")
    assert len(monitors) == (rendered.overlay == "prod")
    for one in monitors:
        selector = one["spec"]["selector"]
        (service,) = [each for each in rendered.of("Service") if selects(selector, each["metadata"]["labels"])]
        assert service["spec"]["publishNotReadyAddresses"] is True
        (endpoint,) = one["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        kept, dropped = endpoint["relabelings"]
        assert dropped == {"action": "labeldrop", "regex": "namespace"}
        assert kept == {"sourceLabels": ["namespace"], "targetLabel": "kubernetes_namespace"}
        assert re.match("foqs", service["metadata"]["name"])  # the job, which the rules name


def test_the_operator_has_the_rules_as_they_are(rendered: Rendered) -> None:
    rules = rendered.of("PrometheusRule")
    assert len(rules) == (rendered.overlay == "prod")
    for one in rules:
        assert one["spec"] == yaml.safe_load(RULES.read_text())


def test_grafana_has_the_dashboard_as_it_is(rendered: Rendered) -> None:
    found = [one for one in rendered.of("ConfigMap") if "grafana_dashboard" in one["metadata"]["labels"]]
    assert [one["data"] for one in found] == [{"foqs.json": DASHBOARD.read_text()}] * (rendered.overlay == "prod")
