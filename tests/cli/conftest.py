"""Fixtures that write a foqs.toml and start hosts with it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.api.hosts import PATIENT, HostProcess

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
