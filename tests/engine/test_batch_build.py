"""What the next batch of a shard contains, within which bounds, and when there is one."""

from __future__ import annotations

import pytest

from foqs.buffers.shard_batch import BatchResult, Outcome, ShardBatch
from foqs.engine import batch_build, item_ops
from foqs.engine.batch_reads import LookRead
from foqs.engine.shard_owner import RETRY_MS
from foqs.errors import Unavailable
from foqs.rows import Batch
from tests.engine.laboratory import KEY, Laboratory, reads_of


def transaction_of(lab: Laboratory) -> Batch:
    """Send the only batch, carry it out, and return its transaction."""
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    assert batch.transaction is not None
    return batch.transaction


def kind(batch: ShardBatch) -> str:
    if batch.transaction is not None:
        return "transaction"
    return "reconnect" if batch.reconnect else "confirm" if batch.confirm else "reads"


# ------------------------------------------------------------------------------------------ contents


def test_requests_that_wait_share_the_next_transaction() -> None:
    lab = Laboratory(1)
    first = lab.enqueue()
    ((shard, batch),) = lab.send()
    later = [lab.enqueue(), lab.enqueue()]
    assert lab.send() == [], "one batch at a time"
    lab.arrive(shard, batch)
    assert len(first) == 1
    assert len(transaction_of(lab).inserts) == 2
    assert [len(answers) for answers in later] == [1, 1]


def test_nothing_to_do_makes_no_batch() -> None:
    lab = Laboratory(1)
    lab.engine.state.touch(lab.engine.state.shards[1])
    assert lab.send() == []


def test_ids_rise_in_the_order_of_the_requests() -> None:
    lab = Laboratory(1)
    first, second = lab.put(lab.item(), lab.item()), lab.put(lab.item())
    lab.settle()
    ids = first + second
    assert ids == [ids[0], ids[0] + 1, ids[0] + 2]


def test_a_topic_gets_its_row_with_its_first_item() -> None:
    lab = Laboratory(1)
    lab.put(lab.item(), lab.item())
    lab.put(lab.item(), key=("ns", "other"))
    assert [row[1:3] for row in transaction_of(lab).lanes_new] == [(b"ns", b"topic"), (b"ns", b"other")]
    lab.put(lab.item())
    assert not transaction_of(lab).lanes_new


def test_a_request_that_is_over_is_not_sent() -> None:
    lab = Laboratory(1)
    lab.enqueue()
    ((shard, batch),) = lab.send()
    late = lab.enqueue(timeout_ms=10)
    lab.ring(11)
    assert [type(answer) for answer in late] == [Unavailable]
    lab.arrive(shard, batch)
    lab.settle()
    assert len(lab.dbs[1].items) == 1


def test_only_the_last_change_of_an_item_is_sent() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    nacked = lab.operate(item_id, item_ops.nack(lab.lease_of(item_id), 0, None))
    deleted = lab.operate(item_id, item_ops.delete)
    transaction = transaction_of(lab)
    assert (*transaction.item_gone, *transaction.ready_new) == (item_id,)
    assert nacked == deleted == [None]


def test_a_newer_change_of_an_item_takes_the_place_of_the_older() -> None:
    lab = Laboratory(1, batch_rows=1)
    lab.stored(*(lab.item() for _ in range(6)))
    first, *ids = lab.taken()
    lease = lab.lease_of(first)
    extended = []
    for item_id in ids:  # a consumer that extends its lease faster than all changes are written
        extended += [lab.operate(first, item_ops.extend(lease, 60_000, durable=True))]
        lab.operate(item_id, item_ops.delete)
    assert first in [row.id for row in transaction_of(lab).timer_new]
    assert extended == [[None]] * len(ids)


# ------------------------------------------------------------------------------------------ bounds


def test_a_transaction_has_at_most_so_many_inserts() -> None:
    lab = Laboratory(1, batch_rows=3)
    for _ in range(3):
        lab.put(lab.item(), lab.item())
    assert [len(transaction_of(lab).inserts) for _ in range(3)] == [2, 2, 2]


def test_a_request_beyond_the_bound_goes_alone() -> None:
    lab = Laboratory(1, batch_rows=3)
    lab.put(*(lab.item() for _ in range(5)))
    lab.put(lab.item())
    assert [len(transaction_of(lab).inserts) for _ in range(2)] == [5, 1]


def test_a_transaction_has_at_most_so_many_bytes() -> None:
    lab = Laboratory(1)
    half_bytes = lab.stores[1].max_batch_bytes // 2
    for _ in range(3):
        lab.put(lab.item(b"x" * (half_bytes - 1)))
    assert [len(transaction_of(lab).inserts) for _ in range(2)] == [2, 1]


def test_a_transaction_has_at_most_so_many_changes() -> None:
    lab = Laboratory(1, batch_rows=2)
    lab.stored(*(lab.item() for _ in range(5)))
    answers = lab.ack(*((item_id, lab.lease_of(item_id)) for item_id in lab.taken()))
    assert len(transaction_of(lab).item_gone) == 4
    assert not answers
    assert len(transaction_of(lab).item_gone) == 1
    assert answers == [None] * 5


def test_a_batch_looks_up_a_bounded_number_of_items() -> None:
    lab = Laboratory(1)
    ids = lab.stored(*(lab.item() for _ in range(40)))
    answers = [lab.look(item_id) for item_id in ids]
    ((shard, batch),) = lab.send()
    assert [read.ids for read in reads_of(batch, LookRead)] == [ids[:32]]
    lab.arrive(shard, batch)
    lab.settle()
    assert [len(answer) for answer in answers] == [1] * 40


