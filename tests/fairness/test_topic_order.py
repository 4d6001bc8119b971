"""Pages of topics come in order, whatever was added and removed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.fairness import topics
from foqs.fairness.keys import TopicKey
from foqs.fairness.topics import TopicOrder

keys = st.tuples(st.sampled_from("ab"), st.integers(0, 40).map(str))
steps = st.lists(st.tuples(st.sampled_from(["add", "remove", "sort"]), keys), max_size=150)


@given(st.sets(keys), steps, st.sampled_from([1, 3, 500]))
def test_a_walk_is_complete_and_in_order(first: set[TopicKey], steps: list, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics, "_PIECE", piece)
        known = set(first)
        order = TopicOrder(first)
        for step, key in steps:
            if step == "add" and key not in known:
                known.add(key)
                order.add(key)
            elif step == "remove" and key in known:
                known.remove(key)
                order.discard(key)
            elif step == "sort":
                order.sort(3, known)
        while order.sort(10, known):
            pass
        walked: list[TopicKey] = []
        while page := order.after(walked[-1] if walked else ("", ""), 7):
            assert len(page) <= 7
            walked += page
        assert walked == sorted(known)


def test_sorting_is_bounded() -> None:
    keys = [("ns", str(number)) for number in range(10)]
    order = TopicOrder(keys)
    assert order.sort(4, set(keys))
    assert len(order.after(("", ""), 100)) == 4
    assert order.sort(4, set(keys))
    assert not order.sort(4, set(keys))
    assert order.after(("", ""), 100) == keys


def test_a_key_that_is_discarded_unsorted_is_not_walked() -> None:
    first, *others = keys = [("ns", str(number)) for number in range(10)]
    order = TopicOrder(keys)
    order.sort(4, set(keys))
    order.discard(first)
    assert not order.sort(6, set(others))
    assert order.after(("", ""), 100) == others
