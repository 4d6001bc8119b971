"""docs/start/first-cluster.md, then docs/run/tls.md in the same folder: a reader does what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machine import Machine, MachineReader
from tests.support.pages import DOCS

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.mariadb, pytest.mark.timeout(400)]


def test_a_cluster_of_three_hosts_and_its_tls(tmp_path: Path) -> None:
    with Machine("mariadb", tmp_path).running(zookeeper=True) as machine:
        for page in ("start/first-cluster.md", "run/tls.md"):
            reader = MachineReader(DOCS / page, machine)
            try:
                reader.follow()
            finally:
                reader.close()
        rows = machine.database.query("SELECT ssl_type FROM mysql.user WHERE user = 'foqs'")
        assert rows == [("ANY",)], "the account is let in with TLS only"
