"""Results of batches: committed, refused, failed and unknown parts of transactions, read rows, and their metrics."""

from __future__ import annotations

import pytest

from foqs.buffers.shard_batch import BatchResult, Outcome
from foqs.counters import Histogram
from foqs.engine import batch_apply, item_ops
from foqs.errors import FoqsError, Invalid, NotServed, Unavailable
from foqs.ids import make_id
from foqs.rows import AT_MOST_ONCE, Batch, LaneRow
from tests.engine.laboratory import KEY, Laboratory
from tests.sim.memory_database import POISON


def payloads(lab: Laboratory) -> list[bytes]:
    return sorted(body.payload for body in lab.dbs[1].items.values())


# ------------------------------------------------------------------------------------------ committed


def test_a_commit_answers_counts_and_delivers() -> None:
    lab = Laboratory(1)
    consumer = lab.dequeue(wait_ms=1_000)
    answers = lab.put(lab.item(priority=2), lab.item(priority=1))
    assert not answers
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    assert consumer == [[answers[1], answers[0]]]
    assert lab.engine.state.counters.namespaces.of("ns").enqueued == 2
    assert shard.memory.lanes[KEY].total == 2


def test_a_delayed_item_is_stored_but_not_ready() -> None:
    lab = Laboratory(1)
    delayed, ready = lab.stored(lab.item(delay_ms=1_000), lab.item())
    assert lab.engine.ready(KEY) == 1
    assert lab.taken() == [ready]
    assert delayed in lab.dbs[1].timer


# ------------------------------------------------------------------------------------------ refused or failed


def test_a_refused_item_leaves_the_rest_stored() -> None:
    lab = Laboratory(1)
    answers = lab.put(lab.item(b"a"), lab.item(POISON), lab.item(b"b"))
    other = lab.put(lab.item(b"c"))
    lab.settle()
    assert [type(answer) for answer in answers] == [int, Invalid, int]
    assert len(other) == 1
    assert payloads(lab) == [b"a", b"b", b"c"]
    assert sorted(lab.taken()) == sorted(lab.dbs[1].items)


def test_a_refused_change_leaves_the_item_leased() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    lease = lab.lease_of(item_id)
    nacked = lab.operate(item_id, item_ops.nack(lease, 0, POISON))
    lab.settle()
    assert [type(answer) for answer in nacked] == [Unavailable]
    assert lab.taken() == []
    acked = lab.ack((item_id, lease))
    lab.settle()
    assert acked == [None]


def test_a_refused_delete_leaves_the_item_ready() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    deleted = lab.operate(item_id, item_ops.delete)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, BatchResult(Outcome.COMMITTED, rejected={item_id: "a trigger refuses it"}))
    assert [type(answer) for answer in deleted] == [Unavailable]
    assert lab.dequeue() == [[item_id]]


def test_a_failed_transaction_is_repeated_whole() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    answers = lab.enqueue(b"new")
    acked = lab.ack((item_id, lab.lease_of(item_id)))
    lab.faults[1].commits.append("busy")
    lab.settle()
    assert not answers
    assert not acked
    lab.go_on(100)
    assert acked == [None]
    assert list(lab.dbs[1].items) == answers


def test_a_newer_change_replaces_the_one_that_failed() -> None:
    """An ack comes while an extension is in flight, whose transaction fails: one change answers both."""
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    lab.go_on(200)
    lease = lab.lease_of(item_id)
    extended = lab.operate(item_id, item_ops.extend(lease, 60_000))
    ((shard, batch),) = lab.send()
    acked = lab.ack((item_id, lease))
    lab.faults[1].commits.append("busy")
    lab.arrive(shard, batch)
    lab.ring(20)
    ((_, again),) = lab.send()
    assert [change.to.name for change in again.changes] == ["GONE"]
    lab.arrive(shard, again)
    assert extended == acked == [None]


def test_a_change_behind_a_removal_has_its_outcome() -> None:
    """A delete of the item waits while its ack is in flight."""
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    acked = lab.ack((item_id, lab.lease_of(item_id)))
    ((shard, batch),) = lab.send()
    deleted = lab.operate(item_id, item_ops.delete)
    lab.arrive(shard, batch)
    assert acked == deleted == [None]
    lab.settle()
    assert lab.engine.state.counters.removed == {"ack": 1}
    assert lab.engine.state.budget.used_bytes == 0


def test_unstored_items_are_left_to_the_caller() -> None:
    """`apply` does not decide which shard takes them."""
    lab = Laboratory(1)
    answers = lab.put(lab.item(), lab.item())
    ((shard, batch),) = lab.send()
    batch_apply.apply(shard, batch, BatchResult(Outcome.FAILED, error="lock wait"), lab.now_ms)
    ((chunk,), taken) = shard.queue.returned, shard.queue.chunks
    assert (len(chunk.items), chunk.in_flight, list(taken), answers) == (2, False, [], [])


# ------------------------------------------------------------------------------------------ unknown


@pytest.mark.parametrize("fault", ["applied", "not applied"])
def test_an_unknown_enqueue_is_stored_once(fault: str) -> None:
    lab = Laboratory(1)
    answers = lab.enqueue()
    lab.faults[1].commits.append(fault)
    lab.settle()
    assert not answers
    assert lab.dequeue() == [[]], "no item is delivered that may not exist"
    lab.go_on(500)
    assert list(lab.dbs[1].items) == answers
    assert lab.taken() == answers


