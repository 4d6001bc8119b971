"""Items with one order key come one after the other: kills of hosts and consumers, and the verdict about histories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from foqs_lab.cluster import make_shards
from foqs_lab.crash.history import Answer
from foqs_lab.crash.losses import NEVER
from foqs_lab.crash.order_process import LEASE_MS
from foqs_lab.crash.ordered import End, Got, History, Put, Seen, lies, run_ordered
from foqs_lab.servers import Kind, ServerSettings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import NewServer

LEASE = LEASE_MS * 1_000_000
BLOCK, SKIP = 0, 1
"""Keys, by the policies of their topics."""


@pytest.mark.timeout(400)
def test_a_key_keeps_its_order(kind: Kind, new_server: NewServer, tmp_path: Path) -> None:
    server = new_server(kind, ServerSettings(buffer_pool_bytes=64 << 20))
    shards = make_shards([server], 8, "ordered")
    report = run_ordered(shards, tmp_path, seed=1, items=5_000, keys=500, kills=4, seconds=60)
    print(report)
    assert report.good, f"{report}\nlogs: {tmp_path}"
    assert report.stored and report.kills["host"] == report.kills["consumer"] == 2, report
    for what in ("delivered again", "nacked ok", "acked ok"):
        assert report.counts[what], f"{what}: {report}"


def put(at: int, seq: int, answer: Answer = Answer.OK, *, took: int = 1, place: int = 0, tried: int = 0) -> Put:
    return Put(at, at + took, place, seq, tried, answer, 10 * seq + tried if answer is Answer.OK else 0)


def got(at: int, seq: int, *, took: int = 1, tried: int = 0) -> Got:
    return Got(at, at + took, seq, tried, 10 * seq + tried, at)


def ack(at: int, one: Got, answer: Answer = Answer.OK, what: str = "ack") -> End:
    return End(at, NEVER if answer is Answer.UNKNOWN else at + 1, one.id, one.lease, what, answer)


def found(key: int, *events: Put | Got | End) -> list[str]:
    history = History()
    for event in events:
        if isinstance(event, Put):
            history.puts.append(event)
        elif isinstance(event, Got):
            history.gots.append(event)
        else:
            history.ends.append(event)
    return list(lies({key: history}))


A, B = got(10, 1), got(20, 2)
DONE = (ack(40, B),)
LATER = 10 + LEASE


@pytest.mark.parametrize("key", [BLOCK, SKIP])
@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        ([put(1, 1), put(3, 2), A, ack(15, A), B], ""),
        ([put(1, 1), put(1, 2, place=1), A, ack(15, A), B], ""),
        ([put(1, 1), put(3, 2), A, ack(15, A, Answer.UNKNOWN), B], ""),
        # The second one came while the first was leased, by its reply and by its place.
        ([put(1, 1), put(3, 2), A, B, ack(25, A)], "before the end of Put(began=1"),
        ([put(1, 1), put(1, 2, place=1), A, B, ack(25, A)], "before the end of Put(began=1"),
        ([put(1, 1), put(3, 2), A, ack(15, A, Answer.REFUSED), B, ack(25, A)], "before the end of"),
        # The ack was sent before the reply to the dequeue came.
        ([put(1, 1), put(3, 2), A, got(12, 2, took=5), ack(15, A)], ""),
        # Of two enqueues at a time any may be the first.
        ([put(1, 1, took=5), put(3, 2), got(50, 1), ack(55, got(50, 1)), B], ""),
        # An enqueue without an answer may store its item later.
        ([put(1, 1, Answer.UNKNOWN), put(3, 2), B, got(50, 1), ack(55, got(50, 1))], ""),
        ([put(1, 1, Answer.UNKNOWN), put(1, 2, Answer.UNKNOWN, place=1), B, got(50, 1), ack(55, got(50, 1))], "before"),
        ([put(1, 1, Answer.UNKNOWN), put(3, 2), B], ""),
        # An ack that was answered late.
        ([put(1, 1), put(3, 2), A, B, got(LATER, 1), ack(LATER + 5, got(LATER, 1))], "before the end of"),
        # Items that should not be there, or never came.
        ([put(1, 1, Answer.REFUSED), put(3, 2), A, ack(15, A), B], "its enqueue was"),
        ([put(3, 2), A, ack(15, A), B], "its enqueue was None"),
        ([put(1, 1), put(3, 2), A, ack(15, A), B, got(50, 1)], "came after its ack"),
        ([put(1, 1, Answer.REFUSED), put(1, 2, place=1), B], "an earlier one of its request was not"),
        ([put(1, 3), put(1, 2), B], "was stored and never acked"),
    ],
)
def test_each_lie_is_found(key: int, events: list[Put | Got | End], wrong: str) -> None:
    lies = found(key, *events, *DONE)
    assert bool(lies) == bool(wrong), lies
    assert not wrong or any(wrong in lie for lie in lies), lies


def test_a_failed_item_is_passed_with_skip_alone() -> None:
    again = got(50, 1)
    events: list[Put | Got | End] = [
        put(1, 1),
        put(3, 2),
        A,
        ack(15, A, what="nack"),
        B,
        ack(40, B),
        again,
        ack(55, again),
    ]
    assert found(SKIP, *events) == []
    assert any("before the end of" in lie for lie in found(BLOCK, *events))
    late = got(60, 2)
    back = got(35, 1)
    passed: list[Put | Got | End] = [
        put(1, 1),
        put(3, 2),
        A,
        ack(15, A, what="nack"),
        back,
        late,
        ack(65, late),
        ack(70, back),
    ]
    assert any("before the end of" in lie for lie in found(SKIP, *passed))


def test_leases_at_a_time() -> None:
    """A lease lives for certain from its reply until its time counted from the dequeue, or until its ack is sent."""
    twice = got(LEASE - 2_000_000, 1)
    assert any("of another lease" in lie for lie in found(BLOCK, put(1, 1), A, twice, ack(LEASE, twice)))
    twice = got(LEASE, 1)
    assert found(BLOCK, put(1, 1), A, twice, ack(LEASE + 5, twice)) == []


def test_journals_make_a_history() -> None:
    seen = Seen()
    seen.take(
        [
            ["put", 1, 2, [[7, 0, 0, "ok", 70], [7, 1, 0, "unknown", 0]]],
            ["got", 3, 4, [[7, 0, 0, 70, 5]]],
            ["ack", 6, [[70, 5]]],
            ["acked", 8, [[70, 5, "ok"]]],
            ["got", 9, 10, [[7, 1, 0, 71, 6]]],
            ["nack", 11, [[71, 6]]],
        ]
    )
    history = seen.histories[7]
    assert history.puts == [Put(1, 2, 0, 0, 0, Answer.OK, 70), Put(1, 2, 1, 1, 0, Answer.UNKNOWN)]
    assert history.gots == [Got(3, 4, 0, 0, 70, 5), Got(9, 10, 1, 0, 71, 6)]
    assert history.ends == [End(6, 8, 70, 5, "ack", Answer.OK), End(11, NEVER, 71, 6, "nack")]
    assert (seen.stored, seen.acked) == (1, 1)
