"""ReleaseLeases on one host: which leases end, and the count of those that ended. And the leases of each worker."""

from __future__ import annotations

from typing import Any

from foqs.engine import item_ops, listing, stats
from foqs.engine.listing import Releasing
from foqs.engine.stats import WorkerLeases
from foqs.errors import FoqsError, StaleLease, Unavailable
from foqs.item import Phase
from foqs.rows import AT_MOST_ONCE
from tests.engine.laboratory import KEY, Laboratory

OTHER = ("ns", "other")


def begin(lab: Laboratory, worker: str | None = None, held_ms: int = 0, timeout_ms: int = 5_000) -> list[Any]:
    """Return a list that gets the reply."""
    replies: list[tuple[int, FoqsError | None]] = []
    releasing = Releasing(lab.engine, KEY, worker, lab.now_ms - held_ms, lambda *reply: replies.append(reply))
    lab.engine.release(releasing, lab.now_ms, timeout_ms)
    return replies


def until_told(lab: Laboratory, replies: list[Any]) -> list[Any]:
    """Go on in turns of the event loop, of which each has some of the work."""
    for _ in range(100):
        if replies:
            break
        lab.settle()
    return replies


def released(lab: Laboratory, worker: str | None = None, held_ms: int = 0) -> int:
    ((count, error),) = until_told(lab, begin(lab, worker, held_ms))
    assert error is None
    return count


def leased(lab: Laboratory, count: int, worker: str = "", **item: int) -> list[int]:
    ids = lab.stored(*[lab.item(**item) for _ in range(count)])
    assert lab.taken(worker=worker, count=count) == ids
    return ids


def test_leases_end_as_if_by_time() -> None:
    lab = Laboratory(1, 2)
    ids = [item_id for _ in range(4) for item_id in leased(lab, 2)]
    assert {item_id >> 48 for item_id in ids} == {1, 2}
    assert released(lab) == 8
    again = lab.taken()
    again += lab.taken()  # of a shard whose bodies had to be read
    assert sorted(again) == sorted(ids)
    assert {lab.engine.shards[item_id >> 48].known[item_id].attempt for item_id in ids} == {2}
    assert lab.engine.counters.namespaces.of("ns").expired == 8


def test_a_released_lease_cannot_be_extended() -> None:
    lab = Laboratory(1)
    (item_id,) = leased(lab, 1)
    lease = lab.lease_of(item_id)
    assert released(lab) == 1
    answers = lab.operate(item_id, item_ops.extend(lease, 5_000))
    lab.settle()
    assert [type(answer) for answer in answers] == [StaleLease]


def test_more_leases_than_a_page() -> None:
    lab = Laboratory(1)
    leased(lab, 2 * listing._RELEASE_ROWS + 1)
    lab.go_on(200)
    assert released(lab) == 2 * listing._RELEASE_ROWS + 1
    assert lab.engine.ready(KEY) == 2 * listing._RELEASE_ROWS + 1


def test_only_leases_of_the_worker() -> None:
    lab = Laboratory(1)
    leased(lab, 3, "a")
    theirs = leased(lab, 2, "b")
    assert released(lab, "b") == 2
    assert lab.taken() == theirs


def test_only_leases_that_are_old_enough() -> None:
    lab = Laboratory(1)
    old = leased(lab, 2)
    lab.go_on(1_000)
    leased(lab, 3)
    assert released(lab, held_ms=1_000) == 2
    assert lab.taken() == old


def test_other_topics_and_ready_items_stay() -> None:
    lab = Laboratory(1)
    other = lab.stored(key=OTHER)
    assert lab.taken(keys=[OTHER]) == other
    leased(lab, 1)
    lab.stored(lab.item(delay_ms=60_000))
    assert released(lab) == 1
    assert lab.engine.shards[1].known[other[0]].phase is Phase.LEASED
    assert lab.engine.ready(KEY) == 1


def test_an_at_most_once_item_is_removed() -> None:
    lab = Laboratory(1)
    leased(lab, 1, delivery=AT_MOST_ONCE)
    assert released(lab) == 1
    assert lab.engine.counters.removed == {"dropped": 1}


def test_leases_of_an_earlier_owner_have_no_worker() -> None:
    lab = Laboratory(1)
    ids = leased(lab, 2, "a")
    lab.go_on(200)
    lab.reopen()
    assert released(lab, "a") == 0
    assert released(lab) == 2
    assert lab.taken() == ids


def test_an_ack_under_way_comes_first() -> None:
    lab = Laboratory(1)
    (item_id,) = leased(lab, 1)
    lab.go_on(200)
    acked = lab.ack((item_id, lab.lease_of(item_id)))
    assert released(lab) == 0
    assert acked == [None]


def test_an_end_that_is_not_committed_is_not_counted() -> None:
    lab = Laboratory(1)
    leased(lab, 1)
    lab.go_on(200)
    replies = begin(lab)
    ((shard, read),) = lab.send()
    lab.arrive(shard, read)
    lab.engine.lose(shard, lab.now_ms)
    lab.settle()
    assert [count for count, _ in replies] == [0]


def test_a_shard_that_does_not_answer_ends_with_the_time() -> None:
    lab = Laboratory(1, 2)
    leased(lab, 1)
    replies = begin(lab, timeout_ms=1_000)
    lab.ring(1_000)
    ((count, error),) = replies
    assert (count, type(error)) == (0, Unavailable)
    assert not any(shard.lists for shard in lab.engine.shards.values())
    lab.settle()
    assert len(replies) == 1


def test_a_host_without_such_leases_answers_at_once() -> None:
    lab = Laboratory(1)
    lab.stored()
    assert begin(lab) == [(0, None)]


# ------------------------------------------------------------------------------------------ by worker


def test_leases_are_counted_by_worker() -> None:
    lab = Laboratory(1, 2)
    for worker in ("a", "b", "a", ""):
        leased(lab, 2, worker)
        lab.go_on(100)
    found: list[list[WorkerLeases]] = []
    stats.workers_of(lab.engine, KEY, found.append)
    now_ms = lab.now_ms
    assert found == [
        [WorkerLeases("a", 4, now_ms - 400), WorkerLeases("b", 2, now_ms - 300), WorkerLeases("", 2, now_ms - 100)]
    ]


def test_of_many_workers_the_oldest_are_reported(monkeypatch: Any) -> None:
    monkeypatch.setattr(stats, "MOST_WORKERS", 2)
    lab = Laboratory(1)
    for worker in ("b", "c", "a"):
        leased(lab, 1, worker)
        lab.go_on(100)
    found: list[list[WorkerLeases]] = []
    stats.workers_of(lab.engine, KEY, found.append)
    assert [one.worker for one in found[0]] == ["b", "c"]


def test_a_count_of_many_items_takes_several_turns(monkeypatch: Any) -> None:
    monkeypatch.setattr(stats, "_ITEMS", 10)
    lab = Laboratory(1)
    leased(lab, 35, "a")
    found: list[list[WorkerLeases]] = []
    stats.workers_of(lab.engine, KEY, found.append)
    turns = 1
    while not found:
        lab.engine.pump(lab.now_ms)
        turns += 1
    assert turns == 4
    assert found[0][0].held == 35
