"""`foqs-lab bench cluster` prints its measurements. No test checks the speed."""

from __future__ import annotations

import json

import pytest

from foqs_lab.servers import ServerUnavailable
from foqs_lab.servers.programs import find_mariadb, find_zookeeper
from tests.api.hosts import foqs_lab
from tests.conftest import required


@pytest.mark.server
@pytest.mark.mariadb
@pytest.mark.zookeeper
@pytest.mark.timeout(400)
def test_a_cluster_is_measured() -> None:
    try:
        find_zookeeper()
        find_mariadb()
    except ServerUnavailable as error:
        (pytest.fail if required() else pytest.skip)(error.reason)
    ran = foqs_lab("bench", "cluster", "--rounds", "1", "--items", "1000", "--json", patience_s=380)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    costs = [f"cost_{name}" for name in ("straight", "anywhere", "batches", "single")]
    assert [len(said[name]) for name in (*costs, "moves_ms", "takeovers_ms")] == [1, 1, 1, 1, 2, 1]
    assert all(figure > 0 for name in (*costs, "moves_ms", "acks_ms") for figure in said[name])
    assert 0 <= said["overtaken"] < 1
