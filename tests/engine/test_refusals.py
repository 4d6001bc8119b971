"""What an enqueue is answered while its shard cannot store: UNAVAILABLE at once, unless a transaction may have it."""

from __future__ import annotations

import pytest

from foqs.buffers.shard_batch import BatchResult, Outcome
from foqs.engine import item_ops
from foqs.engine.calls import EnqueueCall, ItemsCall
from foqs.engine.shard import Shard
from foqs.engine.shard_owner import RETRY_MS
from foqs.errors import FoqsError, OutcomeUnknown, Unavailable
from foqs.rows import AT_MOST_ONCE, NewItem
from tests.engine.laboratory import KEY, Laboratory

READ_ONLY = BatchResult(Outcome.FAILED, down=True, read_only=True, error="the server is read-only (1290)")
FULL = BatchResult(Outcome.FAILED, disk_full=True, error="the disk is full (SQLite 13)")


def refused(answers: list[object]) -> list[type[FoqsError]]:
    for answer in answers:
        assert isinstance(answer, FoqsError)
        assert isinstance(answer, OutcomeUnknown) or (answer.retry_after_ms or 0) >= 100
    return [type(answer) for answer in answers]  # type: ignore[misc]


def test_keys_behind_a_lost_connection_are_refused_at_once() -> None:
    lab = Laboratory(1)
    sent = lab.enqueue_keyed("a")
    ((shard, batch),) = lab.send()
    behind = lab.enqueue_keyed("b")
    lab.arrive(shard, batch, BatchResult(Outcome.FAILED, down=True, error="gone"))
    assert refused(sent) == refused(behind) == [Unavailable]
    assert refused(lab.enqueue_keyed("c")) == [Unavailable]
    assert not shard.queue.keys.pending


def test_keys_behind_a_database_that_hangs_are_refused() -> None:
    """The breaker opens: unsent items are refused, and so are later ones. The outcome of sent items is unknown."""
    lab = Laboratory(1)
    sent = lab.enqueue_keyed("a")
    again = lab.enqueue_keyed("a")
    lab.send()
    behind = lab.enqueue_keyed("b")
    lab.ring(lab.engine.state.config.breaker.hang_ms)
    assert not behind
    lab.ring(1)
    assert refused(behind) == [Unavailable]
    assert not (sent or again)
    lab.ring(lab.engine.state.config.breaker.hang_ms)
    assert refused(sent) == refused(again) == [OutcomeUnknown]
    assert refused(lab.enqueue_keyed("a")) == refused(lab.enqueue_keyed("c")) == [Unavailable]
    assert list(lab.engine.state.shards[1].queue.keys.pending), "the key is pending until its outcome is known"


def test_a_key_may_be_stored_when_its_commit_is_unknown() -> None:
    lab = Laboratory(1)
    sent = lab.enqueue_keyed("a")
    ((shard, batch),) = lab.send()
    behind = lab.enqueue_keyed("b")
    lab.arrive(shard, batch, BatchResult(Outcome.UNKNOWN, down=True, error="gone"))
    assert refused(behind) == [Unavailable]
    lab.ring(5_001)
    assert refused(sent) == [OutcomeUnknown]


def test_a_key_that_was_not_sent_in_time_is_withdrawn() -> None:
    lab = Laboratory(1)
    lab.enqueue()
    ((shard, batch),) = lab.send()
    late = lab.enqueue_keyed("a", "a", "b", timeout_ms=10)
    lab.ring(11)
    assert [type(answer) for answer in late] == [Unavailable] * 3
    lab.arrive(shard, batch)
    again = lab.enqueue_keyed("a", "b")
    lab.settle()
    assert len(set(again)) == len(lab.dbs[1].items) - 1 == 2


def test_a_key_that_another_request_waits_for_is_not_withdrawn() -> None:
    lab = Laboratory(1)
    lab.enqueue()
    ((shard, batch),) = lab.send()
    late = lab.enqueue_keyed("a", timeout_ms=10)
    other = lab.enqueue_keyed("a")
    lab.ring(11)
    assert refused(late) == [OutcomeUnknown]
    lab.arrive(shard, batch)
    lab.settle()
    assert other == [max(lab.dbs[1].items)]


# ------------------------------------------------------------------------------------------------ a full disk


def filled(lab: Laboratory) -> Shard:
    """Has a transaction of the only shard fail for a full disk."""
    lab.enqueue()
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, FULL)
    return shard


