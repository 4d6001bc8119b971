"""Each end of an item stores one end event: kills of the host, and the verdict about what readers saw."""

from __future__ import annotations

from pathlib import Path

import pytest

from foqs_lab.cluster import make_shards
from foqs_lab.crash.clients import Load
from foqs_lab.crash.ends import DEAD, LATE, Rule, lies, shape_of, told, topic_of
from foqs_lab.crash.history import End, Event, Log, Redrive, Told, read
from foqs_lab.crash.kills import crash_test
from foqs_lab.servers import SqliteFiles
from tests.crash.test_checker import OK, REFUSED, STALE, UNKNOWN, acked, at, delivered, enqueued


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_end_has_its_event_through_kills(tmp_path: Path) -> None:
    shards = make_shards([SqliteFiles(tmp_path)], 3, "crash")
    report = crash_test(None, shards, tmp_path, 1, host_kills=3, database_kills=0, load=Load(backlog=300), events=True)
    print(report)
    assert report.good, f"{report}\nlogs: {tmp_path}"
    assert report.tally.host_crashes == 3
    for what in (
        "completed", "failed", "expired", "deleted", "cancelled", "lease_ended", "redriven", "delivered again",
        "live at the end", "dead letters at the end",
    ):  # fmt: skip
        assert report.ends[what], f"{what}: {report}"


KEY = next(key for n in range(100) if topic_of(key := f"p/ends:{n}") == "ends" and shape_of(key) == "usual")
SHORT = next(key for n in range(100) if shape_of(key := f"p/ends:{n}") == "short")
ONCE = next(key for n in range(100) if shape_of(key := f"p/ends:{n}") == "once")
LATER = next(key for n in range(100) if shape_of(key := f"p/ends:{n}") == "late")


def event(number: int, how: str, mark: str = "", *, key: str = KEY, item_id: int = 1, topic: str = "") -> Told:
    return Told(*at(100), number, item_id, topic or topic_of(key), how, mark)


def ended(how: str, mark: str = "", answer: object = OK) -> End:
    return End(*at(20), 1, how, mark, answer)  # type: ignore[arg-type]


LIFE = [enqueued(0, KEY, 1), delivered(10, KEY, 1, 100)]
ACKED = [*LIFE, acked(20, 1, 100)]
REJECTED = [*LIFE, ended("failed", "100")]
REDRIVEN = [*REJECTED, Redrive(*at(30), 1, OK), delivered(40, KEY, 1, 200), acked(50, 1, 200)]
DOUBTFUL = [*REJECTED, Redrive(*at(30), 1, UNKNOWN)]

TRUE: dict[str, tuple[dict[int, str], list[Event]]] = {
    "an ack": ({}, [*ACKED, event(7, "completed", "100")]),
    "an event that came twice": ({}, [*ACKED, event(7, "completed", "100"), event(7, "completed", "100")]),
    "an ack that was answered again": ({}, [*ACKED, acked(30, 1, 100), event(7, "completed", "100")]),
    "an ack whose outcome is unknown ended it": (
        {}, [*LIFE, acked(20, 1, 100, UNKNOWN), event(7, "completed", "100")],
    ),
    "an ack whose outcome is unknown did not": ({1: "ends"}, [*LIFE, acked(20, 1, 100, UNKNOWN)]),
    "an item that lives": ({1: "ends"}, LIFE),
    "a dead letter": ({1: DEAD}, [*REJECTED, event(7, "failed", "100")]),
    "a dead letter by the end of its lease": ({1: DEAD}, [*LIFE, event(7, "failed")]),
    "a late ack removed the dead letter": ({}, [*LIFE, acked(2_000, 1, 100), event(7, "failed")]),
    "a dead letter that was acked": ({}, [*REJECTED, event(7, "failed", "100")]),
    "a deleted item": ({}, [*LIFE, ended("deleted"), event(7, "deleted")]),
    "a deleted dead letter": ({}, [*REJECTED, ended("deleted"), event(7, "failed", "100")]),
    "a redriven item": ({}, [*REDRIVEN, event(7, "failed", "100"), event(8, "completed", "200")]),
    "a redriven item that lives": ({1: "ends"}, [*REDRIVEN[:4], event(7, "failed", "100")]),
    "a redrive whose outcome is unknown, done": ({1: "ends"}, [*DOUBTFUL, event(7, "failed", "100")]),
    "a redrive whose outcome is unknown, not done": ({1: DEAD}, [*DOUBTFUL, event(7, "failed", "100")]),
    "an expired item": ({}, [enqueued(0, SHORT, 1), event(7, "expired", key=SHORT)]),
    "an at-most-once item": ({}, [enqueued(0, ONCE, 1, once=True), event(7, "lease_ended", key=ONCE)]),
    "an item of another client": (
        {}, [enqueued(0, "p:1", 1), acked(20, 1, 100), event(7, "completed", "100", topic="a")],
    ),
    "an item without an answer": ({}, [enqueued(0, SHORT, 0, UNKNOWN), event(7, "expired", key=SHORT)]),
    "an item that was not stored": ({}, [enqueued(0, SHORT, 0, UNKNOWN)]),
    "a late item": ({1: LATE}, [enqueued(0, LATER, 1)]),
}  # fmt: skip

