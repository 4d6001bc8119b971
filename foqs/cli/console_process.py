"""The process of the console: uvicorn, and clients of the service."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import uvicorn

from foqs.checks import host_port, printable
from foqs.cli import logs, signals
from foqs.cli.console_connections import MOST_CONNECTIONS, Connections
from foqs.client import AsyncClient
from foqs.client.routes import parse_addresses
from foqs.client.tls import Tls
from foqs.console.app import Console
from foqs.console.clients import Connect
from foqs.console.guard import HTTP, HTTPS, is_loopback, names_of
from foqs.console.options import Options
from foqs.console.proxy import Proxy
from foqs.errors import Invalid

if TYPE_CHECKING:
    from foqs.config.schema import ZookeeperSection
    from foqs.console.cluster import ClusterLink

CALL_MS = 5_000
_ATTEMPT_MS = 5_000
_CONNECTIONS = 8
_KEEP_ALIVE_S = 120  # longer than the phase of connections
_GRACE_S = 5
_REQUESTS = 2 * MOST_CONNECTIONS
"""Further ones get the status 503."""
_WAITING = 128
"""Connections that wait to be accepted."""
_FILES = 4_096
"""Open files: connections of browsers, and of clients."""
_TLS_BYTES = 32 << 10
"""Of the buffer of each connection with TLS."""
_RECEIVED_BYTES = 32 << 10
"""Of a connection, in the memory of the system and in one read."""


class Listener(NamedTuple):
    """`names`: further names of the console (`guard.names_of`). `certificate`, `key`: files of HTTPS."""

    address: str
    port: int
    names: tuple[str, ...] = ()
    certificate: str | None = None
    key: str | None = None


def serve(
    where: Listener,
    address: str,
    tls: Tls | None,
    *,
    read_only: bool,
    idle_s: float,
    section: ZookeeperSection | None,
    proxy: Proxy | None,
    until_input_ends: bool,
    state_dir: Path | None,
    trace_url: str | None,
) -> None:
    """Serve until SIGTERM or SIGINT, or also until stdin ends. `section`: of the cluster, for the page of the hosts.
    Raises Invalid if the console cannot listen."""
    parse_addresses(address)
    _allow_files()
    scheme = HTTP if where.certificate is None else HTTPS
    options = Options(
        address,
        names_of(where.address, where.names, scheme),
        private=is_loopback(where.address),
        read_only=read_only,
        proxy=proxy,
        may_be_open=tls is None or tls.cert_file is None,
        idle_s=idle_s,
        state_dir=state_dir,
        trace_url=trace_url,
    )
    console = Console(options, connector(address, tls), monotonic, cluster=_link(section))
    config = uvicorn.Config(
        console.app,
        loop="asyncio",
        http=Connections(_tls(where)).protocol,  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        log_level="error",  # a warning for each malformed request would fill the log
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        backlog=_WAITING,
        limit_concurrency=_REQUESTS,
        timeout_graceful_shutdown=_GRACE_S,
        interface="asgi3",
        lifespan="on",
    )
    config.load()
    listening = _listening(where)
    bound = listening.getsockname()
    url = f"{scheme}://{host_port(bound[0], bound[1])}"
    gc.freeze()

    async def work() -> None:
        logs.catch_faults(asyncio.get_running_loop())
        server = _Server(config)
        stop = partial(setattr, server, "should_exit", True)
        signals.on_stop(stop)
        if until_input_ends:
            asyncio.get_running_loop().add_reader(0, stop)  # nothing is written to it
        logs.announce(f"foqs console on {url}", address=host_port(bound[0], bound[1]))
        await server.serve([listening])

    with signals.last_work(), asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(work())


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process has handlers of its own (`signals.on_stop`)."""
        yield


def _link(section: ZookeeperSection | None) -> ClusterLink | None:
    if section is None:
        return None
    from foqs.console.cluster import ClusterLink  # needs kazoo

    return ClusterLink(section)


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _tls(where: Listener) -> ssl.SSLContext | None:
    """Raises Invalid for files that cannot be used."""
    if where.certificate is None:
        return None
    SSLProtocol.max_size = _TLS_BYTES
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(where.certificate, where.key)
    except OSError as error:
        raise Invalid(f"--certificate, --key: {error.strerror or error}") from error
    return context


def _listening(where: Listener) -> socket.socket:
    """Raises Invalid: the address is not of this machine, or another process has the port."""
    try:
        family, _, _, _, place = socket.getaddrinfo(where.address, where.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
        listening.bind(place)
        listening.listen(_WAITING)  # before the line with the address is written
    except (OSError, UnicodeError) as error:
        raise Invalid(
            f"the console cannot listen on {printable(host_port(where.address, where.port))}: {_reason(error)}"
        ) from error
    return listening


def _reason(error: OSError | UnicodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "this is no name of a host"


def connector(address: str, tls: Tls | None) -> Connect:
    """Return what makes the clients of a console. They call one address in front of all hosts: users make few calls."""
    return partial(_client, address, tls)


def _client(address: str, tls: Tls | None, token: str | None, namespace: str) -> AsyncClient:
    return AsyncClient(
        address,
        namespace,
        token=token,
        tls=tls,
        timeout_ms=CALL_MS,
        attempt_timeout_ms=_ATTEMPT_MS,
        pool_size=_CONNECTIONS,
        routing=False,
        wait_server=False,
        program="console",
        on_retry=lambda _error, _left_s: None,
    )
