"""Items without a row in `ready`: when they are stored so, how long they stay so, and what their transactions write."""

from __future__ import annotations

import pytest

from foqs.buffers.tail import MAX_BYTES
from foqs.engine import item_ops
from foqs.engine.listing import Listed, Listing
from foqs.errors import FoqsError
from foqs.rows import AT_MOST_ONCE, Batch, ReadyRow
from foqs.store.protocol import StoreBusy
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.test_batch_build import transaction_of

OTHER = ("ns", "other")


def unindexed(lab: Laboratory) -> list[int]:
    """Ids, as the database and the host have them."""
    ids, tail = sorted(lab.dbs[1].unindexed), lab.engine.state.shards[1].memory.tail
    assert [item.id for item in tail.items()] == ids
    assert (tail.count, tail.first()) == (len(ids), ids[0] if ids else None)
    return ids


def rows(transaction: Batch) -> tuple[int, ...]:
    """How many rows each list of index rows has."""
    return tuple(
        len(part)
        for part in (transaction.ready_gone, transaction.ready_new, transaction.timer_gone, transaction.timer_new)
    )


def close_to_full(lab: Laboratory) -> None:
    lab.engine.state.budget.take(lab.engine.state.budget.limit_bytes // 2 + 1)


# ------------------------------------------------------------------------------------------ stores


def test_an_item_that_is_acked_early_costs_no_index_row() -> None:
    lab = Laboratory(1)
    ids = lab.stored(lab.item(), lab.item())
    assert unindexed(lab) == ids
    answers = lab.ack(*((item_id, lab.lease_of(item_id)) for item_id in lab.taken()))
    assert rows(transaction_of(lab)) == (0, 0, 0, 0)
    assert (answers, unindexed(lab), lab.dbs[1].items) == ([None, None], [], {})


def test_a_delayed_item_has_its_row() -> None:
    lab = Laboratory(1)
    ids = lab.stored(lab.item(delay_ms=10), lab.item())
    assert (unindexed(lab), list(lab.dbs[1].timer)) == (ids[1:], ids[:1])


def test_an_item_behind_its_window_has_its_row() -> None:
    lab = Laboratory(1, window_rows=16, page_rows=8)
    lab.stored(*(lab.item(priority=1) for _ in range(20)))
    lab.settle()
    before, behind = lab.stored(lab.item(priority=0), lab.item(priority=2))
    window = lab.engine.state.shards[1].memory.lanes[KEY].window
    assert window is not None and window.more
    assert behind in lab.dbs[1].ready
    assert before in lab.engine.state.shards[1].memory.known


def test_a_window_of_that_many_rows_takes_no_more() -> None:
    lab = Laboratory(1, window_rows=16)
    ids = lab.stored(*(lab.item() for _ in range(16)))
    assert unindexed(lab) == ids
    assert lab.stored()[0] in lab.dbs[1].ready


def test_the_number_of_unindexed_items_has_a_bound() -> None:
    lab = Laboratory(1, tail_items=3)
    ids = lab.stored(lab.item(), lab.item())
    assert lab.stored(lab.item(), lab.item()) == list(lab.dbs[1].ready)
    ids += lab.stored()
    assert unindexed(lab) == ids
    lab.ack(*((item_id, lab.lease_of(item_id)) for item_id in lab.taken(count=3)))
    lab.settle()
    assert lab.stored()[0] in unindexed(lab)


def test_the_bytes_of_unindexed_items_have_a_bound() -> None:
    lab = Laboratory(1)
    lab.engine.state.shards[1].memory.tail.bytes = MAX_BYTES - 10
    first, second = lab.stored(lab.item(b"x" * 10)), lab.stored(lab.item(b"x"))
    assert (list(lab.dbs[1].unindexed), list(lab.dbs[1].ready)) == (first, second)


def test_items_get_their_rows_when_memory_is_short() -> None:
    lab = Laboratory(1)
    close_to_full(lab)
    lab.stored()
    assert unindexed(lab) == []


# ------------------------------------------------------------------------------------------ what ends it


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (lambda lease: item_ops.nack(lease, 0, None), (0, 1, 0, 0)),
        (lambda lease: item_ops.nack(lease, 50, b"more"), (0, 0, 0, 1)),
        (lambda lease: item_ops.delete, (0, 0, 0, 0)),
    ],
)
def test_a_change_writes_the_first_row(op: item_ops.Op, expected: tuple[int, ...]) -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    answers = lab.operate(item_id, op(lab.lease_of(item_id)))  # type: ignore[call-arg, arg-type]
    assert rows(transaction_of(lab)) == expected
    assert (answers, unindexed(lab)) == ([None], [])


def test_a_written_lease_has_a_row() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken()
    lab.go_on(200)
    assert (list(lab.dbs[1].timer), unindexed(lab)) == ([item_id], [])
    lab.ack((item_id, lab.lease_of(item_id)))
    assert rows(transaction_of(lab)) == (0, 0, 1, 0)


