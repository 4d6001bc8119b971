"""Delays, leases and TTLs that are over: which rows move, and how far the checkpoints of their scans go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foqs.buffers.checkpoint import RETRY_MS
from foqs.buffers.shard_batch import BatchResult
from foqs.engine import item_ops
from foqs.engine.batch_reads import DueRead, ExpiringRead
from foqs.engine.shard import Shard
from foqs.ids import make_id
from foqs.item import Phase
from foqs.rows import Batch, LaneRow, Scan
from tests.engine.laboratory import KEY, Laboratory, reads_of


def written(lab: Laboratory, lease_ms: int = 1_000, **item: int) -> int:
    """Return the id of a new item whose lease is written, and ends in 800 ms."""
    (item_id,) = lab.stored(lab.item(**item))
    lab.taken(lease_ms=lease_ms)
    lab.go_on(200)
    assert item_id in lab.dbs[1].timer
    return item_id


# ------------------------------------------------------------------------------------------ delays and leases


def test_a_delayed_item_is_delivered_when_it_is_due() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored(lab.item(delay_ms=1_000))
    consumer = lab.dequeue(wait_ms=5_000)
    lab.go_on(999)
    assert not consumer
    lab.go_on(1)
    assert consumer == [[item_id]]


def test_an_item_whose_lease_is_over_is_delivered_again() -> None:
    lab = Laboratory(1)
    item_id = written(lab)
    consumer = lab.dequeue(wait_ms=5_000)
    lab.go_on(799)
    assert not consumer
    lab.go_on(1)
    assert consumer == [[item_id]]
    assert lab.engine.state.counters.namespaces.of("ns").expired == 1
    assert lab.engine.state.counters.redelivered == 1


def test_a_lease_that_is_only_in_the_database_ends_too() -> None:
    lab = Laboratory(1)
    item_id = written(lab)
    lab.reopen()
    assert item_id not in lab.engine.state.shards[1].memory.known
    lab.go_on(800)
    assert lab.taken() == [item_id]


def test_an_extension_in_time_keeps_the_lease() -> None:
    """The extension waits while the scan that found the old end is in flight."""
    lab = Laboratory(1)
    item_id = written(lab)
    lease = lab.lease_of(item_id)
    lab.ring(800)
    ((shard, batch),) = lab.send()
    assert reads_of(batch, DueRead)
    extended = lab.operate(item_id, item_ops.extend(lease, 5_000))
    lab.arrive(shard, batch)
    lab.go_on(1_000)
    assert extended == [None]
    assert lab.engine.ready(KEY) == 0
    assert shard.memory.known[item_id].phase is Phase.LEASED
    acked = lab.ack((item_id, lease))
    lab.settle()
    assert acked == [None]


def test_an_ack_beats_the_end_of_its_lease() -> None:
    """The scan found the lease's row; its change waits when the ack arrives."""
    lab = Laboratory(1)
    item_id = written(lab)
    lease = lab.lease_of(item_id)
    lab.ring(800)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    acked = lab.ack((item_id, lease))
    lab.settle()
    assert acked == [None]
    assert lab.engine.state.counters.removed == {"ack": 1}
    lab.go_on(1_000)
    assert shard.queue.timers.scan is None, "the scan is over though its change was replaced"


def test_nothing_ends_before_it_ends_in_the_database() -> None:
    """The host's clock is ahead of the database's by more than `clock_jump_ms`."""
    lab = Laboratory(1)
    lab.stored(lab.item(delay_ms=1_000), lab.item(ttl_ms=1_000, priority=1))
    lab.db_behind_ms = 3_000
    lab.ring(1_001)
    lab.settle()
    assert (len(lab.dbs[1].timer), len(lab.dbs[1].items)) == (1, 2)
    lab.db_behind_ms = 0
    lab.ring(RETRY_MS)
    lab.settle()
    assert (len(lab.dbs[1].timer), len(lab.dbs[1].items)) == (0, 1)


# ------------------------------------------------------------------------------------------ checkpoints


def due_from_ms(lab: Laboratory) -> int:
    """Store an item, so that the checkpoint is saved, and return what the database has."""
    lab.stored(lab.item(b"saves"), key=("ns", "other"))
    return lab.dbs[1].due_from_ms


