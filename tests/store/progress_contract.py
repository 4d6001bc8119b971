"""The part of the contract that is about checkpoints, progress and logs of items."""

from __future__ import annotations

from foqs.rows import LOG_BYTES, Batch, ProgressRow
from foqs.store.protocol import ShardStore
from tests.store.shards import new_item


def give(store: ShardStore, *rows: ProgressRow) -> None:
    store.commit(Batch(progress_new=list(rows), next_number=10_000))


class ProgressContract:
    """`store` is open, with lane 1."""

    def test_progress_is_kept_by_id(self, store: ShardStore) -> None:
        items = [new_item(number) for number in range(1, 4)]
        store.commit(Batch(inserts=items, next_number=10_000))
        data = bytes(range(256)) * 256
        first = ProgressRow(items[0].id, data, (1 << 63) - 1, 0, "é".encode(), b"one\n")
        second = ProgressRow(items[1].id, None, None, None, None, b"")
        give(store, first, second)
        assert sorted(store.progress([items[0].id, items[1].id, items[2].id, 5])) == [first, second]

    def test_a_row_is_added_to_the_one_before(self, store: ShardStore) -> None:
        item = new_item(1)
        store.commit(Batch(inserts=[item], next_number=10_000))
        steps = [
            ProgressRow(item.id, log=b"one\n"),
            ProgressRow(item.id, b"a", 1, 3, b"text"),
            ProgressRow(item.id, None, None, 9, b"ignored", b"two\n"),
            ProgressRow(item.id, b"", 0),
            ProgressRow(item.id, log=b"\0\xc3\xa9\n"),
        ]
        whole = ProgressRow(item.id)
        for step in steps:
            give(store, step)
            whole = whole.then(step)
            assert store.progress([item.id]) == [whole]
        assert whole == ProgressRow(item.id, b"", 0, None, None, b"one\ntwo\n\0\xc3\xa9\n")

    def test_checkpoints_without_a_log_are_replaced(self, store: ShardStore) -> None:
        item = new_item(1)
        store.commit(Batch(inserts=[item], next_number=10_000))
        for checkpoint in (b"1", b"2", b""):
            give(store, ProgressRow(item.id, checkpoint))
            assert store.progress([item.id]) == [ProgressRow(item.id, checkpoint)]

    def test_the_end_of_the_log_stays(self, store: ShardStore) -> None:
        item = new_item(1)
        store.commit(Batch(inserts=[item], next_number=10_000))
        log = b""
        for number in range(20):
            lines = b"%d %s\n" % (number, b"x" * 700)
            log += lines
            give(store, ProgressRow(item.id, log=lines))
        (row,) = store.progress([item.id])
        assert row.log == log[-LOG_BYTES:]

    def test_it_is_removed_where_it_is(self, store: ShardStore) -> None:
        items = [new_item(number) for number in range(1, 4)]
        ids = [item.id for item in items]
        store.commit(Batch(inserts=items, next_number=10_000))
        give(store, *(ProgressRow(item_id, b"c") for item_id in ids[:2]))
        store.commit(Batch(progress_gone=[ids[0], ids[2]], next_number=10_000))
        assert store.progress(ids) == [ProgressRow(ids[1], b"c")]

    def test_the_next_owner_knows_the_items_with_progress(self, store: ShardStore) -> None:
        items = [new_item(number) for number in range(1, 4)]
        ids = [item.id for item in items]
        store.commit(Batch(inserts=items, next_number=10_000))
        give(store, ProgressRow(ids[0], b"four"), ProgressRow(ids[1], None, 1))
        store.close(clean=True)
        opened = store.open("other", take_over=True)
        assert opened.noted == {ids[0]: 4, ids[1]: 0}
