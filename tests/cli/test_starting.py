"""A host that starts without its databases, on a port that is taken, or is interrupted."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.api.hosts import ROOT, HostProcess, environment, foqs, until
from tests.support.ports import held_port

# SIGINT arrives while Python imports the module that FOQS_TEST_INTERRUPT names.
HOOK = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["FOQS_TEST_INTERRUPT"]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


@pytest.fixture
def nowhere() -> Iterator[str]:
    """A port of 127.0.0.1 that refuses connections."""
    with held_port() as held:
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def config_of(write: Callable[[str], Path], server: str, shards: int) -> Path:
    text = "[server]\nport = 0\n[admin]\nenabled = false\n[store]\nio_timeout_ms = 60000\nconnect_timeout_ms = 60000\n"
    return write(
        text
        + "".join(f'[[shards]]\nid = {n}\nurl = "mysql+pymysql://foqs:x@{server}/s{n}"\n' for n in range(1, shards + 1))
    )


def test_a_host_says_in_one_line_that_it_waits(
    write: Callable[[str], Path], serve: Callable[..., HostProcess], nowhere: str
) -> None:
    host = serve("-c", config_of(write, nowhere, 8))
    until(lambda: host.said().count("shard.not_opened") == 3 or not host.running, "three lines")
    lines = [line for line in host.said().splitlines() if "shard.not_opened" in line]
    for field in ("not_open=8", "of=8", "serving=False", "reasons=1"):
        assert field in lines[-1]
    assert [re.findall(r"again_ms=(\d+)", line) for line in lines] == [["2000"], ["4000"], ["8000"]]
    assert "reason=" in lines[-1]
    assert host.stop() == 0


def test_a_port_that_is_taken_is_found_before_databases(write: Callable[[str], Path], nowhere: str) -> None:
    config = config_of(write, nowhere, 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = foqs("serve", "-c", config, "--port", str(port))
    assert done.returncode == 1
    assert f"foqs: cannot listen on 127.0.0.1:{port}: Address already in use by another process" in done.stderr
    assert "shard.not_opened" not in done.stderr


@pytest.mark.parametrize("module", ["typer", "foqs.cli.run", "foqs.cli.host", "foqs.server.node", "uvloop"])
@pytest.mark.parametrize("command", ["dev", "serve", "processes"])
def test_ctrl_c_while_a_host_is_loaded_ends_it(
    tmp_path: Path, write: Callable[[str], Path], nowhere: str, command: str, module: str
) -> None:
    if command == "processes" and module in ("foqs.cli.host", "foqs.server.node", "uvloop"):
        module = "foqs.cli.supervisor"
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    cluster = write(f'[server]\nport = 0\n[admin]\nenabled = false\n[zookeeper]\nhosts = "{nowhere}"\n')
    argv = {
        "dev": ["dev", "--port", "0", "--data-dir", str(tmp_path / "data")],
        "serve": ["serve", "-c", str(cluster)],
        "processes": ["serve", "-c", str(cluster), "--processes", "2"],
    }[command]
    done = subprocess.run(
        [sys.executable, "-m", "foqs", *argv],
        env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}", FOQS_TEST_INTERRUPT=module),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "foqs: interrupted\n"


def test_ctrl_c_while_databases_hang_ends_the_host(
    write: Callable[[str], Path], serve: Callable[..., HostProcess], silent: str
) -> None:
    """The grace period of a minute is for requests, and this host received none."""
    host = serve("-c", config_of(write, silent, 2), FOQS_SERVER__GRACE_MS="60000", FOQS_LOG__LEVEL="debug")
    until(lambda: _connects(host, silent), "its connections")
    host.process.send_signal(signal.SIGINT)
    assert host.process.wait(timeout=30) == 0
    assert "host.stopped" in host.said()
    assert "Traceback" not in host.said()


def _connects(host: HostProcess, server: str) -> bool:
    """True if the process has a connection to the server (IPv4, in the kernel's table)."""
    port = f":{int(server.rpartition(':')[2]):04X}"
    inodes = {
        fields[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[2].endswith(port)
    }
    names = []
    for fd in Path(f"/proc/{host.pid}/fd").iterdir():
        try:
            names.append(str(fd.readlink()))
        except OSError:
            continue
    return any(f"socket:[{inode}]" in names for inode in inodes)


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_ctrl_c_while_zookeeper_is_away_ends_the_host(
    write: Callable[[str], Path], serve: Callable[..., HostProcess], nowhere: str, options: list[str]
) -> None:
    config = write(f'[server]\nport = 0\n[admin]\nport = 0\n[zookeeper]\nhosts = "{nowhere}"\n')
    host = serve("-c", config, *options)
    until(lambda: host.said().count("Connection refused") >= 1 or not host.running, "a word about ZooKeeper")
    host.process.send_signal(signal.SIGINT)
    assert host.process.wait(timeout=60) in (0, 130)
    assert "Traceback" not in host.said()
