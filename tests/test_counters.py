"""Namespaces have counts of their own up to a bound, and nothing is lost beyond it."""

import pytest

from foqs.counters import NO_NAME, OTHER, Counters, Namespaces
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
    counters.refused[Code.STALE_LEASE] += 4
    told = counters.as_dict()
    assert (told["enqueued"], told["removed"], told["refused"]) == (6, {"ack": 3}, {"stale_lease": 4})
    assert counters.removed.total() == 3
