"""The part of the contract that is about items that move between lanes, and why they did."""

from __future__ import annotations

import pytest

from foqs.rows import Batch, FailureCause, FailureRow, Found, LaneRow, NewItem
from foqs.store.protocol import RowRejected, ShardStore
from tests.store.row_contract import body, insert, ready_key, ready_row, timer_row
from tests.store.shards import NOW_MS, Shard, new_item

DEAD = LaneRow(2, b"ns", b"topic.dlq", b"")
LATER_MS = NOW_MS + 5


def failure_of(item: NewItem, reason: bytes = b"it broke", fingerprint: int = -(1 << 63)) -> FailureRow:
    return FailureRow(
        2, fingerprint, item.id, FailureCause.EXPIRED, 5, LATER_MS, b"topic", b"\xff", reason, rules=b'{"a":1}'
    )


def moved(item: NewItem, lane: int, at_ms: int, expires_at_ms: int) -> NewItem:
    """The item as it is in its new lane."""
    made = new_item(lane=lane, item_id=item.id, priority=item.priority, deliver_after_ms=at_ms)
    made.expires_at_ms = expires_at_ms
    return made


def dead_letters(count: int, reason: bytes) -> tuple[list[NewItem], list[NewItem], Batch]:
    """Return items, the same as dead letters, and the transaction between the two, from `ready` and from `timer`."""
    items = [new_item(number, expires_at_ms=NOW_MS * (number % 2), priority=number) for number in range(1, count + 1)]
    dead = [moved(item, 2, LATER_MS, LATER_MS * (number % 3 > 0)) for number, item in enumerate(items)]
    batch = Batch(
        lanes_new=[DEAD],
        ready_gone=[ready_key(item) for item in items[1:]],
        timer_gone=[items[0].id],
        moved=[(one.id, one.lane, one.deliver_after_ms, one.expires_at_ms) for one in dead],
        ready_new=[ready_row(one, lease=7) for one in dead],
        expiry_gone=[item.id for item in items],
        expiry_new=[(one.expires_at_ms, one.id) for one in dead if one.expires_at_ms],
        failure_new=[failure_of(item, reason, number - count // 2) for number, item in enumerate(items)],
        next_number=10_000,
    )
    return items, dead, batch


class DeadContract:
    """`store` is open, with lane 1."""

    @pytest.mark.parametrize(("count", "reason"), [(3, b""), (250, b"\0'\\" * 300)])
    def test_items_move_to_another_lane(self, store: ShardStore, count: int, reason: bytes) -> None:
        items, dead, batch = dead_letters(count, reason)
        insert(store, *items)
        leased = Batch(ready_gone=[ready_key(items[0])], timer_new=[timer_row(items[0], NOW_MS, 7, 5)])
        leased.next_number = 10_000
        store.commit(leased)
        store.commit(batch)
        ids = [item.id for item in items]
        assert store.page(1, None, 10) == store.due(0, NOW_MS, 10).rows == []
        assert store.page(2, None, count + 1) == [ready_row(one, lease=7) for one in dead]
        assert sorted(store.look(ids)) == [
            Found(body(one), ready_row(one, lease=7), None, one.deliver_after_ms) for one in dead
        ]
        timed = [row.found.body for row in store.expiring(0, LATER_MS, count).rows]
        assert sorted(timed) == [body(one) for one in dead if one.expires_at_ms]
        assert sorted(store.failures([*ids, 9_999]), key=lambda row: row.id) == batch.failure_new

    def test_a_dead_letter_goes_back(self, store: ShardStore) -> None:
        items, dead, batch = dead_letters(3, b"")
        insert(store, *items)
        store.commit(Batch(ready_gone=[ready_key(items[0])], timer_new=[timer_row(items[0], 1, 7)], next_number=10_000))
        store.commit(batch)
        back = Batch(
            ready_gone=[ready_key(dead[1])],
            moved=[(dead[1].id, 1, NOW_MS, 0)],
            ready_new=[ready_row(moved(items[1], 1, NOW_MS, 0))],
            expiry_gone=[dead[1].id],
            failure_gone=[dead[1].id],
            next_number=10_000,
        )
        store.commit(back)
        ids = [item.id for item in items]
        assert store.page(1, None, 10) == back.ready_new
        assert sorted(row.id for row in store.failures(ids)) == [ids[0], ids[2]]

    def test_an_item_goes_with_its_failure_if_it_has_one(self, store: ShardStore) -> None:
        items, dead, batch = dead_letters(2, b"")
        insert(store, *items)
        store.commit(Batch(ready_gone=[ready_key(items[0])], timer_new=[timer_row(items[0], 1, 7)], next_number=10_000))
        batch.failure_new.pop()  # the other one was enqueued where dead letters are
        store.commit(batch)
        ids = [item.id for item in items]
        store.commit(
            Batch(
                ready_gone=[ready_key(one) for one in dead],
                expiry_gone=ids,
                failure_gone=ids,
                item_gone=ids,
                next_number=10_000,
            )
        )
        assert store.failures(ids) == store.bodies(ids) == []

    def test_the_next_owner_knows_the_lanes_of_dead_letters(self, shard: Shard, store: ShardStore) -> None:
        items, _, batch = dead_letters(3, b"")
        insert(store, *items)
        store.commit(Batch(ready_gone=[ready_key(items[0])], timer_new=[timer_row(items[0], 1, 7)], next_number=10_000))
        store.commit(batch)
        store.close(clean=True)
        store = shard.store()
        assert store.open("successor", take_over=False).dead == [2]
        store.close()

    def test_a_refused_row_leaves_items_where_they_are(self, shard: Shard, store: ShardStore) -> None:
        items, _, batch = dead_letters(3, b"")
        insert(store, *items)
        store.commit(Batch(ready_gone=[ready_key(items[0])], timer_new=[timer_row(items[0], 1, 7)], next_number=10_000))
        batch.inserts = [shard.refused(items[0])]
        with pytest.raises(RowRejected):
            store.commit(batch)
        ids = [item.id for item in items]
        assert store.failures(ids) == []
        assert sorted(store.bodies(ids)) == [body(item) for item in items]
