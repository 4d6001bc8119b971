"""The numbers of a topic's lanes on a shard, of which most are gone soon."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.fairness.topics import TenantLanes


@given(st.lists(st.one_of(st.just(-1), st.integers(0, 400)), max_size=600))
def test_numbers_stay_in_order_while_lanes_come_and_go(steps: list[int]) -> None:
    """-1 adds a lane; any other number removes one of those that are left."""
    lanes, left, last = TenantLanes(), list[int](), 0
    for step in steps:
        if step < 0:
            last += 3
            lanes.add(last)
            left.append(last)
        elif left:
            left.pop(step % len(left))
            lanes.remove(left)
        assert len(lanes) == len(left)
        assert len(lanes.numbers) <= 2 * len(left) + 65
    assert [number for number in lanes.numbers if number in left] == left


def test_the_gone_are_forgotten_when_they_are_most() -> None:
    lanes = TenantLanes()
    for number in range(1, 1_001):
        lanes.add(number)
    left = set(range(1, 1_001))
    for number in range(1, 1_001):
        left.discard(number)
        lanes.remove(left)
    assert (len(lanes), len(lanes.numbers) <= 64) == (0, True)


def test_a_walk_goes_on_behind_a_number_whose_lane_is_gone() -> None:
    lanes = TenantLanes()
    for number in (2, 5, 9):
        lanes.add(number)
    assert list(lanes.behind(0, 2)) == [2, 5]
    assert list(lanes.behind(5, 10)) == [9]
    assert list(lanes.behind(4, 10)) == [5, 9]
    assert list(lanes.behind(9, 10)) == []
