"""What every `ShardStore` keeps to. A test module derives a class from `StoreContract` and gives it a fixture `shard`
(foqs' own: SQLite, MariaDB, MySQL; and the memory store of the simulation)."""

from __future__ import annotations

import pytest

from foqs.opened import Backlog, Opened
from foqs.rows import BACKLOG_SHIFT, Batch
from foqs.store.protocol import CommitUnknown, Fenced, RowRejected, ShardRefused, ShardStore, StoreDown
from tests.store.batch_contract import BatchContract
from tests.store.dead_contract import DeadContract
from tests.store.dead_read_contract import DeadReadContract
from tests.store.ended_contract import EndedContract
from tests.store.held_keys_contract import HeldKeysContract
from tests.store.key_contract import KeyContract
from tests.store.last_failure_contract import LastFailureContract
from tests.store.order_contract import OrderContract
from tests.store.progress_contract import ProgressContract
from tests.store.row_contract import LANE, RowContract, body, insert, ready_key, ready_row, timer_row
from tests.store.shards import NOW_MS, Moment, Shard, new_item
from tests.store.tail_contract import TailContract
from tests.support.waiting import wait_until

__all__ = ["LANE", "StoreContract", "body", "insert", "ready_key", "ready_row", "timer_row"]


def open_again(shard: Shard) -> tuple[ShardStore, Opened]:
    """As the owner's successor does: it tries until the database has noticed that the owner is gone."""
    opened: list[tuple[ShardStore, Opened]] = []

    def tries() -> bool:
        store = shard.store()
        try:
            opened.append((store, store.open("successor", take_over=False)))
        except ShardRefused as refused:
            assert refused.held
            return False
        return True

    wait_until(tries, "the lock of a connection that is gone is free")
    return opened[0]


