"""A lane's counts are exact whatever its buckets of ages are joined to; ages are a bound from above."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.item import Item
from foqs.prefetch import lane as lane_module
from foqs.rows import BACKLOG_SHIFT
from tests.support.lanes import lone_lane

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