def test_the_checkpoint_follows_committed_changes() -> None:
    lab = Laboratory(1)
    at_ms = lab.now_ms + 1_000
    lab.stored(lab.item(delay_ms=1_000))
    lab.ring(1_500)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    assert shard.queue.timers.from_ms <= at_ms, "the change of the row it found is not committed"
    lab.settle()
    assert due_from_ms(lab) == at_ms + 500
    lab.stored(lab.item(delay_ms=2_000))
    lab.ring(2_000)
    ((_, batch),) = lab.send()
    assert [read.wanted.from_ms for read in reads_of(batch, DueRead)] == [at_ms + 500]


def test_a_failed_change_leaves_the_checkpoint_behind() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored(lab.item(delay_ms=1_000))
    at_ms = lab.now_ms + 1_000
    lab.ring(1_500)
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    lab.faults[1].commits.append("busy")
    lab.settle()
    assert shard.queue.timers.from_ms <= at_ms
    lab.go_on(100)
    assert lab.taken() == [item_id]
    assert shard.queue.timers.from_ms > at_ms


@pytest.mark.parametrize("what", ["delays", "ttls"])
def test_a_failed_scan_is_made_again(what: str) -> None:
    lab = Laboratory(1)
    lab.stored(lab.item(delay_ms=1_000) if what == "delays" else lab.item(ttl_ms=1_000))
    lab.ring(1_000)
    ((shard, batch),) = lab.send()
    kind = DueRead if what == "delays" else ExpiringRead
    (first,) = reads_of(batch, kind)
    lab.arrive(shard, batch, BatchResult(error="lock wait"))
    lab.ring(RETRY_MS)
    ((_, batch),) = lab.send()
    (again,) = reads_of(batch, kind)
    assert again.wanted.from_ms == first.wanted.from_ms
    lab.arrive(shard, batch)
    lab.settle()
    assert (lab.engine.ready(KEY), len(lab.dbs[1].items)) == ((1, 1) if what == "delays" else (0, 0))


def test_a_scan_without_rows_moves_its_checkpoint() -> None:
    lab = Laboratory(1)
    shard = lab.engine.state.shards[1]
    for checkpoint, read in ((shard.queue.timers, DueRead), (shard.queue.ttls, ExpiringRead)):
        wanted = checkpoint.begin(lab.now_ms + 700)
        bound_ms = wanted.to_ms
        read(checkpoint, wanted, 10).missed(shard, lab.now_ms)
        assert checkpoint.from_ms < bound_ms
        wanted = checkpoint.begin(lab.now_ms + 700)
        read(checkpoint, wanted, 10, Scan([], True, 0, lab.now_ms)).apply(shard, False, lab.now_ms)
        assert checkpoint.from_ms == bound_ms == lab.now_ms + 700


@pytest.mark.parametrize(("what", "read_of"), [("delay_ms", DueRead), ("ttl_ms", ExpiringRead)])
def test_a_scan_beyond_its_limit_goes_on_behind_its_last_row(
    what: str, read_of: type[DueRead] | type[ExpiringRead]
) -> None:
    lab = Laboratory(1, scan_rows=2)
    ids = []
    for at_ms in (1_000, 1_001, 1_002, 1_003, 1_004):
        ids += lab.stored(lab.item(**{what: at_ms}))
    lab.ring(2_000)
    found = []
    while sent := lab.send():
        ((shard, batch),) = sent
        found += [read.wanted.from_ms for read in reads_of(batch, read_of)]
        lab.arrive(shard, batch)
    assert found == sorted(found)
    assert len(found) >= 3
    assert lab.taken() == (ids if what == "delay_ms" else [])


