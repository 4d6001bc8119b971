"""The delays of failed items: inside the bounds of their rule, and the same when asked again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.ids import make_id
from foqs.policies.entries import RetryEntry, RetryKind

DAY_MS = 86_400_000
ITEMS = 10_000
LONGEST_MS = 60_000
FULL_MS = {
    "constant": [1_000] * 8,
    "linear": [1_000, 3_500, 6_000, 8_500, 11_000, 13_500, 16_000, 18_500],
    "exponential": [1_000, 3_000, 9_000, 27_000, 60_000, 60_000, 60_000, 60_000],
}
KINDS = get_args(RetryKind)
rules = st.builds(
    RetryEntry,
    kind=st.sampled_from(KINDS),
    first_ms=st.integers(0, DAY_MS),
    step_ms=st.integers(0, DAY_MS),
    factor=st.floats(1, 100),
    longest_ms=st.integers(DAY_MS, 2 * DAY_MS),
    jitter=st.floats(0, 1),
)
attempts, ids = st.integers(1, (1 << 31) - 1), st.integers(1, (1 << 63) - 1)


def rule(kind: RetryKind, *, jitter: float = 0.0, longest_ms: int = DAY_MS) -> RetryEntry:
    return RetryEntry(kind=kind, first_ms=1_000, step_ms=500, factor=2.0, longest_ms=longest_ms, jitter=jitter)


@pytest.mark.parametrize(
    ("kind", "delays"),
    [
        ("constant", [1_000, 1_000, 1_000, 1_000]),
        ("linear", [1_000, 1_500, 2_000, 2_500]),
        ("exponential", [1_000, 2_000, 4_000, 8_000]),
    ],
)
def test_delays_without_jitter(kind: RetryKind, delays: list[int]) -> None:
    assert [rule(kind).delay_ms(attempt, 7) for attempt in (1, 2, 3, 4)] == delays
    assert [rule(kind, longest_ms=1_700).delay_ms(attempt, 7) for attempt in (1, 2, 3, 4)] == [
        min(delay, 1_700) for delay in delays
    ]


def test_attempts_without_number_get_the_longest_delay() -> None:
    assert rule("exponential").delay_ms((1 << 31) - 1, 7) == DAY_MS


@given(rules, attempts, ids)
def test_a_delay_stays_inside_the_bounds_of_its_rule(rule: RetryEntry, attempt: int, item: int) -> None:
    delay_ms = rule.delay_ms(attempt, item)
    without = rule.model_copy(update={"jitter": 0.0}).delay_ms(attempt, 1)
    assert without * (1 - rule.jitter) - 1 <= delay_ms <= without + 1
    assert 0 <= delay_ms <= rule.longest_ms
    assert rule.delay_ms(attempt, item) == delay_ms


def test_jitter_spreads_items_evenly() -> None:
    delays = [rule("constant", jitter=1.0).delay_ms(1, item) for item in range(1, 10_001)]
    tenths = [sum(at * 100 <= delay < (at + 1) * 100 for delay in delays) for at in range(10)]
    assert min(tenths) > 800
    assert max(tenths) < 1_200


def rule_of(kind: RetryKind, jitter: float) -> RetryEntry:
    return RetryEntry(kind=kind, first_ms=1_000, step_ms=2_500, factor=3.0, longest_ms=LONGEST_MS, jitter=jitter)


def delays(kind: RetryKind, jitter: float, attempt: int) -> Iterator[int]:
    rule = rule_of(kind, jitter)
    return (rule.delay_ms(attempt, make_id(1 + number % 3, number)) for number in range(1, ITEMS + 1))


@pytest.mark.parametrize("jitter", [0, 0.5, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_delays_of_many_items(kind: RetryKind, jitter: float) -> None:
    for attempt, full_ms in enumerate(FULL_MS[kind], 1):
        found = list(delays(kind, jitter, attempt))
        least_ms = full_ms * (1 - jitter)
        assert least_ms <= min(found)
        assert max(found) <= full_ms
        mean_ms = sum(found) / ITEMS
        assert abs(mean_ms - (least_ms + full_ms) / 2) <= 0.02 * full_ms


def test_the_attempts_of_an_item_have_delays_of_their_own() -> None:
    """One that was early once is not early always."""
    rule = rule_of("constant", 1)
    assert len({rule.delay_ms(attempt, make_id(1, 7)) for attempt in range(1, 21)}) > 15


@pytest.mark.parametrize("attempt", [1_000, (1 << 31) - 1])
@pytest.mark.parametrize("kind", KINDS)
def test_very_many_attempts(kind: RetryKind, attempt: int) -> None:
    full_ms = 1_000 if kind == "constant" else LONGEST_MS
    assert rule_of(kind, 0).delay_ms(attempt, 1) == full_ms
