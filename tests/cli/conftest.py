"""Fixtures that write a foqs.toml and start hosts with it, and workers of tasks."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.api.hosts import PATIENT, HostProcess
from tests.cli.worker_rig import LEASE_MS, Shop, Start, ended, pids
from tests.client.real_server import Server

_PATIENT = {name: value for name, value in PATIENT.items() if name != "FOQS_SERVER__GRACE_MS"}  # tests change it


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """`write(text)` writes `text` to a foqs.toml and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "foqs.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """Two SQLite shards, as in foqs.toml."""
    return "".join(f'[[shards]]\nid = {n}\nurl = "sqlite:///{tmp_path}/shard-{n}.db"\n' for n in (1, 2))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., HostProcess]]:
    """`serve(*options, **env)` starts a host. Its time limits are long, so it refuses no item on a busy machine."""
    started: list[HostProcess] = []

    def start(*options: object, **env: str) -> HostProcess:
        log = tmp_path / f"log-{len(started)}"
        started.append(HostProcess(log, ["serve", *map(str, options)], {**_PATIENT, **env}))
        return started[-1]

    yield start
    for host in started:
        host.kill()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("data"))
    yield running
    running.stop()


@pytest.fixture
def shop(tmp_path: Path, service: Server) -> Iterator[Shop]:
    made = Shop(tmp_path, service.address)
    yield made
    made.tasks.app.close()


@pytest.fixture
def start(shop: Shop, tmp_path: Path) -> Iterator[Start]:
    """`start(*options)` starts a worker of the shop's tasks."""
    running: list[HostProcess] = []

    def begin(*options: object, spec: str = "tasks:app", **env: str) -> HostProcess:
        words = ["worker", spec, "--app-dir", shop.folder, "--lease-ms", LEASE_MS, *options]
        running.append(HostProcess(tmp_path / f"log-{len(running)}", [str(word) for word in words], env))
        return running[-1]

    yield begin
    for worker in running:
        worker.kill()
        for pid in pids(worker):
            ended(pid)
