"""Each time of a schedule fires once: kills of hosts, and the verdict about what a consumer got."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from foqs_lab.cluster import make_shards
from foqs_lab.crash.schedules import run_schedules, verdict
from foqs_lab.servers import Kind, ServerSettings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import NewServer


@pytest.mark.timeout(400)
def test_each_second_fires_once(kind: Kind, new_server: NewServer, tmp_path: Path) -> None:
    server = new_server(kind, ServerSettings(buffer_pool_bytes=64 << 20))
    shards = make_shards([server], 4, "schedules")
    report = run_schedules(shards, tmp_path, seed=1, hosts=2, seconds=30, kills=4)
    print(report)
    assert report.good, f"{report}\nlogs: {tmp_path}"
    assert report.kills_of_coordinators, report


@pytest.mark.parametrize(
    ("items", "missing", "twice"),
    [
        ({1_000: {1: 1_005}, 2_000: {2: 2_005}, 3_000: {3: 3_001}}, [], []),
        ({1_000: {1: 1_005}, 3_000: {3: 3_001}}, [2_000], []),
        ({1_000: {1: 1_005}, 2_000: {2: 2_005}}, [3_000], []),
        ({1_000: {1: 1_005}, 2_000: {2: 2_005, 4: 2_900}, 3_000: {3: 3_001}}, [], [2_000]),
    ],
)
def test_the_verdict(items: dict[int, dict[int, int]], missing: list[int], twice: list[int]) -> None:
    report = verdict(items, 1, (0, 0), 3_000)
    assert (report.missing, report.twice, report.good) == (missing, twice, not (missing or twice))
