"""The part of the contract that is about keys which items hold until they start or are done."""

from __future__ import annotations

from typing import Any

from foqs.ids import FOREVER_MS, HASH_SLOTS
from foqs.rows import Batch, DedupRow, HeldKey, KeyRows, NewItem
from foqs.shardmgr.routing import bits_of
from foqs.store.protocol import ShardStore
from tests.store.shards import new_item

ALL = bits_of(range(HASH_SLOTS))
FIRST = (0, 0)
_NUMBER = 10_000


def _digest(slot: int) -> bytes:
    return (slot << 6).to_bytes(2) + bytes(14)


def _commit(store: ShardStore, bits: bytes = b"", **lists: Any) -> None:
    store.commit(Batch(next_number=_NUMBER, keys=KeyRows(bits, **lists)))


def _stored(store: ShardStore, *slots: int) -> list[NewItem]:
    """Items, one with a key in each slot."""
    items = [new_item(number) for number in range(1, len(slots) + 1)]
    keys = [HeldKey(item.id, _digest(slot)) for item, slot in zip(items, slots, strict=True)]
    rows = [DedupRow(key.digest, 7, key.id, FOREVER_MS) for key in keys]
    store.commit(Batch(next_number=_NUMBER, inserts=items, dedup_new=rows, keys=KeyRows(held=keys)))
    return items


class HeldKeysContract:
    """`store` is open, with lane 1."""

    def test_an_end_frees_a_key_of_the_shard(self, store: ShardStore) -> None:
        first, second = _stored(store, 1, 2)
        assert len(store.held_keys([first.id, second.id, 5])) == 2
        _commit(store, ended=[first.id], bits=ALL)
        assert store.dedup([_digest(1), _digest(2)]) == [DedupRow(_digest(2), 7, second.id, FOREVER_MS)]
        assert store.held_keys([first.id, second.id]) == [HeldKey(second.id, _digest(2))]
        assert store.keys_to_free(FIRST, 1_000, 10) == ([], 0)

    def test_an_end_leaves_a_row_for_a_key_of_another_shard(self, store: ShardStore) -> None:
        first, second, third = _stored(store, 1, 2, 3)
        _commit(store, ended=[first.id, second.id, third.id], bits=bits_of([3]))
        told = [HeldKey(first.id, _digest(1), 0, 1), HeldKey(second.id, _digest(2), 0, 1)]
        assert (sorted(store.keys_to_free(FIRST, 1_000, 10)[0]), store.keys_to_free(FIRST, 0, 10)) == (told, ([], 1))
        (one,), _ = store.keys_to_free(FIRST, 1_000, 1)
        assert store.keys_to_free((one.free_at_ms, one.id), 1_000, 10) == ([key for key in told if key != one], 0)
        _commit(store, noted=[told[0], told[1]._replace(number=1)], bits=b"")
        assert store.keys_to_free(FIRST, 1_000, 10) == ([told[1]], 0)

    def test_a_key_of_another_item_stays(self, store: ShardStore) -> None:
        (first,) = _stored(store, 1)
        _commit(store, freed=[HeldKey(5, _digest(1), 9)], bits=ALL)
        (row,) = store.dedup([_digest(1)])
        _commit(store, freed=[HeldKey(first.id, _digest(1), 0)], bits=ALL)
        assert (row.id, store.dedup([_digest(1)])) == (first.id, [])

    def test_a_key_that_a_later_redrive_took_stays(self, store: ShardStore) -> None:
        row = DedupRow(_digest(1), 7, 5, FOREVER_MS + 2)
        _commit(store, taken=[row], bits=ALL)
        _commit(store, freed=[HeldKey(5, _digest(1), 1)], bits=ALL)
        assert store.dedup([_digest(1)]) == [row]
        _commit(store, freed=[HeldKey(5, _digest(1), 2)], bits=ALL)
        assert store.dedup([_digest(1)]) == []

    def test_a_dead_letter_keeps_its_row_for_a_redrive(self, store: ShardStore) -> None:
        (item,) = _stored(store, 1)
        _commit(store, dead=[item.id], bits=ALL)
        assert (store.dedup([_digest(1)]), store.held_keys([item.id])) == ([], [HeldKey(item.id, _digest(1))])
        _commit(store, claims=[HeldKey(item.id, b"", 0, 900), HeldKey(5, b"", 0, 900)], bits=ALL)
        assert store.held_keys([item.id, 5]) == [HeldKey(item.id, _digest(1), 1, 900)]
        assert store.keys_to_free(FIRST, 899, 10) == ([], 900)
        _commit(store, redriven=[item.id], bits=ALL)
        assert store.keys_to_free(FIRST, 1_000, 10) == ([], 0)
        _commit(store, claims=[HeldKey(item.id, b"", 0, 900)], bits=ALL)  # it is no dead letter
        assert store.held_keys([item.id]) == [HeldKey(item.id, _digest(1), 1)]
        _commit(store, ended=[item.id], bits=ALL)
        assert store.held_keys([item.id]) == []

    def test_the_claim_of_an_ended_item_stays(self, store: ShardStore) -> None:
        """A redrive may be taking its key."""
        (item,) = _stored(store, 1)
        _commit(store, dead=[item.id], bits=ALL)
        _commit(store, claims=[HeldKey(item.id, b"", 0, 900)], bits=ALL)
        _commit(store, ended=[item.id], bits=ALL)
        told = HeldKey(item.id, _digest(1), 1, 1)
        assert store.keys_to_free(FIRST, 10, 10) == ([told], 0)
        _commit(store, noted=[told], bits=ALL)
        assert store.held_keys([item.id]) == []

    def test_a_key_is_taken_where_it_is_free(self, store: ShardStore) -> None:
        (item,) = _stored(store, 1)
        expired, later = DedupRow(_digest(2), 7, 5, 800), DedupRow(_digest(3), 7, 6, 900)
        store.commit(Batch(next_number=_NUMBER, dedup_new=[expired, later]))
        taken = [DedupRow(_digest(slot), 8, 77, FOREVER_MS + 1) for slot in range(1, 5)]
        for _ in range(2):
            _commit(store, taken=taken, taken_ms=800, bits=ALL)
            assert sorted(store.dedup([_digest(slot) for slot in range(1, 5)])) == [
                DedupRow(_digest(1), 7, item.id, FOREVER_MS), taken[1], later, taken[3]
            ]  # fmt: skip

    def test_a_slot_that_arrives_is_cleared_first(self, store: ShardStore) -> None:
        _stored(store, 1, 2)
        copied = DedupRow(_digest(1)[:3] + b"x" * 13, 7, 5, 800)
        _commit(store, cleared=[1], copied=[copied], bits=ALL)
        assert store.dedup_between(_digest(1), _digest(2), 10) == [copied, *store.dedup([_digest(2)])]
