"""`free_port` gives each port to one process only, although no server listens on the port yet."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from foqs_lab.servers import process
from foqs_lab.servers.process import free_port
from tests.api.hosts import environment

OTHERS = """
from foqs_lab.servers import process
process._PORTS = range({first}, {last})
print(*(process.free_port() for _ in range(20)))
"""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> range:
    """So few ports that two processes soon pick the same port, unless they reserve it."""
    middle = free_port()
    ports = range(middle - 50, middle + 50)
    monkeypatch.setattr(process, "_PORTS", ports)
    return ports


def test_a_port_is_given_to_one_caller_alone(few: range) -> None:
    mine = [free_port() for _ in range(20)]
    code = OTHERS.format(first=few.start, last=few.stop)
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60)
    assert other.returncode == 0, other.stderr
    theirs = [int(port) for port in other.stdout.split()]
    assert len({*mine, *theirs}) == 40
    assert {*mine, *theirs} <= set(few)


def test_the_ports_above_are_free_as_well(few: range) -> None:
    with socket.create_server(("127.0.0.1", few[50])):
        for port in [free_port(above=2) for _ in range(5)]:
            assert few[50] not in range(port, port + 3)
            for each in range(port, port + 3):
                socket.create_server(("127.0.0.1", each)).close()


def test_a_port_may_be_picked_again_much_later(few: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_MOST_RESERVED", 10)
    assert len({free_port() for _ in range(500)}) > 20
    assert len(process._reserved._held) == 10
