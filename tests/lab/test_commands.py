"""`foqs-lab crash` and `foqs-lab servers` as users run them, and commands of foqs without the laboratory."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.hosts import environment, foqs_lab, until
from tests.conftest import Server


@pytest.mark.mariadb
@pytest.mark.timeout(300)
def test_a_short_crash_test(mariadb: Server, tmp_path: Path) -> None:
    args = ("--host-kills", "1", "--database-kills", "1", "--shards", "1", "--seed", "7", "--keep")
    ran = foqs_lab("crash", *args, env={"TMPDIR": str(tmp_path)}, patience_s=280)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "host_crashes 1, database_crashes 1" in ran.stdout
    (folder,) = tmp_path.iterdir()
    assert ran.stdout.startswith(f"seed 7, logs in {folder}\n")
    assert (folder / "host.log").exists()


@pytest.mark.mariadb
@pytest.mark.timeout(120)
def test_servers_run_until_ctrl_c(mariadb: Server, tmp_path: Path) -> None:
    said = tmp_path / "out"
    folder = tmp_path / "files"
    folder.mkdir()
    with said.open("w") as out:
        servers = subprocess.Popen(
            [sys.executable, "-m", "foqs_lab", "servers", "mariadb"],
            stdout=out,
            stderr=out,
            env=environment(TMPDIR=str(folder)),
        )
    try:
        until(lambda: servers.poll() is not None or "127.0.0.1:" in said.read_text(), "the server", 60)
        assert re.fullmatch(r"mariadb \S+: 127\.0\.0\.1:\d+\n", said.read_text())
    finally:
        servers.send_signal(signal.SIGINT)
        assert servers.wait(60) == 0
    assert said.read_text().endswith("\nthe servers are stopped\n")
    assert list(folder.iterdir()) == []


def test_a_server_that_is_not_installed_is_named() -> None:
    ran = foqs_lab("servers", "redis", env={"PATH": "/nowhere", "XDG_CACHE_HOME": "/nowhere"})
    assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
    assert "redis" in ran.stderr
