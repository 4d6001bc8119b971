"""`foqs cluster up` starts a usable cluster, and leaves no process and no file behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from foqs_lab.servers import ServerUnavailable
from foqs_lab.servers.programs import find_mariadb, find_zookeeper
from tests.api.hosts import environment, foqs, until
from tests.conftest import required

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def programs() -> None:
    try:
        find_zookeeper()
        find_mariadb()
    except ServerUnavailable as error:
        (pytest.fail if required() else pytest.skip)(error.reason)


def children(pid: int) -> set[int]:
    """Return all descendants of the process `pid`."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            child = int(path.parent.name)
            found |= {child} | children(child)
    return found


def test_a_cluster_to_use_until_ctrl_c(tmp_path: Path) -> None:
    said = tmp_path / "out"
    argv = [sys.executable, "-m", "foqs", "cluster", "up", "--hosts", "2", "--mysql", "2", "--shards", "3"]
    with said.open("w") as out:
        env = environment(TMPDIR=str(tmp_path))
        up = subprocess.Popen(argv, stdout=out, stderr=out, env=env, start_new_session=True)
    try:
        until(lambda: up.poll() is not None or "FOQS_CONFIG" in said.read_text(), "the cluster", 180)
        text = said.read_text()
        assert up.poll() is None, text
        hosts = r"^host-\d: 127\.0\.0\.1:(\d+), pid (\d+), admin http://127\.0\.0\.1:\d+, log "
        ports, pids = zip(*re.findall(hosts, text, re.MULTILINE), strict=True)
        (config,) = re.findall(r"^export FOQS_CONFIG=(\S+)$", text, re.MULTILINE)
        assert len(ports) == 2
        assert f"\nexport FOQS_ADDRESS=127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}\n" in text
        status = foqs("cluster", "status", env={"FOQS_CONFIG": config})
        assert (status.returncode, status.stdout.count("served  enabled")) == (0, 3), status
        put = foqs("enqueue", "t", "--raw", "--address", f"127.0.0.1:{ports[0]}", stdin="hello\n")
        assert put.returncode == 0, put.stderr
        got = foqs("dequeue", "t", "--wait-ms", "30000", "--address", f"127.0.0.1:{ports[1]}")
        assert (got.returncode, "hello" in got.stdout) == (0, True), got
        started = children(up.pid)
        assert {int(pid) for pid in pids} <= started
        assert len(started) >= 5, "two hosts, two databases, ZooKeeper"
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(120) == 0, said.read_text()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in started), "all its processes to be gone")
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing is left behind"
