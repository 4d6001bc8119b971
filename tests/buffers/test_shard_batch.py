"""The items of a request by their lanes, and the rows of each change."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.buffers.shard_batch import Chunk, emit
from foqs.engine.calls import EnqueueCall
from foqs.fairness.keys import lane_key
from foqs.item import Cause, Change, Item, Move, Phase, Place, To, from_found
from foqs.rows import Batch, FailureCause, FailureRow, LaneRow, NewItem
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.tenants import of
from tests.sim.memory_database import MemoryDatabase
from tests.sim.memory_store import MemoryStore
from tests.support.lanes import lone_lane


def item(priority: int) -> NewItem:
    return NewItem(b"", None, None, priority, 0, 0, 0, 0, 0, 0)


@given(st.lists(st.sampled_from(["", "a", "b"]), max_size=8))
def test_each_lane_has_its_items_in_their_order(names: list[str]) -> None:
    keys = [lane_key(KEY, name) for name in names]  # equal ones are several objects
    items = [item(at) for at in range(len(keys))]
    chunk = Chunk(EnqueueCall(len(keys), lambda _: None), range(len(keys)), items, keys, 0)
    by_lane = chunk.by_lane()
    assert by_lane.keys() == set(keys)
    for key, own in by_lane.items():
        assert own == [one for one, its in zip(items, keys, strict=True) if its == key]


def test_mixed_tenants_enter_the_tail_in_order() -> None:
    lab = Laboratory(1)
    items, keys = [lab.item() for _ in range(6)], [of(name) for name in ("a", "b", "a", "c", "b", "a")]
    call = EnqueueCall(6, lambda _: None)
    lab.engine.enqueue(call, range(6), items, keys, [0] * 6, lab.now_ms, 5_000)
    lab.settle()
    tail = lab.engine.state.shards[1].memory.tail
    assert [one.id for one in tail.items()] == [one.id for one in items]
    assert tail.count == 6
    assert tail.bytes == sum(len(one.payload) for one in items)
    assert tail.first() == items[0].id


NOW_MS = 1_000
LEASE, OTHER = 77, 88
DEAD = LaneRow(2, b"ns", b"topic.dlq", b"")
FAILURE = FailureRow(0, 7, 5, FailureCause.FAILED, 3, NOW_MS, b"topic", b"", b"it broke")


def stored(
    place: Place, *, leased: bool, ttl_ms: int = 0, unindexed: bool = False
) -> tuple[MemoryStore, MemoryDatabase, Item]:
    """An item in the database, and as the host knows it."""
    db = MemoryDatabase(lambda: NOW_MS)
    store = MemoryStore(db)
    store.open("owner", take_over=False)
    due_ms = NOW_MS + 5 if place is Place.TIMER and not leased else 0
    new = NewItem(b"payload", None, None, 3, due_ms or NOW_MS, due_ms, NOW_MS, ttl_ms, 0, 1)
    new.id, new.lane, new.unindexed = 5, 1, unindexed
    store.commit(Batch(lanes_new=[LaneRow(1, b"ns", b"topic", b"")], inserts=[new], indexed_to=4))
    item = from_found(store.look([5])[0], lone_lane())
    if leased:
        item.phase, item.lease, item.attempt, item.lease_ms, item.lease_expires_at_ms = (
            Phase.LEASED,
            LEASE,
            1,
            50,
            NOW_MS + 50,
        )
        if place is Place.TIMER:
            carry_out(store, Change(item, To.LEASED, Cause.LEASE))
            item.place = Place.TIMER
    return store, db, item


def carry_out(store: MemoryStore, change: Change) -> None:
    batch = Batch()
    batch.fill()
    emit(change, batch)
    store.commit(batch)


@pytest.mark.parametrize(
    ("place", "leased", "ttl_ms"), list(itertools.product(Place, [False, True], [0, NOW_MS + 500]))
)
class TestWhereItGoes:
    def test_gone(self, place: Place, leased: bool, ttl_ms: int) -> None:
        store, db, item = stored(place, leased=leased, ttl_ms=ttl_ms)
        carry_out(store, Change(item, To.GONE, Cause.ACK))
        assert not (db.items or db.ready or db.timer or db.expiry)

    def test_ready(self, place: Place, leased: bool, ttl_ms: int) -> None:
        store, db, item = stored(place, leased=leased, ttl_ms=ttl_ms)
        carry_out(store, Change(item, To.READY, Cause.EXPIRED, lease=LEASE, attempt=4, metadata=b"half"))
        row = db.ready[5]
        assert (row.priority, row.deliver_after_ms, row.lease, row.attempt) == (3, item.deliver_after_ms, LEASE, 4)
        assert db.items[5].metadata == b"half"
        assert not db.timer

    def test_delayed(self, place: Place, leased: bool, ttl_ms: int) -> None:
        store, db, item = stored(place, leased=leased, ttl_ms=ttl_ms)
        carry_out(store, Change(item, To.DELAYED, Cause.NACK, due_ms=NOW_MS + 70))
        row = db.timer[5]
        assert (row.due_ms, row.lease, row.attempt) == (NOW_MS + 70, 0, item.attempt)
        assert db.items[5].deliver_after_ms == NOW_MS + 70
        assert not db.ready

    def test_leased(self, place: Place, leased: bool, ttl_ms: int) -> None:
        """The lease as it stands in memory when the transaction is built; an extension says when it ends."""
        store, db, item = stored(place, leased=leased, ttl_ms=ttl_ms)
        extension = Change(item, To.LEASED, Cause.EXTEND, due_ms=NOW_MS + 90)
        item.lease, item.attempt, item.lease_ms = OTHER, 2, 60
        carry_out(store, extension)
        row = db.timer[5]
        assert (row.due_ms, row.lease, row.attempt, row.lease_ms) == (NOW_MS + 90, OTHER, 2, 60)
        assert not db.ready


@pytest.mark.parametrize(("place", "leased"), list(itertools.product(Place, [False, True])))
def test_kept(place: Place, leased: bool) -> None:
    """Only the time at which its TTL is looked at again moves."""
    store, db, item = stored(place, leased=leased, ttl_ms=NOW_MS + 500)
    before = (dict(db.ready), dict(db.timer))
    carry_out(store, Change(item, To.KEPT, Cause.TTL, due_ms=NOW_MS + 900))
    assert db.expiry == {5: NOW_MS + 900}
    assert (db.ready, db.timer) == before


@pytest.mark.parametrize("dead_ttl_ms", [0, 900])
@pytest.mark.parametrize(
    ("place", "leased", "ttl_ms"), list(itertools.product(Place, [False, True], [0, NOW_MS + 500]))
)
def test_moved_and_back(place: Place, leased: bool, ttl_ms: int, dead_ttl_ms: int) -> None:
    """With its failure, which goes when it returns, or when it is removed."""
    store, db, item = stored(place, leased=leased, ttl_ms=ttl_ms)
    store.commit(Batch(lanes_new=[DEAD], expiry_from_ms=0))
    carry_out(store, move_of(item, 2, "topic.dlq", NOW_MS + 9, dead_ttl_ms, FAILURE))
    row = db.ready[5]
    assert row == (2, 3, NOW_MS + 9, 5, 0, LEASE, item.bytes)
    assert db.failures == {5: FAILURE._replace(lane=2)}
    assert db.expiry == ({5: dead_ttl_ms} if dead_ttl_ms else {})
    dead = from_found(store.look([5])[0], lone_lane("topic.dlq", 2))
    dead.lane.dead = True
    carry_out(store, move_of(dead, 1, "topic", NOW_MS + 20, 0, None))
    assert (db.ready[5].lane, db.failures, db.expiry) == (1, {}, {})


def test_a_dead_letter_goes_with_its_failure() -> None:
    store, db, item = stored(Place.READY, leased=False)
    store.commit(Batch(lanes_new=[DEAD]))
    carry_out(store, move_of(item, 2, "topic.dlq", NOW_MS, 0, FAILURE))
    dead = from_found(store.look([5])[0], lone_lane("topic.dlq", 2))
    dead.lane.dead = True
    carry_out(store, Change(dead, To.GONE, Cause.ACK))
    assert not (db.items or db.failures)


def move_of(item: Item, lane: int, topic: str, at_ms: int, expires_at_ms: int, failure: FailureRow | None) -> Change:
    change = Change(item, To.MOVED, Cause.NACK, attempt=0, lease=LEASE)
    change.move = Move(("ns", topic), at_ms, expires_at_ms, failure)
    change.target = lone_lane(topic, lane)
    return change


@pytest.mark.parametrize("to", [to for to in To if to is not To.MOVED])
def test_an_unindexed_item_leaves_no_row(to: To) -> None:
    store, db, item = stored(Place.READY, leased=True, ttl_ms=NOW_MS + 500, unindexed=True)
    assert item.unindexed
    carry_out(store, Change(item, to, Cause.NACK, due_ms=NOW_MS + 70))
    has_row = to not in (To.GONE, To.KEPT)
    assert len(db.ready) + len(db.timer) == has_row
    assert (len(db.unindexed), len(db.items)) == (to is To.KEPT, to is not To.GONE)
