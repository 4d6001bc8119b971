"""script/axe with a registry that is not npm's."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "script" / "axe"
pytestmark = pytest.mark.process


class Machine:
    """A home without axe-core, and a stub of curl that copies `package` to the file after --output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache" / "foqs"
        self.package = folder / "package.tgz"
        (folder / "bin").mkdir()
        curl = folder / "bin" / "curl"
        curl.write_text(
            f"""#!/bin/sh
            echo "$@" >>{folder}/calls
            while [ "$1" != --output ]; do shift; done
            cp {self.package} "$2"
            """
        )
        curl.chmod(0o755)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        environ = os.environ | {"XDG_CACHE_HOME": str(self.cache.parent), "PATH": path} | environment
        return subprocess.run([SCRIPT], env=environ, capture_output=True, text=True, timeout=60)

    def calls(self) -> str:
        calls = self.folder / "calls"
        return calls.read_text() if calls.exists() else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_another_content_is_refused(machine: Machine) -> None:
    with tarfile.open(machine.package, "w:gz") as archive:
        for name in ("axe.min.js", "LICENSE"):
            archive.addfile(tarfile.TarInfo(f"package/{name}"), io.BytesIO())
    done = machine.run()
    assert done.returncode == 1
    assert "package.tgz: FAILED" in done.stderr
    assert done.stderr.endswith("script/axe: no axe-core could be had\n")
    assert [path.name for path in machine.cache.iterdir()] == ["lock-axe"]


def test_without_a_registry_the_error_is_shown(machine: Machine) -> None:
    done = machine.run()
    assert done.returncode == 1
    assert "package.tgz" in done.stderr
    assert [path.name for path in machine.cache.iterdir()] == ["lock-axe"]


def test_a_mirror_is_asked(machine: Machine) -> None:
    machine.run(npm_config_registry="https://mirror.invalid/npm/")
    assert " https://mirror.invalid/npm/axe-core/-/axe-core-" in machine.calls()


def test_a_kept_version_is_not_downloaded_again(machine: Machine) -> None:
    (version,) = [line.partition("=")[2] for line in SCRIPT.read_text().splitlines() if line.startswith("version=")]
    kept = machine.cache / f"axe-core-{version}"
    kept.mkdir(parents=True)
    (kept / "axe.min.js").touch()
    done = machine.run()
    assert (done.returncode, done.stderr, machine.calls()) == (0, "", "")
