"""The part of the contract that is about deduplication keys, and what a worker makes of those that are there."""

from __future__ import annotations

import pytest

from foqs.buffers.shard_batch import Outcome, ShardBatch
from foqs.ids import DIGEST_BYTES, next_digest
from foqs.rows import Batch, DedupRow, Holding, KeyRows
from foqs.server.shard_thread import run
from foqs.store.protocol import RowRejected, ShardStore
from tests.store.row_contract import insert
from tests.store.shards import NOW_MS, Moment, Shard, new_item


def digest(number: int) -> bytes:
    return number.to_bytes(DIGEST_BYTES, "big")


def dedup_row(number: int, expires_at_ms: int) -> DedupRow:
    return DedupRow(digest(number), 1000 + number, number, expires_at_ms)


class KeyContract:
    """`store` is open, with lane 1."""

    def test_keys_are_remembered_until_they_expire(self, store: ShardStore) -> None:
        rows = [dedup_row(n, NOW_MS + n) for n in range(1, 6)]
        store.commit(Batch(dedup_new=rows, next_number=1))
        digests = [row.digest for row in rows]
        assert sorted(store.dedup([*digests, digest(99)])) == rows
        assert store.dedup([]) == []
        assert store.dedup_expired(0, NOW_MS + 3, 10)[:4] == (NOW_MS + 1, NOW_MS + 3, True, NOW_MS + 4)
        assert store.dedup_expired(0, NOW_MS + 3, 2)[:4] == (NOW_MS + 1, NOW_MS + 2, False, NOW_MS + 4)
        assert store.dedup_expired(NOW_MS + 2, NOW_MS + 9, 3)[:4] == (NOW_MS + 2, NOW_MS + 4, False, 0)
        assert store.dedup_expired(NOW_MS + 6, NOW_MS + 9, 3)[:4] == (0, NOW_MS + 9, True, 0)
        store.commit(Batch(dedup_gone=(NOW_MS + 2, NOW_MS + 4), dedup_from_ms=NOW_MS + 1, next_number=1))
        assert sorted(store.dedup(digests)) == [rows[0], rows[4]]

    def test_an_expired_key_is_replaced(self, store: ShardStore) -> None:
        store.commit(Batch(dedup_new=[dedup_row(1, 5), dedup_row(2, 15)], next_number=1))
        new = [dedup_row(n, NOW_MS)._replace(content=(1 << 63) - n, id=9) for n in (1, 2)]
        store.commit(Batch(dedup_gone=(0, 10), dedup_new=new[:1], dedup_again=new[1:], next_number=1))
        assert sorted(store.dedup([row.digest for row in new])) == new

    def test_a_key_goes_with_its_item(self, shard: Shard, store: ShardStore) -> None:
        stored = new_item(1)
        insert(store, stored)
        row = dedup_row(2, NOW_MS)._replace(id=new_item(2).id)
        with pytest.raises(RowRejected):
            store.commit(Batch(inserts=[new_item(2), shard.refused(stored)], dedup_new=[row], next_number=10))
        assert store.dedup([row.digest]) == []

    def test_the_next_owner_gets_the_slots_and_the_checkpoint(self, shard: Shard, store: ShardStore) -> None:
        store.commit(Batch(slots=Holding(1 << 60, b"\0\xff"), dedup_from_ms=7, next_number=1))
        store.commit(Batch(dedup_from_ms=8, next_number=1))
        store.close(clean=True)
        opened = shard.store().open("successor", take_over=True)
        assert (opened.slots, opened.dedup_from_ms) == (Holding(1 << 60, b"\0\xff"), 8)

    def test_rows_of_a_slot_are_read_in_pages_and_copied(self, store: ShardStore) -> None:
        rows = [DedupRow(bytes([n]) * 16, n, n, NOW_MS) for n in (1, 2, 3, 255)]
        store.commit(Batch(dedup_new=rows[::-1], next_number=1))
        low, high = rows[0].digest, rows[2].digest
        assert store.dedup_between(low, high, 2) == rows[:2]
        assert store.dedup_between(next_digest(rows[1].digest), high, 2) == rows[2:3]
        assert store.dedup_between(next_digest(high), b"\xff" * 16, 9) == rows[3:]
        newer = rows[1]._replace(content=7, expires_at_ms=NOW_MS + 1)
        store.commit(Batch(keys=KeyRows(copied=[rows[0], newer]), next_number=1))
        assert store.dedup_between(low, high, 9) == [rows[0], newer, rows[2]]

    @pytest.mark.parametrize("count", [1, 1_500], ids=["one", "more than a statement takes"])
    def test_a_key_that_is_there_is_refused(self, store: ShardStore, count: int) -> None:
        """With all that comes with it."""
        items = [new_item(n) for n in range(1, count + 2)]
        rows = [dedup_row(n, NOW_MS)._replace(id=items[n].id) for n in range(count + 1)]
        store.commit(Batch(inserts=items[count:], dedup_new=rows[count:], next_number=10_000))
        again = rows[count]._replace(id=items[0].id, expires_at_ms=NOW_MS + 9)
        with pytest.raises(RowRejected):
            no = Holding(1, b"no")
            store.commit(Batch(inserts=items[:count], dedup_new=[*rows[1:count], again], slots=no, next_number=10_000))
        assert store.dedup([row.digest for row in rows]) == rows[count:]
        assert store.bodies([item.id for item in items[:count]]) == []
        store.commit(Batch(inserts=items[:count], dedup_new=rows[:count], next_number=10_000))
        assert sorted(store.dedup([row.digest for row in rows])) == rows

    # ------------------------------------------------------------------------------------------ trips

    def test_a_trip_stores_only_unknown_keys(self, shard: Shard, store: ShardStore) -> None:
        """The batch also has known keys, an expired key that is still stored, and an item that the database refuses."""
        known = [dedup_row(n, NOW_MS + 1) for n in (1, 2)]
        store.commit(Batch(inserts=[new_item(9)], dedup_new=[*known, dedup_row(3, NOW_MS)], next_number=10))
        items = [new_item(n) for n in range(11, 16)] + [shard.refused(new_item(9))]
        rows = [dedup_row(n, NOW_MS + 9)._replace(id=item.id) for n, item in enumerate(items[:5], 1)]
        refused = dedup_row(6, NOW_MS + 9)._replace(id=items[5].id)
        batch = Batch(inserts=[*items, new_item(20)], dedup_new=[*rows, refused], next_number=30)
        result = run(store, ShardBatch(transaction=batch, keys_ms=NOW_MS))
        assert (result.outcome, result.down) == (Outcome.COMMITTED, False)
        assert result.known == {items[0].id: known[0], items[1].id: known[1]}
        assert (list(result.rejected), result.failed) == ([items[5].id], set())
        stored = [*items[2:5], new_item(20)]
        assert sorted(body.id for body in store.bodies([item.id for item in [*items[:5], stored[3]]])) == [
            item.id for item in stored
        ]
        assert sorted(store.dedup([digest(n) for n in range(1, 8)])) == [*known, *rows[2:]]

    @pytest.mark.parametrize(
        ("moment", "outcome", "committed"),
        [
            (Moment.BEFORE_COMMIT, Outcome.FAILED, False),
            (Moment.COMMIT_LOST, Outcome.UNKNOWN, False),
            (Moment.REPLY_LOST, Outcome.UNKNOWN, True),
        ],
    )
    def test_a_trip_that_ends_after_a_look_up(
        self,
        shard: Shard,
        store: ShardStore,
        monkeypatch: pytest.MonkeyPatch,
        moment: Moment,
        outcome: Outcome,
        committed: bool,
    ) -> None:
        """Known keys stay; the shard's row says whether the rest was committed."""
        known, new = dedup_row(1, NOW_MS + 1), dedup_row(2, NOW_MS + 1)
        store.commit(Batch(dedup_new=[known], next_number=10))
        items = [new_item(11), new_item(12)]
        again = known._replace(id=items[0].id)
        batch = Batch(inserts=items, dedup_new=[again, new._replace(id=items[1].id)], next_number=30)
        dedup = store.dedup

        def looked_up(digests: list[bytes]) -> list[DedupRow]:
            rows = dedup(digests)
            shard.lose_next(store, moment)
            return rows

        monkeypatch.setattr(store, "dedup", looked_up)
        result = run(store, ShardBatch(transaction=batch, keys_ms=NOW_MS))
        assert (result.outcome, result.down) == (outcome, True)
        assert result.known == {items[0].id: known}
        assert store.reconnect() is committed
        assert [row.id for row in dedup([new.digest])] == [items[1].id] * committed
        assert [body.id for body in store.bodies([item.id for item in items])] == [items[1].id] * committed
