"""The turns that come before a tenant's next one are those that it then waits for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.fairness import ledger
from foqs.fairness.ledger import Position, position_of
from foqs.fairness.turns import BYTES
from tests.fairness.turns_model import Rig

NAMES = [f"t{at}" for at in range(6)]
WEIGHTS = (1.0, 2.0, 4.0)  # whose quotients are exact


def waits_for(rig: Rig, name: str) -> int:
    """Serve tenants until it is the turn of `name`."""
    turns = 0
    while rig.pick() != name:
        turns += 1
    return turns


@given(
    st.lists(st.sampled_from(WEIGHTS), min_size=2, max_size=6),
    st.integers(0, 60),
    st.sampled_from(NAMES),
    st.integers(0, 3),
)
def test_the_turns_before_the_next_one(weights: list[float], picks: int, name: str, newcomers: int) -> None:
    rig = Rig()
    tenants = dict(zip(NAMES, weights, strict=False))
    for each, weight in tenants.items():
        rig.join(each, 1_000, weight)
    rig.picks(picks)
    settled = not any(rig.tenant(each).newcomer for each in tenants)
    for at in range(newcomers if settled else 0):
        rig.join(f"new{at}", 1_000)
    asked = name if name in tenants else "t0"
    if newcomers and settled:
        asked = f"new{newcomers - 1}"
    found = position_of(rig.tenant(asked), rig.turns)
    assert found is not None
    if settled or rig.tenant(asked).newcomer:
        assert found.turns == waits_for(rig, asked)
    total = sum(rig.tenant(each).weight for each in rig.turns.tenants)
    assert found.share == pytest.approx(rig.tenant(asked).weight / total)
    assert not found.urgent


def test_a_flood_of_newcomers_takes_every_second_turn() -> None:
    rig = Rig()
    for name in "abc":
        rig.join(name, 100)
    rig.picks(9)
    for at in range(50):
        rig.join(f"new{at}", 1)
    last = max((rig.tenant(name) for name in "abc"), key=lambda tenant: (tenant.start, tenant.seq))
    found = position_of(last, rig.turns)
    assert found is not None
    assert found.turns == waits_for(rig, last.name) == 5


def test_a_tenant_that_is_not_queued_stands_nowhere() -> None:
    rig = Rig()
    rig.join("a", 1)
    rig.join("b", 0)
    assert position_of(rig.tenant("b"), rig.turns) is None
    assert position_of(rig.tenant("a"), rig.turns) == Position(0, 1.0, False)


def test_tenants_with_more_urgent_items_go_first() -> None:
    rig = Rig(ranked=True)
    for name, rank in (("a", 0), ("b", 5)):
        rig.turns.place(rig.join(name, 9), rank)
    urgent, other = (position_of(rig.tenant(name), rig.turns) for name in "ab")
    assert (urgent, other) == (Position(0, 1.0, False), Position(0, 1.0, True))


def test_very_many_tenants_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    for at in range(40):
        rig.join(str(at), 100)
    rig.picks(79)
    monkeypatch.setattr(ledger, "_LOOKED_AT", 20)
    last = max(rig.turns.tenants.values(), key=lambda tenant: (tenant.start, tenant.seq))
    found = position_of(last, rig.turns)
    assert found is not None
    assert found.share == pytest.approx(1 / 40)
    assert 20 <= found.turns <= 80


def test_very_many_newcomers_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.join("old", 100)
    rig.picks(3)
    for at in range(40):
        rig.join(f"new{at}", 1)
    monkeypatch.setattr(ledger, "_LOOKED_AT", 10)
    early, late, old = (position_of(rig.tenant(name), rig.turns) for name in ("new5", "new39", "old"))
    assert early is not None
    assert late is not None
    assert old is not None
    assert early.turns == waits_for(rig, "new5")
    assert late.turns in (80, 81), "as if it came last"
    assert [found.share for found in (early, late, old)] == [pytest.approx(1 / 41)] * 3


def test_turns_of_other_costs_count_once_a_tenant() -> None:
    rig = Rig()
    rig.turns.unit = BYTES
    for name in "ab":
        rig.join(name, 100)
    rig.picks(4)
    rig.pick(1_000)
    late, early = sorted((rig.tenant(name) for name in "ab"), key=lambda tenant: -tenant.start)
    assert late.start - early.start > 900
    assert position_of(late, rig.turns) == Position(1, 0.5, False)
