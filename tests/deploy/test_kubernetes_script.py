"""script/kubernetes with a go that builds nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.control_plane import PROGRAMS
from tests.deploy.manifests import DEPLOY
from tests.deploy.test_kubectl_script import helm, program
from tests.support.waiting import wait_until

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
    [ -d "$GOCACHE" ] || echo "nothing is compiled" >>{folder}/calls
    mkdir -p "$GOCACHE"
    case "$*" in *{endless}) exec sleep 300 ;; esac
    while [ "$1" != -o ]; do shift; done
    grep -q 'replace k8s.io/api => k8s.io/api v0.34.4' go.mod
    echo built >"$2"; chmod +x "$2" ;;
esac
"""


class Machine:
    """A home without Kubernetes, a stub of go, and no index of packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / ".cache" / "foqs"

    def start(
        self, broken: str = "/nothing", endless: str = "/nothing", assets: Path | None = None
    ) -> subprocess.Popen[str]:
        """Begin to build."""
        go = self.folder / "go"
        go.write_text(GO.format(folder=self.folder, broken=broken, endless=endless, version="1.25.0"))
        go.chmod(0o755)
        env = self.environment | ({"KUBEBUILDER_ASSETS": str(assets)} if assets else {})
        return subprocess.Popen([SCRIPT, "build"], env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)

    @property
    def environment(self) -> dict[str, str]:
        env = {"HOME": str(self.folder), "PATH": f"{self.folder}:/usr/bin:/bin", "PYTHON": sys.executable}
        return env | {"PIP_NO_INDEX": "1", "FOQS_KUBECTL": "none", "FOQS_HELM": "none"}

    def found(self) -> int:
        """Return the exit status of `script/kubernetes found`."""
        return subprocess.run([SCRIPT, "found"], env=self.environment, timeout=60).returncode

    def run(self, broken: str = "/nothing", assets: Path | None = None) -> tuple[int, str]:
        """Build; return the exit status and the stderr of the script."""
        with self.start(broken, assets=assets) as script:
            _, said = script.communicate(timeout=60)
        return script.returncode, said

    def download(self) -> None:
        """Do as script/kubectl, with an index."""
        folder = self.cache / "kubectl-1.34.5"
        folder.mkdir(parents=True)
        for name, text in (("kubectl", program("1.34.5")), ("helm", helm())):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def built(self) -> set[str]:
        return {path.name for path in self.cache.glob("kubernetes-*/*") if os.access(path, os.X_OK) and path.is_file()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_is_built_once(machine: Machine) -> None:
    machine.download()
    assert machine.found() == 1
    status, said = machine.run()
    assert (status, "script/kubernetes: Kubernetes 1.34.4 is in" in said) == (0, True), said
    assert machine.found() == 0
    assert machine.built() == {*PROGRAMS} - {"kubectl", "helm"}, "these are downloaded"
    assert len(list(machine.cache.glob("kubernetes-1.34.4/definitions/*.yaml"))) == 5
    calls = (machine.folder / "calls").read_text()
    assert machine.run() == (0, "")
    assert (machine.folder / "calls").read_text() == calls


def test_what_cannot_be_downloaded_is_built(machine: Machine) -> None:
    status, said = machine.run()
    assert (status, "script/kubectl: no kubectl and helm could be had" in said) == (0, True), said
    assert machine.built() == {*PROGRAMS}


@pytest.mark.parametrize(
    ("broken", "error"),
    [("kube-scheduler", "cannot build it"), ("keda/v2@*", '{"Error": "requires a newer go"}')],
)
def test_a_failed_build_leaves_nothing(machine: Machine, broken: str, error: str) -> None:
    machine.download()
    status, said = machine.run(broken)
    assert (status, said.splitlines()[-2:]) == (1, [error, "script/kubernetes: no Kubernetes could be had"])
    assert {path.name for path in machine.cache.iterdir()} == {"lock-kubernetes", "kubectl-1.34.5"}


def test_the_next_build_continues_a_stopped_one(machine: Machine) -> None:
    """As .ci/run stops one that takes too long."""
    machine.download()
    old = machine.cache / ".making-kubernetes-1.33.0"
    old.mkdir()
    calls = machine.folder / "calls"
    with machine.start(endless="kube-scheduler") as script:
        wait_until(lambda: calls.exists() and "cmd/kube-scheduler" in calls.read_text())
        os.killpg(script.pid, signal.SIGTERM)
        _, said = script.communicate(timeout=60)
    work = machine.cache / ".making-kubernetes-1.34.4"
    assert script.returncode == 130
    assert said.splitlines()[-1] == f"script/kubernetes: stopped; the next build continues from {work}"
    assert (work.exists(), old.exists(), machine.built()) == (True, False, set())
    assert machine.run()[0] == 0
    assert calls.read_text().count("nothing is compiled") == 1
    assert (work.exists(), machine.built()) == (False, {*PROGRAMS} - {"kubectl", "helm"})


def test_programs_that_are_there_are_not_built(machine: Machine) -> None:
    machine.download()
    assets = machine.folder / "assets"
    assets.mkdir()
    for name in ("etcd", "kube-apiserver"):  # as envtest has them
        (assets / name).touch(0o755)
    status, said = machine.run(assets=assets)
    assert status == 0, said
    assert machine.built() == {*PROGRAMS} - {"etcd", "kube-apiserver", "kubectl", "helm"}
    assert machine.run(assets=assets) == (0, "")
    assert machine.run()[0] == 0
    assert machine.built() == {*PROGRAMS} - {"kubectl", "helm"}, "without the programs of envtest, it builds its own"
