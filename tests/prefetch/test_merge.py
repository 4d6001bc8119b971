"""The merge of windows is sorted() of their union, as far as every window is known."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from foqs.item import Item
from foqs.prefetch.lane import Entry, Lane, Window, first_of, known_until, lease_until
from foqs.rows import Key
from tests.support.lanes import lone_lane

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


@given(st.integers(1, 6), st.integers(1, 400), st.integers(1, 120), st.randoms(use_true_random=False))
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
