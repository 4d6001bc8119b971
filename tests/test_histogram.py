"""Values are counted under the smallest bound that holds them."""

from bisect import bisect_right
from math import inf, nextafter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foqs.counters import ROWS, SECONDS, Histogram

BOUNDS = (0.5, 1.0, 10.0)


@pytest.mark.parametrize(
    ("value", "at"), [(0.0, 0), (0.5, 0), (0.51, 1), (1.0, 1), (1.01, 2), (10.0, 2), (10.1, 3), (1e9, 3)]
)
def test_a_value_on_a_bound_belongs_below_it(value: float, at: int) -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(value)
    assert histogram.counts == [int(each == at) for each in range(4)]
    assert histogram.total == value


@given(st.lists(st.floats(0, 100)))
@example([nextafter(BOUNDS[-1], inf)])
def test_every_value_is_counted_once(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    at_most = [sum(histogram.counts[: at + 1]) for at in range(len(BOUNDS))]
    assert at_most == [bisect_right(sorted(values), bound) for bound in BOUNDS]
    assert sum(histogram.counts) == len(values)
    assert histogram.total == pytest.approx(sum(values))


def test_a_copy_does_not_change_any_more() -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(3)
    copied = histogram.copy()
    histogram.observe(4)
    assert (copied.counts, copied.total) == ([0, 0, 1, 0], 3)


@pytest.mark.parametrize("bounds", [SECONDS, ROWS])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
