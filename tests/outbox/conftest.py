"""Outboxes in databases of all kinds, and a host that takes their items."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, func, select, text

from foqs import App
from foqs.client import Client
from foqs.outbox import Outbox
from foqs.outbox.relay import Relay, open_engine
from tests.client.real_server import PATIENT_MS, Server
from tests.conftest import SHARD_KINDS

KINDS = [*SHARD_KINDS, pytest.param("postgresql", marks=pytest.mark.server)]
_numbers = itertools.count(1)


class Rows:
    """An outbox in a fresh database, and the namespace that its items are for."""

    def __init__(self, url: str, namespace: str, address: str) -> None:
        self.url = url
        self.namespace = namespace
        self.address = address
        self._relays: list[Relay] = []
        self.engine: Engine = open_engine(url)
        metadata = MetaData()
        self.outbox = Outbox(metadata)
        metadata.create_all(self.engine)
        self.app = App(address, namespace, timeout_ms=PATIENT_MS)

    @property
    def client(self) -> Client:
        return self.app.client

    def relay(self, *, in_order: bool = True, batch: int = 100) -> Relay:
        made = Relay(self.engine, self.outbox.table, self.client, in_order=in_order, batch=batch)
        self._relays.append(made)
        return made

    def end_relays(self) -> None:
        """Close their connections, as their death does."""
        for relay in self._relays:
            relay.close()
        self._relays.clear()

    def count(self) -> int:
        with self.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(self.outbox.table)).scalar_one()

    def all(self) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(select(self.outbox.table).order_by(self.outbox.table.c.id)))

    def set(self, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(self.outbox.table.update().values(**values))

    def close(self) -> None:
        self.end_relays()
        self.app.close()
        self.engine.dispose()


def stored(client: Client, topic: str) -> list[bytes]:
    """Take all items of a topic, and return their payloads in the order of delivery."""
    found: list[bytes] = []
    while items := client.dequeue(topic, count=500, wait_ms=0, timeout_ms=PATIENT_MS):
        client.ack_many(items)
        found += [item.payload for item in items]
    return found


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The session's host. Do not kill it."""
    running = Server(tmp_path_factory.mktemp("host"))
    yield running
    running.stop()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """`new_url("mysql")` gives the URL of a fresh database of the session's server."""

    def make(kind: str) -> str:
        name = f"outbox_{os.getpid()}_{next(_numbers)}"
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / name}.sqlite3"
        server = request.getfixturevalue(kind)
        if kind != "postgresql":
            return str(server.url(server.create_database(name)))
        url = server.url().replace("postgresql:", "postgresql+psycopg:")
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return str(url.removesuffix("postgres") + name)

    return make


@pytest.fixture
def new_rows(new_url: Callable[[str], str], host: Server) -> Iterator[Callable[..., Rows]]:
    with ExitStack() as stack:

        def make(kind: str, address: str = host.address, url: str | None = None) -> Rows:
            rows = Rows(url or new_url(kind), f"shop{next(_numbers)}", address)
            stack.callback(rows.close)
            return rows

        yield make


@pytest.fixture
def rows(kind: str, new_rows: Callable[..., Rows]) -> Rows:
    """An outbox on each kind of database in turn."""
    return new_rows(kind)