# ------------------------------------------------------------------------------------------ leases


def test_a_lease_is_written_after_half_the_allowed_delay() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    lab.ring(99)
    lab.settle()
    assert not lab.dbs[1].timer
    assert lab.engine.next_ms(lab.now_ms) == lab.now_ms + 1
    lab.ring(1)
    lab.settle()
    assert list(lab.dbs[1].timer) == [item_id]


def test_an_early_ack_saves_the_write_of_the_lease() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    lab.ack((item_id, lab.lease_of(item_id)))
    transaction = transaction_of(lab)
    assert (*transaction.timer_new, *transaction.item_gone) == (item_id,)
    lab.go_on(1_000)
    assert lab.engine.state.counters.lease_writes == 0
    assert lab.engine.state.counters.lease_writes_saved == 1


def test_a_lease_over_before_it_is_written_counts_an_attempt() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken(lease_ms=50)
    lab.go_on(200)
    assert lab.engine.state.counters.lease_writes == 0
    assert lab.dbs[1].ready[item_id].attempt == 1
    assert lab.taken() == [item_id]


def test_a_shard_that_drains_writes_its_leases_at_once() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    shard = lab.engine.state.shards[1]
    lab.engine.retire(shard)
    assert not shard.queue.idle
    lab.settle()
    assert list(lab.dbs[1].timer) == [item_id]
    assert shard.queue.idle


# ------------------------------------------------------------------------------------------ empty topics


def emptied(lab: Laboratory) -> None:
    (item_id,) = lab.stored()
    lab.taken()
    lab.ack((item_id, lab.lease_of(item_id)))
    lab.settle()


def test_an_empty_topic_loses_its_row_after_its_idle_time() -> None:
    lab = Laboratory(1, lane_idle_ms=5_000)
    emptied(lab)
    lab.go_on(4_000)
    assert lab.dbs[1].lanes
    lab.go_on(2_000)
    assert not lab.dbs[1].lanes
    assert KEY not in lab.engine.state.shards[1].memory.lanes
    lab.stored()
    assert len(lab.dbs[1].lanes) == 1


def test_a_topic_that_gets_an_item_keeps_its_row() -> None:
    """Its idle time is over in the transaction of the item, which may fail."""
    lab = Laboratory(1, lane_idle_ms=5_000)
    emptied(lab)
    lab.now_ms += 6_000
    lab.enqueue()
    assert not transaction_of(lab).lanes_gone
    assert lab.dbs[1].lanes


# ------------------------------------------------------------------------------------------ time and kind


@pytest.mark.parametrize("work", ["enqueue", "ack", "nothing"])
def test_when_the_shard_has_work(work: str) -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    shard = lab.engine.state.shards[1]
    if work == "enqueue":
        lab.enqueue()
    elif work == "ack":
        lab.operate(item_id, item_ops.ack(lab.lease_of(item_id)))
    expected = lab.now_ms + 100 if work == "nothing" else 0  # the lease is written then
    assert batch_build.next_ms(shard, lab.now_ms) == expected
    if expected:
        return
    lab.send()
    assert batch_build.next_ms(shard, lab.now_ms) == lab.now_ms + shard.owner.hang_ms + 1


def test_a_batch_that_failed_is_followed_after_a_pause() -> None:
    lab = Laboratory(1)
    answers = lab.enqueue()
    lab.faults[1].commits.append("busy")
    lab.settle()
    assert not answers
    shard = lab.engine.state.shards[1]
    assert batch_build.next_ms(shard, lab.now_ms) == lab.now_ms + RETRY_MS
    lab.ring(RETRY_MS - 1)
    assert lab.send() == []
    lab.ring(1)
    lab.settle()
    assert list(lab.dbs[1].items) == answers


def test_a_lost_connection_is_made_again_before_other_work() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    answers = lab.ack((item_id, lab.lease_of(item_id)))
    lab.faults[1].commits.append("down")
    lab.settle()
    lab.ring(lab.engine.state.config.breaker.pause_ms)
    kinds = []
    while sent := lab.send():
        kinds += [kind(batch) for _, batch in sent]
        lab.arrive(*sent[0])
    assert kinds == ["reconnect", "transaction"]
    assert answers == [None]


def test_a_database_that_failed_is_tried_by_a_confirmation() -> None:
    """No item is risked by the trial."""
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    lab.enqueue()
    acked = lab.ack((item_id, lab.lease_of(item_id)))
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, BatchResult(Outcome.FAILED, error="lock wait"))
    shard.owner.breaker.trip(lab.now_ms)
    lab.ring(lab.engine.state.config.breaker.pause_ms)
    ((_, trial),) = lab.send()
    assert kind(trial) == "confirm"
    lab.arrive(shard, trial)
    lab.settle()
    assert acked == [None]


@pytest.mark.parametrize(("after_ms", "confirm"), [(500, False), (501, True)])
def test_reads_confirm_the_owner_before_it_is_doubted(after_ms: int, confirm: bool) -> None:
    lab = Laboratory(1)
    lab.stored()
    lab.reopen()
    lab.now_ms += after_ms
    lab.dequeue()
    ((_, batch),) = lab.send()
    assert batch.confirm is confirm
