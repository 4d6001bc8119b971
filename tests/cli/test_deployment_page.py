"""docs/run/deployment.md: a reader makes a single host on a database server as it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from foqs_lab.servers import Kind
from tests.support.machine import Machine, MachineReader
from tests.support.pages import DOCS


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("mariadb", "mysql")]
)
@pytest.mark.server
def test_a_host_on_a_database_server(kind: Kind, tmp_path: Path) -> None:
    with Machine(kind, tmp_path).running(zookeeper=False) as machine:
        reader = MachineReader(DOCS / "run/deployment.md", machine)
        try:
            reader.follow()
        finally:
            reader.close()
