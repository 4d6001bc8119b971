from collections.abc import Callable, Iterator
from typing import Any

import pytest

from foqs.bounds import Budget, Limits
from foqs.rpc.certificates import server_context
from tests.rpc.calling import Calling
from tests.rpc.serving import Served
from tests.support.certificates import Authority

BUDGET_BYTES = 64 << 20


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def encryption() -> bool:
    """Whether servers and their peers speak TLS: a test that says so has it in its parameters."""
    return False


@pytest.fixture
def serve(encryption: bool, authority: Authority) -> Iterator[Callable[..., Served]]:
    """`serve(limits=..., budget=..., max_connections=..., **options)` starts a server; at the end of the test
    all that was taken from the budget must be given back."""
    started: list[Served] = []

    def start(
        limits: Limits | None = None,
        budget: Budget | None = None,
        max_connections: int = 5000,
        **options: Any,
    ) -> Served:
        if encryption:
            section = authority.section(authority.issue("127.0.0.1"))
            options = {"tls": server_context(section), "client_tls": authority.client()} | options
        served = Served(limits or Limits(), budget or Budget(BUDGET_BYTES), max_connections, **options)
        started.append(served)
        return served

    yield start
    for served in started:
        served.stop()
    for served in started:
        assert served.budget.used_bytes == 0
        assert served.loop_errors == []


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()


@pytest.fixture
def start() -> Iterator[Callable[..., Calling]]:
    """`start(limits, budget, **options)` makes a Caller; at the end none of its calls may be left."""
    started: list[Calling] = []

    def start(*args: Any, **options: Any) -> Calling:
        started.append(Calling(*args, **options))
        return started[-1]

    yield start
    for calling in started:
        calling.stop()
        assert calling.loop_errors == []