class StoreContract(
    RowContract,
    KeyContract,
    HeldKeysContract,
    TailContract,
    DeadContract,
    DeadReadContract,
    EndedContract,
    OrderContract,
    BatchContract,
    ProgressContract,
    LastFailureContract,
):
    """Rows, scans, keys, the tail, dead letters and ended items; refusals, ownership, and connections that break."""

    # ------------------------------------------------------------------------------------------ refusals

    def test_a_refused_row_stores_nothing_of_its_batch(self, shard: Shard, store: ShardStore) -> None:
        stored, good = new_item(1), new_item(2)
        insert(store, stored)
        batch = Batch(
            inserts=[good, shard.refused(stored), new_item(3)],
            ready_gone=[ready_key(stored)],
            timer_new=[timer_row(stored, NOW_MS, 1, 1, 1)],
            next_number=10,
        )
        for _ in range(2):
            with pytest.raises(RowRejected):
                store.commit(batch)
        assert store.page(1, None, 10) == [ready_row(stored)]
        assert store.bodies([good.id]) == []
        assert store.due(0, NOW_MS, 1).rows == []
        insert(store, good)
        assert store.bodies([stored.id, good.id]) == [body(stored), body(good)]

    # ------------------------------------------------------------------------------------------ ownership

    def test_the_next_owner_gets_the_state_of_the_shard(self, shard: Shard, store: ShardStore) -> None:
        first = new_item(1, deliver_after_ms=5 << BACKLOG_SHIFT)
        more = [new_item(n, deliver_after_ms=(6 << BACKLOG_SHIFT) + n) for n in (2, 3)]
        timer = new_item(4, due_ms=NOW_MS, expires_at_ms=NOW_MS)
        leased = new_item(5)
        insert(store, leased, next_number=33)
        row = timer_row(leased, NOW_MS, lease=5)
        store.commit(Batch(ready_gone=[ready_key(leased)], timer_new=[row], next_number=33))
        store.commit(
            Batch(inserts=[first, *more, timer], next_number=33, due_from_ms=NOW_MS - 2, expiry_from_ms=NOW_MS - 3)
        )
        store.close()
        again = shard.store()
        opened = again.open("owner", take_over=False)
        again.close()
        assert opened.next_number == 33
        assert (opened.due_from_ms, opened.expiry_from_ms) == (NOW_MS - 2, NOW_MS - 3)
        assert list(opened.lanes) == [LANE]
        assert sorted(opened.backlog) == [Backlog(1, 5, 1), Backlog(1, 6, 2)]
        assert opened.timers == {1: (2, 1)}
        assert opened.db_now_ms > 0

    def test_epochs_only_grow(self, shard: Shard) -> None:
        epochs = []
        for above in (0, 0, 100, 5):
            store = shard.store()
            epochs.append(store.open("owner", take_over=False, epoch_above=above).epoch)
            store.close()
        assert epochs == [epochs[0], epochs[0] + 1, 101, 102]

    def test_numbers_are_never_given_again(self, shard: Shard, store: ShardStore) -> None:
        item = new_item(41)
        insert(store, item, next_number=42)
        store.commit(Batch(ready_gone=[ready_key(item)], item_gone=[item.id], next_number=42))
        store.close()
        for _ in range(2):
            again = shard.store()
            assert again.open("owner", take_over=False).next_number == 42
            again.close()

    def test_a_held_shard_is_refused(self, shard: Shard, store: ShardStore) -> None:
        second = shard.store()
        for _ in range(2):
            with pytest.raises(ShardRefused) as refused:
                second.open("second", take_over=False)
            assert refused.value.held
        insert(store, new_item())
        store.close()
        assert second.open("second", take_over=False).next_number == 10_000
        second.close()

    def test_a_shard_is_free_when_its_owner_is_gone(self, shard: Shard, store: ShardStore) -> None:
        insert(store, new_item())
        shard.cut(store)
        second, opened = open_again(shard)
        assert [row.id for row in second.page(1, None, 5)] == [new_item().id]
        with pytest.raises((StoreDown, CommitUnknown, Fenced)):
            insert(store, new_item(2))
        with pytest.raises(Fenced):
            store.reconnect()
        insert(second, new_item(3), next_number=opened.next_number)
        second.close()

    def test_an_old_owner_changes_nothing(self, shard: Shard, store: ShardStore) -> None:
        item = new_item()
        insert(store, item)
        second = shard.store()
        second.open("second", take_over=True)
        with pytest.raises((StoreDown, CommitUnknown, Fenced)):
            store.commit(Batch(ready_gone=[ready_key(item)], item_gone=[item.id], next_number=1))
        with pytest.raises(Fenced):
            store.reconnect()
        for use in (store.confirm, store.reconnect, lambda: store.page(1, None, 1), lambda: insert(store, item)):
            with pytest.raises(Fenced):
                use()
        assert second.page(1, None, 5) == [ready_row(item)]
        insert(second, new_item(2))
        second.confirm()
        second.close()

    def test_whether_the_owner_before_may_live(self, shard: Shard) -> None:
        first, second, third, fourth = (shard.store() for _ in range(4))
        assert not first.open("first", take_over=False).replaced
        assert second.open("second", take_over=True).replaced
        first.close(clean=True)  # too late: it is not the owner
        assert third.open("third", take_over=True).replaced
        second.close()
        third.close(clean=True)
        assert not fourth.open("fourth", take_over=False).replaced
        fourth.close(clean=True)

    def test_the_owner_is_confirmed(self, shard: Shard, store: ShardStore) -> None:
        assert store.confirm().db_now_ms > 0
        insert(store, new_item())
        store.confirm()
        second = shard.store()
        second.open("second", take_over=True)
        second.close()
        with pytest.raises((StoreDown, Fenced)):
            store.confirm()
        with pytest.raises(Fenced):
            store.reconnect()

    def test_a_closed_store_is_down(self, shard: Shard, store: ShardStore) -> None:
        store.close()
        store.close()
        for use in (store.confirm, lambda: store.page(1, None, 1), lambda: insert(store, new_item())):
            with pytest.raises(StoreDown):
                use()

    # ------------------------------------------------------------------------------------------ broken connections

    @pytest.mark.parametrize("moment", Moment)
    def test_a_lost_connection_is_settled(self, shard: Shard, store: ShardStore, moment: Moment) -> None:
        stored, item = new_item(1), new_item(2)
        insert(store, stored)
        shard.lose_next(store, moment)
        batch = Batch(
            inserts=[item],
            ready_gone=[ready_key(stored)],
            timer_new=[timer_row(stored, NOW_MS, 1, 1, 1)],
            next_number=77,
        )
        with pytest.raises(StoreDown if moment is Moment.BEFORE_COMMIT else CommitUnknown):
            store.commit(batch)
        with pytest.raises(StoreDown):
            store.commit(batch)
        committed = moment.committed
        assert store.reconnect() is committed
        assert len(store.bodies([item.id])) == committed
        assert [row.timer.id for row in store.due(0, NOW_MS, 5).rows] == [stored.id] * committed
        if not committed:
            store.commit(batch)
        store.confirm()
        assert store.bodies([item.id]) == [body(item)]
        assert store.reconnect() is False
        insert(store, new_item(3))
        assert len(store.bodies([item.id, stored.id, new_item(3).id])) == 3

    def test_an_unknown_outcome_and_another_owner(self, shard: Shard, store: ShardStore) -> None:
        shard.lose_next(store, Moment.REPLY_LOST)
        with pytest.raises(CommitUnknown):
            insert(store, new_item())
        second = shard.store()
        second.open("second", take_over=True)
        with pytest.raises(Fenced):
            store.reconnect()
        assert len(second.bodies([new_item().id])) == 1
        second.close()

    def test_an_idle_connection_that_is_cut(self, shard: Shard, store: ShardStore) -> None:
        insert(store, new_item())
        shard.cut(store)
        with pytest.raises(StoreDown):
            store.page(1, None, 1)
        wait_until(lambda: _reconnects(store), "the owner has its shard again")
        insert(store, new_item(2))
        assert len(store.page(1, None, 5)) == 2


def _reconnects(store: ShardStore) -> bool:
    try:
        assert store.reconnect() is False
    except StoreDown:
        return False
    return True
