"""What the crash tests share: which kind of server, and shards on servers of their own."""

from __future__ import annotations

import pytest

from foqs_lab.servers import Kind

MARIADB = pytest.param("mariadb", marks=[pytest.mark.server, pytest.mark.slow, pytest.mark.mariadb])
MYSQL = pytest.param("mysql", marks=[pytest.mark.server, pytest.mark.slow, pytest.mark.mysql])
ON_MARIADB = pytest.mark.parametrize("kind", [MARIADB])
ON_MYSQL = pytest.mark.parametrize("kind", [MYSQL])
"""For a test in which the kinds of servers run the same code: tests/store holds where they differ."""


@pytest.fixture(params=[MARIADB, MYSQL])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Which database the servers of the test run."""
    value: Kind = request.param
    return value
