"""The objects of both overlays are valid for Kubernetes and unique. They refer only to existing objects, and the pods
have few rights."""

from __future__ import annotations

import re

import kubernetes_validate
import pytest
import yaml

from tests.deploy.manifests import Rendered, selects
from tests.deploy.promql import RULES

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
    inside = [one["metadata"].get("namespace") for one in rendered.objects if one["kind"] != "Namespace"]
    assert set(inside) == {rendered.namespace}


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
    for pod in rendered.pods.values():
        for container in pod.containers:
            name, _, tag = container["image"].rpartition(":")
            assert name
            assert tag not in ("", "latest")


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


def test_hosts_stay_apart(rendered: Rendered) -> None:
    spec = rendered.host.spec
    (spread,) = spec["topologySpreadConstraints"]
    rules = spec["affinity"]["podAntiAffinity"]
    if rendered.overlay == "prod":
        assert rules.keys() == {"requiredDuringSchedulingIgnoredDuringExecution"}
        (apart,) = rules["requiredDuringSchedulingIgnoredDuringExecution"]
    else:
        (weighted,) = rules["preferredDuringSchedulingIgnoredDuringExecution"]
        apart = weighted["podAffinityTerm"]
    for rule in (apart, spread):
        assert [pod.name for pod in rendered.pods.values() if selects(rule["labelSelector"], pod.labels)] == ["foqs"]
    assert (apart["topologyKey"], spread["topologyKey"]) == ("kubernetes.io/hostname", "topology.kubernetes.io/zone")


def test_prometheus_finds_all_hosts(rendered: Rendered) -> None:
    """There is no schema of this kind here: the fields are looked at by hand."""
    monitors = rendered.of("ServiceMonitor")
    assert len(monitors) == (rendered.overlay == "prod")
    for one in monitors:
        assert one["apiVersion"] == "monitoring.coreos.com/v1"
        assert one["spec"].keys() == {"selector", "endpoints"}
        selector = one["spec"]["selector"]
        (service,) = [each for each in rendered.of("Service") if selects(selector, each["metadata"]["labels"])]
        assert service["spec"]["publishNotReadyAddresses"] is True
        (endpoint,) = one["spec"]["endpoints"]
        assert endpoint.keys() == {"port", "path", "interval", "scrapeTimeout", "relabelings"}
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        assert endpoint["relabelings"] == [{"action": "labeldrop", "regex": "namespace"}]
        assert re.match("foqs", service["metadata"]["name"])  # the job, which the rules name


def test_the_operator_has_the_rules_as_they_are(rendered: Rendered) -> None:
    rules = rendered.of("PrometheusRule")
    assert len(rules) == (rendered.overlay == "prod")
    for one in rules:
        assert one["apiVersion"] == "monitoring.coreos.com/v1"
        assert one["spec"] == yaml.safe_load(RULES.read_text())
