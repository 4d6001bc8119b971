"""What an enqueue is answered while its shard cannot store: UNAVAILABLE at once, unless a transaction may have it."""

from __future__ import annotations

import pytest

from foqs.buffers.round import Outcome, RoundResult
from foqs.errors import FoqsError, OutcomeUnknown, Unavailable
from foqs.host import ops
from foqs.host.requests import EnqueueCall, ItemsCall
from foqs.host.shard import Shard
from foqs.rows import AT_MOST_ONCE, NewItem
from tests.host.laboratory import KEY, Laboratory

FULL = RoundResult(Outcome.FAILED, disk_full=True, error="the disk is full (SQLite 13)")


def refused(answers: list[object]) -> list[type[FoqsError]]:
    for answer in answers:
        assert isinstance(answer, FoqsError)
        assert isinstance(answer, OutcomeUnknown) or (answer.retry_after_ms or 0) >= 100
    return [type(answer) for answer in answers]  # type: ignore[misc]


def ring(lab: Laboratory, after_ms: int) -> None:
    lab.now_ms += after_ms
    lab.host.tick(lab.now_ms)


def test_keys_behind_a_lost_connection_are_refused_at_once() -> None:
    lab = Laboratory(1)
    sent = lab.enqueue_keyed("a")
    ((shard, round_),) = lab.send()
    behind = lab.enqueue_keyed("b")
    lab.arrive(shard, round_, RoundResult(Outcome.FAILED, down=True, error="gone"))
    assert refused(sent) == refused(behind) == [Unavailable]
    assert refused(lab.enqueue_keyed("c")) == [Unavailable]
    assert not shard.keys.pending


def test_keys_behind_a_database_that_hangs_are_refused() -> None:
    """The breaker opens: what was not sent is refused, as is what comes later. What was sent waits for its outcome."""
    lab = Laboratory(1)
    sent = lab.enqueue_keyed("a")
    lab.send()
    behind = lab.enqueue_keyed("b")
    ring(lab, lab.host.config.breaker.hang_ms + 1)
    assert refused(behind) == [Unavailable]
    assert refused(lab.enqueue_keyed("a")) == refused(lab.enqueue_keyed("c")) == [Unavailable]
    assert not sent
    ring(lab, 5_000)
    assert refused(sent) == [OutcomeUnknown]


def test_a_key_may_be_stored_when_its_commit_is_unknown() -> None:
    lab = Laboratory(1)
    sent = lab.enqueue_keyed("a")
    ((shard, round_),) = lab.send()
    behind = lab.enqueue_keyed("b")
    lab.arrive(shard, round_, RoundResult(Outcome.UNKNOWN, down=True, error="gone"))
    assert refused(behind) == [Unavailable]
    ring(lab, 5_001)
    assert refused(sent) == [OutcomeUnknown]


def test_a_key_that_was_not_sent_in_time_is_withdrawn() -> None:
    lab = Laboratory(1)
    lab.enqueue()
    ((shard, round_),) = lab.send()
    late = lab.enqueue_keyed("a", "a", "b", timeout_ms=10)
    ring(lab, 11)
    assert [type(answer) for answer in late] == [Unavailable] * 3
    lab.arrive(shard, round_)
    again = lab.enqueue_keyed("a", "b")
    lab.settle()
    assert len(set(again)) == len(lab.dbs[1].items) - 1 == 2


def test_a_key_that_another_request_waits_for_is_not_withdrawn() -> None:
    lab = Laboratory(1)
    lab.enqueue()
    ((shard, round_),) = lab.send()
    late = lab.enqueue_keyed("a", timeout_ms=10)
    other = lab.enqueue_keyed("a")
    ring(lab, 11)
    assert refused(late) == [OutcomeUnknown]
    lab.arrive(shard, round_)
    lab.settle()
    assert other == [max(lab.dbs[1].items)]


# ------------------------------------------------------------------------------------------------ a full disk


