"""deploy/k8s as a cluster would get it: rendered by a real kubectl, with its references resolved."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
OVERLAYS = ("dev", "prod")
Object = dict[str, Any]
_VARIABLE = re.compile(r"\$\((\w+)\)")


def find_kubectl() -> str | None:
    """Return a kubectl that script/kubectl takes, or None."""
    for kubectl, said in _answers("kubectl", "version", "--client"):
        found = re.search(r"^Client Version: v1\.(\d+)", said, re.MULTILINE)
        if found is not None and int(found[1]) >= 28 and "Kustomize Version: v5." in said:
            return kubectl
    return None


def find_helm() -> str | None:
    """Return a helm that script/kubectl takes, or None."""
    for helm, said in _answers("helm", "version", "--short"):
        found = re.match(r"v(\d+)\.(\d+)", said)
        if found is not None and (int(found[1]), int(found[2])) >= (3, 14):
            return helm
    return None


def cache_folder() -> Path:
    """Return where the scripts keep the programs that they have downloaded or built."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foqs"


def _answers(name: str, *arguments: str) -> Iterator[tuple[str, str]]:
    """Yield the commands that may be this program, with their stdout."""
    installed = os.environ.get(f"FOQS_{name.upper()}", name)
    for command in (installed, *map(str, sorted(cache_folder().glob(f"kubectl-*/{name}")))):
        try:
            yield command, subprocess.run([command, *arguments], capture_output=True, text=True, timeout=60).stdout
        except OSError:
            continue


class Pod(NamedTuple):
    """What a workload starts. `name` is the workload's; `spec` the pod's."""

    kind: str
    name: str
    labels: dict[str, str]
    spec: Object

    @property
    def containers(self) -> list[Object]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    def container(self, name: str) -> Object:
        (found,) = [one for one in self.containers if one["name"] == name]
        return found

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for one in self.containers for port in one.get("ports", ())}


@dataclass(frozen=True)
class Rendered:
    overlay: str
    objects: list[Object]

    def of(self, kind: str) -> list[Object]:
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        """`name` with or without the hash that kustomize puts behind it."""
        pattern = rf"{name}(-[a-z0-9]{{10}})?"
        (found,) = [one for one in self.of(kind) if re.fullmatch(pattern, one["metadata"]["name"])]
        return found

    @property
    def pods(self) -> dict[str, Pod]:
        return {pod.name: pod for pod in self._pods()}

    def _pods(self) -> Iterator[Pod]:
        for one in self.objects:
            spec = one.get("spec", {})
            if one["kind"] == "CronJob":
                spec = spec["jobTemplate"]["spec"]
            if "template" in spec:
                template = spec["template"]
                yield Pod(one["kind"], one["metadata"]["name"], template["metadata"]["labels"], template["spec"])

    @property
    def host(self) -> Pod:
        return self.pods["foqs"]

    def environment(self, pod: Pod, container: str) -> dict[str, str]:
        """Return the variables that the container has in the first pod. A variable from a Secret has its place as
        value: name:key. The overlay `dev` leaves out variables from Secrets that are optional."""
        one = pod.container(container)
        found: dict[str, str] = {}
        for source in one.get("envFrom", ()):
            found |= self.one("ConfigMap", source["configMapRef"]["name"])["data"]
        fields = {
            "metadata.name": f"{pod.name}-0",
            "metadata.namespace": self.namespace,
            "metadata.labels['apps.kubernetes.io/pod-index']": "0",
        }
        for variable in one.get("env", ()):
            if "value" in variable:
                value = _VARIABLE.sub(lambda name: found[name[1]], variable["value"])
            elif "fieldRef" in variable["valueFrom"]:
                value = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                secret = variable["valueFrom"]["secretKeyRef"]
                if secret.get("optional") and self.overlay == "dev":
                    continue
                value = f"{secret['name']}:{secret['key']}"
            found[variable["name"]] = value
        return found

    @property
    def namespace(self) -> str:
        (namespace,) = self.of("Namespace")
        return str(namespace["metadata"]["name"])

    @property
    def toml(self) -> str:
        return str(self.one("ConfigMap", "foqs-config")["data"]["foqs.toml"])


def render(kubectl: str, overlay: str) -> Rendered:
    folder = DEPLOY / "k8s" / "overlays" / overlay
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return Rendered(overlay, list(yaml.safe_load_all(done.stdout)))


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """A label selector; one without conditions selects all."""
    for one in selector.get("matchExpressions", ()):
        assert one["operator"] == "In"
        if labels.get(one["key"]) not in one["values"]:
            return False
    plain = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in plain.items())


def moved(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """The files of Secrets are below `folder`."""
    return {name: value.replace("/etc/foqs-", f"{folder}/foqs-") for name, value in environment.items()}


def setenv(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has this process see just these of ours."""
    for name in [name for name in os.environ if name.startswith("FOQS_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
