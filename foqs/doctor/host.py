"""Check this machine: its configuration, certificates and credentials, its ports, and its advertised address.

Settings are checked for errors, and for valid but dangerous values. Certificates are checked with the handshake that
clients and other hosts make.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import os
import resource
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from foqs.bounds import MOST_PORT
from foqs.checks import counted, host_port
from foqs.client import Client, Tls
from foqs.config import access
from foqs.config.access import exposed, is_loopback
from foqs.config.fields import secret_mark, section_of
from foqs.config.load import Config, NotValid, Source, Where, load_with_sources
from foqs.config.schema import TlsSection
from foqs.doctor.check import Check, Group, Verdict, apart, said
from foqs.errors import FoqsError, Invalid
from foqs.rpc.certificates import peer_context, server_context, shake_hands

_CGROUP = Path("/sys/fs/cgroup/memory.max")
_OTHERS_READ = 0o004
_SOON_S = 30 * 86_400
_NOT_YET, _EXPIRED, _OTHER_NAME = 9, 10, (62, 64)
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED, and its codes of a certificate for another
name or address."""
_ALIVE_BYTES = 64
_READY_BYTES = 1 << 20
_ANY = ("", "0.0.0.0", "::")

_config_check = partial(Check, Group.CONFIGURATION)
_tls_check = partial(Check, Group.TLS)
_port_check = partial(Check, Group.PORTS)


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of this machine: bytes of memory, open files (None: no limit)."""

    memory_bytes: int
    files: int | None


def this_machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no control group, or one without a limit
        memory = min(memory, int(_CGROUP.read_text()))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return Machine(memory, None if hard == resource.RLIM_INFINITY else hard)


def read_configuration(path: Path) -> tuple[Config | None, list[Check]]:
    """Read the configuration. None and a check for each error if it is not valid."""
    try:
        loaded = load_with_sources(path)
    except NotValid as error:
        mend = "correct the key; `foqs config explain KEY` describes it"
        return None, [_config_check(Verdict.WRONG, str(path), line, mend) for line in error.errors]
    except Invalid as error:
        return None, [_config_check(Verdict.WRONG, str(path), error.message, "correct the path or the file")]
    config = loaded.config
    checks = [_config_check(Verdict.OK, str(path), "valid")]
    if config.zookeeper is None and not config.shards:
        why = "the configuration has neither [zookeeper] nor [[shards]]"
        mend = "add [zookeeper] for a cluster, or [[shards]] for a single host"
        checks.append(_config_check(Verdict.WRONG, "shards", why, mend))
    for source in loaded.sources:
        checks += _open_secrets(source, path)
    return config, checks


def dangers(config: Config, machine: Machine, processes: int) -> list[Check]:
    """Return the dangers if `processes` hosts with this configuration run on the machine."""
    found = [*_exposed(config), *_too_much(config, machine, processes), *_hasty(config)]
    return [_config_check(Verdict.WARNING, *one) for one in found]


def _exposed(config: Config) -> Iterator[tuple[str, str, str]]:
    mends = {"tls": "set tls.cert_file and tls.key_file", "auth": "set auth.principals_file"}
    for key, why in exposed(config).items():
        yield key, f"other machines can reach server.host {config.server.host}, and {why}", mends[key]


def _too_much(config: Config, machine: Machine, processes: int) -> Iterator[tuple[str, str, str]]:
    budget = processes * config.host.budget_bytes
    if budget > machine.memory_bytes:
        why = f"{_mib(budget)} for {processes} processes" if processes > 1 else _mib(budget)
        why = f"{why} is more than the machine's memory, {_mib(machine.memory_bytes)}"
        yield "host.budget_bytes", why, "lower it, or use a larger machine"
    most, wanted = config.server.max_connections, config.server.open_files
    if machine.files is not None and machine.files < wanted:
        why = f"{most} connections need {wanted} open files; this user may open {machine.files}"
        mend = "raise the limit of files (ulimit -Hn, systemd: LimitNOFILE), or lower server.max_connections"
        yield "server.max_connections", why, mend


def _hasty(config: Config) -> Iterator[tuple[str, str, str]]:
    zookeeper, grace_ms = config.zookeeper, config.server.grace_ms
    if zookeeper is not None and grace_ms < zookeeper.handover_ms:
        why = (
            f"{grace_ms} is less than zookeeper.handover_ms, {zookeeper.handover_ms}: a stopping host may end "
            "before it has handed over its shards"
        )
        yield "server.grace_ms", why, "raise it to zookeeper.handover_ms or more"


def _open_secrets(source: Source, path: Path) -> list[Check]:
    """Check that other users cannot read the files with secrets. Only this user can read its environment."""
    files = {_dotted(where): file for where, file in source.files.items()}
    if source.name == str(path) and (keys := [_dotted(where) for where in _secrets(source, Config, source.values, ())]):
        files[", ".join(keys)] = path
    return [check for keys, file in files.items() for check in _readable(Group.CONFIGURATION, keys, file)]


def _readable(group: Group, key: str, path: Path) -> list[Check]:
    """Return a warning if users outside the owner and group of the file can read it."""
    try:
        is_open = path.stat().st_mode & _OTHERS_READ
    except OSError:  # reading the configuration reports it
        is_open = 0
    why = f"every user of this machine can read {path}"
    return [Check(group, Verdict.WARNING, key, why, f"chmod o-r {path}")] if is_open else []


def _secrets(source: Source, model: type[BaseModel], values: Mapping[str, Any], where: Where) -> Iterator[Where]:
    """Yield the keys of secrets that were not read from files of their own."""
    for name, info in model.model_fields.items():
        value, key, mark = values.get(name), (*where, name), secret_mark(info)
        section, _ = section_of(info)
        if mark is not None and isinstance(value, str) and key not in source.files and mark.masked(value) != value:
            yield key
        elif section is not None:
            for at, each in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(each, Mapping):
                    yield from _secrets(source, section, each, key if at is None else (*key, at))


def _dotted(where: Where) -> str:
    return ".".join(map(str, where))


def _mib(size: int) -> str:
    return f"{size >> 20:,} MiB"


def examine_tls(config: Config, name: str, now_s: float) -> list[Check]:
    """Check TLS and principals. Clients connect to `name`."""
    checks = []
    if config.tls is not None:
        checks.append(_certificate(config.tls, name, now_s))
        checks += _readable(Group.TLS, "tls.key_file", config.tls.key_file)
    if config.zookeeper is not None and config.zookeeper.tls_key_file is not None:
        checks += _readable(Group.TLS, "zookeeper.tls_key_file", config.zookeeper.tls_key_file)
    if config.auth is not None and config.auth.principals_file is not None:
        checks.append(_principals(config.auth.principals_file))
    return checks


def _certificate(section: TlsSection, name: str, now_s: float) -> Check:
    key = "tls.cert_file"
    try:
        server, client = server_context(section), peer_context(section)
        assert server is not None
        assert client is not None
        left_s = _expiry_s(server, client, name) - now_s
    except Invalid as error:
        return _tls_check(
            Verdict.WRONG, "tls", error.message, "correct the file, or give this user the right to read it"
        )
    except ssl.SSLCertVerificationError as error:
        return _tls_check(Verdict.WRONG, key, f"clients refuse it: {error.verify_message}", _mend(error, name))
    except ssl.SSLError as error:
        return _tls_check(Verdict.WRONG, key, f"a handshake with it fails: {error.reason}", "use another certificate")
    days = f"{left_s / 86_400:.0f} days"
    if left_s < _SOON_S:
        return _tls_check(Verdict.WARNING, key, f"the certificate expires in {days}", "renew it")
    return _tls_check(Verdict.OK, key, f"valid for {name}, for {days}")


def _mend(error: ssl.SSLCertVerificationError, name: str) -> str:
    if error.verify_code == _EXPIRED:
        return "renew the certificate"
    if error.verify_code == _NOT_YET:
        return "wait until it is valid, use another certificate, or set this machine's clock"
    if error.verify_code in _OTHER_NAME:
        return f"use a certificate for {name}, or set server.advertise to a name in this one"
    return "append the intermediate certificates to the file, or correct tls.ca_file"


def _expiry_s(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> float:
    """Return the expiry of the certificate in epoch seconds. Raises ssl.SSLError."""
    return ssl.cert_time_to_seconds(str(shake_hands(server, client, name)["notAfter"]))


def _principals(file: Path) -> Check:
    name = "auth.principals_file"
    try:
        count = len(access.read(file).by_name)
    except Invalid as error:
        return _tls_check(Verdict.WRONG, name, error.message, "correct the file")
    if count:
        return _tls_check(Verdict.OK, name, counted(count, "principal"))
    mend = "add one: `foqs auth token NAME` prints its entry"
    return _tls_check(Verdict.WARNING, name, "it has no principals: every call is refused", mend)


async def examine_ports(config: Config, processes: Sequence[int], timeout_s: float) -> list[Check]:
    """Check the ports. `processes` are the distances of the processes' ports above the configured ones."""
    server, admin = config.server, config.admin
    listened = [server.port, *(server.port and server.port + each for each in processes)]
    admins = [config.admin_port and config.admin_port + each for each in processes or [0]] if admin.enabled else []
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
        return _port_check(Verdict.OK, name, "any free port")
    if port > MOST_PORT:
        why = f"port {port} is above {MOST_PORT}"
        return _port_check(Verdict.WRONG, name, why, "lower the port, or the number of processes")
    try:
        await apart(partial(_bind, host, port), timeout_s)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return await _taken(name, ask, timeout_s, Verdict.WRONG if needed else Verdict.WARNING)
        mends = {
            errno.EACCES: "use a port above 1023, or give the service CAP_NET_BIND_SERVICE",
            errno.EADDRNOTAVAIL: "listen on an address of this machine, or on 0.0.0.0",
        }
        return _port_check(
            Verdict.WRONG, name, said(error), mends.get(error.errno or 0, "correct the address of this port")
        )
    return _port_check(Verdict.OK, name, "free")


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
        return _port_check(Verdict.OK, name, await apart(ask, 2 * timeout_s))
    except (FoqsError, OSError, HTTPException):
        mend = "stop that program, or use another port"
        return _port_check(verdict, name, "taken by a program that does not answer as foqs", mend)


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