def test_an_unwritten_lease_leaves_its_item_unindexed() -> None:
    lab = Laboratory(1)
    ids = lab.stored()
    lab.taken()
    assert lab.operate(ids[0], item_ops.release(lab.lease_of(ids[0]))) == [None]
    assert unindexed(lab) == ids
    assert lab.taken() == ids


def test_an_at_most_once_item_gets_a_lease_row() -> None:
    lab = Laboratory(1)
    ids = lab.stored(lab.item(delivery=AT_MOST_ONCE))
    assert lab.taken() == ids
    assert (list(lab.dbs[1].timer), unindexed(lab)) == (ids, [])


def test_a_ttl_ends_an_unindexed_item() -> None:
    lab = Laboratory(1)
    lab.stored(lab.item(ttl_ms=50))
    lab.go_on(100)
    assert (lab.dbs[1].items, unindexed(lab)) == ({}, [])


def test_a_failed_transaction_indexes_nothing() -> None:
    lab = Laboratory(1)
    ids = lab.stored(lab.item())
    lab.taken()
    lab.operate(ids[0], item_ops.nack(lab.lease_of(ids[0]), 0, None))
    lab.faults[1].commits.append("busy")
    ((shard, batch),) = lab.send()
    lab.arrive(shard, batch)
    assert unindexed(lab) == ids
    lab.go_on(100)
    assert (list(lab.dbs[1].ready), unindexed(lab)) == (ids, [])


def test_an_unknown_outcome_is_applied_when_it_is_known() -> None:
    lab = Laboratory(1)
    ids = lab.stored(lab.item())
    lab.taken()
    lab.ack((ids[0], lab.lease_of(ids[0])))
    lab.faults[1].commits.append("applied")
    lab.go_on(3_000)
    assert unindexed(lab) == []


# ------------------------------------------------------------------------------------------ memory


def test_a_dropped_window_writes_the_rows_of_its_items() -> None:
    lab = Laboratory(1)
    ids = lab.stored(lab.item(), lab.item())
    shard = lab.engine.state.shards[1]
    shard.memory.drop_window(shard.memory.lanes[KEY])
    assert unindexed(lab) == ids
    transaction = transaction_of(lab)
    assert [row.id for row in transaction.ready_new] == ids
    assert (transaction.indexed_from, transaction.indexed_to) == (ids[0] - 1, ids[1])
    assert transaction.only(set(), lanes=False).indexed_to == ids[0] - 1
    assert unindexed(lab) == []
    assert lab.taken() == ids


def test_a_window_that_is_cut_during_the_transaction() -> None:
    lab = Laboratory(1)
    first = lab.stored(lab.item(priority=1))
    assert listed(lab, 1) == first, "it has its row now"
    answers = lab.put(lab.item(priority=0), lab.item(priority=2))
    ((shard, batch),) = lab.send()
    shard.memory.drop_window(shard.memory.lanes[KEY])
    lab.arrive(shard, batch)
    assert unindexed(lab) == answers
    lab.settle()
    assert unindexed(lab) == []
    assert lab.taken() == [answers[0], *first, answers[1]]


def test_a_delete_replaces_the_write_of_a_row() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    shard = lab.engine.state.shards[1]
    shard.memory.drop_window(shard.memory.lanes[KEY])
    answers = lab.operate(item_id, item_ops.delete)
    assert rows(transaction_of(lab)) == (0, 0, 0, 0)
    assert (answers, unindexed(lab), lab.dbs[1].items) == ([None], [], {})


def test_an_idle_shard_writes_for_its_windows() -> None:
    """Also a shard that has nothing else to do: its items may not be leased until their rows are there."""
    lab = Laboratory(1, 2)
    shard = lab.engine.state.shards[1]
    while not shard.memory.tail.count:
        lab.stored()
    lab.engine.state.residents.drop_idle(0, 0, 10)
    assert {one.number for one, _ in lab.send()} >= {1}


# ------------------------------------------------------------------------------------------ bounds of the index


def test_every_transaction_saves_indexed_to() -> None:
    lab = Laboratory(1)
    ids = lab.stored(lab.item(), lab.item(), lab.item())
    assert lab.dbs[1].indexed_to == ids[0] - 1
    first, second = lab.taken(count=2)
    lab.ack((second, lab.lease_of(second)))
    transaction = transaction_of(lab)
    assert (transaction.indexed_from, transaction.indexed_to) == (first - 1, first - 1), "the first is leased"
    lab.ack((first, lab.lease_of(first)))
    lab.put(lab.item())
    transaction = transaction_of(lab)
    assert transaction.indexed_to == first - 1
    lab.put(lab.item())
    assert transaction_of(lab).indexed_to == ids[2] - 1, "the transaction before removed the first"
    close_to_full(lab)
    lab.taken()
    lab.ack(*((item_id, lab.lease_of(item_id)) for item_id in unindexed(lab)))
    lab.settle()
    lab.put(lab.item())
    transaction = transaction_of(lab)
    assert transaction.indexed_to == transaction.inserts[0].id, "all items have their rows"


