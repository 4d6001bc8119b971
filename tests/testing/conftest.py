"""The fixtures of applications, which pytest finds by an entry point where foqs is installed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from foqs.client import Client
from foqs.testing import Server
from pytest_foqs import foqs_dev, foqs_server

__all__ = ["foqs_dev", "foqs_server"]


@pytest.fixture
def client(foqs_server: Server) -> Iterator[Client]:
    with Client(foqs_server.address) as client:
        yield client


@pytest.fixture
def settle(client: Client) -> Any:
    """`settle(**{"topic.t": {...}})` puts settings."""

    def put(**entries: Any) -> None:
        client.put_settings({name: json.dumps(value) for name, value in entries.items()})

    return put
