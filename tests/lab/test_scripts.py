"""script/mysql on simulated machines: stubs stand for the programs that each machine has."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

SCRIPTS = Path(__file__).parent.parent.parent / "script"
DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR = "http://mirror.invalid/debian/"
LOADER = "usr/lib64/ld-linux-x86-64.so.2"


class Machine:
    """A home with a cache folder, stubs that hide the system's programs, and a fresh clone's scripts."""

    def __init__(self, folder: Path) -> None:
        self.stubs = folder / "stubs"
        self.cache = folder / "home" / ".cache" / "foqs"
        self.clone = folder / "clone"
        self.stubs.mkdir()
        shutil.copytree(SCRIPTS, self.clone / "script")
        self.stub("mysqld", "echo 'mysqld  Ver 10.11.11-MariaDB for debian-linux-gnu'")
        self.stub("debootstrap", 'echo "$@" >>calls; exit 1')
        self.stub("apt-get", f'. /etc/os-release; echo "$VERSION_CODENAME main {MIRROR}"')
        self.stub("apt-cache", "echo '  Candidate: (none)'")
        self.stub("apt-config", "exit 0")

    def stub(self, name: str, body: str) -> None:
        (self.stubs / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.stubs / name).chmod(0o755)

    def unpack_tree(self, name: str, version: str) -> None:
        """What debootstrap leaves: its loader is a stub that answers for the server."""
        loader = self.cache / name / LOADER
        loader.parent.mkdir(parents=True)
        loader.write_text(f"#!/bin/sh\necho 'mysqld  Ver {version} for Linux on x86_64'\n")
        loader.chmod(0o755)
        (self.cache / name / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
        (self.cache / name / "usr/bin").mkdir()
        (self.cache / name / "usr/bin/mysqldump").touch()

    def popen(self) -> "subprocess.Popen[str]":
        environment = {
            "HOME": str(self.clone.parent / "home"),
            "PATH": f"{self.stubs}:{os.environ['PATH']}",
        }
        return subprocess.Popen(
            [self.clone / "script" / "mysql"],
            env=environment,
            cwd=self.clone,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self) -> tuple[int, str]:
        """Run the script; return its exit status and its stderr."""
        with self.popen() as process:
            _, said = process.communicate(timeout=60)
        return process.returncode, said

    @property
    def downloads(self) -> list[tuple[str, str]]:
        """Suite and mirror of each call of debootstrap."""
        calls = self.clone / "calls"
        words = [line.split() for line in calls.read_text().splitlines()] if calls.exists() else []
        return [(call[-3], call[-1]) for call in words]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if shutil.which("dpkg-deb") is None or not DEBIAN_KEYS.exists():
        pytest.skip("script/mysql unpacks Debian's packages")
    return Machine(tmp_path)


def test_a_fresh_clone_finds_the_mysql_that_another_unpacked(machine: Machine) -> None:
    machine.unpack_tree("mysql-sid", "9.7.0-1")
    assert machine.run() == (0, "")
    assert machine.downloads == []


def test_a_mysql_without_its_client_is_unpacked_again(machine: Machine) -> None:
    machine.unpack_tree("mysql-sid", "9.7.0-1")
    (machine.cache / "mysql-sid/usr/bin/mysqldump").unlink()
    machine.run()
    assert machine.downloads


def test_an_installed_mysql_is_used_as_it_is(machine: Machine) -> None:
    machine.stub("mysqld", "echo '/usr/sbin/mysqld  Ver 8.4.5-0ubuntu0.1 for Linux on x86_64'")
    assert machine.run() == (0, "")
    assert not machine.cache.exists()


@pytest.mark.parametrize("version", ["8.0.42-0ubuntu0.24.04.1", "11.4.2-MariaDB"])
def test_an_old_mysql_or_a_mariadb_is_not_used(machine: Machine, version: str) -> None:
    machine.unpack_tree("mysql-old", version)
    status, said = machine.run()
    assert status == 1
    assert "no MySQL could be had" in said
    assert machine.downloads


def test_the_distribution_s_own_is_tried_first_then_sid(machine: Machine) -> None:
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if line)
    machine.stub("apt-cache", "echo '  Candidate: 8.4.5-1'")
    machine.run()
    assert machine.downloads[0] == (release["VERSION_CODENAME"].strip('"'), MIRROR)
    assert machine.downloads[-1] == ("sid", "http://deb.debian.org/debian")


def test_a_distribution_without_it_or_with_an_old_one_gets_sid_s(machine: Machine) -> None:
    machine.stub("apt-cache", "echo '  Candidate: 8.0.42-0ubuntu0.24.04.1'")
    machine.run()
    assert {suite for suite, _ in machine.downloads} == {"sid"}


def test_a_failed_download_leaves_nothing(machine: Machine) -> None:
    machine.stub("debootstrap", 'echo "$@" >>calls; echo E: no route; exit 1')
    status, said = machine.run()
    assert status == 1
    assert "E: no route" in said
    assert [path.name for path in machine.cache.iterdir()] == ["lock"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_one_leaves_nothing_that_is_taken_as_good(machine: Machine, number: signal.Signals) -> None:
    machine.stub("debootstrap", 'echo "$@" >>calls; exec sleep 30')
    with machine.popen() as process:
        wait_until(lambda: machine.downloads, "a download")
        os.killpg(process.pid, number)
        assert process.wait(60) != 0
    assert not list(machine.cache.glob("mysql-*"))

    machine.unpack_tree("mysql-sid", "9.7.0-1")
    shutil.rmtree(machine.cache / "mysql-sid")
    machine.stub("debootstrap", 'echo "$@" >>calls; exit 1')
    assert machine.run()[0] == 1
    assert [path.name for path in machine.cache.iterdir()] == ["lock"]