def test_a_row_of_an_unknown_topic_stays_and_is_reported() -> None:
    """Another owner of the shard added the topic, so this one asks whether it still owns the shard."""
    lab = Laboratory(1)
    db, item = lab.dbs[1], lab.item(delay_ms=100, ttl_ms=100)
    item.id, item.lane = make_id(1, 1_000), 77
    db.apply(db.epoch, Batch(lanes_new=[LaneRow(77, b"ns", b"new", b"")], inserts=[item]))
    shard: Shard = lab.engine.state.shards[1]
    for scan in (shard.queue.timers, shard.queue.ttls):
        scan.inserted(item.expires_at_ms)
    lab.ring(150)
    ((_, batch),) = lab.send()
    lab.arrive(shard, batch)
    ((_, batch),) = lab.send()
    assert batch.confirm
    assert item.id in db.timer
    assert shard.queue.timers.from_ms == shard.queue.ttls.from_ms == item.expires_at_ms


# ------------------------------------------------------------------------------------------ TTLs


def test_an_item_is_removed_when_its_ttl_is_over() -> None:
    lab = Laboratory(1)
    lab.stored(lab.item(ttl_ms=1_000))
    lab.go_on(999)
    assert lab.dbs[1].items
    lab.go_on(1)
    assert not lab.dbs[1].items
    assert lab.engine.state.counters.removed == {"ttl": 1}
    assert lab.taken() == []


def test_a_ttl_waits_for_the_end_of_a_live_lease() -> None:
    lab = Laboratory(1)
    item_id = written(lab, ttl_ms=500)
    lab.go_on(799)
    assert item_id in lab.dbs[1].items
    lab.go_on(100)
    assert not lab.dbs[1].items
    assert lab.engine.state.counters.removed == {"ttl": 1}


@pytest.mark.parametrize(
    "end",
    [
        lambda lease: item_ops.nack(lease, 0, None),
        lambda lease: item_ops.nack(lease, 100, None),
        lambda lease: item_ops.nack(lease, 0, b"metadata"),
        lambda lease: item_ops.fail(lease, 0, None, "it broke"),
        lambda lease: item_ops.reject(lease, "it is wrong"),
        item_ops.release,
    ],
    ids=["nack", "nack with a delay", "nack with metadata", "failure", "rejection", "release"],
)
def test_an_end_of_the_lease_behind_the_ttl_removes_the_item(end: Callable[[int], item_ops.Op]) -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored(lab.item(ttl_ms=500))
    lab.taken()
    lab.go_on(600)
    ended = lab.operate(item_id, end(lab.lease_of(item_id)))
    lab.settle()
    assert ended == [None]
    assert not lab.dbs[1].items
    assert lab.engine.state.counters.removed == {"ttl": 1}


def test_a_delete_beats_the_end_of_the_ttl() -> None:
    """It waits while the scan that found the TTL is in flight."""
    lab = Laboratory(1)
    (item_id,) = lab.stored(lab.item(ttl_ms=1_000))
    lab.ring(1_000)
    ((shard, batch),) = lab.send()
    assert reads_of(batch, ExpiringRead)
    deleted = lab.operate(item_id, item_ops.delete)
    lab.arrive(shard, batch)
    lab.settle()
    assert deleted == [None]
    assert lab.engine.state.counters.removed == {"delete": 1}


def test_a_delayed_item_is_not_delivered_after_its_ttl() -> None:
    lab = Laboratory(1)
    lab.stored(lab.item(delay_ms=1_000, ttl_ms=1_000))
    consumer = lab.dequeue(wait_ms=3_000)
    lab.go_on(4_000)
    assert consumer == [[]]
    assert lab.engine.state.counters.removed == {"ttl": 1}


def test_an_ack_after_the_ttl_counts_as_an_ack() -> None:
    lab = Laboratory(1)
    item_id = written(lab, ttl_ms=500)
    lab.go_on(600)
    acked = lab.ack((item_id, lab.lease_of(item_id)))
    lab.settle()
    assert acked == [None]
    assert lab.engine.state.counters.removed == {"ack": 1}


def test_a_ttl_waits_for_the_replaced_owner() -> None:
    """It may have the item in memory, and lease it after the row was removed."""
    lab = Laboratory(1)
    (item_id,) = lab.stored(lab.item(ttl_ms=300))
    lab.reopen(clean=False)
    lab.go_on(1_000)
    assert item_id in lab.dbs[1].items
    lab.go_on(100)
    assert not lab.dbs[1].items
