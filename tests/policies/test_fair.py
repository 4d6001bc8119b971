"""Weights in settings, and the rule that the field `fair` of a policy makes."""

from __future__ import annotations

import pytest

from foqs.errors import Invalid
from foqs.policies.entries import FairEntry, Patterns, parse_weight


@pytest.mark.parametrize(("text", "weight"), [("1", 1), ("1000", 1_000), ("007", 7)])
def test_weights(text: str, weight: int) -> None:
    assert parse_weight(text) == weight


@pytest.mark.parametrize("text", ["", "0", "1001", "-1", "+4", "4.0", " 4", "4\n", "1e2", "1_0", "٤", "9" * 4_000])
def test_texts_that_are_no_weight(text: str) -> None:
    with pytest.raises(Invalid, match=r"^a weight is a whole number from 1 to 1000, not \".{0,62}$"):
        parse_weight(text)


def test_an_entry_makes_its_patterns_once() -> None:
    entry = FairEntry(unit="bytes", weights={"gold:*": 4})
    assert entry.patterns == Patterns({"gold:*": 4})
    assert entry.patterns is entry.patterns
    assert entry == FairEntry(unit="bytes", weights={"gold:*": 4}), "patterns that were made change no comparison"
    assert entry.model_dump() == {"unit": "bytes", "scope": "tenant", "weights": {"gold:*": 4}, "balance": True}
