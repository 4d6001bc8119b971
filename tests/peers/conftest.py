import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.client.peer import Meddle, Peer
from tests.peers.nodes import Cluster, cluster_in


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_in(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def locked(cluster: Cluster) -> Callable[[int], "contextmanager[None]"]:  # type: ignore[type-arg]
    """`with locked(number)`: the shard's database takes no transaction inside."""

    @contextmanager
    def locked(number: int) -> Iterator[None]:
        with closing(sqlite3.connect(cluster.path(number), timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")

    return locked  # type: ignore[return-value]


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    """`peer(meddle, shard)` is a host that misbehaves as `meddle` says; its items are of that shard."""
    with ExitStack() as stack:

        def start(meddle: Meddle | None = None, shard: int = 9) -> Peer:
            made = stack.enter_context(Peer(meddle))
            made.first_id(shard << 48 | 1)
            return made

        yield start


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address where no process listens, nor can start to during the test."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"
