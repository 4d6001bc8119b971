"""With JSON logs each line of stdout and stderr is a JSON object, whatever happens to a host."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.hosts import ROOT, HostProcess, environment, foqs, until
from tests.cli.test_starting import HOOK
from tests.support.ports import held_port

IN_JSON = '[log]\nformat = "json"\n'
FIRST = ["timestamp", "level", "event", "logger"]


def lines_of(*texts: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for text in texts for line in text.splitlines()]
    assert all(list(line)[:4] == FIRST for line in found), found
    return found


def events(*texts: str) -> set[str]:
    return {line["event"] for line in lines_of(*texts)}


@pytest.fixture
def nowhere() -> Iterator[int]:
    with held_port() as held:
        yield int(held.getsockname()[1])


def test_the_life_of_a_host_is_json(
    write: Callable[[str], Path], shards: str, serve: Callable[..., HostProcess]
) -> None:
    config = write(f"{IN_JSON}[server]\nport = 0\n[admin]\nport = 0\n{shards}")
    assert foqs("shards", "create", "-c", config).returncode == 0
    host = serve("-c", config, PYTHONWARNINGS="always")
    until(lambda: host.listening or not host.running, "it to listen")
    admin = next(line["address"] for line in lines_of(host.said()) if line["event"] == "admin.listening")
    name, _, port = admin.rpartition(":")
    with socket.create_connection((name, int(port))) as client:  # aiohttp logs an error for this request
        client.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
        client.recv(100)
    assert host.stop() == 0
    (listening,) = lines_of(host.lines[0])
    assert listening["said"] == f"foqs listening on {listening['address']}"
    assert events(host.said()) >= {"shard.serving", "host.stopping", "host.stopped"}


def test_dev_in_json(tmp_path: Path) -> None:
    env = {"FOQS_LOG__FORMAT": "json", "FOQS_ADMIN__PORT": "0"}
    with HostProcess(tmp_path / "log", ["dev", "--data-dir", tmp_path / "data", "--port", "0"], env) as host:
        until(lambda: host.listening or not host.running, "it to listen")
        assert host.stop() == 0
        assert "dev.data" in events(host.said(), *host.lines)


def test_errors_that_end_a_host_are_json(write: Callable[[str], Path], shards: str) -> None:
    config = write(f"{IN_JSON}[admin]\nport = 0\n{shards}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = foqs("serve", "-c", config, "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    *_, last = lines_of(done.stderr)
    assert (last["event"], last["status"]) == ("command.failed", 1)
    assert f"cannot listen on 127.0.0.1:{port}" in last["error"]


def test_a_refused_configuration_is_reported_in_json(write: Callable[[str], Path], shards: str) -> None:
    done = foqs("serve", "-c", write(f'{IN_JSON}[server]\nport = "many"\n{shards}'))
    assert done.returncode == 1
    (line,) = lines_of(done.stderr)
    assert "server.port" in line["error"]


def test_a_wrong_option_is_reported_in_json() -> None:
    done = foqs("serve", "--no-such-option", env={"FOQS_LOG__FORMAT": "json"})
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = lines_of(done.stderr)
    assert "--no-such-option" in line["error"]


@pytest.mark.parametrize("module", ["foqs.cli.run", "foqs.server.node"])
def test_an_interrupted_start_is_reported_in_json(tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    done = subprocess.run(
        [sys.executable, "-m", "foqs", "dev", "--port", "0", "--data-dir", str(tmp_path / "data")],
        env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}", FOQS_TEST_INTERRUPT=module, FOQS_LOG__FORMAT="json"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 130
    assert [line["error"] for line in lines_of(done.stderr)] == ["interrupted"]


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_hosts_without_zookeeper_log_in_json(
    write: Callable[[str], Path], serve: Callable[..., HostProcess], nowhere: int, options: list[str]
) -> None:
    """kazoo, the supervisor and its workers log in JSON."""
    config = write(f'{IN_JSON}[server]\nport = 0\n[admin]\nport = 0\n[zookeeper]\nhosts = "127.0.0.1:{nowhere}"\n')
    host = serve("-c", config, *options, PYTHONWARNINGS="always")
    until(lambda: "Connection refused" in host.said() or not host.running, "a word about ZooKeeper")
    host.process.send_signal(signal.SIGINT)
    assert host.process.wait(timeout=60) == 0
    assert events(host.said()) >= ({"process.started", "processes.stopping"} if options else {"host.stopped"})


UNRAISABLE = """
import os, threading
from foqs.cli import logs
logs.configure("info", "json")

class Thing:
    def __del__(self):
        raise ValueError("in a destructor")

Thing()
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise LookupError("at the end")
"""


def test_faults_outside_the_loop_are_json() -> None:
    done = subprocess.run([sys.executable, "-c", UNRAISABLE], env=environment(), capture_output=True, text=True)
    assert [line["event"] for line in lines_of(done.stderr)] == ["cleanup.failed", "thread.failed", "process.failed"]
    assert all("exception" in line for line in lines_of(done.stderr))
