"""Checks the ports of a host, and the address that it advertises."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable, Sequence
from functools import partial
from http.client import HTTPConnection, HTTPException

from foqs.checks import host_port
from foqs.client import Client, Tls
from foqs.config.access import is_loopback
from foqs.config.load import Config
from foqs.doctor.check import Check, Group, Verdict, apart, said
from foqs.errors import FoqsError

_MOST_PORT = 65_535
_ALIVE_BYTES = 64
_ANY = ("", "0.0.0.0", "::")


async def examine(config: Config, workers: Sequence[int], timeout_s: float) -> list[Check]:
    """Check the ports. `workers` are the distances of the workers' ports above the configured ones."""
    server, admin = config.server, config.admin
    listened = [server.port, *(server.port and server.port + each for each in workers)]
    admins = [config.admin_port and config.admin_port + each for each in workers or [0]] if admin.enabled else []
    checks = await asyncio.gather(
        *(
            _port(server.host, port, partial(_who, config, port, timeout_s), timeout_s)
            for port in dict.fromkeys(listened)
        ),
        *(
            _port(admin.host, port, partial(_lives, admin.host, port, timeout_s), timeout_s, needed=False)
            for port in dict.fromkeys(admins)
        ),
    )
    return [*checks, *(await _advertised(config, timeout_s))]


def advertised(config: Config) -> str:
    """Return the name or address that clients and other hosts connect to."""
    server = config.server
    if server.advertise is not None:
        return server.advertise.rpartition(":")[0].strip("[]")
    return socket.gethostname() if server.host in _ANY else server.host


async def _port(host: str, port: int, ask: Callable[[], str], timeout_s: float, *, needed: bool = True) -> Check:
    """Check one port. If it is taken, `ask` describes the host of foqs that listens there.

    `ask` raises FoqsError, OSError or HTTPException for another program. `needed`: a host does not start without it.
    """
    name = host_port(host, port)
    if port == 0:
        return _check(Verdict.OK, name, "any free port")
    if port > _MOST_PORT:
        return _check(
            Verdict.WRONG, name, f"port {port} is above {_MOST_PORT}", "lower the port, or the number of workers"
        )
    try:
        await apart(partial(_bind, host, port), timeout_s)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return await _taken(name, ask, timeout_s, Verdict.WRONG if needed else Verdict.WARNING)
        mends = {
            errno.EACCES: "use a port above 1023, or give the service CAP_NET_BIND_SERVICE",
            errno.EADDRNOTAVAIL: "listen on an address of this machine, or on 0.0.0.0",
        }
        return _check(Verdict.WRONG, name, said(error), mends.get(error.errno or 0, "correct the address of this port"))
    return _check(Verdict.OK, name, "free")


def _bind(host: str, port: int) -> None:
    """Bind the port like a host, without listening. Raises OSError."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(address)


async def _taken(name: str, ask: Callable[[], str], timeout_s: float, verdict: Verdict) -> Check:
    try:
        return _check(Verdict.OK, name, await apart(ask, 2 * timeout_s))
    except (FoqsError, OSError, HTTPException):
        mend = "stop that program, or use another port"
        return _check(verdict, name, "taken by a program that does not answer as foqs", mend)


def _who(config: Config, port: int, timeout_s: float) -> str:
    """Describe the host of foqs at this port. It answers any caller."""
    here = _here(config.server.host)
    tls = None
    if (section := config.tls) is not None:
        tls = Tls(section.ca_file, section.cert_file, section.key_file, advertised(config))
    address = host_port(here, port)
    timeout_ms = int(timeout_s * 1000)
    with Client(address, "doctor", tls=tls, routing=False, timeout_ms=timeout_ms, on_retry=_unsaid) as client:
        return f"a host of foqs {client.server_info().version} listens on it"


def _unsaid(error: FoqsError, left_s: float) -> None:
    """The check reports what the last attempt found."""


def _lives(host: str, port: int, timeout_s: float) -> str:
    connection = HTTPConnection(_here(host), port, timeout=timeout_s)
    try:
        connection.request("GET", "/healthz")
        if connection.getresponse().read(_ALIVE_BYTES).strip() != b"alive":
            raise HTTPException
    finally:
        connection.close()
    return "a host of foqs serves its metrics on it"


def _here(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


async def _advertised(config: Config, timeout_s: float) -> list[Check]:
    """Check the advertised address of a host of a cluster, or one that is set: clients and hosts must reach it."""
    if config.zookeeper is None and config.server.advertise is None:
        return []
    name = advertised(config)
    try:
        addresses = await apart(partial(_resolve, name), timeout_s)
    except (OSError, UnicodeError) as error:
        why = f"clients connect to {name}, but this machine cannot resolve it: {said(error)}"
        return [
            _check(
                Verdict.WRONG, "server.advertise", why, "set it to a host:port that clients and other hosts can reach"
            )
        ]
    found = f"clients connect to {name}" + ("" if addresses == [name] else f" ({', '.join(addresses)})")
    if config.zookeeper is not None and any(is_loopback(address) for address in addresses):
        why = f"{found}, which is the client's own machine"
        mend = "set server.host to an address that other machines can reach, and server.advertise if it differs"
        return [_check(Verdict.WARNING, "server.advertise", why, mend)]
    return [_check(Verdict.OK, "server.advertise", found)]


def _resolve(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return sorted({str(ipaddress.ip_address(str(address[0]).partition("%")[0])) for *_, address in found})


def _check(verdict: Verdict, name: str, found: str, mend: str = "") -> Check:
    return Check(Group.PORTS, name, verdict, found, mend)
