"""A database without room: new items are refused or go elsewhere, while acks are stored and items delivered."""

from __future__ import annotations

import pytest

from foqs.buffers.shard_batch import BatchResult, Outcome
from foqs.config.schema import LimitsSection
from foqs.engine import item_ops
from foqs.engine.shard import Shard
from foqs.engine.shard_owner import FULL_MS, RETRY_MS
from foqs.errors import Unavailable
from tests.engine.laboratory import Laboratory

FULL = BatchResult(Outcome.FAILED, disk_full=True, error="a table or the disk is full (1114)")


def shard_of(lab: Laboratory) -> Shard:
    return lab.engine.state.shards[1]


def fail(lab: Laboratory) -> None:
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch, FULL)
    lab.ring(RETRY_MS)


def leased(lab: Laboratory, count: int = 1) -> list[int]:
    """Store and lease items, with leases that are written later."""
    lab.stored(*[lab.item() for _ in range(count)])
    return lab.taken()


@pytest.mark.parametrize("keyed", [False, True])
def test_acks_are_stored_without_the_new_items(keyed: bool) -> None:
    lab = Laboratory(1)
    (item_id,) = leased(lab)
    refused = lab.enqueue_keyed("a") if keyed else lab.enqueue()
    acked = lab.ack((item_id, lab.lease_of(item_id)))
    fail(lab)
    assert isinstance(refused[0], Unavailable)
    assert "the database of shard 1 is full" in str(refused[0])
    assert acked == []
    lab.settle()
    assert acked == [None]
    owner = shard_of(lab).owner
    assert owner.disk_full and owner.breaker.closed
    assert owner.breaker.opened == 0


def test_new_items_are_refused_at_once_for_a_time() -> None:
    lab = Laboratory(1)
    lab.enqueue()
    fail(lab)
    late = lab.enqueue()
    assert isinstance(late[0], Unavailable)
    assert (late[0].retry_after_ms or 0) == FULL_MS - RETRY_MS
    lab.settle()
    lab.ring(FULL_MS)
    again = lab.enqueue()
    fail(lab)
    assert isinstance(again[0], Unavailable)
    lab.ring(FULL_MS)
    stored = lab.enqueue()
    lab.settle()
    assert isinstance(stored[0], int)
    assert not shard_of(lab).owner.disk_full


def test_items_are_delivered_and_leases_written() -> None:
    lab = Laboratory(1)
    ids = lab.stored(*[lab.item() for _ in range(3)])
    for count in range(3):
        lab.enqueue()
        fail(lab)
        (item_id,) = lab.taken(count=1)
        assert item_id == ids[count]
        lab.go_on(FULL_MS)
    assert sorted(lab.dbs[1].timer) == ids


def test_removals_alone_are_tried_where_no_row_fits() -> None:
    lab = Laboratory(1)
    first, second = leased(lab, 2)
    nacked = lab.operate(second, item_ops.nack(lab.lease_of(second), 500, None))
    acked = lab.ack((first, lab.lease_of(first)))
    fail(lab)
    assert isinstance(nacked[0], Unavailable)
    assert acked == []
    ((shard, batch),) = lab.send()
    assert batch.removals_only
    lab.arrive(shard, batch)
    assert acked == [None]
    lab.go_on(2 * FULL_MS)
    assert list(lab.dbs[1].timer) == [second], "its lease is written when there is room"


def test_a_host_does_not_spin_on_leases_that_do_not_fit() -> None:
    lab = Laboratory(1)
    leased(lab)
    lab.faults[1].commits.extend(["full"] * 1_000)
    sent = 0
    end_ms = lab.now_ms + 10 * FULL_MS
    while lab.now_ms < end_ms:
        lab.ring(max(1, lab.engine.next_ms(lab.now_ms) - lab.now_ms))
        for shard, batch in lab.send():
            sent += batch.transaction is not None
            lab.arrive(shard, batch)
    assert 5 <= sent <= 20
    assert lab.taken() == []


def test_a_database_counts_as_full_for_a_minute() -> None:
    lab = Laboratory(1)
    ids = leased(lab, 2)
    lab.enqueue()
    fail(lab)
    for item_id, full, after_ms in zip(ids, (True, False), (0, 70_000), strict=True):
        lab.go_on(after_ms)
        lab.ack((item_id, lab.lease_of(item_id)))
        lab.settle()
        assert shard_of(lab).owner.disk_full is full


def test_expired_keys_are_removed_where_no_row_fits() -> None:
    """Else a database full of keys stays so, while a lease waits for room."""
    lab = Laboratory(1, sections={"limits": LimitsSection(dedup_window_ms=60_000)})
    lab.enqueue_keyed("a")
    lab.settle()
    lab.faults[1].lacks_room = lambda batch: bool(batch.inserts or batch.timer_new)  # type: ignore[method-assign]
    assert len(lab.taken()) == 1
    lab.go_on(5_000)
    assert shard_of(lab).owner.removals_only
    assert len(lab.dbs[1].dedup) == 1
    lab.go_on(70_000)
    assert len(lab.dbs[1].dedup) == 0
    assert shard_of(lab).owner.removals_only


def reopen_without_room(lab: Laboratory) -> None:
    lab.faults[1].no_tail = True
    lab.reopen(clean=False)
    lab.ring(shard_of(lab).config.confirm_ms + 1)  # the grace of an owner that may live
    lab.settle()


def test_the_next_owner_delivers_items_without_rows() -> None:
    lab = Laboratory(1)
    ids = lab.stored(*[lab.item() for _ in range(3)])
    reopen_without_room(lab)
    assert not lab.dbs[1].ready
    assert lab.taken() == ids
    assert lab.ack(*[(one, lab.lease_of(one)) for one in ids]) == []
    lab.settle()
    assert not lab.dbs[1].items


def tail_behind_rows(lab: Laboratory) -> tuple[int, int]:
    """Reopen the shard with an item that has a row, and one of its lane that has none. Return both."""
    first, second = lab.stored(lab.item(), lab.item())
    lab.reopen()
    assert lab.taken(count=1) == [first]
    lab.ack((first, lab.lease_of(first)))
    (third,) = lab.stored(lab.item())
    reopen_without_room(lab)
    assert lab.dbs[1].unindexed.keys() == {third}
    return second, third


def test_an_item_behind_rows_waits_for_its_own() -> None:
    lab = Laboratory(1, confirm_ms=100)
    second, third = tail_behind_rows(lab)
    assert lab.taken() == [second]
    lab.go_on(FULL_MS)
    assert not lab.dbs[1].unindexed
    assert lab.taken() == [third]


def test_leases_are_written_without_rows_of_other_items() -> None:
    lab = Laboratory(1, confirm_ms=100)
    second, third = tail_behind_rows(lab)
    lab.ring(FULL_MS)
    fail(lab)
    assert lab.taken() == [second]
    lab.go_on(FULL_MS // 2)
    assert second in lab.dbs[1].timer
    assert lab.dbs[1].unindexed.keys() == {third}
    lab.go_on(FULL_MS)
    assert not lab.dbs[1].unindexed
