"""script/zookeeper with a pip that is not this machine's."""

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "script" / "zookeeper"
NEEDED = [
    "zookeeper-3.9.5", "zookeeper-jute-3.9.5", "slf4j-api-2", "log4j-api-2", "log4j-core-2", "log4j-slf4j2-impl-2",
    "metrics-core-4", "snappy-java-1", "netty-handler-4",
]  # fmt: skip


class Machine:
    """A home, and a stub of Python that looks for pyspark in `installed`. Its `pip download` copies `archive` to the
    folder after --dest."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / ".cache" / "foqs"
        self.archive = folder / "none"
        self.installed = folder / "site-packages" / "pyspark"
        self.folder = folder

    def pack(self, names: list[str], kind: str = "tar.gz") -> None:
        self.archive = self.folder / f"pyspark-4.{kind}"
        files = {f"pyspark/jars/{name}.jar": name.encode() for name in [*names, "zookeeper-hive-1", "spark-core-4"]}
        if kind == "whl":
            with zipfile.ZipFile(self.archive, "w") as wheel:
                for name, data in files.items():
                    wheel.writestr(name, data)
            return
        with tarfile.open(self.archive, "w:gz") as source:
            for name, data in files.items():
                member = tarfile.TarInfo(f"pyspark-4/{name}")
                member.size = len(data)
                source.addfile(member, io.BytesIO(data))

    def run(self, **environment: str) -> tuple[int, str]:
        """Run the script; return its exit status and its stderr."""
        python = self.folder / "python"
        python.write_text(
            f"""#!/bin/sh
            [ "$1" != -c ] || {{ echo {self.installed}; exit; }}
            [ "$1" = -m ] || exec {sys.executable} "$@"
            while [ "$1" != --dest ]; do shift; done
            echo called >>{self.folder}/calls
            cp {self.archive} "$2"
            """
        )
        python.chmod(0o755)
        env = {"HOME": str(self.folder), "PATH": os.environ["PATH"], "PYTHON": str(python), **environment}
        done = subprocess.run([SCRIPT], env=env, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        return done.returncode, done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("kind", ["tar.gz", "whl"])
def test_what_a_server_needs_is_kept_and_nothing_else(machine: Machine, kind: str) -> None:
    machine.pack(NEEDED, kind)
    status, said = machine.run()
    assert (status, "ZooKeeper 3.9.5 is in" in said) == (0, True), said
    kept = machine.cache / "zookeeper-3.9.5"
    assert sorted(path.name for path in kept.iterdir()) == sorted(f"{name}.jar" for name in NEEDED)
    assert (kept / "zookeeper-3.9.5.jar").read_bytes() == b"zookeeper-3.9.5"
    assert {path.name for path in machine.cache.iterdir()} == {"zookeeper-3.9.5", "lock-zookeeper"}
    assert machine.run() == (0, "")
    assert (machine.folder / "calls").read_text() == "called\n"


def test_nothing_is_downloaded_where_pyspark_is_installed(machine: Machine) -> None:
    jars = machine.installed / "jars"
    jars.mkdir(parents=True)
    for name in [*NEEDED, "spark-core-4"]:
        (jars / f"{name}.jar").write_text(name)
    status, said = machine.run()
    assert (status, "ZooKeeper 3.9.5 is in" in said) == (0, True), said
    kept = machine.cache / "zookeeper-3.9.5"
    assert sorted(path.name for path in kept.iterdir()) == sorted(f"{name}.jar" for name in NEEDED)
    assert not (machine.folder / "calls").exists()


def test_a_failed_or_incomplete_download_leaves_nothing(machine: Machine) -> None:
    for _ in range(2):
        status, said = machine.run()
        assert status == 1
        assert "no ZooKeeper could be had" in said
        assert [path.name for path in machine.cache.iterdir()] == ["lock-zookeeper"]
        machine.pack(NEEDED[:-1])
    assert "has no netty-handler" in said


def test_jars_that_are_named_are_used_or_missed(machine: Machine, tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    status, said = machine.run(FOQS_ZOOKEEPER_JARS=str(jars))
    assert (status, str(jars) in said) == (1, True)
    (jars / "zookeeper-3.8.0.jar").touch()
    assert machine.run(FOQS_ZOOKEEPER_JARS=str(jars)) == (0, "")
    assert not machine.cache.exists()
