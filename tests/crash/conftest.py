"""What the crash tests share: which kind of server, and shards on servers of their own."""

from __future__ import annotations

import pytest

from foqs_lab.servers import Kind


@pytest.fixture(
    params=[
        pytest.param("mariadb", marks=[pytest.mark.server, pytest.mark.slow, pytest.mark.mariadb]),
        pytest.param("mysql", marks=[pytest.mark.server, pytest.mark.slow, pytest.mark.mysql]),
    ]
)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Which database the servers of the test run."""
    value: Kind = request.param
    return value
