"""A service in memory, a client of it, and a console of it. A test file imports the fixtures, and names them in
`__all__`."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from html import unescape
from pathlib import Path

import pytest

from foqs.client import Client
from foqs.store.maintenance import create_schema
from foqs.testing import Server, server
from tests.api.hosts import HostProcess
from tests.console.asgi import Answer, Site

HOSTILE = ("..", "a/b", "a?b=c#d", "<script>alert(1)</script>", '"><img src=x>', "a b\u202ec", "ünï", "%2e%2e")
ROOT, SEER = "a-token-of-root-with-enough-letters-for-all", "a-token-of-seer-with-enough-letters-for-all"
CHIEF = "a-token-of-chief-with-enough-letters-for-all"
_PRINCIPALS = f"""
[principals.chief]
token_sha256 = "{sha256(CHIEF.encode()).hexdigest()}"
rights = {{ "shop" = ["produce", "consume", "admin"] }}
[principals.root]
token_sha256 = "{sha256(ROOT.encode()).hexdigest()}"
rights = {{ "*" = ["produce", "consume", "admin"] }}
[principals.seer]
token_sha256 = "{sha256(SEER.encode()).hexdigest()}"
rights = {{ "shop" = ["produce"] }}
"""


@pytest.fixture
def service() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.fixture
def client(service: Server) -> Iterator[Client]:
    with Client(service.address) as made:
        yield made


@pytest.fixture
def site(service: Server) -> Iterator[Site]:
    made = Site(service.address)
    yield made
    made.close()


@pytest.fixture
def reader(service: Server) -> Iterator[Site]:
    """A console that only reads."""
    made = Site(service.address, read_only=True)
    yield made
    made.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """The address of a host that asks for tokens: that of `SEER` sees the namespace shop, and changes nothing. `CHIEF`
    has all rights there, and none elsewhere."""
    url, config = f"sqlite:///{tmp_path / 'shard.db'}", tmp_path / "foqs.toml"
    create_schema(url, 1)
    (tmp_path / "principals.toml").write_text(_PRINCIPALS)
    config.write_text(
        f'[server]\nport = 0\n[[shards]]\nid = 1\nurl = "{url}"\n'
        f'[auth]\nprincipals_file = "{tmp_path / "principals.toml"}"\n'
    )
    with HostProcess(tmp_path / "log", ["serve", "--config", config]) as host:
        yield "{}:{}".format(*host.address)


def words(answer: Answer) -> str:
    """Return the text of an answer with escaped letters as they are."""
    return unescape(answer.text)
