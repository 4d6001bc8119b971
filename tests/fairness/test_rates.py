"""Traffic by namespace and step: the counts against an exact model, clocks that are set, rings and their bound."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter, defaultdict

import pytest

from foqs.bounds import NAME_BYTES, RATE_STEPS
from foqs.fairness import rates as of_rates
from foqs.fairness.rates import MOST_BYTES, MOST_NAMESPACES, MOST_RINGS, STEP_MS, Rates
from foqs.figures import EVENTS

pytestmark = pytest.mark.memory

NOW_MS = 1_795_000_000_000
KINDS = EVENTS


def count(rates: Rates, ns: str, kind: str = "enqueued", items: int = 1) -> None:
    """Count items of a topic that is gone right after."""
    traffic = rates.of(ns)
    setattr(traffic, kind, getattr(traffic, kind) + items)
    traffic.topics -= 1


def begun(now_ms: int = NOW_MS) -> Rates:
    rates = Rates()
    rates.turn(now_ms)
    return rates


def enqueued(rates: Rates, ns: str, now_ms: int, steps: int = RATE_STEPS) -> dict[int, int]:
    """The counts by the age of their step; 1: the last whole one."""
    rates.turn(now_ms)
    counts = rates.figures(ns, rates.cells(now_ms // STEP_MS - steps, steps)).enqueued
    return {len(counts) - at: items for at, items in enumerate(counts) if items}


@pytest.mark.parametrize("seed", range(30))
def test_counts_are_those_of_an_exact_model(seed: int) -> None:
    """Steps without a turn, pauses of up to two hours, and a clock that is set in both directions."""
    dice, now_ms = random.Random(seed), NOW_MS + seed * 777
    rates, model = begun(now_ms), defaultdict[int, Counter[tuple[str, str]]](Counter)
    for _ in range(400):
        for _ in range(dice.randrange(4)):
            key, items = (dice.choice("abc"), dice.choice(KINDS)), dice.randrange(1, 9)
            count(rates, *key, items)
            model[now_ms // STEP_MS][key] += items
        now_ms += dice.choice([0, 1, 900, 4_000, 10_000, 25_000, 600_000, 7_200_000])
        for by_ms in dice.choice([(), (), (), (), (-90_000,), (-9_999,), (-1, 1, 15_000), (3_700_000, -7_200_000)]):
            rates.clock_set(by_ms)
            moved = (now_ms + by_ms) // STEP_MS - now_ms // STEP_MS
            model = defaultdict(Counter, {step + moved: counts for step, counts in model.items()})
            now_ms += by_ms
            if dice.random() < 0.5:
                rates.turn(now_ms)
        rates.turn(now_ms)
        steps = dice.choice([1, 6, RATE_STEPS])
        first = now_ms // STEP_MS - steps
        cells = rates.cells(first, steps)
        for ns in "abc":
            found, total = rates.figures(ns, cells), 0
            for kind in KINDS:
                expected = [model[step][ns, kind] for step in range(first, first + steps)]
                assert list(getattr(found, kind)) == (expected if any(expected) else [])
                total += sum(expected)
            assert rates.total(ns, cells) == total
        assert not rates.more


def test_a_step_ends_at_a_multiple_of_its_length() -> None:
    rates = begun(NOW_MS - 1)
    assert (rates.begun_ms, rates.ends_ms) == (NOW_MS - 1, NOW_MS)
    count(rates, "a", items=3)
    assert enqueued(rates, "a", NOW_MS - 1) == {}, "the present step is no whole one"
    assert enqueued(rates, "a", NOW_MS) == {1: 3}
    assert rates.ends_ms == NOW_MS + STEP_MS
    count(rates, "a", items=5)
    assert enqueued(rates, "a", NOW_MS + STEP_MS) == {1: 5, 2: 3}
    assert enqueued(rates, "a", NOW_MS + STEP_MS, steps=1) == {1: 5}


def test_counts_are_forgotten_after_an_hour() -> None:
    rates = begun()
    count(rates, "a", items=3)
    for step in range(1, RATE_STEPS + 1):
        assert enqueued(rates, "a", NOW_MS + step * STEP_MS) == {step: 3}
    assert enqueued(rates, "a", NOW_MS + (RATE_STEPS + 1) * STEP_MS) == {}
    assert rates.named() == []
    assert rates._known == {}


@pytest.mark.parametrize("by_ms", [-7_200_000, -10_000, 10_000, 7_200_000])
def test_a_clock_that_is_set_makes_nothing_older_or_newer(by_ms: int) -> None:
    rates = begun()
    count(rates, "a", items=3)
    rates.turn(NOW_MS + STEP_MS)
    count(rates, "a", items=5)
    rates.clock_set(by_ms)
    now_ms = NOW_MS + STEP_MS + by_ms
    assert rates.ends_ms <= now_ms, "a turn is due"
    assert enqueued(rates, "a", now_ms) == {1: 3}
    assert rates.begun_ms == NOW_MS + by_ms
    assert enqueued(rates, "a", now_ms + STEP_MS) == {1: 5, 2: 3}


def test_a_clock_that_goes_back_without_a_word() -> None:
    rates = begun()
    count(rates, "a", items=3)
    rates.turn(NOW_MS + STEP_MS)
    count(rates, "a", items=5)
    assert enqueued(rates, "a", NOW_MS - 60_000) == {1: 5, 2: 3}
    count(rates, "a", items=7)
    assert enqueued(rates, "a", NOW_MS - 50_000) == {1: 7, 2: 5, 3: 3}


def test_the_namespace_that_was_idle_for_longest_gives_its_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_rates, "MOST_RINGS", 3)
    rates, now_ms = begun(), NOW_MS
    for busy in ("ab", "ac", "a"):
        for ns in busy:
            count(rates, ns)
        now_ms += STEP_MS
        rates.turn(now_ms)
    assert set(rates.named()) == {"a", "b", "c"} and not rates.more
    count(rates, "d", items=2)
    assert enqueued(rates, "d", now_ms + STEP_MS) == {1: 2}
    assert set(rates.named()) == {"a", "c", "d"} and rates.more
    assert enqueued(rates, "a", now_ms + STEP_MS) == {2: 1, 3: 1, 4: 1}, "a ring that stays is as it was"


def test_namespaces_that_are_all_busy_keep_their_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_rates, "MOST_RINGS", 2)
    rates, now_ms = begun(), NOW_MS
    for _ in range(3):
        for ns in "abc":
            count(rates, ns)
        now_ms += STEP_MS
        rates.turn(now_ms)
    assert rates.named() == ["a", "b"] and rates.more
    count(rates, "c", items=9)
    assert enqueued(rates, "c", now_ms + STEP_MS) == {1: 9}, "only of the step in which it got a ring"
    for step in range(2, RATE_STEPS + 2):
        rates.turn(now_ms + step * STEP_MS)
    assert not rates.more, "an hour later nothing is left out"


def test_further_namespaces_have_no_counts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_rates, "MOST_NAMESPACES", 2)
    rates = begun()
    kept = [rates.of(ns) for ns in "ab"]
    count(rates, "c", items=4)
    rates.turn(NOW_MS + STEP_MS)
    assert rates.more
    assert rates.named() == []
    kept[0].topics -= 1
    count(rates, "c", items=4)
    rates.turn(NOW_MS + 2 * STEP_MS)
    count(rates, "c", items=5)
    assert enqueued(rates, "c", NOW_MS + 3 * STEP_MS) == {1: 5}, "there was room when its next topic began"


def test_topics_of_a_namespace_share_its_counts() -> None:
    rates = begun()
    one, other = rates.of("a"), rates.of("a")
    assert one is other
    one.topics -= 1
    for step in range(1, RATE_STEPS + 3):
        rates.turn(NOW_MS + step * STEP_MS)
    other.enqueued += 2
    assert enqueued(rates, "a", NOW_MS + (RATE_STEPS + 3) * STEP_MS) == {1: 2}, "it has a topic all the time"


@pytest.mark.slow
def test_the_memory_is_bounded() -> None:
    tracemalloc.start()
    try:
        rates, kept = begun(), []
        for turn in range(1, 4):
            for number in range(MOST_NAMESPACES + 100):
                traffic = rates.of(f"{number:0{NAME_BYTES}}")
                kept = [traffic]
                for kind in KINDS:
                    setattr(traffic, kind, (1 << 20) + number)
            rates.turn(NOW_MS + turn * STEP_MS)
        for number in range(MOST_NAMESPACES):
            count(rates, f"{number:0{NAME_BYTES}}", items=(1 << 20) + number)
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept and len(rates.named()) == MOST_RINGS
    assert MOST_BYTES / 2 < used_bytes < MOST_BYTES
