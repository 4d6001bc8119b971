"""script/kubernetes with a go that builds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.control_plane import PROGRAMS
from tests.deploy.manifests import DEPLOY

SCRIPT = DEPLOY.parent / "script" / "kubernetes"
GO = """#!/bin/sh
set -e
echo "$*" >>{folder}/calls
case "$1 $2" in
version*) echo "go version go{version} linux/amd64" ;;
"mod download")
    case "$4" in *{broken}) echo '{{"Error": "requires a newer go"}}'; exit 1 ;; esac
    module={folder}/modules/${{4%@*}}
    mkdir -p "$module/example/prometheus-operator-crd" "$module/deploy/crds" "$module/config/crd/bases"
    printf 'replace (\\n\\tk8s.io/api => ./staging/src/k8s.io/api\\n)\\n' >"$module/go.mod"
    for name in servicemonitors podmonitors prometheusrules; do
        echo x >"$module/example/prometheus-operator-crd/monitoring.coreos.com_$name.yaml"
    done
    echo x >"$module/deploy/crds/cert-manager.io_certificates.yaml"
    echo x >"$module/config/crd/bases/keda.sh_scaledobjects.yaml"
    printf '{{\\n\\t"GoMod": "%s",\\n\\t"Dir": "%s"\\n}}\\n' "$module/go.mod" "$module" ;;
"install "*) echo built >"$GOBIN/kwok"; chmod +x "$GOBIN/kwok" ;;
"build "*)
    case "$*" in *{broken}) echo "cannot build it" >&2; exit 1 ;; esac
    while [ "$1" != -o ]; do shift; done
    grep -q 'replace k8s.io/api => k8s.io/api v0.34.4' go.mod
    echo built >"$2"; chmod +x "$2" ;;
esac
"""


class Machine:
    """A home without Kubernetes, and a stub of go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / ".cache" / "foqs"

    def run(self, broken: str = "/nothing", version: str = "1.25.0", assets: Path | None = None) -> tuple[int, str]:
        """Run the script; return its exit status and its stderr."""
        go = self.folder / "go"
        go.write_text(GO.format(folder=self.folder, broken=broken, version=version))
        go.chmod(0o755)
        env = {"HOME": str(self.folder), "PATH": f"{self.folder}:/usr/bin:/bin", "PYTHON": sys.executable}
        env |= {"KUBEBUILDER_ASSETS": str(assets)} if assets else {}
        done = subprocess.run([SCRIPT, "build"], env=env, stderr=subprocess.PIPE, text=True, timeout=60)
        return done.returncode, done.stderr

    def built(self) -> set[str]:
        return {path.name for path in self.cache.glob("kubernetes-*/*") if os.access(path, os.X_OK) and path.is_file()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_is_built_once(machine: Machine) -> None:
    status, said = machine.run()
    assert (status, "script/kubernetes: Kubernetes 1.34.4 is in" in said) == (0, True), said
    assert machine.built() == {*PROGRAMS}
    assert len(list(machine.cache.glob("kubernetes-1.34.4/definitions/*.yaml"))) == 5
    calls = (machine.folder / "calls").read_text()
    assert machine.run() == (0, "")
    assert (machine.folder / "calls").read_text() == calls


@pytest.mark.parametrize(
    ("broken", "error"),
    [("kube-scheduler", "cannot build it"), ("keda/v2@*", '{"Error": "requires a newer go"}')],
)
def test_a_failed_build_leaves_nothing(machine: Machine, broken: str, error: str) -> None:
    status, said = machine.run(broken)
    assert (status, said.splitlines()[-2:]) == (1, [error, "script/kubernetes: no Kubernetes could be had"])
    assert {path.name for path in machine.cache.iterdir()} == {"lock-kubernetes"}


def test_programs_that_are_there_are_not_built(machine: Machine) -> None:
    assets = machine.folder / "assets"
    assets.mkdir()
    for name in ("etcd", "kube-apiserver", "kubectl"):  # as envtest has them
        (assets / name).touch(0o755)
    status, said = machine.run(assets=assets)
    assert status == 0, said
    assert machine.built() == {*PROGRAMS} - {"etcd", "kube-apiserver", "kubectl"}
    assert machine.run(assets=assets) == (0, "")
    assert machine.run()[0] == 0
    assert machine.built() == {*PROGRAMS}, "without those of envtest, it builds its own"
