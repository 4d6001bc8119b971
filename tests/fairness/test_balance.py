"""The hosts of a cluster together give each tenant its due."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from foqs.fairness.balance import BEAT_MS, MOST_TENANTS, SILENT_MS, Balance, Share
from tests.fairness.balance_model import ITEM, Alone, Balanced, Case, Naive, due, run, worst
from tests.support.examples import examples

SETTLED_S = 10
LOST = 0.2
SLOWEST = 30
"""Items a second of the slowest tenant: for slower ones promise 10 allows more, as chance weighs more."""
_ONE_HOST_ONLY = Case((300, 300, 300), (1, 2, 4), (frozenset({0}), frozenset({0, 1, 2}), frozenset({0, 1, 2})))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    hosts, tenants = draw(st.integers(2, 4)), draw(st.integers(2, 5))
    capacities = tuple(draw(st.integers(300, 900)) for _ in range(hosts))
    weights = tuple(draw(st.sampled_from([1, 1, 2, 4, 8])) for _ in range(tenants))
    numbers = st.frozensets(st.integers(0, hosts - 1), min_size=1)
    case = Case(capacities, weights, tuple(draw(numbers) for _ in range(tenants)))
    assume(min(due(case).values()) >= SLOWEST)
    return case


def feasible(case: Case) -> bool:
    """Whether all tenants can get the same by weight."""
    levels = [rate / case.weights[who] for who, rate in due(case).items()]
    return max(levels) < 1.001 * min(levels)


def error(case: Case, way: type[Balanced] | type[Naive], seed: int, stretch_s: int = 10, after_s: int = 0) -> float:
    after_s = after_s or SETTLED_S
    return worst(case, run(case, way, after_s + stretch_s + 5, LOST, random.Random(seed)), after_s, stretch_s)


def test_a_tenant_that_begins_does_not_take_all() -> None:
    """The service before its first items says nothing about its share."""
    case = Case((1_000, 1_000), (1, 1, 1, 1), (frozenset({0, 1}),) * 4)
    counts = run(case, Balanced, 20, 0.0, random.Random(1), later={3: 10_000})
    gains = [after[3] - before[3] for before, after in pairwise(counts)]
    assert not any(gains[:20])
    assert max(gains) <= 0.5 * 1_000
    assert gains[-1] == pytest.approx(250, rel=0.1)


def test_a_tenant_that_returns_is_compared_after_a_beat() -> None:
    balance = Balance()
    for beat in range(1, 12):
        now_ms = beat * BEAT_MS
        balance.heard("other", [("a", beat * ITEM), ("b", beat * ITEM)], now_ms)
        idle = 3 < beat < 9
        served = min(beat, 3) * 100 * ITEM
        balance.step([Share("a", 1, beat * 100 * ITEM, True), Share("b", 1, served, not idle)], ITEM, now_ms)
        if idle or beat == 9:  # so long without items, it has lost nothing
            assert balance.factors.get("b", 1.0) == pytest.approx(1, abs=0.05)
    assert balance.factors["b"] > 1.5


def test_a_tenant_on_one_host_gets_its_due() -> None:
    assert due(_ONE_HOST_ONLY) == pytest.approx({0: 900 / 7, 1: 1800 / 7, 2: 3600 / 7})
    assert error(_ONE_HOST_ONLY, Balanced, 1) < 0.02
    assert error(_ONE_HOST_ONLY, Alone, 1) == pytest.approx(2 / 3, abs=0.02)


_EVERYWHERE = frozenset({0, 1, 2})
CHANGED = {
    "each host has all": (Case((400, 400, 400), (1, 1, 1), (_EVERYWHERE,) * 3), (1, 2, 6), 0.0),
    "one has most of a tenant": (_ONE_HOST_ONLY, (4, 2, 1), 2.0),
    "a factor was at its bound": (Case((300, 300, 300), (1, 1, 1), _ONE_HOST_ONLY.placement), (1, 2, 4), 2.5),
}
_CHANGED_S = 20


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("lost", [0.0, LOST])
def test_shares_follow_a_change_of_weights(name: str, lost: float) -> None:
    """The service before the change says nothing: shares were up to 90 % off for 5 s."""
    case, weights, settled_s = CHANGED[name]
    counts = run(case, Balanced, 40, lost, random.Random(1), weights={_CHANGED_S * 1_000: weights})
    rates = due(Case(case.capacities, weights, case.placement))
    begin = int(2 * (_CHANGED_S + settled_s))
    for now, then in pairwise(counts[begin : begin + 20]):
        for who, rate in rates.items():
            assert (then[who] - now[who]) * 2 == pytest.approx(rate, rel=0.12, abs=4), (now, then)


def test_ever_changing_weights_do_not_stop_the_balance() -> None:
    case = Case((300, 300, 300), (2, 2, 4), _ONE_HOST_ONLY.placement)
    weights = {at * 500: (2, 2, 4 + at % 2) for at in range(1, 60)}
    counts = run(case, Balanced, 30, 0.0, random.Random(1), weights=weights)
    gains = [after - before for before, after in zip(counts[20], counts[-1], strict=True)]
    assert gains[0] / sum(gains) == pytest.approx(2 / 8.5, rel=0.15), "a third of the host's due without the balance"


def test_another_unit_of_service_moves_no_factor() -> None:
    """Hosts change to bytes at different moments, and a's items are large."""
    balance = Balance()
    served = {"a": 0, "b": 0}
    for beat in range(1, 20):
        now_ms, unit = beat * BEAT_MS, "bytes" if beat >= 12 else "items"
        for name, cost in (("a", 50 if beat >= 12 else 1), ("b", 50 if beat >= 13 else 1)):
            served[name] += 100 * ITEM * cost
        balance.heard("other", list(served.items()), now_ms)
        balance.step([Share(name, 1, count, True) for name, count in served.items()], ITEM, now_ms, unit)
        assert balance.factors.get("a", 1.0) == pytest.approx(1, abs=0.02), beat


