"""Each time of a schedule fires once: kills of hosts and workers, and the verdict about what the workers got."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from foqs_lab.cluster import make_shards
from foqs_lab.crash.schedules import Kills, run_schedules, verdict
from foqs_lab.servers import Kind, ServerSettings
from tests.crash.conftest import ON_MARIADB

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import NewServer


@pytest.mark.timeout(400)
@ON_MARIADB
def test_each_second_fires_once(kind: Kind, new_server: NewServer, tmp_path: Path) -> None:
    server = new_server(kind, ServerSettings(buffer_pool_bytes=64 << 20))
    shards = make_shards([server], 4, "schedules")
    report = run_schedules(shards, tmp_path, seed=1, hosts=2, workers=2, seconds=40, kills=8)
    print(report)
    assert report.good, f"{report}\nlogs: {tmp_path}"
    assert report.kills.coordinators and report.again, report


@pytest.mark.parametrize(
    ("items", "done", "missing", "twice", "undone"),
    [
        ({1_000: {1: 1_005}, 2_000: {2: 2_005}, 3_000: {3: 3_001}}, {1, 2, 3}, [], [], []),
        ({1_000: {1: 1_005}, 3_000: {3: 3_001}}, {1, 3}, [2_000], [], []),
        ({1_000: {1: 1_005}, 2_000: {2: 2_005}}, {1, 2}, [3_000], [], []),
        ({1_000: {1: 1_005}, 2_000: {2: 2_005, 4: 2_900}, 3_000: {3: 3_001}}, {1, 2, 3, 4}, [], [2_000], []),
        ({1_000: {1: 1_005}, 2_000: {2: 2_005}, 3_000: {3: 3_001}}, {1, 3}, [], [], [2_000]),
        ({1_000: {1: 1_005}, 2_000: {2: 2_005}, 3_000: {3: 3_001}}, None, [], [], []),
    ],
)
def test_the_verdict(
    items: dict[int, dict[int, int]], done: set[int] | None, missing: list[int], twice: list[int], undone: list[int]
) -> None:
    report = verdict(items, 1, Kills(0), 3_000, done)
    assert (report.missing, report.twice, report.undone) == (missing, twice, undone)
    assert report.good is not bool(missing or twice or undone)
