"""The part of the contract that is about rows and scans."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foqs.ids import MAX_NUMBER, make_id
from foqs.item_filter import ItemFacts
from foqs.rows import (
    AT_MOST_ONCE,
    Batch,
    Body,
    DueRow,
    ExpiringRow,
    Found,
    LaneRow,
    NewItem,
    ReadyRow,
    TimerRow,
)
from foqs.store.protocol import ShardStore
from tests.store.shards import NOW_MS, NUMBER, Shard, new_item

LANE = LaneRow(1, b"ns", b"topic", b"")
I32 = (-(1 << 31), -1, 0, 1, (1 << 31) - 1)
I64 = (-(1 << 63), -1, 1, (1 << 63) - 1)
BYTES = (b"", b"\0", b"\xff" * 3, b"'\"\\%s%%;--\n", bytes(range(256)), "ключ".encode(), b"NULL", b"\x1a\r\n\t")


def ready_row(item: NewItem, attempt: int = 0, lease: int = 0) -> ReadyRow:
    return ReadyRow(item.lane, item.priority, item.deliver_after_ms, item.id, attempt, lease, size(item))


def timer_row(item: NewItem, due_ms: int, lease: int = 0, attempt: int = 0, lease_ms: int = 0) -> TimerRow:
    return TimerRow(due_ms, item.id, item.lane, lease, attempt, lease_ms, size(item))


def ready_key(item: NewItem) -> tuple[int, int, int, int]:
    return (item.lane, item.priority, item.deliver_after_ms, item.id)


def size(item: NewItem) -> int:
    return len(item.payload) + len(item.metadata or b"") + len(item.headers or b"")


def body(item: NewItem) -> Body:
    return Body(
        item.id,
        item.lane,
        item.priority,
        item.deliver_after_ms,
        item.enqueued_at_ms,
        item.expires_at_ms,
        item.lease_ms,
        item.delivery,
        item.payload,
        item.metadata,
        item.headers,
        item.order_key,
        item.order_at,
        None,
        item.batch,
    )


def insert(store: ShardStore, *items: NewItem, next_number: int = 10_000) -> None:
    store.commit(Batch(inserts=list(items), next_number=next_number))


class RowContract:
    """`store` is open, with lane 1, and has matched every row it asked for when the test is over."""

    @pytest.fixture
    def store(self, shard: Shard) -> Iterator[ShardStore]:
        store = shard.store()
        store.open("owner", take_over=False)
        store.commit(Batch(lanes_new=[LANE], next_number=1))
        yield store
        store.close()
        assert getattr(store, "mismatches", 0) == 0

    # ------------------------------------------------------------------------------------------ rows

    def test_an_item_is_stored_whole(self, store: ShardStore) -> None:
        item = new_item(
            3,
            payload=b"p",
            metadata=b"m",
            headers=b"{}",
            priority=-4,
            deliver_after_ms=NOW_MS + 1,
            enqueued_at_ms=NOW_MS + 2,
            expires_at_ms=NOW_MS + 3,
            lease_ms=4,
            delivery=AT_MOST_ONCE,
        )
        insert(store, item)
        assert store.bodies([item.id]) == [body(item)]
        assert store.page(1, None, 10) == [ready_row(item)]
        assert store.look([item.id]) == [Found(body(item), ready_row(item), None, item.deliver_after_ms)]

    def test_all_bytes_come_back(self, store: ShardStore) -> None:
        items = []
        for payload in BYTES:
            for other in (None, *BYTES):
                number = len(items) + 1
                items.append(new_item(number, payload=payload, metadata=other, headers=payload if other else None))
        insert(store, *items)
        found = store.bodies([item.id for item in items])
        assert sorted(found) == [body(item) for item in items]
        assert sorted(row.body for row in store.look([item.id for item in items])) == [body(item) for item in items]
        assert {row.id: row.bytes for row in store.page(1, None, 1000)} == {item.id: size(item) for item in items}

    def test_the_extremes_of_numbers(self, store: ShardStore) -> None:
        items = [new_item(n + 1, priority=priority) for n, priority in enumerate(I32)]
        items.append(new_item(payload=b"last", item_id=make_id(NUMBER, MAX_NUMBER), deliver_after_ms=(1 << 63) - 1))
        insert(store, *items)
        assert [row.priority for row in store.page(1, None, 10)] == sorted(item.priority for item in items)
        assert store.page(1, (0, NOW_MS, items[2].id), 1)[0].id == items[5].id
        assert store.bodies([items[5].id]) == [body(items[5])]
        rows = [timer_row(item, NOW_MS, lease, (1 << 31) - 1) for item, lease in zip(items, (*I64, 5, 6), strict=True)]
        store.commit(Batch(ready_gone=[ready_key(item) for item in items], timer_new=rows, next_number=1))
        assert [row.timer for row in store.due(0, NOW_MS, 10).rows] == sorted(rows)
        for at, row in enumerate(sorted(rows), 1):
            assert [one.timer for one in store.due(row.due_ms, NOW_MS, 10, row.id).rows] == sorted(rows)[at:]
        last = items[5].id
        store.commit(
            Batch(timer_gone=[last], ready_new=[ready_row(items[5], (1 << 31) - 1, -(1 << 63))], next_number=1)
        )
        store.commit(Batch(ready_gone=[ready_key(items[5])], item_gone=[last], next_number=1))
        assert store.bodies([last]) == []

    def test_names_of_lanes_are_bytes(self, shard: Shard, store: ShardStore) -> None:
        long = "\u07ff".encode() * 127
        lanes = [
            LaneRow(2, b"A", b"t", b""),
            LaneRow(3, b"a", b"t", b""),
            LaneRow(4, b"a ", b"t", b""),
            LaneRow(5, b"a", b"T", b""),
            LaneRow(6, "é".encode(), b"t", b""),
            LaneRow(7, b"e", b"t", b""),
            LaneRow(8, long + b"1", long + b"\0", b""),
            LaneRow(9, long + b"2", long + b"\0", b""),
            LaneRow(10, b"a", b"t", b"key"),
            LaneRow(11, b"a", b"t", b"key", b"k" * 255 + b"\0" + long),
            LaneRow(12, b"a", b"t", b"", b"k"),
            LaneRow(13, b"a", b"t", b"", rules=b'{"max_attempts":1}'),
            LaneRow(14, b"a", b"t", b"", b"k", rules=b'{"dead_topic":"' + b"d" * 255 + b'"}'),
        ]
        store.commit(Batch(lanes_new=lanes, next_number=1))
        store.commit(Batch(lanes_gone=[3, 9], next_number=1))
        store.close()
        again = shard.store()
        opened = again.open("owner", take_over=False)
        again.close()
        assert sorted(opened.lanes) == [LANE, *[lane for lane in lanes if lane.lane not in (3, 9)]]

    def test_weights_of_lanes(self, shard: Shard, store: ShardStore) -> None:
        lanes = [LaneRow(number, b"n", b"t", b"%d" % number) for number in range(2, 250)]
        weights = {lane.lane: lane.lane % 7 + 1 for lane in lanes if lane.lane % 3}
        store.commit(Batch(lanes_new=lanes, weights=list(weights.items()), next_number=1))
        store.commit(Batch(weights=[(2, 1_000)], next_number=1))
        weights[2] = 1_000
        store.close()
        again = shard.store()
        opened = again.open("owner", take_over=False)
        again.close()
        expected = [LANE, *[lane._replace(weight=weights.get(lane.lane, 0)) for lane in lanes]]
        assert sorted(opened.lanes) == expected

    def test_a_megabyte(self, store: ShardStore) -> None:
        large = random.Random(1).randbytes(1 << 20)
        small = min(len(large), store.max_batch_bytes - 2)
        item = new_item(payload=large[:small])
        insert(store, item, new_item(2))
        assert store.bodies([item.id])[0].payload == item.payload
        assert store.page(1, None, 1)[0].bytes == small

    def test_a_batch_of_max_batch_bytes(self, store: ShardStore) -> None:
        source = random.Random(2)
        count = 16
        items = [new_item(n + 1, payload=source.randbytes(store.max_batch_bytes // count)) for n in range(count)]
        insert(store, *items)
        found = store.bodies([item.id for item in items])
        assert sorted(found) == [body(item) for item in items]

    def test_more_rows_than_a_statement_takes(self, store: ShardStore) -> None:
        count = 2_500
        items = [new_item(n + 1, priority=n % 5, expires_at_ms=NOW_MS + n) for n in range(count)]
        ids = [item.id for item in items]
        insert(store, *items)
        assert [row.id for row in store.page(1, None, count)] == [
            item.id for item in sorted(items, key=lambda item: (item.priority, item.id))
        ]
        leased = [timer_row(item, NOW_MS + 5, 9, 1, 1000) for item in items]
        store.commit(Batch(ready_gone=[ready_key(item) for item in items], timer_new=leased, next_number=1))
        assert store.page(1, None, 10) == []
        assert [row.timer for row in store.due(0, NOW_MS + 5, count).rows] == leased
        metadata = [(item_id, b"%d" % item_id) for item_id in ids]
        times = [(item_id, NOW_MS + item_id % 100) for item_id in ids]
        delayed = [TimerRow(at_ms, item_id, 1, 0, 1, 0, 7) for item_id, at_ms in times]
        store.commit(
            Batch(timer_gone=ids, metadata_new=metadata, deliver_after_new=times, timer_new=delayed, next_number=1)
        )
        found = {each.id: each for each in store.bodies(ids)}
        assert {item_id: each.metadata for item_id, each in found.items()} == dict(metadata)
        assert {item_id: each.deliver_after_ms for item_id, each in found.items()} == dict(times)
        assert [each.timer for each in store.look(ids)].count(None) == 0
        put_off = [(NOW_MS + 9000, item_id) for item_id in ids]
        store.commit(Batch(expiry_gone=ids, expiry_new=put_off, next_number=1))
        assert store.expiring(0, NOW_MS + 8999, 10).next_ms == NOW_MS + 9000
        store.commit(Batch(timer_gone=ids, expiry_gone=ids, item_gone=ids, next_number=1))
        assert store.bodies(ids) == []
        assert store.due(0, 1 << 60, 10).rows == []
        assert store.expiring(0, 1 << 60, 10).rows == []

    # ------------------------------------------------------------------------------------------ a life

    def test_a_whole_life(self, store: ShardStore) -> None:
        item = new_item(payload=b"work", metadata=b"0 %")
        insert(store, item)
        store.commit(
            Batch(ready_gone=[ready_key(item)], timer_new=[timer_row(item, NOW_MS + 30, 77, 1, 30)], next_number=1)
        )
        assert store.look([item.id]) == [Found(body(item), None, timer_row(item, NOW_MS + 30, 77, 1, 30), NOW_MS)]
        assert store.page(1, None, 1) == []
        later = new_item(payload=b"work", metadata=b"50 %", due_ms=NOW_MS + 60)
        store.commit(
            Batch(
                timer_gone=[item.id],
                metadata_new=[(item.id, b"50 %")],
                deliver_after_new=[(item.id, NOW_MS + 60)],
                timer_new=[timer_row(later, NOW_MS + 60, 0, 1)],
                next_number=1,
            )
        )
        assert store.due(0, NOW_MS + 60, 1).rows == [
            DueRow(timer_row(later, NOW_MS + 60, 0, 1), 0, NOW_MS + 60, 0, item.delivery, NOW_MS)
        ]
        store.commit(Batch(timer_gone=[item.id], ready_new=[ready_row(later, 1, 77)], next_number=1))
        assert store.look([item.id]) == [Found(body(later), ready_row(later, 1, 77), None, NOW_MS)]
        store.commit(Batch(ready_gone=[ready_key(later)], item_gone=[item.id], next_number=1))
        assert store.look([item.id]) == []
        assert store.bodies([item.id]) == []

    def test_since_when_an_item_could_be_delivered(self, store: ShardStore) -> None:
        """Since its first time, whatever times follow; after a move since then."""
        plain, delayed = new_item(1), new_item(2, due_ms=NOW_MS + 500)
        insert(store, plain, delayed)
        ids = [plain.id, delayed.id]

        def since() -> list[int]:
            found = {row.body.id: row.since_ms for row in store.look(ids)}
            return [found[item_id] for item_id in ids]

        assert since() == [NOW_MS, NOW_MS + 500]
        at_ms = plain.deliver_after_ms
        for later_ms in (NOW_MS + 1_000, NOW_MS + 2_000):
            ready = ready_row(new_item(1))._replace(deliver_after_ms=later_ms)
            timer = timer_row(new_item(2, due_ms=later_ms), later_ms)
            store.commit(
                Batch(
                    ready_gone=[(*ready_key(plain)[:2], at_ms, plain.id)],
                    timer_gone=[delayed.id],
                    deliver_after_new=[(item_id, later_ms) for item_id in ids],
                    ready_new=[ready],
                    timer_new=[timer],
                    next_number=3,
                )
            )
            at_ms = later_ms
            assert since() == [NOW_MS, NOW_MS + 500]
            assert store.page(1, None, 9) == [ready]
            assert [row.since_ms for row in store.due(0, later_ms, 9).rows] == [NOW_MS + 500]
        moved_ms = NOW_MS + 9_000
        store.commit(
            Batch(
                lanes_new=[LaneRow(2, b"ns", b"other", b"")],
                ready_gone=[(*ready_key(plain)[:2], at_ms, plain.id)],
                moved=[(plain.id, 2, moved_ms, 0)],
                ready_new=[ready._replace(lane=2, deliver_after_ms=moved_ms)],
                next_number=3,
            )
        )
        assert since() == [moved_ms, NOW_MS + 500]

    def test_items_get_another_place(self, store: ShardStore) -> None:
        """Another priority and time; the time since which an item could be delivered begins again for a first time."""
        ready, delayed, stays = new_item(1), new_item(2, due_ms=NOW_MS + 500), new_item(3)
        insert(store, ready, delayed, stays)
        later_ms = NOW_MS + 9_000
        to_timer, to_ready = new_item(1, due_ms=later_ms), new_item(2, priority=-7, deliver_after_ms=NOW_MS)
        store.commit(
            Batch(
                ready_gone=[ready_key(ready)],
                timer_gone=[delayed.id],
                placed=[(ready.id, 4, later_ms, True), (delayed.id, -7, NOW_MS, False)],
                ready_new=[ready_row(to_ready)],
                timer_new=[timer_row(to_timer, later_ms)],
                next_number=4,
            )
        )
        found = {row.body.id: row for row in store.look([ready.id, delayed.id, stays.id])}
        places = {item_id: (row.body.priority, row.body.deliver_after_ms) for item_id, row in found.items()}
        assert places == {ready.id: (4, later_ms), delayed.id: (-7, NOW_MS), stays.id: (0, NOW_MS)}
        assert [found[item.id].since_ms for item in (ready, delayed, stays)] == [later_ms, NOW_MS + 500, NOW_MS]
        assert [row.id for row in store.page(1, None, 9)] == [delayed.id, stays.id]
        (due,) = store.due(0, later_ms, 9).rows
        assert (due.timer.id, due.priority, due.deliver_after_ms) == (ready.id, 4, later_ms)
        assert found[ready.id].body.payload == ready.payload

    def test_reads_of_missing_rows(self, store: ShardStore) -> None:
        assert store.bodies([]) == []
        assert store.look([]) == []
        assert store.bodies([make_id(NUMBER, 1)]) == []
        assert store.look([make_id(NUMBER, 1), 0, -1]) == []
        assert store.page(1, None, 10) == []
        assert store.page(99, None, 10) == []
        assert store.page(1, (0, 0, 0), 10) == []
        assert store.list_timer([1], True, None, 10) == []
        for scan in (store.due(0, NOW_MS, 10), store.expiring(0, NOW_MS, 10)):
            assert (scan.rows, scan.complete, scan.next_ms) == ([], True, 0)
            assert scan.db_now_ms > 0

    # ------------------------------------------------------------------------------------------ scans

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
    @given(data=st.data())
    def test_pages_are_the_sorted_order_behind_any_bound(self, store: ShardStore, data: st.DataObject) -> None:
        small = st.tuples(st.sampled_from((*I32, 2, 3)), st.integers(0, 3), st.integers(1, 60))
        drawn = data.draw(st.lists(small, max_size=40, unique_by=lambda key: key[2]))
        items = [new_item(number, priority=p, deliver_after_ms=d) for p, d, number in drawn]
        items += [new_item(100 + number, priority=p, deliver_after_ms=d, lane=2) for p, d, number in drawn[:5]]
        keys = sorted((item.priority, item.deliver_after_ms, item.id) for item in items if item.lane == 1)
        p, d, number = data.draw(small)
        after = data.draw(st.sampled_from([None, (p, d, make_id(NUMBER, number)), *keys[:3], *keys[-3:]]))
        limit = data.draw(st.integers(1, 50))
        insert(store, *items)  # a draw may end the example: nothing is left of it then
        rows = store.page(1, after, limit)
        assert [(row.priority, row.deliver_after_ms, row.id) for row in rows] == [
            key for key in keys if after is None or key > after
        ][:limit]
        gone = [item.id for item in items]
        store.commit(Batch(ready_gone=[ready_key(item) for item in items], item_gone=gone, next_number=1))

    def test_a_page_of_lanes_is_lane_by_lane(self, store: ShardStore) -> None:
        given = [(3, 5), (1, 2), (2, 9), (1, 1), (3, 4), (4, 0)]
        items = [new_item(number, priority=p, lane=lane) for number, (lane, p) in enumerate(given, start=1)]
        insert(store, *items)
        keys = sorted((item.lane, *ready_key(item)[1:]) for item in items if item.lane != 2)
        lanes = [4, 1, 3, 7]
        for limit in (1, 3, len(keys), 100):
            rows = store.page_of_lanes(lanes, limit)
            assert [(row.lane, row.priority, row.deliver_after_ms, row.id) for row in rows] == keys[:limit]
        assert store.page_of_lanes([7, 8], 10) == []

    @settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
    @given(data=st.data())
    def test_pages_of_some_priorities(self, store: ShardStore, data: st.DataObject) -> None:
        priorities = st.sampled_from((*I32, 2, 3))
        small = st.tuples(st.integers(1, 2), priorities, st.integers(0, 3), st.integers(1, 60))
        drawn = data.draw(st.lists(small, max_size=40, unique_by=lambda key: key[3]))
        items = [new_item(number, priority=p, deliver_after_ms=d, lane=lane) for lane, p, d, number in drawn]
        keys = sorted(map(ready_key, items))
        low, high = sorted((data.draw(priorities), data.draw(priorities)))
        _, p, d, number = data.draw(small)
        after = data.draw(st.sampled_from([None, (p, d, make_id(NUMBER, number))]))
        limit = data.draw(st.integers(1, 50))
        insert(store, *items)
        page = store.page(1, after, limit, (low, high))
        assert [(row.lane, row.priority, row.deliver_after_ms, row.id) for row in page] == [
            key for key in keys if key[0] == 1 and low <= key[1] <= high and (after is None or key[1:] > after)
        ][:limit]
        both = store.page_of_lanes([1, 2], limit, (low, high))
        wanted = [key for key in keys if low <= key[1] <= high][:limit]
        assert [(row.lane, row.priority, row.deliver_after_ms, row.id) for row in both] == wanted
        store.commit(Batch(ready_gone=keys, item_gone=[item.id for item in items], next_number=1))

    def test_facts(self, store: ShardStore) -> None:
        items = [
            new_item(number, headers=headers, priority=priority, enqueued_at_ms=NOW_MS + number)
            for number, (headers, priority) in enumerate(zip((None, *BYTES), (*I32, 5, 6, 7, 8), strict=False), start=1)
        ]
        insert(store, *items)
        ids = [item.id for item in items]
        facts = [ItemFacts(item.id, item.priority, item.enqueued_at_ms, item.headers) for item in items]
        assert sorted(store.facts([9_999, *reversed(ids)], headers=True)) == facts
        assert sorted(store.facts(ids[:2], headers=False)) == [one._replace(headers=None) for one in facts[:2]]
        many = [new_item(100 + number) for number in range(1_100)]
        insert(store, *many)
        assert len(store.facts([item.id for item in many], headers=True)) == 1_100

    def test_a_page_of_a_thousand_lanes(self, store: ShardStore) -> None:
        numbers = random.Random(4).sample(range(3, 5_000), 1_000)
        store.commit(Batch(lanes_new=[LaneRow(n, b"n", b"%d" % n, b"") for n in numbers], next_number=1))
        items = [new_item(at, lane=lane) for at, lane in enumerate(numbers, start=1)]
        insert(store, *items)
        rows = store.page_of_lanes(numbers, 1_001)
        assert [row.id for row in rows] == [item.id for item in sorted(items, key=lambda item: item.lane)]
        assert store.page_of_lanes(numbers, 999) == rows[:999]

    @pytest.fixture
    def timers(self, store: ShardStore) -> list[NewItem]:
        """Items due at 10, 20, 20, 30, ... 90 after NOW_MS; those of odd numbers also expire then."""
        items = []
        for number, after_ms in enumerate([10, 20, 20, 30, 40, 50, 60, 70, 80, 90], start=1):
            expires_at_ms = NOW_MS + after_ms if number % 2 else 0
            items.append(new_item(number, due_ms=NOW_MS + after_ms, expires_at_ms=expires_at_ms))
        insert(store, *items)
        return items

    @pytest.mark.parametrize(
        ("from_ms", "now_ms", "limit", "numbers", "complete", "next_ms"),
        [
            (0, 9, 5, [], True, 10),
            (0, 10, 5, [1], True, 20),
            (0, 20, 5, [1, 2, 3], True, 30),
            (0, 20, 3, [1, 2, 3], True, 30),
            (0, 20, 2, [1, 2], False, 30),
            (11, 35, 9, [2, 3, 4], True, 40),
            (20, 20, 9, [2, 3], True, 30),
            (0, 90, 50, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], True, 0),
            (91, 200, 50, [], True, 0),
        ],
    )
    def test_due_rows_in_order(
        self,
        store: ShardStore,
        timers: list[NewItem],
        from_ms: int,
        now_ms: int,
        limit: int,
        numbers: list[int],
        complete: bool,
        next_ms: int,
    ) -> None:
        scan = store.due(NOW_MS + from_ms if from_ms else 0, NOW_MS + now_ms, limit)
        items = [timers[number - 1] for number in numbers]
        assert scan.rows == [
            DueRow(timer_row(item, item.due_ms), 0, item.due_ms, item.expires_at_ms, item.delivery, item.due_ms)
            for item in items
        ]
        assert (scan.complete, scan.next_ms) == (complete, next_ms and NOW_MS + next_ms)

    @pytest.mark.parametrize(
        ("from_ms", "now_ms", "limit", "numbers", "complete", "next_ms"),
        [
            (0, 9, 5, [], True, 10),
            (0, 20, 5, [1, 3], True, 40),
            (0, 40, 2, [1, 3], False, 60),
            (15, 60, 9, [3, 5, 7], True, 80),
            (0, 90, 50, [1, 3, 5, 7, 9], True, 0),
        ],
    )
    def test_expiring_rows_in_order(
        self,
        store: ShardStore,
        timers: list[NewItem],
        from_ms: int,
        now_ms: int,
        limit: int,
        numbers: list[int],
        complete: bool,
        next_ms: int,
    ) -> None:
        scan = store.expiring(NOW_MS + from_ms if from_ms else 0, NOW_MS + now_ms, limit)
        items = [timers[number - 1] for number in numbers]
        assert scan.rows == [
            ExpiringRow(item.expires_at_ms, Found(body(item), None, timer_row(item, item.due_ms), item.due_ms))
            for item in items
        ]
        assert (scan.complete, scan.next_ms) == (complete, next_ms and NOW_MS + next_ms)

    def test_expiring_finds_ready_items_and_times_put_off(self, store: ShardStore) -> None:
        item = new_item(expires_at_ms=NOW_MS + 5)
        insert(store, item)
        store.commit(Batch(expiry_gone=[item.id], expiry_new=[(NOW_MS + 8, item.id)], next_number=1))
        assert store.expiring(0, NOW_MS + 7, 5).rows == []
        assert store.expiring(0, NOW_MS + 8, 5).rows == [
            ExpiringRow(NOW_MS + 8, Found(body(item), ready_row(item), None, NOW_MS))
        ]

    def test_timers_of_a_lane(self, store: ShardStore, timers: list[NewItem]) -> None:
        other = new_item(50, due_ms=NOW_MS + 20, lane=2)
        store.commit(Batch(lanes_new=[LaneRow(2, b"n", b"t", b"")], inserts=[other], next_number=100))
        leased = [timer_row(item, NOW_MS + 20, 5, 1, 10) for item in timers[:4]]
        store.commit(Batch(timer_gone=[item.id for item in timers[:4]], timer_new=leased, next_number=1))
        assert store.list_timer([1], True, None, 10) == leased
        assert store.list_timer([1], True, (NOW_MS + 20, timers[1].id), 1) == leased[2:3]
        delayed = [timer_row(item, item.due_ms) for item in timers[4:]]
        assert store.list_timer([1], False, None, 3) == delayed[:3]
        assert store.list_timer([1], False, (delayed[2].due_ms, delayed[2].id), 99) == delayed[3:]
        assert store.list_timer([2], False, None, 99) == [timer_row(other, other.due_ms)]
        both = sorted([*delayed, timer_row(other, other.due_ms)], key=lambda row: (row.due_ms, row.id))
        assert store.list_timer([1, 2], False, None, 99) == both
        assert store.list_timer([2, 3, 1], False, (both[1].due_ms, both[1].id), 2) == both[2:4]