@pytest.mark.parametrize("fault", ["applied", "not applied"])
@pytest.mark.parametrize("op", ["ack", "nack"])
def test_an_unknown_change_returns_no_item_twice(fault: str, op: str) -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    lease = lab.lease_of(item_id)
    answers = lab.operate(item_id, item_ops.ack(lease) if op == "ack" else item_ops.nack(lease, 0, None))
    lab.faults[1].commits.append(fault)
    lab.settle()
    consumers = [lab.dequeue(wait_ms=5_000) for _ in range(2)]
    lab.ring(100)
    lab.settle()
    assert consumers == [[], []]
    assert not answers
    lab.go_on(500)
    assert answers == [None]
    assert consumers == ([[], []] if op == "ack" else [[[item_id]], []])


def test_the_known_part_of_a_broken_bisection_is_applied() -> None:
    """The database refuses two rows. While their batch is halved, the outcome of one item becomes unknown."""
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    failed, unknown, refused, stored = [lab.put(lab.item(payload)) for payload in (POISON, b"a", POISON, b"b")]
    acked = lab.ack((item_id, lab.lease_of(item_id)))  # it is in the second half
    # All, both halves, the items of the second half, and those of the first.
    lab.faults[1].commits += ["", "", "", "", "", "", "applied"]
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    assert [type(answer) for answer in failed + refused + stored] == [Unavailable, Invalid, int]
    assert acked == [None]
    assert not unknown
    lab.go_on(1_000)
    assert sorted(lab.dbs[1].items) == sorted(unknown + stored)
    assert sorted(lab.taken()) == sorted(unknown + stored)
    assert shard.memory.lanes[KEY].total == 2


def test_a_failed_reconnect_leaves_the_outcome_open() -> None:
    lab = Laboratory(1)
    answers = lab.enqueue()
    lab.faults[1].commits.append("applied")
    lab.settle()
    lab.ring(lab.engine.state.config.breaker.pause_ms)
    ((shard, batch),) = lab.send()
    assert batch.reconnect
    lab.arrive(shard, batch, BatchResult(down=True, error="no route"))
    assert not answers
    assert lab.send() == []
    lab.go_on(2_000)
    assert list(lab.dbs[1].items) == answers


# ------------------------------------------------------------------------------------------ the reads


def foreign(lab: Laboratory) -> int:
    """Store an item in a topic that only another owner of the shard can have added."""
    db, item = lab.dbs[1], lab.item()
    item.id, item.lane = make_id(1, 1_000), 77
    db.apply(db.epoch, Batch(lanes_new=[LaneRow(77, b"ns", b"new", b"")], inserts=[item]))
    return item.id


def test_an_unknown_topic_shows_that_the_shard_moved() -> None:
    lab = Laboratory(1)
    item_id = foreign(lab)
    answers = lab.look(item_id)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    ((_, _, error),) = answers
    assert isinstance(error, NotServed)
    ((_, batch),) = lab.send()
    assert batch.confirm


def test_confirmation_dates_from_the_begin_of_the_batch() -> None:
    """Another owner may have taken the shard right after the database answered."""
    lab = Laboratory(1)
    lab.enqueue()
    ((shard, batch),) = lab.send()
    begun_ms = lab.now_ms
    lab.now_ms += 300
    lab.arrive(shard, batch)
    assert shard.owner.confirmed_ms == begun_ms


def test_a_failed_transaction_confirms_nothing() -> None:
    lab = Laboratory(1)
    shard = lab.engine.state.shards[1]
    before_ms = shard.owner.confirmed_ms
    lab.now_ms += 300
    lab.enqueue()
    lab.faults[1].commits.append("busy")
    ((_, batch),) = lab.send()
    lab.arrive(shard, batch)
    assert shard.owner.confirmed_ms == before_ms


def test_a_fenced_batch_ends_the_service_of_its_shard() -> None:
    """Its items were certainly not stored, so another shard stores them."""
    lab = Laboratory(1, 2)
    lab.engine.state.shards[2].owner.takes_new = False
    item_id = lab.stored(lab.item(delivery=AT_MOST_ONCE))[0]
    answers = lab.enqueue(b"new")
    deleted: list[FoqsError | None] = lab.operate(item_id, item_ops.delete)
    ((shard, batch),) = lab.send()
    lab.engine.state.shards[2].owner.takes_new = True
    lab.arrive(shard, batch, BatchResult(Outcome.FAILED, fenced=True))
    lab.settle()
    assert shard not in lab.engine.state.serving
    assert list(lab.dbs[2].items) == answers
    assert [type(answer) for answer in deleted] == [NotServed]


def values(histogram: Histogram) -> tuple[int, float]:
    return sum(histogram.counts), round(histogram.total, 6)


def test_a_transaction_counts_apart_from_its_reads() -> None:
    lab = Laboratory(1)
    metrics = lab.engine.state.shards[1].batch_metrics
    batches, transactions = values(metrics.seconds)[0], values(metrics.transaction_seconds)[0]
    lab.put(lab.item(), lab.item())
    lab.settle()
    assert values(metrics.seconds)[0] > batches
    assert values(metrics.transaction_seconds)[0] == transactions + 1


def test_a_batch_of_reads_counts_no_transaction() -> None:
    lab = Laboratory(1)
    metrics = lab.engine.state.shards[1].batch_metrics
    (item_id,) = lab.stored(lab.item())
    batches, transactions = values(metrics.seconds)[0], values(metrics.transaction_seconds)[0]
    lab.look(item_id)
    lab.settle()
    assert values(metrics.seconds)[0] == batches + 1
    assert values(metrics.transaction_seconds)[0] == transactions


def test_a_batch_that_failed_counts_as_well() -> None:
    lab = Laboratory(1)
    metrics = lab.engine.state.shards[1].batch_metrics
    before = values(metrics.transaction_rows)
    lab.faults[1].commits.append("busy")
    lab.put(lab.item(), lab.item())
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    count, rows = values(metrics.transaction_rows)
    assert (count - before[0], rows - before[1]) == (1, 2)
