"""Items whose attempts are used up: where they are, what their row in `failure` says, and what ends them there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from foqs.engine import item_ops
from foqs.errors import NotFound, StaleLease
from foqs.policies.settings import Settings
from foqs.rows import AT_MOST_ONCE, FailureCause, FailureRow
from tests.engine.laboratory import KEY, Laboratory

DEAD = ("ns", "topic.dlq")
FAILED, EXPIRED, REJECTED, HOOK, LIMIT = FailureCause
RULE = {"kind": "constant", "first_ms": 500, "jitter": 0}


def laboratory(**entry: Any) -> Laboratory:
    lab = Laboratory(1)
    set_policy(lab, **{"retry": RULE, **entry})
    return lab


def set_policy(lab: Laboratory, **entry: Any) -> None:
    policies = lab.engine.state.policies
    policies.apply(Settings("ns", policies.changes + 1, {"topic.topic": json.dumps(entry)}))


def leased(lab: Laboratory, **how: Any) -> tuple[int, int]:
    """Take the one item that is ready; return its id and lease."""
    (item_id,) = lab.taken(**how)
    return item_id, lab.lease_of(item_id)


def end(lab: Laboratory, op: Callable[..., item_ops.Op], *how: Any) -> int:
    item_id, lease = leased(lab)
    answers = lab.operate(item_id, op(lease, *how))
    lab.settle()
    assert answers == [None]
    return item_id


def nothing_is_ready(lab: Laboratory) -> bool:
    """Whether a dequeue gets no item, also after it waited for the bodies of items that seemed to be ready."""
    answers = lab.dequeue()
    lab.settle()
    lab.ring(1)
    return answers == [[]]


def fail(lab: Laboratory, reason: str = "it broke") -> int:
    return end(lab, item_ops.fail, 0, None, reason)


def failure(lab: Laboratory, item_id: int) -> FailureRow:
    """Check that the item is a dead letter and nowhere else, and return its failure."""
    db = lab.dbs[1]
    row = db.failures[item_id]
    assert db.lanes[row.lane][1:3] == (b"ns", b"topic.dlq")
    assert db.items[item_id].lane == row.lane
    assert db.ready[item_id].attempt == 0
    assert [lane.total for lane in lab.engine.state.shards[1].memory.lanes.values() if lane.topic.key == DEAD] == [
        len(db.failures)
    ]
    return row


def test_failures_are_retried_and_then_the_item_is_dead() -> None:
    lab = laboratory(max_attempts=3, dead={"ttl_ms": 9_000})
    (item_id,) = lab.stored(lab.item(b"work", priority=4))
    for _ in range(2):
        assert fail(lab) == item_id
        assert not lab.taken()
        lab.go_on(499)
        assert not lab.taken()
        lab.go_on(1)
    assert fail(lab, "SMTP 451 from 10.0.0.7") == item_id
    row = failure(lab, item_id)
    assert (row.cause, row.attempts, row.topic, row.reason) == (FAILED, 3, b"topic", b"SMTP 451 from 10.0.0.7")
    assert row.died_at_ms == lab.now_ms
    body = lab.dbs[1].items[item_id]
    assert (body.priority, body.deliver_after_ms, body.expires_at_ms) == (4, lab.now_ms, lab.now_ms + 9_000)
    assert lab.engine.state.counters.namespaces.of("ns").dead == {"failed": 1}
    assert not lab.taken()
    assert lab.taken(keys=[DEAD]) == [item_id]


def test_a_dead_letter_is_a_plain_item_of_its_topic() -> None:
    """Its body is read again; an ack removes its failure with it."""
    lab = laboratory(max_attempts=1)
    (item_id,) = lab.stored()
    fail(lab)
    assert leased(lab, keys=[DEAD])[0] == item_id
    assert lab.engine.state.shards[1].memory.known[item_id].attempt == 1
    lab.ack((item_id, lab.lease_of(item_id)))
    lab.settle()
    assert (lab.dbs[1].items, lab.dbs[1].failures) == ({}, {})


@pytest.mark.parametrize("remove", ["ack", "delete", "ttl"])
def test_another_owner_removes_the_failure_too(remove: str) -> None:
    lab = laboratory(max_attempts=1, dead={"ttl_ms": 3_000})
    (item_id,) = lab.stored()
    fail(lab)
    lab.reopen()
    assert lab.dbs[1].failures
    if remove == "ack":
        taken = leased(lab, keys=[DEAD])
        lab.ack(taken)
    elif remove == "delete":
        lab.operate(item_id, item_ops.delete)
    lab.go_on(4_000)
    assert (lab.dbs[1].items, lab.dbs[1].failures) == ({}, {})


@pytest.mark.parametrize("written", [False, True])
def test_an_expired_lease_is_an_attempt(written: bool) -> None:
    lab = laboratory(max_attempts=2)
    (item_id,) = lab.stored()
    for _ in range(2):
        lab.taken(lease_ms=1_000 if written else 50)
        lab.go_on(1_100)
    row = failure(lab, item_id)
    assert (row.cause, row.attempts, row.reason, row.fingerprint) == (EXPIRED, 2, b"", 0)
    assert not lab.taken()


def test_a_lease_that_only_the_database_knows_is_an_attempt() -> None:
    lab = laboratory(max_attempts=1)
    (item_id,) = lab.stored()
    lab.taken(lease_ms=1_000)
    lab.go_on(200)
    lab.reopen()
    lab.go_on(1_100)
    assert failure(lab, item_id).cause == EXPIRED


def test_a_late_ack_of_the_last_attempt() -> None:
    """An expired lease can be acked until another consumer leases the item; a late nack changes nothing."""
    lab = laboratory(max_attempts=1)
    lab.stored()
    item_id, lease = leased(lab, lease_ms=1_000)
    lab.go_on(1_100)
    assert failure(lab, item_id)
    answers = lab.operate(item_id, item_ops.fail(lease, 0, None, ""))
    lab.settle()
    assert [type(answer) for answer in answers] == [StaleLease]
    answers = lab.ack((item_id, lease))
    lab.settle()
    assert (answers, lab.dbs[1].items, lab.dbs[1].failures) == ([None], {}, {})


def test_a_late_ack_while_the_item_dies() -> None:
    lab = laboratory(max_attempts=1)
    lab.stored()
    item_id, lease = leased(lab, lease_ms=1_000)
    lab.go_on(999)
    lab.ring(1)
    (scan,) = lab.send()
    lab.arrive(*scan)
    (move,) = lab.send()
    answers = lab.ack((item_id, lease))
    lab.arrive(*move)
    assert lab.dbs[1].failures
    lab.settle()
    assert (answers, lab.dbs[1].items, lab.dbs[1].failures) == ([None], {}, {})


def test_rejected() -> None:
    lab = laboratory(max_attempts=0)
    (item_id,) = lab.stored()
    end(lab, item_ops.reject, "no such user")
    row = failure(lab, item_id)
    assert (row.cause, row.attempts, row.reason) == (REJECTED, 1, b"no such user")


@pytest.mark.parametrize(
    ("op", "how", "cause"), [(item_ops.reject, [""], "rejected"), (item_ops.fail, [0, None, ""], "exhausted")]
)
def test_without_a_dead_letter_topic_the_item_is_removed(op: Any, how: list[Any], cause: str) -> None:
    lab = laboratory(max_attempts=1, dead=None)
    lab.stored()
    end(lab, op, *how)
    assert not lab.dbs[1].items
    assert lab.engine.state.counters.removed == {cause: 1}


def test_plain_nacks_use_attempts_up() -> None:
    lab = laboratory(max_attempts=3)
    (item_id,) = lab.stored()
    for _ in range(3):
        end(lab, item_ops.nack, 0, None)
    assert nothing_is_ready(lab)
    row = failure(lab, item_id)
    assert (row.cause, row.attempts) == (LIMIT, 3)


@pytest.mark.parametrize("delay_ms", [0, 700])
def test_a_limit_that_is_lowered(delay_ms: int) -> None:
    """It holds for items that are ready, and for those whose delay is over."""
    lab = laboratory(max_attempts=9)
    (item_id,) = lab.stored()
    for _ in range(3):
        end(lab, item_ops.nack, delay_ms, None)
        lab.go_on(700)
    set_policy(lab, max_attempts=4)
    end(lab, item_ops.nack, delay_ms, None)
    set_policy(lab, max_attempts=3)
    lab.go_on(700)
    assert nothing_is_ready(lab)
    assert failure(lab, item_id).attempts == 4


def test_a_released_attempt_does_not_count() -> None:
    lab = laboratory(max_attempts=1)
    lab.stored()
    for _ in range(3):
        end(lab, item_ops.release)
    assert len(lab.taken()) == 1


def test_items_at_most_once_end_as_ever() -> None:
    lab = laboratory(max_attempts=1)
    lab.stored(lab.item(delivery=AT_MOST_ONCE), lab.item(delivery=AT_MOST_ONCE), lab.item(delivery=AT_MOST_ONCE))
    first, second, _ = lab.taken(lease_ms=1_000)
    for item_id, op in (
        (first, item_ops.fail(lab.lease_of(first), 0, None, "")),
        (second, item_ops.reject(lab.lease_of(second), "")),
    ):
        lab.operate(item_id, op)
    lab.go_on(1_100)
    assert (lab.dbs[1].items, lab.engine.state.counters.removed) == ({}, {"dropped": 3})


def test_the_same_nack_twice_has_one_outcome() -> None:
    lab = laboratory(max_attempts=1)
    (item_id,) = lab.stored()
    _, lease = leased(lab)
    answers = [
        lab.operate(item_id, op) for op in (*[item_ops.fail(lease, 0, None, "a")] * 2, item_ops.nack(lease, 0, None))
    ]
    lab.settle()
    assert answers[:2] == [[None], [None]]
    assert isinstance(answers[2][0], StaleLease)
    assert failure(lab, item_id).attempts == 1


@pytest.mark.parametrize(("age_ms", "dies"), [(800, False), (1_200, True)])
@pytest.mark.parametrize("known", [True, False])
def test_the_time_since_the_enqueue(age_ms: int, dies: bool, known: bool) -> None:
    """For failures; the body of a leased item is not in memory, so it is read first."""
    lab = laboratory(max_attempts=0, max_total_ms=1_000)
    (item_id,) = lab.stored()
    _, lease = leased(lab)
    lab.go_on(age_ms)
    if not known:
        lab.reopen()
    answers = lab.operate(item_id, item_ops.fail(lease, 0, None, ""))
    lab.settle()
    assert (answers, item_id in lab.dbs[1].failures) == ([None], dies)


@pytest.mark.parametrize(("lease_ms", "dies"), [(50, False), (900, False), (1_200, True)])
def test_the_time_since_the_enqueue_when_a_lease_ends(lease_ms: int, dies: bool) -> None:
    lab = laboratory(max_attempts=0, max_total_ms=1_000)
    (item_id,) = lab.stored()
    lab.taken(lease_ms=lease_ms)
    lab.go_on(1_300)
    assert (item_id in lab.dbs[1].failures) is dies


def test_an_item_that_is_gone_when_its_age_is_asked_for() -> None:
    lab = laboratory(max_attempts=0, max_total_ms=1_000)
    (item_id,) = lab.stored()
    _, lease = leased(lab)
    answers = lab.operate(item_id, item_ops.fail(lease, 0, None, ""))
    lab.operate(item_id, item_ops.delete)
    lab.settle()
    assert [type(answer) for answer in answers] == [NotFound]


def test_exact_attempts_are_committed_before_the_reply() -> None:
    lab = laboratory(max_attempts=2, exact_attempts=True)
    (item_id,) = lab.stored()
    answers = lab.dequeue()
    assert not answers
    lab.settle()
    assert answers == [[item_id]]
    assert lab.dbs[1].timer[item_id].attempt == 1
    lab.reopen(clean=False)
    lab.go_on(61_000)
    assert lab.taken() == [item_id]
    assert lab.dbs[1].timer[item_id].attempt == 2
    assert lab.doubtful == []


def test_a_failed_transaction_leaves_the_item_where_it_was() -> None:
    lab = laboratory(max_attempts=1)
    (item_id,) = lab.stored()
    _, lease = leased(lab)
    answers = lab.operate(item_id, item_ops.fail(lease, 0, None, ""))
    lab.faults[1].commits.append("busy")
    lab.settle()
    assert (answers, lab.dbs[1].failures) == ([], {})
    lab.go_on(200)
    assert answers == [None]
    assert failure(lab, item_id)


def test_a_long_reason_is_cut_at_a_character() -> None:
    lab = laboratory(max_attempts=1)
    (item_id,) = lab.stored()
    fail(lab, "é" * 512 + "x\ud800")
    assert failure(lab, item_id).reason == "é".encode() * 512
    lab.stored()
    other = fail(lab, "a" + "é" * 600)
    assert failure(lab, other).reason == ("a" + "é" * 511).encode()


def test_counts_follow_the_item() -> None:
    lab = laboratory(max_attempts=1)
    (item_id,) = lab.stored()
    fail(lab)
    assert [len(lab.engine.state.topics[key].lanes()) for key in (KEY, DEAD)] == [1, 1]
    assert [lane.total for key in (KEY, DEAD) for lane in lab.engine.state.topics[key].lanes()] == [0, 1]
    assert lab.engine.state.shards[1].memory.totals == {"ns": 1}
    assert lab.engine.ready(DEAD) == 1
    assert item_id in lab.dbs[1].failures


@pytest.mark.parametrize("op", [item_ops.reject, item_ops.fail, item_ops.nack, item_ops.release])
def test_a_late_nack_while_the_item_dies(op: Any) -> None:
    """The transaction that moves the item is in flight: the nack neither moves it again nor changes its attempts."""
    lab = laboratory(max_attempts=1)
    lab.stored()
    item_id, lease = leased(lab, lease_ms=1_000)
    lab.go_on(999)
    lab.ring(1)
    (scan,) = lab.send()
    lab.arrive(*scan)
    (move,) = lab.send()
    how = {item_ops.reject: [""], item_ops.fail: [0, None, ""], item_ops.nack: [0, None], item_ops.release: []}[op]
    answers = lab.operate(item_id, op(lease, *how))
    lab.arrive(*move)
    lab.settle()
    assert [type(answer) for answer in answers] == [StaleLease]
    assert failure(lab, item_id).cause == EXPIRED