@dataclass(frozen=True, slots=True)
class Running:
    """What a host of foqs on this machine knows of its cluster: see `foqs.admin.readiness.View.cluster`. `held`: why it
    does not act on ZooKeeper's records ('': it does). `shards`: how many shards the cluster has, or had."""

    root: str
    session: str
    held: str
    shards: int


async def running_host(config: Config, processes: Sequence[int], timeout_s: float) -> Running | None:
    """Ask the hosts of a cluster that run here with this configuration. None: none of them answers."""
    if config.zookeeper is None or not config.admin.enabled or not config.admin_port:
        return None
    for each in processes or [0]:
        ask = partial(_cluster_of, config.admin.host, config.admin_port + each, timeout_s)
        with suppress(OSError, HTTPException, ValueError, KeyError, TypeError):
            found = await apart(ask, 2 * timeout_s)
            if found.root == config.zookeeper.root:
                return found
    return None


def _cluster_of(host: str, port: int, timeout_s: float) -> Running:
    connection = HTTPConnection(_here(host), port, timeout=timeout_s)
    try:
        connection.request("GET", "/readyz")
        cluster = json.loads(connection.getresponse().read(_READY_BYTES))["cluster"]
    finally:
        connection.close()
    return Running(cluster["root"], cluster["session"] or "", cluster["held"] or "", int(cluster["shards"]))


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
        mend = "set it to a host:port that clients and other hosts can reach"
        return [_port_check(Verdict.WRONG, "server.advertise", why, mend)]
    found = f"clients connect to {name}" + ("" if addresses == [name] else f" ({', '.join(addresses)})")
    if config.zookeeper is not None and any(is_loopback(address) for address in addresses):
        why = f"{found}, which is the client's own machine"
        mend = "set server.host to an address that other machines can reach, and server.advertise if it differs"
        return [_port_check(Verdict.WARNING, "server.advertise", why, mend)]
    return [_port_check(Verdict.OK, "server.advertise", found)]


def _resolve(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return sorted({str(ipaddress.ip_address(str(address[0]).partition("%")[0])) for *_, address in found})
