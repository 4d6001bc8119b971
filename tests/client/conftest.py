"""Peers and clients that are closed after the test."""

import asyncio
import logging
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

from foqs.client import Backoff, Client, Worker
from tests.client.peer import LATER, Peer
from tests.client.real_server import ENVIRONMENT, PATIENT_MS, Server
from tests.client.spans import EXPORTER, provide
from tests.support.certificates import Authority


@pytest.fixture
def new_peer() -> Iterator[Callable[..., Peer]]:
    """`new_peer(meddle)` starts a peer of the test's own."""
    with ExitStack() as stack:
        yield lambda meddle=None, port=0: stack.enter_context(Peer(meddle, port))


@pytest.fixture
def peer(new_peer: Callable[..., Peer]) -> Peer:
    """One that behaves."""
    return new_peer()


@pytest.fixture
def client_of() -> Iterator[Callable[..., Client]]:
    """`client_of(peer, ...)` is a client whose time-outs are no part of a test that does not give its own."""
    with ExitStack() as stack:

        def make(peer: Peer, **options: Any) -> Client:
            settings = {"timeout_ms": PATIENT_MS, "attempt_timeout_ms": PATIENT_MS, **options}
            return stack.enter_context(Client(peer.address, **settings))

        yield make


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Open at the end at the latest."""
    opened = threading.Event()
    yield opened
    opened.set()


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    """`start_worker(client, handler, ...)` starts a worker of topic "t" with short times. It ends after the test."""
    workers: list[Worker] = []

    def start(client: Client, handler: Any, topics: Any = "t", **options: Any) -> Worker:
        settings = {"wait_ms": 50, "grace_ms": LATER * 1000, "backoff": Backoff(7, 7, jitter=0), **options}
        workers.append(Worker(client, topics, handler, **settings))
        workers[-1].start()
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop(grace_ms=100)
    for worker in workers:
        assert worker.join(LATER * 1000), "no error ended it"


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A real host, or of the kind that the test names (`on_each_host`)."""
    running = getattr(request, "param", Server)(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address, "shop", timeout_ms=PATIENT_MS) as client:
        yield client


@pytest.fixture
def worker_process(server: Server) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """`worker_process(source)` runs `source`, which ends with a Worker's `run`, in a process of its own."""
    processes: list[subprocess.Popen[str]] = []

    def start(source: str) -> subprocess.Popen[str]:
        head = f"""
            import os, time
            from foqs.client import *
            client = Client({server.address!r}, "shop")
        """
        script = textwrap.dedent(head) + textwrap.dedent(source)
        processes.append(
            subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        )
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(LATER)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def http():
    """The address of an HTTP server, of the kind that the admin port is."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(web.Application(), access_log=None, logger=logging.Logger("silent", logging.CRITICAL + 1))
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield "{}:{}".format(*runner.addresses[0])
    loop.call_soon_threadsafe(loop.stop)
    thread.join(LATER)
    loop.run_until_complete(runner.cleanup())
    loop.close()


@pytest.fixture
def tls_port(authority):
    """`tls_port(says_why)` is the address of a port with TLS; with `says_why` it answers another protocol by an alert,
    else it just closes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("127.0.0.1"))

    def serve(listener, says_why):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(LATER)
                if connection.recv(1, socket.MSG_PEEK) == b"\x16":
                    with suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
                        secure.recv(1)
                elif says_why:
                    connection.recv(65_536)
                    connection.sendall(bytes.fromhex("15030100020246"))

    with ExitStack() as stack:

        def start(says_why):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            thread = threading.Thread(target=serve, args=(listener, says_why))
            thread.start()
            stack.callback(thread.join, LATER)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return "{}:{}".format(*listener.getsockname())

        yield start


@pytest.fixture(scope="session")
def _provider() -> None:
    provide()


@pytest.fixture
def ended(_provider: None) -> Iterator[Callable[[str], list[ReadableSpan]]]:
    """`ended(name)`: the spans of that name that have ended in this test."""
    EXPORTER.clear()
    yield lambda name: [span for span in EXPORTER.get_finished_spans() if span.name == name]
    EXPORTER.clear()


@pytest.fixture
def tracer(_provider: None) -> trace.Tracer:
    """That of an application."""
    return trace.get_tracer("app")
