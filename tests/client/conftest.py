"""Peers and clients that are closed after the test."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from foqs.client import Backoff, Client, Worker
from tests.client.peer import LATER, Peer
from tests.client.real_server import ENVIRONMENT, PATIENT_MS, Server


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
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path)
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
