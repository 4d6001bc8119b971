"""Apps on a real host, or on a peer that misbehaves, and their workers in threads."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from foqs import App
from foqs.tasks import TaskWorker
from tests.client.peer import LATER, Peer
from tests.client.real_server import PATIENT_MS, Server


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A real host, or of the kind that the test names (`on_each_host`)."""
    running = getattr(request, "param", Server)(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def app(server: Server) -> Iterator[App]:
    with App(server.address, "shop", timeout_ms=PATIENT_MS) as app:
        yield app


@pytest.fixture
def new_app(server: Server) -> Iterator[Callable[..., App]]:
    """`new_app(codec)` makes an App on the host."""
    with ExitStack() as stack:
        yield lambda codec=None: stack.enter_context(App(server.address, "shop", timeout_ms=PATIENT_MS, codec=codec))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "bodies"
    made.mkdir()
    return made


@pytest.fixture
def new_peer() -> Iterator[Callable[..., Peer]]:
    with ExitStack() as stack:
        yield lambda meddle=None: stack.enter_context(Peer(meddle, 0))


@pytest.fixture
def start() -> Iterator[Callable[..., TaskWorker]]:
    """`start(app, ...)` runs a worker with short times in a thread. It ends after the test."""
    running: list[tuple[TaskWorker, threading.Thread]] = []

    def begin(app: App, **options: Any) -> TaskWorker:
        worker = app.worker(**{"wait_ms": 100, "grace_ms": LATER * 1000, **options})
        thread = threading.Thread(target=worker.run)
        thread.start()
        running.append((worker, thread))
        return worker

    yield begin
    for worker, thread in running:
        worker.stop(grace_ms=100)
        thread.join(LATER)
        assert not thread.is_alive()