BROKEN: dict[str, tuple[Rule, dict[int, str], list[Event]]] = {
    "an ack": (Rule.LOST, {}, ACKED),
    "gone without a request": (Rule.LOST, {}, LIFE),
    "gone after an ack whose outcome is unknown": (Rule.LOST, {}, [*LIFE, acked(20, 1, 100, UNKNOWN)]),
    "a dead letter": (Rule.LOST, {1: DEAD}, REJECTED),
    "an expired item": (Rule.LOST, {}, [enqueued(0, SHORT, 1)]),
    "the first end of a redriven item": (Rule.LOST, {}, [*REDRIVEN, event(8, "completed", "200")]),
    "the second end of a redriven item": (Rule.LOST, {}, [*REDRIVEN, event(7, "failed", "100")]),
    "the second end, and the first one twice": (
        Rule.LOST, {}, [*REDRIVEN, event(7, "failed", "100"), event(8, "failed", "100")],
    ),
    "two events": (Rule.DOUBLED, {}, [*ACKED, event(7, "completed", "100"), event(8, "completed", "100")]),
    "the removal of a dead letter": (
        Rule.DOUBLED, {}, [*REJECTED, ended("deleted"), event(7, "failed", "100"), event(8, "deleted")],
    ),
    "a dead letter with two events": (
        Rule.DOUBLED, {1: DEAD}, [*REJECTED, event(7, "failed", "100"), event(8, "failed", "100")],
    ),
    "three for two ends": (
        Rule.DOUBLED, {},
        [*REDRIVEN, event(7, "failed", "100"), event(8, "completed", "200"), event(9, "completed", "200")],
    ),
    "an item that lives": (Rule.WRONG, {1: "ends"}, [*LIFE, event(7, "failed")]),
    "the result of another ack": (Rule.WRONG, {}, [*ACKED, event(7, "completed", "101")]),
    "no result": (Rule.WRONG, {}, [*ACKED, event(7, "completed")]),
    "the result of an ack that was refused": (
        Rule.WRONG, {}, [*LIFE, acked(20, 1, 101, STALE), event(7, "completed", "101")],
    ),
    "a delete that was never requested": (Rule.WRONG, {}, [*ACKED, event(7, "deleted")]),
    "the delete was refused": (Rule.WRONG, {}, [*LIFE, ended("deleted", "", REFUSED), event(7, "deleted")]),
    "it has no TTL": (Rule.WRONG, {}, [*LIFE, event(7, "expired")]),
    "it is delivered at least once": (Rule.WRONG, {}, [*LIFE, event(7, "lease_ended")]),
    "another topic": (Rule.WRONG, {}, [*ACKED, event(7, "completed", "100", topic="plain")]),
    "an item without an enqueue": (Rule.WRONG, {}, [event(7, "expired", key=SHORT)]),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUE)
def test_a_true_history_is_believed(name: str) -> None:
    there, events = TRUE[name]
    assert lies(events, there)[0] == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_lie_is_found(name: str) -> None:
    rule, there, events = BROKEN[name]
    assert rule in {lie.rule for lie in lies(events, there)[0]}


def test_counts_of_events() -> None:
    _, counts = lies(
        [*REDRIVEN, event(7, "failed", "100"), event(7, "failed", "100"), event(8, "completed", "200")], {}
    )
    assert (counts["events"], counts["failed"], counts["completed"], counts["delivered again"]) == (2, 1, 1, 1)
    assert counts["redriven"] == 1


def test_the_mark_of_an_event() -> None:
    said = {"id": "5", "topic": "ends", "how": "failed", "failure": {"cause": "failed", "reason": "9"}}
    assert told(1, 2, 7, said) == Told(1, 2, 7, 5, "ends", "failed", "9")
    assert told(1, 2, 7, said | {"failure": {"cause": "expired", "reason": "its lease"}}).mark == ""
    assert told(1, 2, 7, said | {"how": "expired"}).mark == ""
    assert told(1, 2, 7, {"id": "5", "topic": "ends", "how": "completed", "result": "9"}).mark == "9"


def test_logs_come_back_as_they_were_written(tmp_path: Path) -> None:
    log, events = Log(tmp_path / "log.jsonl"), [*REDRIVEN, event(7, "failed", "100")]
    log.add(events)
    log.close()
    assert read(tmp_path) == events