def filled(lab: Laboratory) -> Shard:
    """Has a transaction of the only shard fail for a full disk."""
    lab.enqueue()
    ((shard, round_),) = lab.send()
    lab.arrive(shard, round_, FULL)
    return shard


@pytest.mark.parametrize("keys", [True, False], ids=["keyed", "plain"])
def test_enqueues_on_a_full_disk_say_so_at_once(keys: bool) -> None:
    lab = Laboratory(1)
    enqueue = (lambda: lab.enqueue_keyed("a")) if keys else lab.enqueue
    sent = enqueue()
    ((shard, round_),) = lab.send()
    lab.arrive(shard, round_, FULL)
    for answers in (sent, enqueue()):
        assert refused(answers) == [Unavailable]
        assert "disk of the shard's database is full" in str(answers[0])


def test_a_full_disk_sends_items_to_another_shard() -> None:
    lab = Laboratory(1, 2)
    answers = lab.enqueue()
    ((shard, round_),) = lab.send()
    lab.arrive(shard, round_, FULL)
    lab.settle()
    assert isinstance(answers[0], int)
    assert shard.disk_full


def test_a_shard_with_room_again_takes_items() -> None:
    lab = Laboratory(1)
    shard = filled(lab)
    ring(lab, 10_000)
    lab.settle()  # the trial
    answers = lab.enqueue()
    lab.settle()
    assert isinstance(answers[0], int)
    assert not shard.disk_full


def test_an_ack_on_a_full_disk_is_unavailable_not_late() -> None:
    lab = Laboratory(1)
    lab.enqueue()
    lab.settle()
    ((item_id,),) = lab.dequeue()
    outcomes: list[FoqsError | None] = []
    item = lab.host.shards[1].known[item_id]
    acked = type("Acked", (), {"id": item_id, "lease": item.lease})()
    for result in (FULL, None):
        call = ItemsCall(1, outcomes.extend)
        lab.host.ack(call, [acked], None, lab.now_ms, 5_000)  # type: ignore[list-item]
        ((shard, round_),) = lab.send()
        lab.arrive(shard, round_, result)
        ring(lab, 10_000)
        lab.settle()
    (first, second) = outcomes
    assert isinstance(first, Unavailable)
    assert "disk of the shard's database is full" in str(first)
    assert second is None


@pytest.mark.parametrize("deleted", [True, False])
def test_a_lease_that_cannot_be_stored_is_given_back(deleted: bool) -> None:
    """An at-most-once item that no consumer got must not be leased by a later transaction.

    `deleted`: a delete came while the lease was under way, waits for the outcome of both, and is refused.
    """
    lab = Laboratory(1)
    item = NewItem(b"x", None, None, 0, lab.now_ms, 0, lab.now_ms, 0, 0, AT_MOST_ONCE)
    stored: list[int] = []
    lab.host.enqueue(EnqueueCall(1, stored.extend), [0], [item], [KEY], [1], lab.now_ms, 5_000)  # type: ignore[arg-type]
    lab.settle()
    first = lab.dequeue()
    ((shard, round_),) = lab.send()
    if deleted:
        answers: list[FoqsError | None] = []
        lab.host.settle(ItemsCall(1, answers.extend), [(stored[0], ops.delete)], None, lab.now_ms, 5_000)
        lab.arrive(shard, round_, FULL)
        ring(lab, lab.host.config.breaker.pause_ms)
        for result in (None, FULL):  # whether it is there again, then the transaction
            ((shard, round_),) = lab.send()
            lab.arrive(shard, round_, result)
        assert [type(answer) for answer in answers] == [Unavailable]
    else:
        lab.arrive(shard, round_, RoundResult(Outcome.COMMITTED, rejected={stored[0]: "no"}))
    assert first == [[]]
    assert not lab.dbs[1].timer
    ring(lab, lab.host.config.breaker.max_pause_ms)
    lab.settle()
    second = lab.dequeue()
    lab.settle()
    assert second == [stored]
