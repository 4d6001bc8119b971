"""The conditions of a search, on rows of a host and on items that a client has listed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client import Failure, Invalid, Item, ItemFilter, ItemState, LastFailure
from foqs.item_filter import ItemFacts

NOW_MS = 1_700_000_000_000
names = st.sampled_from(["a", "b", 'quo"te', "ключ", "\x01"])
pairs = st.dictionaries(names, names, max_size=3)
numbers = st.integers(-2, 2)
batches = st.integers(1, 2)
reasons = st.sampled_from(["", "SMTP 451", "smtp 451", "é 451", "451 é"])


@st.composite
def filters(draw: st.DrawFn) -> ItemFilter:
    least = draw(numbers | st.none())
    most = draw(st.none() | numbers.filter(lambda one: least is None or one >= least))
    exact = draw(numbers | st.none()) if least is most is None else None
    after = draw(numbers | st.none())
    before = draw(st.none() | numbers.filter(lambda one: after is None or one > after))
    return ItemFilter(
        headers=draw(pairs | st.none()), priority=exact, min_priority=least, max_priority=most,
        enqueued_before_ms=None if before is None else NOW_MS + before,
        enqueued_after_ms=None if after is None else NOW_MS + after,
        failure_contains=draw(st.none() | st.sampled_from(["SMTP", "451", "é", "é 4"])),
        batch=draw(st.none() | batches),
    )  # fmt: skip


@given(filters(), numbers, numbers, pairs | st.none(), reasons | st.none(), reasons | st.none(), st.none() | batches)
def test_items_and_rows_meet_the_same_conditions(
    wanted: ItemFilter, priority: int, at: int, headers: dict[str, str] | None, failed: str | None, last: str | None,
    batch: int | None,
) -> None:  # fmt: skip
    item = Item(1, priority=priority, enqueued_at_ms=NOW_MS + at, headers=headers, batch=batch)
    item.failure = None if failed is None else Failure(reason=failed)
    item.last_failure = None if last is None else LastFailure(reason=last)
    bounds = [
        wanted.priority is None or priority == wanted.priority,
        wanted.min_priority is None or priority >= wanted.min_priority,
        wanted.max_priority is None or priority <= wanted.max_priority,
        wanted.enqueued_before_ms is None or NOW_MS + at < wanted.enqueued_before_ms,
        wanted.enqueued_after_ms is None or NOW_MS + at >= wanted.enqueued_after_ms,
        all((headers or {}).get(key) == value for key, value in (wanted.headers or {}).items()),
        wanted.batch is None or batch == wanted.batch,
    ]
    contains = wanted.failure_contains
    reason = contains is None or contains in (failed or "") or contains in (last or "")
    assert wanted.matches(item) == (all(bounds) and reason)
    conditions = wanted.conditions()
    if conditions is None:
        assert all(bounds) and reason
        return
    stored = None if headers is None else json.dumps(headers, ensure_ascii=False).encode()
    facts = ItemFacts(1, priority, NOW_MS + at, stored, batch=batch)
    assert conditions.matches_facts(facts) == all(bounds)
    assert conditions.needs_facts or wanted.batch is None
    assert conditions.matches_reasons(*[one.encode() for one in (failed, last) if one is not None]) == reason
    low, high = conditions.priorities or (priority, priority)
    assert (low <= priority <= high) == all(bounds[:3])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"state": 1}, "it must be an ItemState"),
        ({"priority": 1, "min_priority": 1}, "priority excludes min_priority and max_priority"),
        ({"min_priority": 2, "max_priority": 1}, "min_priority is 2, more than max_priority, 1"),
        ({"enqueued_after_ms": NOW_MS, "enqueued_before_ms": NOW_MS}, "not below enqueued_before_ms"),
        ({"failure_contains": ""}, "failure_contains"),
        ({"failure_contains": "x" * 1_025}, "failure_contains"),
        ({"max_priority": 1 << 31}, "max_priority"),
    ],
)
def test_a_filter_that_makes_no_sense(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        ItemFilter(**fields)


def test_a_state_and_a_tenant_alone_are_no_conditions_on_rows() -> None:
    """A host without a filter reads items as before."""
    assert ItemFilter(ItemState.FAILED, "acme").conditions() is None
