"""script/rivals with an npm and a Python that are not this machine's."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "script" / "rivals"
NPM = 'echo "$@" >>"$CALLS"; for name in bullmq ioredis graphile-worker pg; do mkdir -p node_modules/$name; done'
PIP = (
    'echo "$@" >>"$CALLS"; case "$*" in *celery*) mkdir -p celery dramatiq procrastinate;; '
    "*) mkdir -p pgmq/sql && touch pgmq/sql/pgmq.sql;; esac"
)


class Machine:
    """A home, and stubs of all programs that the script looks for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rivals = folder / ".cache" / "foqs" / "rivals"
        for name in ("initdb", "redis-server", "node"):
            self.stub(name, "true")
        self.stub("npm", NPM)
        self.python(PIP)

    def stub(self, name: str, body: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def python(self, pip: str) -> None:
        self.stub("python", f"[ $1 != -c ] || {{ echo python3.99; exit; }}\n{pip}")

    def run(self) -> tuple[int, str]:
        ran = subprocess.run(
            [SCRIPT],
            env={
                "HOME": str(self.folder),
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                "PYTHON": str(self.folder / "bin" / "python"),
                "CALLS": str(self.folder / "calls"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return ran.returncode, ran.stdout

    @property
    def calls(self) -> list[str]:
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_packages_are_installed_once(machine: Machine) -> None:
    assert machine.run()[0] == 0
    assert (machine.rivals / "node/node_modules/bullmq").is_dir()
    assert (machine.rivals / "python3.99/pgmq/sql/pgmq.sql").is_file()
    assert (machine.rivals / "python3.99-workers/celery").is_dir()
    assert len(machine.calls) == 4
    assert all(">=" in call for call in machine.calls)
    assert machine.run() == (0, "")
    assert len(machine.calls) == 4


def test_a_failed_install_leaves_nothing_and_is_said(machine: Machine) -> None:
    machine.stub("npm", "mkdir node_modules; echo no route; exit 1")
    status, said = machine.run()
    assert status == 1
    assert "no route" in said
    assert "no packages of node; foqs-lab bench leaves out what needs it" in said
    assert sorted(path.name for path in machine.rivals.iterdir()) == ["python3.99", "python3.99-workers"]
    assert not list(machine.rivals.parent.glob(".making*"))
