"""A console over a service in memory, and a user of it.

A test file imports the fixtures that it uses, and names them in `__all__`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import unescape
from itertools import count
from typing import Any
from urllib.parse import urlencode

import pytest

from foqs import testing
from foqs.cli.console_process import CALL_MS
from foqs.client import AsyncClient, Client
from foqs.testing import Server
from tests.console.asgi import Answer, Site

_namespaces = count()


class Browser:
    """A console over a service, and a user of it in one namespace."""

    def __init__(
        self, address: str, ns: str, of: type[AsyncClient] = AsyncClient, **options: Any
    ) -> None:  # fmt: skip
        """`of`: the class of the console's clients."""

        def connect(token: str | None, namespace: str) -> AsyncClient:
            return of(address, namespace, token=token, timeout_ms=CALL_MS, routing=False)

        self._site = Site(address, connect, **options)
        self.ns = ns

    def get(self, path: str, **query: Any) -> Answer:
        return self._site.get(self._in_ns(path, query))

    def post(self, path: str, fields: Mapping[str, Any]) -> Answer:
        return self._site.post(self._in_ns(path, {}), fields)

    def confirm(self, path: str, question: Answer) -> Answer:
        """Send the form of a question again, with its button."""
        hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', question.text)
        return self.post(path, {**{name: unescape(value) for name, value in hidden}, "confirmed": "yes"})

    def sign_in(self, token: str) -> None:
        assert self._site.sign_in(token).status == 303

    def close(self) -> None:
        self._site.close()

    def _in_ns(self, path: str, query: dict[str, Any]) -> str:
        return f"{path}{'&' if '?' in path else '?'}{urlencode({'ns': self.ns, **query}, doseq=True)}"


@pytest.fixture(scope="module")
def service() -> Iterator[Server]:
    with testing.server() as made:
        yield made


@pytest.fixture
def client(service: Server) -> Iterator[Client]:
    with Client(service.address, f"n{next(_namespaces)}", routing=False) as made:
        yield made


@pytest.fixture
def browser(service: Server, client: Client) -> Iterator[Browser]:
    made = Browser(service.address, client.namespace)
    yield made
    made.close()