@settings(max_examples=examples(0.5), derandomize=True)
@given(cases(), st.integers(0, 1_000))
def test_every_tenant_gets_its_due(case: Case, seed: int) -> None:
    """Also where no factors can give all the same: then it is max-min."""
    assert error(case, Balanced, seed) < 0.05


@settings(max_examples=examples(0.5), derandomize=True)
@given(cases(), st.integers(0, 1_000))
def test_shares_do_not_swing(case: Case, seed: int) -> None:
    assert error(case, Balanced, seed, stretch_s=2, after_s=20) < 0.08


def test_the_naive_way_fails_both() -> None:
    case = Case((448, 610), (1, 4, 1), (frozenset({0}), frozenset({0, 1}), frozenset({0, 1})))
    assert error(case, Naive, 0) > 0.05
    assert error(case, Naive, 0, stretch_s=2, after_s=20) > 0.08


def test_few_deliveries_move_no_factor_far() -> None:
    """Two deliveries of a tenant in a second, and then none for two, are chance."""
    everywhere = frozenset({0, 1, 2})
    slow = Case((5, 5, 5), (1, 2, 4), (everywhere, everywhere, everywhere))
    assert error(slow, Balanced, 1, stretch_s=60) < 0.1


class Rig:
    """One host with the tenants a and b, each of which is served `pace` items in a beat here."""

    def __init__(self, pace: int = 100) -> None:
        self.balance = Balance()
        self.now_ms = 0
        self.served = {"a": 0, "b": 0}
        self.waiting = {"a", "b"}
        self._pace = pace

    def beat(self, *reports: tuple[str, list[tuple[str, int]]]) -> dict[str, float]:
        self.now_ms += BEAT_MS
        for host, shares in reports:
            self.balance.heard(host, shares, self.now_ms)
        for name in self.served:
            self.served[name] += self._pace * ITEM
        shares = [Share(name, 1, served, name in self.waiting) for name, served in self.served.items()]
        self.balance.step(shares, ITEM, self.now_ms)
        self.reported = [share.name for share in self.balance.report(shares, self.now_ms)]
        return self.balance.factors

    def unbalance(self, beats: int = 8) -> dict[str, float]:
        """Another host serves b alone."""
        for beat in range(beats):
            self.beat(("other", [("b", 200 * beat * ITEM)]))
        return self.balance.factors


def test_a_tenant_that_gets_more_elsewhere_gets_less_here() -> None:
    factors = Rig().unbalance()
    assert factors["a"] > 4 * factors["b"]


def test_without_messages_factors_return_to_one() -> None:
    rig = Rig()
    steep = rig.unbalance()["a"]
    for _ in range(SILENT_MS // BEAT_MS):
        assert rig.beat()["a"] >= steep  # a lost message says nothing
    after = [rig.beat().get("a", 1.0) for _ in range(60)]
    assert after == sorted(after, reverse=True)
    assert after[-1] == 1
    assert not rig.balance.factors
    for _ in range(60):
        rig.beat()
    assert rig.balance.quiet


def test_a_host_that_restarted_counts_from_zero() -> None:
    rig = Rig()
    before = dict(rig.unbalance())
    factors = rig.beat(("other", [("b", 5 * ITEM)]))
    assert factors["a"] / factors["b"] > before["a"] / before["b"]


def test_lost_messages_lose_no_service() -> None:
    rigs, halfway = [Rig(), Rig()], [0.0, 0.0]
    for beat in range(25):
        every = ("other", [("a", 0), ("b", 50 * beat * ITEM)])
        rigs[0].beat(every)
        rigs[1].beat(*[every] * (beat % 3 == 0))
        if beat == 12:
            halfway = [rig.balance.factors["b"] for rig in rigs]
    moved = [before / rig.balance.factors["b"] for before, rig in zip(halfway, rigs, strict=True)]
    assert moved[0] > 2
    assert moved[1] == pytest.approx(moved[0], rel=0.02)


def test_tenants_that_wait_for_nothing_are_left_out() -> None:
    """Their service says nothing of their turns."""
    rig = Rig()
    rig.unbalance()
    rig.waiting = {"a"}
    for beat in range(60):
        rig.beat(("other", [("b", 200 * (8 + beat) * ITEM)]))
    assert not rig.balance.factors


def test_tenants_that_wait_or_were_served_lately_are_reported() -> None:
    rig = Rig(pace=0)
    rig.waiting = {"a"}
    rig.beat()
    assert rig.reported == ["a", "b"]
    for _ in range(SILENT_MS // BEAT_MS):
        rig.beat()
    assert rig.reported == ["a", "b"]
    rig.beat()
    assert rig.reported == ["a"]
    rig.served["b"] += 1
    rig.beat()
    assert rig.reported == ["a", "b"]


def test_a_host_with_one_tenant_is_needed_by_hosts_with_two() -> None:
    rig = Rig()
    rig.beat(("other", [("b", 0)]))
    assert not rig.balance.contested(rig.now_ms)
    rig.beat(("other", [("a", 0), ("b", 0)]))
    assert rig.balance.contested(rig.now_ms)
    assert not rig.balance.contested(rig.now_ms + SILENT_MS + 1)


def test_tenants_that_a_host_left_out_are_not_compared() -> None:
    """The other host has so many tenants that it does not report on a: it may serve it or not."""
    rig = Rig()
    for beat in range(8):
        many = [("b", 200 * beat * ITEM), *((f"c{at}", 0) for at in range(MOST_TENANTS - 1))]
        rig.beat(("other", many))
    assert not rig.balance.factors
