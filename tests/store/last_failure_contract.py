"""The part of the contract that is about the last failed attempt of an item."""

from __future__ import annotations

import pytest

from foqs.policies.failures import FailureFilter
from foqs.rows import Batch, FailureCause, LastFailure
from foqs.store.protocol import ShardStore
from tests.store.dead_contract import dead_letters
from tests.store.row_contract import insert, ready_key, ready_row, timer_row
from tests.store.shards import NOW_MS, Shard, new_item

_ALL = FailureFilter()
LONGEST = LastFailure((1 << 31) - 1, FailureCause.FAILED, NOW_MS, -(1 << 63), b"\xff" * 255, b"\0'\\\xff" * 256)
SHORTEST = LastFailure(1, FailureCause.EXPIRED, NOW_MS, (1 << 63) - 1)


def fail(store: ShardStore, *failures: tuple[int, LastFailure]) -> None:
    rows = [(item_id, NOW_MS + 7, failure.pack()) for item_id, failure in failures]
    store.commit(Batch(failed_new=rows, next_number=10_000))


def found_by(store: ShardStore, *ids: int) -> dict[int, LastFailure | None]:
    """What `look` finds, which agrees with `last_failures`."""
    found = {row.body.id: row.last_failure for row in store.look(list(ids))}
    some = {item_id: failure for item_id, failure in found.items() if failure is not None}
    assert dict(store.last_failures([*ids, 9_999])) == some
    return found


class LastFailureContract:
    """`store` is open, with lane 1."""

    @pytest.mark.parametrize("count", [1, 3, 250])
    def test_failures_are_stored_with_the_times_of_their_items(
        self, shard: Shard, store: ShardStore, count: int
    ) -> None:
        items = [new_item(number) for number in range(1, count + 2)]
        insert(store, *items)
        ids = [item.id for item in items]
        fail(store, *((item_id, LONGEST) for item_id in ids[:-1]))
        assert found_by(store, *ids) == {**dict.fromkeys(ids[:-1], LONGEST), ids[-1]: None}
        assert {row.body.deliver_after_ms for row in store.look(ids[:-1])} == {NOW_MS + 7}
        assert {row.since_ms for row in store.look(ids)} == {items[0].deliver_after_ms}
        fail(store, (ids[0], SHORTEST))
        assert found_by(store, *ids)[ids[0]] == SHORTEST
        store.close(clean=True)
        store = shard.store()
        store.open("next", take_over=False)
        assert found_by(store, *ids)[ids[0]] == SHORTEST

    def test_a_dead_letter_keeps_it_and_a_redrive_removes_it(self, store: ShardStore) -> None:
        items, dead, batch = dead_letters(3, b"")
        insert(store, *items)
        store.commit(Batch(ready_gone=[ready_key(items[0])], timer_new=[timer_row(items[0], 1, 7)], next_number=10_000))
        ids = [item.id for item in items]
        store.commit(Batch(failed_new=[(item.id, item.deliver_after_ms, SHORTEST.pack()) for item in items],
                           next_number=10_000))  # fmt: skip
        batch.failure_new[0] = batch.failure_new[0]._replace(worker=b"\xff" * 255)
        store.commit(batch)
        assert found_by(store, *ids) == dict.fromkeys(ids, SHORTEST)
        assert {row.id: row.worker for row in store.failures(ids)} == {**dict.fromkeys(ids, b""), ids[0]: b"\xff" * 255}
        page = store.dead_page(2, None, _ALL, 10, 100)
        assert {row.failure.id: row.failure.worker for row in page.rows}[ids[0]] == b"\xff" * 255
        back = Batch(
            ready_gone=[ready_key(dead[1])],
            moved=[(dead[1].id, 1, NOW_MS, 0)],
            ready_new=[ready_row(dead[1])._replace(lane=1, deliver_after_ms=NOW_MS)],
            expiry_gone=[dead[1].id],
            failure_gone=[dead[1].id],
            next_number=10_000,
        )
        store.commit(back)
        assert found_by(store, *ids) == {**dict.fromkeys(ids, SHORTEST), ids[1]: None}

    def test_items_that_die_and_items_that_return_in_one_transaction(self, store: ShardStore) -> None:
        items, _, batch = dead_letters(2, b"")
        insert(store, *items)
        store.commit(Batch(ready_gone=[ready_key(items[0])], timer_new=[timer_row(items[0], 1, 7)], next_number=10_000))
        store.commit(Batch(failed_new=[(item.id, item.deliver_after_ms, SHORTEST.pack()) for item in items],
                           next_number=10_000))  # fmt: skip
        batch.failure_new.pop()
        store.commit(batch)
        assert found_by(store, items[0].id, items[1].id) == {items[0].id: SHORTEST, items[1].id: None}

    def test_it_goes_with_the_item(self, store: ShardStore) -> None:
        item = new_item(1)
        insert(store, item)
        fail(store, (item.id, SHORTEST))
        store.commit(Batch(ready_gone=[ready_key(item)], item_gone=[item.id], next_number=10_000))
        assert store.last_failures([item.id]) == []
