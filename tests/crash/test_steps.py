"""Workers continue at their checkpoints: kills of workers and of the host, and the verdict about repeated steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from foqs_lab.cluster import make_shards
from foqs_lab.crash.steps import Repeated, Saved, Span, Step, repeated, run_steps
from foqs_lab.servers import Kind, ServerSettings
from tests.crash.conftest import ON_MYSQL

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import NewServer

S = 1_000_000_000


@pytest.mark.timeout(400)
@ON_MYSQL
def test_no_step_before_a_checkpoint_is_done_again(kind: Kind, new_server: NewServer, tmp_path: Path) -> None:
    server = new_server(kind, ServerSettings(buffer_pool_bytes=64 << 20))
    report = run_steps(make_shards([server], 3, "steps"), tmp_path, seed=1, jobs=200, steps=10, kills=10)
    print(report)
    assert report.good, f"{report}\nlogs: {tmp_path}"
    assert (report.worker_kills, report.host_kills) == (5, 5)
    assert report.steps > 2_000, "a killed worker repeats the step that it was in"


@pytest.mark.parametrize(
    ("steps", "saved", "outages", "excused", "wrong"),
    [
        ([Step(1, 7, 0), Step(3, 7, 1)], [Saved(2, 7, 1, 1)], [], 0, 0),
        ([Step(5 * S, 7, 0)], [Saved(2 * S, 7, 1, S)], [], 0, 1),
        ([Step(5 * S, 8, 0)], [Saved(2 * S, 7, 1, S)], [], 0, 0),
        ([Step(5 * S, 7, 0)], [Saved(2 * S, 7, 1, S)], [(2 * S + S // 2,) * 2], 1, 0),
        ([Step(5 * S, 7, 0)], [Saved(2 * S, 7, 1, S)], [(3 * S, 4 * S)], 0, 1),
        ([Step(9 * S, 7, 0)], [Saved(5 * S, 7, 1, 5 * S)], [(3 * S, 6 * S)], 1, 0),
        ([Step(9 * S, 7, 0)], [Saved(5 * S, 7, 1, 4 * S)], [(3 * S, 4 * S)], 1, 0),
        ([Step(9 * S, 7, 0)], [Saved(5 * S, 7, 1, 4 * S + 1)], [(3 * S, 4 * S)], 0, 1),
        ([Step(9 * S, 7, 0)], [Saved(2 * S, 7, 1, S), Saved(6 * S, 7, 1, 6 * S)], [(2 * S + 5,) * 2], 0, 1),
    ],
)
def test_the_verdict(steps: list[Step], saved: list[Saved], outages: list[Span], excused: int, wrong: int) -> None:
    found = repeated(steps, saved, outages)
    assert (found[0], len(found[1])) == (excused, wrong)
    assert all(isinstance(one, Repeated) for one in found[1])
