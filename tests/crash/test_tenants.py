"""The checks of rates and tenants find each lie, and accuse no history that a right order explains."""

from __future__ import annotations

import random

import pytest

from foqs_lab.crash.history import Ack, Answer, Delivery, Enqueue
from foqs_lab.crash.tenants import LIMITS, THROTTLES, Rate, exceeded, lies, starved, tenant_of, throttles_of

S = 1_000_000_000
RATE = Rate(10, 20)


def span(at_s: float, width_s: float = 0.0) -> tuple[int, int]:
    return round((at_s - width_s / 2) * S), round((at_s + width_s / 2) * S)


def plainly(spans: list[tuple[int, int]], rate: Rate) -> float:
    """`exceeded`, by trying every interval."""
    inside = [
        sum(low <= began and ended <= high for began, ended in spans) - rate.per_second * (high - low) / S - rate.burst
        for low, _ in spans
        for _, high in spans
        if low <= high
    ]
    return max(inside)


@pytest.mark.parametrize("seed", range(20))
def test_the_worst_interval(seed: int) -> None:
    rng = random.Random(seed)
    spans = [span(rng.uniform(0, 5), rng.choice((0.0, 0.1, 1.0))) for _ in range(rng.randint(1, 60))]
    rate = Rate(rng.randint(1, 20), rng.randint(1, 10))
    assert exceeded(spans, rate) == pytest.approx(plainly(spans, rate))


def test_a_rate_that_holds() -> None:
    assert exceeded([span(0.0)] * 20 + [span(n / 10) for n in range(1, 100)], RATE) < 1e-6


def test_one_item_too_many() -> None:
    assert exceeded([span(0.0)] * 21 + [span(n / 10) for n in range(1, 100)], RATE) == pytest.approx(1)


def test_a_long_request_explains_an_early_item() -> None:
    late = [span(n / 10) for n in range(1, 100)]
    assert exceeded([span(0.0)] * 20 + [span(0.0, 1.0)] + late[:-1], RATE) < 1e-6


def delivery(key: str, at_s: float) -> Delivery:
    return Delivery(*span(at_s), key, 1, 1, 1, 1_500)


def stored(key: str, at_s: float) -> Enqueue:
    return Enqueue(*span(at_s), key, 1, Answer.OK, at_most_once=False)


def test_keys_say_what_an_item_is() -> None:
    free, throttled = "producer-0/free:{}", "producer-1/throttled:{}"
    assert {tenant_of(free.format(n)) for n in range(3)} == {"red", "green", "blue"}
    assert {throttles_of(free.format(n)) for n in range(100)} == {()}
    assert {key for n in range(200) for key in throttles_of(throttled.format(n))} == {*THROTTLES, *LIMITS}
    assert throttles_of("producer-1:7") == ()


def test_a_rate_is_looked_at_while_there_are_throttles() -> None:
    key = next(key for n in range(100) if "slow" in throttles_of(key := f"producer-1/throttled:{n}"))
    events = [delivery(key, 1.0) for _ in range(12)]
    assert any("throttle slow: 2.0 items more than 10 + 10 a second" in lie for lie in lies(events, 2 * S))
    assert lies(events, S // 2) == []


def test_more_leases_than_the_limit() -> None:
    """A lease is certain from its answer on, until its ack is sent or its time is over."""
    keys = [key for n in range(200) if "few" in throttles_of(key := f"producer-1/throttled:{n}")]

    def few(at: int, at_s: float) -> Delivery:
        return Delivery(*span(at_s), keys[at], at, 7, 1, 1_500)

    held = [few(at, 1.0 + at / 10) for at in range(4)]
    (lie,) = lies(held, 9 * S)
    assert lie == "throttle few: 4 leases lived at one time, the limit is 3"
    acks = [Ack(*span(1.25), 1, 7, Answer.UNKNOWN)]
    assert lies([*held, *acks], 9 * S) == []
    assert lies([*held[:3], few(3, 2.6)], 9 * S) == []
    assert lies(held, S) == []


def test_a_tenant_that_gets_nothing() -> None:
    keys = [f"producer-0/free:{n}" for n in range(9_000)]
    red = [key for key in keys if tenant_of(key) == "red"]
    others = [key for key in keys if tenant_of(key) != "red"]
    enqueued = [stored(key, 0.0) for key in keys]
    unfair = [delivery(key, 1 + at / 1_000) for at, key in enumerate(others)]
    (lie,) = starved(enqueued, unfair)
    assert lie.startswith("tenant red got none of 2,000 deliveries")
    fair = [delivery(key, 1 + at / 300) for at, key in enumerate(red[:2_000])]
    assert list(starved(enqueued, [*unfair, *fair])) == []
    assert list(starved([stored(key, 0.0) for key in (*others, *red[:99])], unfair)) == []


def test_a_throttle_set_that_gets_nothing() -> None:
    """Items with two keys, beside items with one of these keys each. Sets without a common key are no rivals."""
    keys = [f"producer-1/throttled:{n}" for n in range(30_000)]
    by_set = {wanted: [key for key in keys if throttles_of(key) == wanted] for wanted in set(map(throttles_of, keys))}
    both, quick, wide = by_set["quick", "slow"], by_set["quick",], by_set["wide",]
    unfair = [delivery(key, 1 + at / 1_000) for at, key in enumerate(quick[:2_001])]
    (lie,) = starved([stored(key, 0.0) for key in (*both[:20], *quick)], unfair)
    assert lie == "throttle set quick, slow got none of 2,000 deliveries while 20 of its items waited"
    assert list(starved([stored(key, 0.0) for key in (*both[:19], *quick)], unfair)) == []
    assert list(starved([stored(key, 0.0) for key in (*both[:40], *quick)], [*unfair, delivery(both[0], 2.0)])) == []
    others = [delivery(key, 1 + at / 1_000) for at, key in enumerate(wide[:2_500])]
    assert list(starved([stored(key, 0.0) for key in (*both[:20], *wide)], others)) == []