@pytest.mark.parametrize("keys", [True, False], ids=["keyed", "plain"])
def test_enqueues_on_a_full_disk_say_so_at_once(keys: bool) -> None:
    lab = Laboratory(1)
    enqueue = (lambda: lab.enqueue_keyed("a")) if keys else lab.enqueue
    sent = enqueue()
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, FULL)
    for answers in (sent, enqueue()):
        assert refused(answers) == [Unavailable]
        assert "database of shard 1 is full" in str(answers[0])


@pytest.mark.parametrize("keys", [False, True])
def test_a_read_only_database_is_named_until_it_is_reached_again(keys: bool) -> None:
    lab = Laboratory(1)
    enqueue = (lambda: lab.enqueue_keyed("a")) if keys else lab.enqueue
    sent = enqueue()
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, READ_ONLY)
    for answers in (sent, enqueue()):
        assert refused(answers) == [Unavailable]
        assert "the shard's database is read-only" in str(answers[0])
    assert shard.owner.read_only and shard.owner.lost
    lab.ring(10_000)
    ((_, batch),) = lab.send()
    assert batch.reconnect
    lab.arrive(shard, batch, BatchResult(down=True, error="cannot connect"))
    assert not shard.owner.read_only and shard.owner.lost
    lab.ring(10_000)
    lab.settle()
    assert not shard.owner.lost


def test_a_full_disk_sends_items_to_another_shard() -> None:
    lab = Laboratory(1, 2)
    answers = lab.enqueue()
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, FULL)
    lab.settle()
    assert isinstance(answers[0], int)
    assert shard.owner.disk_full


def test_a_shard_with_room_again_takes_items() -> None:
    lab = Laboratory(1)
    shard = filled(lab)
    lab.ring(10_000)
    lab.settle()  # the trial
    answers = lab.enqueue()
    lab.settle()
    assert isinstance(answers[0], int)
    assert not shard.owner.disk_full


def test_an_ack_on_a_full_disk_is_unavailable_not_late() -> None:
    lab = Laboratory(1)
    lab.enqueue()
    lab.settle()
    ((item_id,),) = lab.dequeue()
    outcomes: list[FoqsError | None] = []
    item = lab.engine.state.shards[1].memory.known[item_id]
    lease = item.lease
    for results in ((FULL, FULL), (None,)):  # removals are tried alone
        call = ItemsCall(1, outcomes.extend)
        lab.engine.ack(call, [item_id], [lease], None, lab.now_ms, 5_000)
        for result in results:
            ((shard, batch),) = lab.send()
            lab.arrive(shard, batch, result)
            lab.ring(RETRY_MS)
        lab.ring(10_000)
        lab.settle()
    (first, second) = outcomes
    assert isinstance(first, Unavailable)
    assert "database of shard 1 is full" in str(first)
    assert second is None


@pytest.mark.parametrize("deleted", [True, False])
def test_a_lease_that_cannot_be_stored_is_given_back(deleted: bool) -> None:
    """An at-most-once item that no consumer got must not be leased by a later transaction.

    `deleted`: a delete came while the lease was under way, waits for the outcome of both, and is refused.
    """
    lab = Laboratory(1)
    item = NewItem(b"x", None, None, 0, lab.now_ms, 0, lab.now_ms, 0, 0, AT_MOST_ONCE)
    stored: list[int] = []
    lab.engine.enqueue(EnqueueCall(1, stored.extend), [0], [item], [KEY], [1], lab.now_ms, 5_000)  # type: ignore[arg-type]
    lab.settle()
    first = lab.dequeue()
    ((shard, batch),) = lab.send()
    if deleted:
        answers: list[FoqsError | None] = []
        lab.engine.settle(ItemsCall(1, answers.extend), [(stored[0], item_ops.delete)], None, lab.now_ms, 5_000)
        lab.arrive(shard, batch, FULL)
        lab.ring(RETRY_MS)
        ((shard, batch),) = lab.send()
        lab.arrive(shard, batch, FULL)
        assert [type(answer) for answer in answers] == [Unavailable]
    else:
        lab.arrive(shard, batch, BatchResult(Outcome.COMMITTED, rejected={stored[0]: "no"}))
    assert first == [[]]
    assert not lab.dbs[1].timer
    lab.ring(lab.engine.state.config.breaker.max_pause_ms)
    lab.settle()
    second = lab.dequeue()
    lab.settle()
    assert second == [stored]
