"""The part of the contract that is about items without a row in `ready`, which the next owner writes."""

from __future__ import annotations

import pytest

from foqs.opened import Backlog
from foqs.rows import Batch, Found, NewItem
from foqs.store.protocol import ShardStore
from tests.store.row_contract import body, ready_key, ready_row, timer_row
from tests.store.shards import NOW_MS, Shard, new_item

BUCKET = NOW_MS >> 16


def unindexed(number: int, **how: int) -> NewItem:
    item = new_item(number, metadata=b"four", headers=b"{}", **how)  # type: ignore[arg-type]
    item.unindexed = True
    return item


def put(store: ShardStore, *items: NewItem, indexed_to: int) -> None:
    store.commit(Batch(inserts=list(items), next_number=100, indexed_to=indexed_to))


def ids(store: ShardStore) -> list[int]:
    return [row.id for row in store.page(1, None, 100)]


class TailContract:
    """`store` is open, with lane 1."""

    def test_an_unindexed_item_has_a_body_only(self, store: ShardStore) -> None:
        first, second, indexed = unindexed(1), unindexed(2, expires_at_ms=NOW_MS), new_item(3)
        put(store, first, second, indexed, indexed_to=first.id - 1)
        assert store.page(1, None, 10) == store.page_of_lanes([1], 10) == [ready_row(indexed)]
        assert store.bodies([first.id]) == [body(first)]
        assert sorted(store.look([first.id, second.id]))[0] == Found(body(first), None, None, first.deliver_after_ms)
        found = Found(body(second), None, None, second.deliver_after_ms)
        assert [row.found for row in store.expiring(0, NOW_MS, 10).rows] == [found]

    def test_an_unindexed_item_ends_without_a_row(self, store: ShardStore) -> None:
        acked, leased, nacked = (unindexed(number) for number in (1, 2, 3))
        put(store, acked, leased, nacked, indexed_to=acked.id - 1)
        lease = timer_row(leased, NOW_MS, lease=5, attempt=1)
        again = ready_row(nacked, attempt=1, lease=6)
        store.commit(
            Batch(item_gone=[acked.id], timer_new=[lease], ready_new=[again], next_number=100, indexed_to=nacked.id)
        )
        assert store.page(1, None, 10) == [again]
        assert [row.timer for row in store.due(0, NOW_MS, 10).rows] == [lease]
        assert store.bodies([acked.id]) == []

    def test_the_next_owner_writes_the_missing_rows(self, shard: Shard, store: ShardStore) -> None:
        """Each item gets one row: no item that has one in `timer` or in `ready` gets another."""
        items = [unindexed(number) for number in range(1, 5)]
        put(store, *items, new_item(5), indexed_to=items[0].id - 1)
        lease, again = timer_row(items[1], NOW_MS, lease=5, attempt=1), ready_row(items[2], attempt=3, lease=6)
        moved = Batch(timer_new=[lease], ready_new=[again], next_number=100, indexed_to=items[0].id - 1)
        store.commit(moved)
        store.close()
        successor = shard.store()
        opened = successor.open("successor", take_over=False)
        assert (list(opened.backlog), opened.timers) == ([Backlog(1, BUCKET, 4)], {1: (1, 1)})
        expected = [ready_row(items[0]), again, ready_row(items[3]), ready_row(new_item(5))]
        assert successor.page(1, None, 10) == expected
        assert [row.timer for row in successor.due(0, NOW_MS, 10).rows] == [lease]
        late = unindexed(50)
        put(successor, late, indexed_to=late.id - 1)
        for clean in (True, False):
            successor.close(clean=clean)
            successor = shard.store()
            successor.open("successor", take_over=False)
            assert ids(successor) == [row.id for row in expected] + [late.id]
        successor.close()

    def test_a_take_over_writes_the_missing_rows(self, shard: Shard, store: ShardStore) -> None:
        item = unindexed(1)
        put(store, item, indexed_to=item.id - 1)
        successor = shard.store()
        assert list(successor.open("successor", take_over=True).backlog) == [Backlog(1, BUCKET, 1)]
        store.close(clean=True)
        assert successor.page(1, None, 10) == [ready_row(item)]
        store.close()
        successor.close()

    @pytest.mark.parametrize("clean", [True, False])
    def test_a_full_database_has_a_next_owner(self, shard: Shard, store: ShardStore, *, clean: bool) -> None:
        """It gets the items whose rows find no room. It may end them, and a later owner with room writes the rest."""
        items = [unindexed(1), unindexed(2, priority=1)]
        put(store, *items, new_item(3), indexed_to=items[0].id - 1)
        store.close()
        shard.fill()
        successor = shard.store()
        opened = successor.open("successor", take_over=False)
        assert (opened.tail, list(opened.backlog)) == ([ready_row(one) for one in items], [Backlog(1, BUCKET, 1)])
        assert ids(successor) == [new_item(3).id]
        successor.commit(Batch(item_gone=[items[0].id], next_number=100, indexed_to=items[1].id - 1))
        successor.close(clean=clean)
        again = shard.store()
        opened = again.open("again", take_over=False)
        assert opened.tail == [ready_row(items[1])]
        assert not (opened.replaced and clean)
        again.close(clean=clean)
        shard.free()
        last = shard.store()
        opened = last.open("last", take_over=False)
        assert (opened.tail, list(opened.backlog)) == ([], [Backlog(1, BUCKET, 2)])
        assert sorted(ids(last)) == [items[1].id, new_item(3).id]
        last.close(clean=True)
        shard.check_closed()

    def test_after_an_orderly_close_every_item_has_its_row(self, shard: Shard, store: ShardStore) -> None:
        gone, left = unindexed(1), unindexed(2)
        put(store, gone, left, indexed_to=gone.id - 1)
        store.commit(Batch(item_gone=[gone.id], next_number=100, indexed_to=gone.id))
        store.close(clean=True)
        shard.check_closed()
        store = shard.store()
        store.open("owner", take_over=False)
        store.commit(Batch(ready_gone=[ready_key(left)], item_gone=[left.id], next_number=100, indexed_to=left.id))
        store.close()
