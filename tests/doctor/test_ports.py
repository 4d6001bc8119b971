"""Ports that are free, taken or impossible, and the advertised address."""

from __future__ import annotations

import asyncio
import socket

from foqs.config.load import load
from foqs.doctor.check import Check, Verdict
from foqs.doctor.host import examine_ports
from foqs_lab.servers.process import free_port


def look(port: int, *processes: int, timeout_s: float = 20, zookeeper: bool = False, **server: object) -> list[Check]:
    sections: dict[str, object] = {"admin": {"enabled": False}}
    if zookeeper:
        sections["zookeeper"] = {"hosts": "zk:2181"}
    return asyncio.run(examine_ports(load(server={"port": port, **server}, **sections), processes, timeout_s))


def test_free_and_taken_ports() -> None:
    """Looking takes none: the port can be listened on afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = held.getsockname()[1]
        port = free_port()
        checks = look(port, taken - port, 65_536 - port, timeout_s=0.5)
        with socket.create_server(("127.0.0.1", port)):
            pass
    assert [check.verdict for check in checks] == [Verdict.OK, Verdict.WRONG, Verdict.WRONG]
    assert checks[1].name == f"127.0.0.1:{taken}"
    assert "a program that does not answer as foqs" in checks[1].found
    assert [check.found for check in look(0, 1)] == ["any free port"]


def test_the_admin_port() -> None:
    """Each worker's is as far above the configured one as its port is."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = held.getsockname()[1]
        config = load(server={"port": 0}, admin={"port": taken})
        _, check = asyncio.run(examine_ports(config, [], 0.5))
        assert (check.verdict, check.name) == (Verdict.WARNING, f"127.0.0.1:{taken}")  # a host serves without it
        above = load(server={"port": 0}, admin={"port": taken - 2})
        assert [check.name for check in asyncio.run(examine_ports(above, [2], 0.5))] == [
            "127.0.0.1:0",
            f"127.0.0.1:{taken}",
        ]


def test_an_address_of_another_machine() -> None:
    (check,) = look(free_port(), host="192.0.2.1")
    assert check.verdict is Verdict.WRONG
    assert "0.0.0.0" in check.mend


def test_the_advertised_address() -> None:
    def found(**server: object) -> tuple[Verdict, str]:
        check = look(0, zookeeper=True, **server)[-1]
        assert check.name == "server.advertise"
        return check.verdict, check.found

    assert found()[0] is Verdict.WARNING  # 127.0.0.1
    assert found(advertise="localhost:7707")[0] is Verdict.WARNING
    assert found(advertise="192.0.2.1:7707") == (Verdict.OK, "clients connect to 192.0.2.1")
    assert found(advertise="[2001:db8::1]:7707") == (Verdict.OK, "clients connect to 2001:db8::1")
    assert found(advertise="no.such.name.invalid:7707")[0] is Verdict.WRONG
    assert len(look(0)) == 1  # a host without a cluster advertises no address
