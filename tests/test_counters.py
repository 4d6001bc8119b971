"""Counts by namespace have a bound and lose nothing beyond it. A value counts under the smallest bound above it."""

from bisect import bisect_right
from math import inf, nextafter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foqs.counters import NO_NAME, OTHER, ROWS, SECONDS, Counters, Histogram, Namespaces
from foqs.errors import Code


def test_the_first_ones_have_their_own() -> None:
    namespaces = Namespaces(2)
    for name in ("a", "b", "c", "d", "a", "b", "c"):
        namespaces.of(name).enqueued += 1
    assert {name: one.enqueued for name, one in namespaces} == {NO_NAME: 0, OTHER: 3, "a": 2, "b": 2}


def test_a_namespace_named_like_other_counts_as_other() -> None:
    namespaces = Namespaces(1)
    assert namespaces.of("other") is namespaces.of("a") or namespaces.of("other") is namespaces.of("b")
    assert sorted(name for name, _ in namespaces) == ["", "a", "other"]


@pytest.mark.parametrize("name", [b"bytes", "x" * 256, 7])
def test_an_invalid_name_takes_no_place(name: object) -> None:
    namespaces = Namespaces(1)
    assert namespaces.of(name) is namespaces.of(OTHER)  # type: ignore[arg-type]
    assert namespaces.of("a") is not namespaces.of(OTHER)


def test_requests_that_name_none() -> None:
    namespaces = Namespaces(0)
    namespaces.of(None).seconds["GetItem"].observe(0.2)
    assert sum(namespaces.of(NO_NAME).seconds["GetItem"].counts) == 1


def test_totals_are_those_of_all_namespaces() -> None:
    counters = Counters(Namespaces(1))
    for name in ("a", "b", "c"):
        namespace = counters.namespaces.of(name)
        namespace.enqueued += 2
        namespace.removed["ack"] += 1
        namespace.dead["failed"] += 1
        namespace.redriven += 1
    counters.refused[Code.STALE_LEASE] += 4
    found = counters.as_dict()
    assert (found["enqueued"], found["removed"], found["refused"]) == (6, {"ack": 3}, {"stale_lease": 4})
    assert (found["dead"], found["redriven"]) == ({"failed": 3}, 3)
    assert counters.removed.total() == 3


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
