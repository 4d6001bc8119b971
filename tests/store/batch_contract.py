"""The part of the contract that is about batches of items: their members, the counts of these, and their homes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foqs.ids import MAX_NUMBER, make_id
from foqs.item_batch import (
    MOST_FAILED_IDS,
    BatchPart,
    BatchRow,
    BatchState,
    Counts,
    Ends,
    HowEnded,
    MemberRows,
    ShardCounts,
)
from foqs.rows import Batch, NewItem, NewMember, NewOrdered
from foqs.store.protocol import RowRejected, ShardStore
from tests.store.order_contract import ORDERED_LANE, in_order, ordered
from tests.store.row_contract import BYTES, body, insert, ready_key, ready_row
from tests.store.shards import NOW_MS, NUMBER, Shard, new_item

ONE, TWO, THREE = (make_id(NUMBER, number) for number in (501, 502, 503))
"""Ids of batches."""
_NUMBER = 100_000


def member(number: int, batch: int = ONE, **fields: Any) -> NewMember:
    """An item of a batch."""
    plain = new_item(number, **fields)
    made = NewMember.of(plain, batch)
    made.id, made.lane = plain.id, plain.lane
    return made


def in_batch(item: NewOrdered, batch: int) -> NewOrdered:
    item.batch = batch
    return item


def put(store: ShardStore, *items: NewItem, **fields: Any) -> None:
    new = [(item.id, item.batch) for item in items if item.batch]
    rows = MemberRows(new=new)
    store.commit(Batch(**{"inserts": list(items), "members": rows, "next_number": _NUMBER, **fields}))


def end(store: ShardStore, **rows: Any) -> None:
    store.commit(Batch(members=MemberRows(**rows), next_number=_NUMBER))


def counts_of(store: ShardStore, batch: int = ONE) -> ShardCounts:
    (found,) = store.member_counts([batch])
    return found


def home(batch: int = ONE, **fields: Any) -> BatchRow:
    return BatchRow(batch, b"ns", BatchState.OPEN, NOW_MS, NOW_MS + 5)._replace(**fields)


def part(batch: int = ONE, shard: int = NUMBER, serial: int = 1, **fields: Any) -> BatchPart:
    return BatchPart(batch, shard, 3, serial, Counts(9, 8, 7, 6, 5, 4, 3, 2))._replace(**fields)


class BatchContract:
    """`store` is open, with lane 1."""

    # ------------------------------------------------------------------------------------------ members

    def test_members_are_stored_whole(self, store: ShardStore) -> None:
        """In one transaction with items of each other kind, some of two kinds."""
        first = member(1, metadata=b"m", headers=b"{}", payload=b"'\\\0")
        plain, late = new_item(2), member(3, TWO, due_ms=NOW_MS, expires_at_ms=NOW_MS + 5)
        alone, both = ordered(4), in_batch(ordered(5), TWO)
        put(store, first, plain, late, alone, both, lanes_new=[ORDERED_LANE], ordered=True)
        items = [first, plain, late, alone, both]
        assert [body(item).batch for item in items] == [ONE, 0, TWO, 0, TWO]
        for listed in ([1, *(item.id for item in items)], *([item.id] for item in items)):
            assert sorted(store.bodies(listed)) == [body(item) for item in items if item.id in listed]
        assert sorted(found.body for found in store.look([item.id for item in items])) == list(map(body, items))
        assert store.page(1, None, 10) == [ready_row(first), ready_row(plain)]
        assert store.orders_behind(b"", 10) == [in_order(alone), in_order(both)]
        (expiring,) = store.expiring(0, NOW_MS + 5, 5).rows
        assert expiring.found.body == body(late)
        assert store.member_counts([TWO, ONE, THREE]) in (
            [ShardCounts(ONE, Counts(1), 1), ShardCounts(TWO, Counts(2), 1)],
            [ShardCounts(TWO, Counts(2), 1), ShardCounts(ONE, Counts(1), 1)],
        )

    @pytest.mark.parametrize("how", [how for how in HowEnded if how != HowEnded.FAILED])
    def test_an_end_is_counted_once(self, store: ShardStore, how: HowEnded) -> None:
        items = [member(number, TWO if number == 3 else ONE) for number in range(1, 5)]
        plain = new_item(9)
        put(store, *items, plain)
        gone = [items[0], items[2], plain]
        keys = [ready_key(item) for item in gone]
        rows = MemberRows(ended={how: [item.id for item in gone]})
        batch = Batch(ready_gone=keys, item_gone=[item.id for item in gone], members=rows, next_number=_NUMBER)
        store.commit(batch)
        wanted = Counts(3)._replace(**{how.name.lower(): 1})
        assert counts_of(store) == (ONE, wanted, 2, ())
        assert counts_of(store, TWO) == (TWO, wanted._replace(members=1), 2, ())
        assert store.members_of(ONE, (False, 0), 10) == [(False, items[1].id), (False, items[3].id)]
        assert store.members_of(TWO, (False, 0), 10) == []
        end(store, ended={how: [item.id for item in gone]})
        assert counts_of(store).counts == wanted, "their rows are gone"

    def test_several_ends_in_one_transaction(self, store: ShardStore) -> None:
        items = [member(number) for number in range(1, 8)]
        put(store, *items)
        ids = [item.id for item in items]
        end(
            store, ended={HowEnded.COMPLETED: ids[:2], HowEnded.DROPPED: ids[2:3], HowEnded.EXPIRED: []},
            failed=ids[3:5], new=[(make_id(NUMBER, 99), ONE)],
        )  # fmt: skip
        found = counts_of(store)
        assert found.counts == Counts(8, completed=2, failed=2, dropped=1) and found.failed_ids == tuple(ids[3:5])
        assert found.counts.ended == 5

    def test_a_dead_letter_stays_a_member(self, store: ShardStore) -> None:
        items = [member(number) for number in range(1, 4)]
        put(store, *items)
        ids = [item.id for item in items]
        end(store, failed=[ids[1], ids[0], 77])
        assert counts_of(store) == (ONE, Counts(3, failed=2), 2, (ids[0], ids[1]))
        end(store, failed=[ids[1]])
        assert counts_of(store).counts.failed == 2, "it has failed already"
        end(store, redriven=[ids[1], ids[2]])
        found = counts_of(store)
        assert (found.counts, found.failed_ids) == (Counts(3, failed=1), (ids[0],))
        assert store.members_of(ONE, (False, 0), 9) == [(False, ids[1]), (False, ids[2]), (True, ids[0])]
        end(store, ended={HowEnded.DELETED: ids})
        found = counts_of(store)
        assert (found.counts, found.failed_ids) == (Counts(3, failed=1, deleted=2), (ids[0],))
        assert store.members_of(ONE, (False, 0), 9) == [(True, ids[0])], "a deleted dead letter has failed"

    def test_the_first_members_that_failed(self, store: ShardStore) -> None:
        items = [member(number) for number in range(1, MOST_FAILED_IDS + 21)]
        put(store, *items, *[member(number, TWO) for number in (900, 901)])
        ids = [item.id for item in items]
        end(store, failed=[*reversed(ids[5:]), make_id(NUMBER, 901)])
        assert counts_of(store).failed_ids == tuple(ids[5 : 5 + MOST_FAILED_IDS])
        found = {row.batch: row for row in store.unsent_counts(0, 9)}
        assert found[TWO].failed_ids == (make_id(NUMBER, 901),)
        assert found[ONE] == counts_of(store)

    def test_counts_that_the_home_knows(self, store: ShardStore) -> None:
        put(store, member(1), member(2, TWO), member(3, THREE))
        assert [row.batch for row in store.unsent_counts(0, 9)] == [ONE, TWO, THREE]
        assert [row.batch for row in store.unsent_counts(ONE, 1)] == [TWO]
        changes = {row.batch: row.changes for row in store.unsent_counts(0, 9)}
        end(store, ended={HowEnded.COMPLETED: [member(2).id]})
        end(store, sent=list(changes.items()))
        (left,) = store.unsent_counts(0, 9)
        assert left.batch == TWO and left.changes > changes[TWO]
        end(store, sent=[(TWO, left.changes)])
        assert store.unsent_counts(0, 9) == []
        for change in ({"failed": [member(1).id]}, {"redriven": [member(1).id]}, {"new": [(member(4).id, ONE)]}):
            before = counts_of(store).changes
            end(store, sent=[(ONE, before)], **change)
            (left,) = store.unsent_counts(0, 9)
            assert left.changes > before
            end(store, sent=[(ONE, left.changes)])
        assert store.unsent_counts(0, 9) == []

    def test_members_that_are_left(self, store: ShardStore) -> None:
        put(store, member(1), member(2), member(3), member(4, TWO))
        end(store, failed=[member(2).id])
        before = counts_of(store)
        end(store, left=[member(1).id, member(2).id, 99])
        assert store.members_of(ONE, (False, 0), 9) == [(False, member(3).id)]
        assert counts_of(store)[:3] == before[:3]
        end(store, forgotten=[ONE, THREE])
        assert store.member_counts([ONE, TWO]) == [(TWO, Counts(1), 1, ())]
        end(store, ended={HowEnded.COMPLETED: [member(3).id]}, failed=[member(4).id])
        assert store.member_counts([ONE, TWO]) == [(TWO, Counts(1, failed=1), 2, (member(4).id,))]
        assert store.members_of(ONE, (False, 0), 9) == [], "of a batch without counts it leaves, too"

    def test_pages_of_members(self, store: ShardStore) -> None:
        items = [member(number, TWO if number % 3 == 0 else ONE) for number in range(1, 31)]
        put(store, *items)
        dead = [item.id for item in items[:10]]
        end(store, failed=dead)
        wanted = sorted((item.id in dead, item.id) for item in items if item.batch == ONE)
        pages, after = [], (False, 0)
        while page := store.members_of(ONE, after, 3):
            pages += page
            after = page[-1]
        assert pages == wanted
        assert store.members_of(ONE, (True, 0), 99) == [row for row in wanted if row[0]]
        assert store.members_of(THREE, (False, 0), 9) == []

    def test_ten_thousand_members(self, store: ShardStore) -> None:
        count = 10_000
        items = [member(number, (ONE, TWO)[number % 2], payload=b"p") for number in range(1, count + 1)]
        put(store, *items)
        assert counts_of(store).counts == counts_of(store, TWO).counts == Counts(count // 2)
        ids = [item.id for item in items]
        end(store, failed=ids[:4_000], ended={HowEnded.COMPLETED: ids[4_000:]})
        found = counts_of(store)
        assert found.counts == Counts(5_000, completed=3_000, failed=2_000)
        assert found.failed_ids == tuple(item.id for item in items if item.batch == ONE)[:MOST_FAILED_IDS]
        assert [one for _, one in store.members_of(ONE, (False, 0), count)] == ids[1:4_000:2]
        end(store, redriven=ids[:4_000])
        assert counts_of(store).counts == Counts(5_000, completed=3_000)
        end(store, left=ids)
        assert store.members_of(ONE, (False, 0), count) == []

    def test_a_refused_item_is_not_counted(self, shard: Shard, store: ShardStore) -> None:
        stored = new_item(1)
        insert(store, stored)
        bad = shard.refused(stored)
        with pytest.raises(RowRejected):
            put(store, member(2), bad)
        assert store.member_counts([ONE]) == [] and store.members_of(ONE, (False, 0), 9) == []
        put(store, member(2))
        assert counts_of(store) == (ONE, Counts(1), 1, ())

    def test_parts_of_a_transaction_count_as_the_whole(self, store: ShardStore) -> None:
        """As the host stores one whose rows the database refuses in part."""
        old = [member(number) for number in range(1, 7)]
        put(store, *old)
        end(store, created=[home(TWO)], failed=[old[5].id])
        ids, new = [item.id for item in old], [member(number) for number in (11, 12)]
        rows = MemberRows(
            new=[*((item.id, ONE) for item in new), (THREE, ONE)], ended={HowEnded.COMPLETED: ids[:2]},
            failed=ids[2:3], redriven=ids[5:], sent=[(ONE, 2)], created=[home(THREE, parent=ONE)],
            states=[(TWO, BatchState.CLOSED)], parts=[part(TWO)],
            ends=[Ends(TWO, BatchState.SUCCEEDED, NOW_MS, 0, 0)],
        )  # fmt: skip
        touched = [old[0], old[1], old[2], old[5]]
        batch = Batch(
            inserts=list(new), ready_gone=[ready_key(item) for item in touched], members=rows, next_number=_NUMBER,
            ready_new=[ready_row(item) for item in touched[2:]], item_gone=ids[:2],
        )  # fmt: skip
        everything = batch.ids()
        assert set(everything) == {*(item.id for item in touched), *(item.id for item in new), THREE}
        for some in (everything[::2], everything[1::2]):
            store.commit(batch.only(set(some), lanes=False))
        found = counts_of(store)
        assert (found.counts, found.failed_ids) == (Counts(9, completed=2, failed=1), (ids[2],))
        assert store.unsent_counts(0, 9) == [found]
        assert sorted(store.batch_rows([TWO, THREE])) == [
            home(TWO, state=BatchState.SUCCEEDED, ended_at_ms=NOW_MS), home(THREE, parent=ONE),
        ]  # fmt: skip
        assert store.batch_parts([TWO]) == [part(TWO)]

    # ------------------------------------------------------------------------------------------ homes

    def test_a_batch_is_stored_whole(self, store: ShardStore) -> None:
        last = make_id(NUMBER, MAX_NUMBER)
        rows = [
            home(ONE + 10 + number, ns="имя'\\".encode(), on_success=data, on_end=other)
            for number, (data, other) in enumerate(zip((*BYTES, None), (None, *BYTES), strict=True))
        ]
        rows.append(home(last, parent=ONE, state=BatchState.CANCELLED, expires_at_ms=(1 << 63) - 1))
        end(store, created=rows)
        assert sorted(store.batch_rows([1, *(row.id for row in rows)])) == rows
        found = store.live_batches(0, 99)
        assert found == [row._replace(on_success=None, on_end=None) for row in rows]
        assert store.live_batches(rows[1].id, 2) == found[2:4] and store.live_batches(last, 9) == []

    def test_large_callbacks(self, store: ShardStore) -> None:
        rows = [home(number, on_success=bytes([65 + at]) * 400_000) for at, number in enumerate((ONE, TWO, THREE))]
        end(store, created=rows)
        assert sorted(store.batch_rows([ONE, TWO, THREE])) == rows

    def test_a_batch_ends(self, store: ShardStore) -> None:
        end(store, created=[home(ONE, on_end=b"c"), home(TWO), home(THREE)])
        end(store, states=[(ONE, BatchState.CLOSED), (THREE, BatchState.CANCELLED)])
        assert [row.state for row in store.live_batches(0, 9)] == [
            BatchState.CLOSED, BatchState.OPEN, BatchState.CANCELLED,
        ]  # fmt: skip
        first, second = new_item(1), new_item(2)
        ends = Ends(ONE, BatchState.ENDED, NOW_MS + 2, first.id, second.id)
        rows = MemberRows(ends=[ends, Ends(THREE, BatchState.CANCELLED, NOW_MS, 0, 0)])
        store.commit(Batch(inserts=[first, second], members=rows, next_number=_NUMBER))
        wanted = home(
            ONE, state=BatchState.ENDED, ended_at_ms=NOW_MS + 2, on_end=b"c", success_id=first.id, end_id=second.id
        )
        assert store.batch_rows([ONE]) == [wanted]
        assert [row.id for row in store.live_batches(0, 9)] == [TWO]
        assert store.ended_batches(NOW_MS + 3, 9) == [THREE, ONE]
        assert store.ended_batches(NOW_MS + 3, 1) == [THREE] == store.ended_batches(NOW_MS + 2, 9)
        assert store.ended_batches(NOW_MS, 9) == []
        end(
            store, states=[(ONE, BatchState.CLOSED), (99, BatchState.CLOSED)],
            ends=[Ends(ONE, BatchState.SUCCEEDED, 1, 0, 0)],
        )  # fmt: skip
        assert store.batch_rows([ONE]) == [wanted], "it ends only once"

    def test_reports_of_shards(self, store: ShardStore) -> None:
        failed = tuple(make_id(NUMBER, number) for number in range(1, MOST_FAILED_IDS + 1))
        parts = [part(ONE, 1), part(ONE, 2, failed_ids=failed), part(TWO, 1, counts=Counts((1 << 63) - 1))]
        end(store, created=[home(ONE), home(TWO)], parts=parts)
        assert sorted(store.batch_parts([ONE, THREE, TWO])) == parts
        later = part(ONE, 2, serial=2, counts=Counts(50), failed_ids=failed[:1])
        end(store, parts=[later])
        assert sorted(store.batch_parts([ONE])) == [parts[0], later]
        many = [part(ONE, shard, failed_ids=failed) for shard in range(10, 1_200)]
        end(store, parts=many)
        assert sorted(store.batch_parts([ONE]))[2:] == many

    def test_a_batch_that_is_removed(self, store: ShardStore) -> None:
        end(store, created=[home(ONE), home(TWO)], parts=[part(ONE, 1), part(ONE, 2), part(TWO, 1)])
        for _ in range(2):
            end(store, removed=[ONE, THREE, 1, 2])
            assert store.batch_rows([ONE, TWO]) == [home(TWO)]
            assert store.batch_parts([ONE, TWO]) == [part(TWO, 1)]

    def test_a_batch_in_a_batch(self, store: ShardStore) -> None:
        """It is a member as an item is."""
        child = home(TWO, parent=ONE)
        end(store, created=[home(ONE), child], new=[(TWO, ONE)])
        assert counts_of(store) == (ONE, Counts(1), 1, ())
        put(store, member(1, TWO))
        assert store.members_of(ONE, (False, 0), 9) == [(False, TWO)]
        ends = Ends(TWO, BatchState.SUCCEEDED, NOW_MS, 0, 0)
        end(store, ends=[ends], ended={HowEnded.COMPLETED: [TWO]})
        assert counts_of(store).counts == Counts(1, completed=1)
        assert counts_of(store, TWO).counts == Counts(1)

    def test_the_next_owner_learns_of_batches(self, shard: Shard, store: ShardStore) -> None:
        def opened() -> bool:
            nonlocal store
            store.close()
            store = shard.store()
            return store.open("owner", take_over=False).batches

        insert(store, new_item(5))
        assert opened() is False
        put(store, member(1))
        assert opened() is True
        assert counts_of(store) == (ONE, Counts(1), 1, ())
        end(store, created=[home(TWO)], left=[member(1).id], forgotten=[ONE])
        assert opened() is True
        end(store, removed=[TWO])
        assert opened() is False
        store.close()

    def test_a_member_among_large_plain_items(self, store: ShardStore) -> None:
        """Large ones are sent as parameters, where the store can, but not with members."""
        items: list[NewItem] = [new_item(number, payload=bytes(9_000)) for number in (1, 2)]
        put(store, *items, member(3, payload=bytes(9_000)))
        assert sorted(store.bodies([item.id for item in items])) == list(map(body, items))
        assert counts_of(store).counts == Counts(1)
        rows = MemberRows(ended={HowEnded.COMPLETED: [member(3).id]})
        more = [new_item(number, payload=bytes(9_000)) for number in (4, 5)]
        gone = replace(Batch(next_number=_NUMBER), ready_gone=[ready_key(member(3))], item_gone=[member(3).id])
        store.commit(replace(gone, inserts=list(more), members=rows))
        assert sorted(store.bodies([item.id for item in more])) == list(map(body, more))
        assert counts_of(store).counts == Counts(1, completed=1)
