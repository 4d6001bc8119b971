"""One `foqs dev` host for a session, shared by tests that use topics of their own."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.admin.scraping import admin, lacking
from tests.api.hosts import PATIENT, HostProcess, dev, until
from tests.api.wire import Wire, spec

_topics = itertools.count(1)


@pytest.fixture(scope="session")
def shared_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    """Four SQLite shards. Do not stop it, and do not fill it: `start_dev` gives one for that."""
    with dev(tmp_path_factory.mktemp("shared"), **PATIENT) as host:
        assert whole(host).address
        with Wire(host.address) as wire:
            # The slots of keys are shared out when all shards are open.
            keyed = [spec("keyed", dedup_key=str(number)) for number in range(100)]
            until(lambda: all(outcome.error is None for outcome in wire.outcomes(*keyed)), "the slots of keys")
            wire.drain("keyed")
        yield host
        assert host.stop() == 0
        assert host.faults() == []


def whole(host: HostProcess) -> HostProcess:
    """The same, when it serves all its shards: it listens before that."""
    address = admin(host)
    until(lambda: lacking(address) == [], "all shards")
    return host


@pytest.fixture
def host(shared_host: HostProcess) -> Iterator[HostProcess]:
    """The shared host; nothing may be wrong in its log after a test."""
    before = len(shared_host.faults())
    yield shared_host
    assert shared_host.running
    assert shared_host.faults()[before:] == []


@pytest.fixture
def connect(host: HostProcess) -> Iterator[Callable[..., Wire]]:
    """Each call gives another connection to the shared host."""
    made: list[Wire] = []

    def connect(**options: str) -> Wire:
        made.append(Wire(host.address, **options))
        return made[-1]

    yield connect
    for wire in made:
        wire.close()


@pytest.fixture
def wire(connect: Callable[..., Wire]) -> Wire:
    return connect()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{os.getpid()}-{next(_topics)}"


@pytest.fixture
def topics(topic: str) -> list[str]:
    """Three names that no other test uses."""
    return [f"{topic}-{letter}" for letter in "abc"]


@pytest.fixture
def start_dev(tmp_path: Path) -> Iterator[Callable[..., HostProcess]]:
    """`start_dev(*options, **env)` runs `foqs dev` on the test's own directory, again and again if wanted."""
    started: list[HostProcess] = []

    def start(*options: str, **env: str) -> HostProcess:
        started.append(dev(tmp_path, *options, **env))
        return started[-1]

    yield start
    for host in started:
        host.kill()
    for host in started:
        assert host.faults() == []


@pytest.fixture
def start_whole(start_dev: Callable[..., HostProcess]) -> Callable[..., HostProcess]:
    """The same with a host that is PATIENT, when it serves all its shards."""
    return lambda *options, **env: whole(start_dev(*options, **{**PATIENT, **env}))
