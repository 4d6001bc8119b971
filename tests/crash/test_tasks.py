"""Tasks are done, and rows of outboxes stored once: kills of all processes, and the verdict about the journal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from foqs_lab.cluster import make_shards
from foqs_lab.crash.steps import Saved, Step
from foqs_lab.crash.tasks import KINDS, Report, Seen, run_tasks, schedule, verdict
from foqs_lab.servers import Kind, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import NewServer

S = 1_000_000_000


@pytest.mark.timeout(400)
def test_tasks_are_done_and_rows_stored_once(kind: Kind, new_server: NewServer, tmp_path: Path) -> None:
    servers = [new_server(kind, ServerSettings(buffer_pool_bytes=64 << 20)) for _ in range(2)]
    report = run_tasks(servers, make_shards(servers, 2, "tasks"), tmp_path, seed=1, tasks=2_000, kills=8)
    print(report)
    assert report.good, f"{report}\nlogs: {tmp_path}"
    assert min(report.kills[what] for what in KINDS) >= 2, report
    assert report.tasks >= 2_000
    assert report.rows and report.checkpoints, report
    assert report.runs > report.items and report.continued, "a killed worker leaves tasks that run again"


def test_each_kind_is_killed() -> None:
    assert Counter(schedule(7, 30)) == Counter(worker=8, relay=8, host=7, database=7)
    assert schedule(7, 30) != schedule(8, 30)


def seen() -> Seen:
    """Two calls, one of them by a row, and a transaction that was rolled back."""
    found = Seen(wanted={"call", "row"}, refused={"never"}, rows={"row"}, done={1, 2})
    found.items |= {"call": {1}, "row": {2}}
    found.runs = [Step(S, 1, 0), Step(S, 2, 0)]
    found.saved = [Saved(2 * S, 1, 1, 2 * S)]
    return found


def judged(found: Seen) -> Report:
    return verdict(found, [(9 * S, 10 * S)], 1, Counter())


def lose_all(found: Seen) -> None:
    del found.items["row"]


def lose_the_end(found: Seen) -> None:
    found.done.remove(2)


def store_twice(found: Seen) -> None:
    found.items["row"].add(3)
    found.done.add(3)


def store_what_was_rolled_back(found: Seen) -> None:
    found.items["never"] = {3}
    found.done.add(3)


def repeat_a_step(found: Seen) -> None:
    found.runs.append(Step(5 * S, 1, 0))


def repeat_after_an_outage(found: Seen) -> None:
    found.runs.append(Step(11 * S, 1, 0))


@pytest.mark.parametrize(
    ("breaks", "what"),
    [
        (lose_all, "lost"),
        (lose_the_end, "lost"),
        (store_twice, "twice"),
        (store_what_was_rolled_back, "ghosts"),
        (repeat_a_step, "wrong"),
        (repeat_after_an_outage, "wrong"),
    ],
)
def test_each_fault_is_found(breaks: Callable[[Seen], None], what: str) -> None:
    found = seen()
    assert judged(found).good
    breaks(found)
    report = judged(found)
    assert not report.good, report
    assert [name for name in ("lost", "twice", "ghosts", "wrong") if getattr(report, name)] == [what]


def test_a_checkpoint_of_the_last_second_may_be_lost() -> None:
    found = seen()
    found.saved = [Saved(8 * S + 1, 1, 1, 8 * S)]
    found.runs.append(Step(11 * S, 1, 0))
    report = judged(found)
    assert report.good and report.excused == 1


def test_a_call_without_an_answer_may_have_no_item() -> None:
    found = seen()
    assert judged(found).tasks == 2
    found.items["unknown"] = {4}
    assert judged(found).lost == ["unknown"]
