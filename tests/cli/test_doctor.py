"""`foqs doctor` as an operator runs it."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest

from foqs.client import Client
from foqs_lab.servers.process import free_port
from tests.api.hosts import HostProcess, foqs, until

SECRET = "hunter2"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "foqs.toml"
    shards = "".join(f'[[shards]]\nid = {n}\nurl = "sqlite:///{tmp_path}/shard-{n}.db"\n' for n in (1, 2))
    path.write_text(f"[server]\nport = {free_port()}\n[admin]\nport = {free_port()}\n{shards}")
    assert foqs("shards", "create", "--config", path).returncode == 0
    return path


def test_beside_a_living_host(config: Path, tmp_path: Path) -> None:
    """The doctor names the host on the port and the owners, and changes neither; without the host the port is free."""
    before = foqs("doctor", "--config", config)
    assert (before.returncode, before.stderr) == (0, "")
    assert ": free\n" in before.stdout
    assert before.stdout.endswith("\n4 ok\n")
    with HostProcess(tmp_path / "log", ["serve", "--config", config]) as host:
        assert host.address
        until(lambda: host.said().count("shard.serving") == 2, "the second shard, which it does not wait for")
        beside = foqs("doctor", "--config", config, "--json", "--timeout", "30")
        assert beside.returncode == 0
        told = json.loads(beside.stdout)
        assert told["verdict"] == "ok"
        _, port, admin, databases = [check["found"] for check in told["checks"]]
        assert port.startswith("a host of foqs ")
        assert port.endswith(" listens on it")
        assert admin == "a host of foqs serves its metrics on it"
        assert "1: host-1 (epoch 1), 2: host-1 (epoch 1)" in databases
        address = "{}:{}".format(*host.address)
        with Client(address, "shop") as client:
            client.enqueue("mail", b"still served")
        assert host.stop() == 0
        assert host.faults() == []


def test_each_fault_has_a_line(config: Path) -> None:
    """The command exits with 1. Without a terminal it prints each check on one line, and it never prints a secret."""
    with sqlite3.connect(config.with_name("shard-2.db")) as connection:
        connection.execute("DROP TABLE expiry")
    with config.open("a") as more:
        more.write(f'[[shards]]\nid = 3\nurl = "mysql://foqs:{SECRET}@127.0.0.1:1/foqs_3"\n')
    ran = foqs("doctor", "--config", config)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "wrong: databases: sqlite files: shard 2: table expiry is missing -> " in ran.stdout
    refused = "cannot connect to MySQL at 127.0.0.1:1: connection refused"
    assert f"wrong: databases: mysql://127.0.0.1:1: shard 3: {refused} -> " in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("2 wrong, ")
    assert SECRET not in ran.stdout
    assert SECRET not in foqs("doctor", "--config", config, "--json").stdout


def test_only_warnings(config: Path) -> None:
    ran = foqs("doctor", "--config", config, "--json", env={"FOQS_SERVER__HOST": "0.0.0.0"})
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["verdict"] == "warning"


def test_a_bad_configuration(tmp_path: Path) -> None:
    """The command lists every error of the file, and reports the other checks as not checked."""
    config = tmp_path / "foqs.toml"
    config.write_text('[server]\nport = -1\n[tls]\ncert_file = "a"\n')
    ran = foqs("doctor", "--config", config)
    assert ran.returncode == 1
    assert "server.port: " in ran.stdout
    assert "tls.key_file: " in ran.stdout
    assert ran.stdout.splitlines()[-1] == "2 wrong, 4 not checked"


def test_on_a_terminal(config: Path) -> None:
    """The command wraps lines at the width of the terminal, and prints a title above each group."""
    width = 80
    env = {"FORCE_COLOR": "1", "COLUMNS": str(width), "FOQS_SERVER__HOST": "0.0.0.0"}
    ran = foqs("doctor", "--config", config, env=env)
    assert ran.returncode == 0
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in ran.stdout.splitlines()]
    assert [line for line in lines if line in ("configuration", "ports", "databases")] == [
        "configuration",
        "ports",
        "databases",
    ]
    assert max(map(len, lines)) <= width
    assert any(line.strip() == "-> set auth.principals_file" for line in lines)
