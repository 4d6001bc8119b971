"""The part of the contract that is about items that have ended and are kept."""

from __future__ import annotations

import random

from foqs.rows import Batch, EndedRow, EndedState, Found, LaneRow, NewItem
from foqs.store.protocol import ShardStore
from tests.store.row_contract import body, ready_key, size
from tests.store.shards import NOW_MS, Shard, new_item

COMPLETED, FAILED = EndedState.COMPLETED, EndedState.FAILED


def ended_row(item: NewItem, until_ms: int, state: EndedState = COMPLETED) -> EndedRow:
    return EndedRow(until_ms, item.id, item.lane, state, 3, NOW_MS - 7, size(item))


def end(store: ShardStore, *rows: EndedRow, items: list[NewItem], results: dict[int, bytes] | None = None) -> None:
    store.commit(Batch(inserts=items, next_number=10_000))
    gone = [ready_key(item) for item in items]
    with_ttl = [item.id for item in items if item.expires_at_ms]
    kept = list((results or {}).items())
    store.commit(
        Batch(ready_gone=gone, expiry_gone=with_ttl, ended_new=list(rows), results_new=kept, next_number=10_000)
    )


class EndedContract:
    """`store` is open, with lane 1."""

    def test_an_ended_item_is_found_with_its_end(self, store: ShardStore) -> None:
        items = [new_item(1, metadata=b"m", expires_at_ms=NOW_MS + 5), new_item(2)]
        rows = [ended_row(items[0], NOW_MS + 9), ended_row(items[1], NOW_MS + 8, FAILED)]
        data = bytes(range(256)) * 256
        end(store, *rows, items=items, results={items[0].id: data, items[1].id: b""})
        found = [Found(body(item), None, None, NOW_MS, ended=row) for item, row in zip(items, rows, strict=True)]
        assert sorted(store.look([item.id for item in items])) == found
        assert sorted(store.results([items[0].id, items[1].id, 5])) == [(items[0].id, data), (items[1].id, b"")]
        assert store.page(1, None, 9) == []
        assert store.expiring(0, NOW_MS + 9, 9).rows == []

    def test_it_is_removed_with_its_result(self, store: ShardStore) -> None:
        items = [new_item(number) for number in range(1, 4)]
        ids = [item.id for item in items]
        rows = [ended_row(item, NOW_MS) for item in items]
        end(store, *rows, items=items, results={ids[0]: b"a", ids[1]: b"b"})
        store.commit(Batch(ended_gone=[ids[0], ids[2]], item_gone=[ids[0], ids[2]], next_number=10_000))
        assert [found.body.id for found in store.look(ids)] == [ids[1]]
        assert store.results(ids) == [(ids[1], b"b")]
        assert store.list_ended([1], 0, None, 9) == [rows[1]]

    def test_ended_rows_in_order(self, store: ShardStore) -> None:
        items = [new_item(number) for number in range(1, 6)]
        until = [NOW_MS + 20, NOW_MS + 10, NOW_MS + 20, NOW_MS + 30, NOW_MS + 10]
        rows = [ended_row(item, at) for item, at in zip(items, until, strict=True)]
        end(store, *rows, items=items)
        in_order = sorted(rows)
        for from_ms, now_ms, limit, wanted, next_ms in [
            (0, 9, 9, [], 10),
            (0, 10, 9, in_order[:2], 20),
            (0, 20, 3, in_order[:3], 30),
            (11, 30, 9, in_order[2:], 0),
            (0, 30, 5, in_order, 0),
        ]:
            scan = store.ended_due(NOW_MS + from_ms if from_ms else 0, NOW_MS + now_ms, limit)
            assert (scan.rows, scan.next_ms) == (wanted, next_ms and NOW_MS + next_ms)
            assert scan.complete == (limit != 3)
            assert scan.db_now_ms > 0

    def test_a_list_of_lanes_is_in_order(self, store: ShardStore) -> None:
        """Of more lanes than one statement reads."""
        source = random.Random(5)
        lanes = range(2, 240)
        store.commit(Batch(lanes_new=[LaneRow(n, b"n", b"%d" % n, b"") for n in lanes], next_number=1))
        items = [new_item(at, lane=source.choice(lanes)) for at in range(1, 700)]
        rows = [ended_row(item, NOW_MS + source.randrange(40), source.choice([COMPLETED, FAILED])) for item in items]
        end(store, *rows, items=items)
        wanted = sorted(row for row in rows if row.lane != 5)
        asked = [lane for lane in lanes if lane != 5]
        assert store.list_ended(asked, 0, None, 1_000) == wanted
        assert store.list_ended(asked, 0, (wanted[9].until_ms, wanted[9].id), 50) == wanted[10:60]
        assert store.list_ended(asked, FAILED, None, 40) == [row for row in wanted if row.state == FAILED][:40]
        assert store.list_ended([5], 0, None, 999) == sorted(row for row in rows if row.lane == 5)
        assert store.list_ended([1, 999], 0, None, 9) == []

    def test_the_next_owner_counts_them(self, shard: Shard, store: ShardStore) -> None:
        """And writes no row of `ready` for one that was unindexed."""
        items = [new_item(number) for number in range(1, 5)]
        for item in items[2:]:
            item.unindexed = True
        rows = [ended_row(item, NOW_MS, state) for item, state in zip(items, [COMPLETED, FAILED] * 2, strict=True)]
        store.commit(Batch(inserts=items, next_number=100, indexed_to=items[1].id))
        gone = [ready_key(item) for item in items[:2]]
        store.commit(
            Batch(ready_gone=gone, ended_new=rows[:3], next_number=100, indexed_to=items[1].id, ended_from_ms=7)
        )
        store.commit(Batch(next_number=100, indexed_to=items[1].id))
        store.close()
        again = shard.store()
        opened = again.open("successor", take_over=False)
        assert (opened.ended, opened.ended_from_ms) == ({1: (2, 1)}, 7)
        assert [row.id for row in again.page(1, None, 9)] == [items[3].id]
        again.close()
