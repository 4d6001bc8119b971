"""An exact key wins over a longer prefix, and that over a shorter one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.policies.entries import Patterns

names = st.text("ab*", max_size=4)


@given(st.dictionaries(names, st.integers()), st.lists(names))
def test_keys_that_fit_are_in_order(values: dict[str, int], asked: list[str]) -> None:
    patterns = Patterns(values)
    for name in asked:
        prefixes = [key for key in values if key.endswith("*") and name.startswith(key[:-1])]
        fit = sorted(prefixes, key=len) + [key for key in [name] if key in values and not key.endswith("*")]
        assert list(patterns.fitting(name)) == [(key, values[key]) for key in fit]
        assert patterns.closest(name) == (values[fit[-1]] if fit else None)


@given(st.dictionaries(names, st.integers()), st.dictionaries(names, st.integers()))
def test_patterns_are_compared_by_value(one: dict[str, int], other: dict[str, int]) -> None:
    assert Patterns(one) == Patterns(dict(reversed(one.items())))
    assert (Patterns(one) == Patterns(other)) == (one == other)
    assert bool(Patterns(one)) == bool(one)
    assert Patterns(one) != one


def test_patterns_show_their_keys() -> None:
    assert repr(Patterns({"a*": 1, "b": 2})) == "Patterns({'b': 2, 'a*': 1})"
