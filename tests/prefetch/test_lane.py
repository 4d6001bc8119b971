"""A lane's window, its counts of ready items, and the merge of windows."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foqs.item import Item, Phase
from foqs.prefetch import lane as lane_module
from foqs.prefetch.lane import Entry, Lane, Window, first_of, known_until, lease_until
from foqs.rows import BACKLOG_SHIFT, Key
from tests.support.examples import examples
from tests.support.lanes import lone_lane

CAPACITY = 6
PAGE = 4


class WindowAndPages(RuleBasedStateMachine):
    """`table` is what the database has ready; `known` what memory holds (in the window or leased)."""

    def __init__(self) -> None:
        super().__init__()
        self.lane = lone_lane()
        self.window = Window(complete=True, page_rows=PAGE)
        self.table: dict[int, Key] = {}
        self.known: dict[int, Item] = {}
        self.next_id = 1
        self.read: tuple[int, list[Key]] | None = None

    def item(self, key: Key) -> Item:
        return Item(key[2], self.lane, key[0], key[1], 0, 0, 0, None)

    def enter(self, key: Key) -> None:
        """A committed insert, or an item that came back."""
        if self.window.covers(key):
            item = self.known[key[2]] = self.item(key)
            item.phase = Phase.WINDOW
            self.window.add(item.entry)
            if len(self.window) > CAPACITY:
                for gone in self.window.cut(CAPACITY):
                    del self.known[gone.id]
        else:
            self.known.pop(key[2], None)

    @precondition(lambda self: self.read is None)  # a commit and a page are batches of one thread, in order
    @rule(priority=st.integers(0, 3), at=st.integers(0, 3))
    def insert(self, priority: int, at: int) -> None:
        key = (priority, at, self.next_id)
        self.next_id += 1
        self.table[key[2]] = key
        self.enter(key)

    @precondition(lambda self: self.window.entries)
    @rule()
    def lease(self) -> None:
        """The first of the window is the first of all that are ready."""
        entry = self.window.entries.pop(0)
        ready = [key for item_id, key in self.table.items() if not self.leased(item_id)]
        assert entry[:3] == min(ready)
        entry[3].phase = Phase.LEASED

    def leased(self, item_id: int) -> bool:
        return item_id in self.known and self.known[item_id].phase is Phase.LEASED

    def pick(self, data: st.DataObject) -> int | None:
        leased = sorted(item_id for item_id in self.known if self.leased(item_id))
        return data.draw(st.sampled_from(leased)) if leased else None

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        item_id = self.pick(data)
        if item_id is not None:
            self.known[item_id].phase = Phase.IDLE
            self.enter(self.table[item_id])

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        item_id = self.pick(data)
        if item_id is not None and self.read is None:
            del self.table[item_id], self.known[item_id]

    @precondition(lambda self: self.read is None and self.window.wants_page(CAPACITY))
    @rule()
    def ask(self) -> None:
        after = self.window.end
        rows = sorted(key for key in self.table.values() if after is None or key > after)[:PAGE]
        self.window.asked_ms = 1
        self.read = (self.window.generation, rows)

    @precondition(lambda self: self.read is not None)
    @rule()
    def apply(self) -> None:
        assert self.read is not None
        (generation, rows), self.read = self.read, None
        if generation != self.window.generation:
            return
        items = [self.item(key) for key in rows if key[2] not in self.known]
        for item in items:
            item.phase = Phase.WINDOW
            self.known[item.id] = item
        self.window.extend([item.entry for item in items], rows[-1] if rows else None, more=len(rows) == PAGE)

    @invariant()
    def the_window_holds_all_up_to_its_end(self) -> None:
        ready = sorted(key for item_id, key in self.table.items() if not self.leased(item_id))
        if self.read is not None:
            return  # items that came back behind the page's bound since then are in the page
        covered = [key for key in ready if self.window.covers(key)]
        assert [entry[:3] for entry in self.window.entries] == covered


WindowAndPages.TestCase.settings = settings(max_examples=examples(1.5), stateful_step_count=60)
TestWindowAndPages = WindowAndPages.TestCase


steps = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 100)), max_size=200)


@given(steps, st.sampled_from([3, 1024]))
def test_counts_and_ages(found: list[tuple[bool, int, int]], most_buckets: int) -> None:
    kept, lane_module._MAX_BUCKETS = lane_module._MAX_BUCKETS, most_buckets
    try:
        lane, ready = lone_lane(), list[int]()
        for enters, bucket, which in found:
            if enters:
                at_ms = bucket << BACKLOG_SHIFT
                ready.append(at_ms)
                lane.add_ready(at_ms)
            elif ready:
                lane.remove_ready(ready.pop(which % len(ready)))
            assert lane.ready == len(ready)
            assert bool(lane.oldest_ready_at_ms()) <= bool(ready)
            if ready and most_buckets == 1024:
                assert lane.oldest_ready_at_ms() == min(ready)
            elif ready:
                assert lane.oldest_ready_at_ms() <= max(ready)
    finally:
        lane_module._MAX_BUCKETS = kept


TIMES = st.integers(1, 3 << BACKLOG_SHIFT)


@given(st.lists(st.tuples(st.integers(-1, 1), TIMES), min_size=1, max_size=20), st.integers(1, 20))
def test_the_age_of_items_in_memory_is_exact(found: list[tuple[int, int]], most: int) -> None:
    """`most` items are in the window, in order. The age is exact if these include all that are near the oldest."""
    lane = lone_lane()
    window = lane.window = Window(complete=True, page_rows=8)
    for number, (priority, at_ms) in enumerate(found, 1):
        window.add(Item(number, lane, priority, at_ms, 0, 0, 0, None).entry)
        lane.add_ready(at_ms)
    oldest_ms = min(at_ms for _, at_ms in found)
    assert lane.oldest_ready_at_ms() == oldest_ms
    forgotten = [item.deliver_after_ms for item in window.cut(most)]
    assert 0 <= oldest_ms - lane.oldest_ready_at_ms() < 1 << BACKLOG_SHIFT, "a bound from above on the age"
    if all(at_ms >> BACKLOG_SHIFT > oldest_ms >> BACKLOG_SHIFT for at_ms in forgotten):
        assert lane.oldest_ready_at_ms() == oldest_ms


@pytest.mark.parametrize("priorities", [32, 33])
def test_a_look_for_the_oldest_item_is_bounded(priorities: int) -> None:
    window = window_of([(priority, 1_000 - priority, priority + 1) for priority in range(priorities)])
    assert window.oldest(None) == ((969, 32) if priorities == 32 else (None, 0))


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40))
def test_a_lease_of_several_items_is_one_of_each(found: list[tuple[int, bool]]) -> None:
    together, singly = lone_lane(), lone_lane()
    entries = []
    for number, (bucket, leased) in enumerate(found):
        at_ms = bucket << BACKLOG_SHIFT
        together.add_ready(at_ms)
        singly.add_ready(at_ms)
        if leased:
            entries.append(Item(number, together, 0, at_ms, 0, 0, 0, None).entry)
    together.lease(entries)
    for entry in entries:
        singly.remove_ready(entry[1])
    assert (together.ready, together.leased) == (singly.ready, len(entries))
    assert together.oldest_ready_at_ms() == singly.oldest_ready_at_ms()


LANE = lone_lane()
keys = st.tuples(st.integers(-3, 3), st.integers(0, 4), st.integers(1, 10_000))
shards = st.lists(st.lists(keys, max_size=30), min_size=1, max_size=5)


def window_of(found: list[Key]) -> Window[Item]:
    window: Window[Item] = Window(complete=True, page_rows=8)
    for priority, at, item_id in found:
        window.add(Item(item_id, LANE, priority, at, 0, 0, 0, None).entry)
    return window


def lane_with(window: Window[Item]) -> Lane[Item]:
    lane = lone_lane()
    for _, at, _, _ in window.entries:
        lane.add_ready(at)
    lane.window = window
    return lane


def distinct(found: list[list[Key]]) -> list[list[Key]]:
    """Ids are unique over shards."""
    return [
        [(priority, at, (shard << 48) + n * 20_000 + low) for n, (priority, at, low) in enumerate(part)]
        for shard, part in enumerate(found, 1)
    ]


def keys_of(entries: list[Entry[Item]]) -> list[Key]:
    return [entry[:3] for entry in entries]


@given(shards, st.integers(1, 50), st.one_of(st.none(), keys))
def test_the_first_are_those_of_the_sorted_union(found: list[list[Key]], count: int, bound: Key | None) -> None:
    parts = distinct(found)
    windows = [window_of(part) for part in parts]
    union = sorted(key for part in parts for key in part if bound is None or key <= bound)
    assert keys_of(first_of(windows, count, bound)) == union[:count]


@given(shards, st.integers(1, 50))
def test_taking_leaves_the_rest_in_order(found: list[list[Key]], count: int) -> None:
    parts = distinct(found)
    windows = [window_of(part) for part in parts]
    lanes = [lane_with(window) for window in windows]
    union = sorted(key for part in parts for key in part)
    taken: list[Key] = []
    while True:
        entries = first_of(windows, count, None)
        if not entries:
            break
        lease_until(lanes, entries[-1])
        taken += keys_of(entries)
    assert taken == union
    assert [lane.leased for lane in lanes] == [len(part) for part in parts]


@given(st.integers(1, 40), st.integers(1, 400), st.integers(1, 120), st.randoms(use_true_random=False))
def test_the_first_of_long_windows(shards: int, items: int, count: int, rng: random.Random) -> None:
    """Items come in batches, each on one shard. A batch of one is a single enqueue."""
    parts: list[list[Key]] = [[] for _ in range(shards)]
    at = 0
    while at < items:
        part, batch = rng.choice(parts), rng.choice([1, 1, 1, 10, 100])
        part += [(rng.choice([0, 0, 0, 1]), at, item_id) for item_id in range(at + 1, at + batch + 1)]
        at += batch
    windows = [window_of(part) for part in parts]
    assert keys_of(first_of(windows, count, None)) == sorted(key for part in parts for key in part)[:count]


@given(shards, st.data())
def test_nothing_behind_the_known_part_of_each_window(found: list[list[Key]], data: st.DataObject) -> None:
    windows = [window_of(part) for part in distinct(found)]
    for window in windows:
        if window.entries and data.draw(st.booleans()):
            window.cut(data.draw(st.integers(0, len(window.entries) - 1)))
    bound = known_until(windows)
    for entry in first_of(windows, 100, bound):
        for window in windows:
            assert not window.more or (window.end is not None and entry[:3] <= window.end)