def test_items_far_back_get_their_rows_in_place() -> None:
    """The next owner reads all items behind the first unindexed one. They may be leased while they are written."""
    lab = Laboratory(1, tail_items=10)
    waiting = lab.stored(lab.item(), lab.item(), key=OTHER)
    for _ in range(17):
        (item_id,) = lab.stored()
        lab.ack((item_id, lab.lease_of(*lab.taken())))
        lab.settle()
    assert unindexed(lab) == waiting
    lab.put(lab.item(), lab.item())
    ((shard, batch),) = lab.send()
    assert [item.id for item in batch.indexed] == waiting[:1]
    leased = lab.dequeue(keys=(OTHER,))
    assert leased == [waiting]
    acked = lab.ack((waiting[0], lab.lease_of(waiting[0])))
    lab.arrive(shard, batch)
    assert lab.dbs[1].ready == {waiting[0]: ReadyRow(1, 0, lab.now_ms, waiting[0], 0, 0, 7)}
    assert rows(transaction_of(lab)) == (1, 0, 0, 0)
    assert (acked, lab.dbs[1].ready) == ([None], {})


def test_waiting_items_cause_no_transaction() -> None:
    lab = Laboratory(1, tail_items=1)
    ids = lab.stored()
    commits = lab.dbs[1].commits
    lab.go_on(60_000)
    assert (unindexed(lab), lab.dbs[1].commits) == (ids, commits)


@pytest.mark.parametrize("fault", ["busy", "applied", "not applied"])
def test_rows_in_place_whose_transaction_fails(fault: str) -> None:
    lab = Laboratory(1, tail_items=2)
    waiting = lab.stored(lab.item(), key=OTHER)
    lab.stored(lab.item(), lab.item(), lab.item())
    answers = lab.put(lab.item())
    lab.faults[1].commits.append(fault)
    lab.go_on(3_000)
    assert (len(answers), unindexed(lab)[:1] == waiting) == (1, False)
    assert lab.taken(keys=(OTHER,)) == waiting


# ------------------------------------------------------------------------------------------ what reads see


def listed(lab: Laboratory, state: int) -> list[int]:
    """What ListItems shows."""
    found: list[int] = []

    def reply(items: list[Listed], cursor: str | None) -> None:
        found.extend(item.body.id for item in items)

    def fail(error: FoqsError) -> None:
        raise error

    lab.engine.list(Listing(lab.engine.state, KEY, state, 100, 1 << 20, None, reply, fail), lab.now_ms, 1_000)
    lab.settle()
    return found


def test_a_list_shows_every_ready_item() -> None:
    lab = Laboratory(1)
    ids, other = lab.stored(lab.item(), lab.item(), lab.item()), lab.stored(lab.item(), key=OTHER)
    assert lab.taken(count=1) == ids[:1]
    assert listed(lab, 1) == ids[1:]
    assert unindexed(lab) == other
    assert listed(lab, 3) == ids[:1]


def test_a_list_shows_items_that_are_stored_beside_it() -> None:
    lab = Laboratory(1)
    ids = lab.stored()
    answers = lab.put(lab.item())
    assert listed(lab, 1) == [*ids, *answers]


def test_a_look_knows_an_unindexed_item() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    answers = lab.look(item_id)
    lab.settle()
    ((item, found, error),) = answers
    assert (item.id, item.unindexed, found.body.id, error) == (item_id, True, item_id, None)


def test_a_replaced_owner_finds_an_item_of_the_next() -> None:
    """It cannot change it: every transaction is fenced."""
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    shard = lab.engine.state.shards[1]
    shard.memory.forget(shard.memory.known[item_id])
    answers = lab.look(item_id)
    lab.settle()
    ((item, found, _),) = answers
    assert (item.id, item.unindexed, item.bytes, found.body.payload) == (item_id, True, 7, b"payload")


@pytest.mark.parametrize("clean", [True, False])
def test_the_next_owner_delivers_all(clean: bool) -> None:
    lab = Laboratory(1)
    ids = lab.stored(lab.item(), lab.item(), lab.item())
    lab.taken(count=1)
    lab.reopen(clean=clean)
    assert unindexed(lab) == []
    lab.go_on(3_000)
    assert lab.taken() == ids


def test_a_read_that_fails_is_made_again() -> None:
    lab = Laboratory(1)
    ids = lab.stored()
    lab.faults[1].reads.append(StoreBusy("lock wait"))
    found = listed(lab, 1)
    lab.go_on(100)
    assert found == ids
