"""The weights of tenants are scaled by factors that change often."""

from __future__ import annotations

import pytest

from tests.fairness.turns_model import Rig


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    for name in "ab":
        rig.join(name, 10_000)
    rig.picks(10)
    return rig


def test_turns_follow_the_factors(rig: Rig) -> None:
    a, b = rig.tenant("a"), rig.tenant("b")
    rig.turns.scale(a, 4.0)
    assert rig.picks(100).count("a") == pytest.approx(80, abs=1)
    rig.turns.scale(a, 2.0)
    rig.turns.scale(b, 0.5)
    assert rig.picks(100).count("a") == pytest.approx(80, abs=1)
    for tenant in (a, b):
        rig.turns.scale(tenant, 1 / 3)
        rig.turns.scale(tenant, 1.0)
        assert tenant.weight == 1
    assert rig.picks(100).count("a") == pytest.approx(50, abs=2)


def test_a_debt_is_scaled_as_well(rig: Rig) -> None:
    """An item that b was given at a thousandth of its weight would cost it a thousand turns."""
    b = rig.tenant("b")
    rig.turns.scale(b, 0.001)
    while b.start < 500:
        rig.pick()
    rig.turns.scale(b, 1.0)
    assert rig.picks(20).count("b") == pytest.approx(10, abs=1)


def test_a_tenant_that_returns_has_the_debt_of_its_own_weight(rig: Rig) -> None:
    b = rig.tenant("b")
    rig.turns.scale(b, 0.001)
    while b.start < 500:
        rig.pick()
    rig.part("b")
    rig.join("b", 100)
    assert rig.picks(20).count("b") == pytest.approx(10, abs=1)


def test_service_is_counted_in_the_unit_of_the_costs(rig: Rig) -> None:
    b = rig.tenant("b")
    assert (rig.tenant("a").served, b.served) == (rig.served["a"], rig.served["b"])
    before = b.served
    while b.served == before:
        rig.pick(7)
    assert b.served == before + 7
    rig.turns.correct(b, -2.5)
    assert b.served == before + 4.5
    assert rig.turns.last_cost == 7


def test_a_debt_stays_a_number_of_items(rig: Rig) -> None:
    a, b = rig.tenant("a"), rig.tenant("b")
    rig.turns.weigh(a, 1_000)
    while rig.pick() != "b":
        pass
    assert "b" not in rig.picks(100)
    rig.turns.weigh(b, 1_000)
    assert rig.picks(20).count("b") == pytest.approx(10, abs=1)
    rig.turns.weigh(b, 1)
    assert rig.picks(100).count("b") <= 1


def test_a_tenant_that_returns_owes_items_by_its_new_weight(rig: Rig) -> None:
    rig.turns.weigh(rig.tenant("a"), 1_000)
    while rig.pick() != "b":
        pass
    rig.part("b")
    rig.join("b", 100)
    b = rig.tenant("b")
    assert b.start > b.level.now
    assert list(rig.turns.unweighed) == [b]
    rig.turns.weigh(b, 1_000)
    assert rig.picks(20).count("b") == pytest.approx(10, abs=1)
    rig.part("b")
    assert not rig.turns.unweighed


def test_a_given_weight_is_noted_once_the_tenant_was_weighed(rig: Rig) -> None:
    b = rig.tenant("b")
    b.weigh(5)
    assert not rig.turns.unweighed
    b.changes = 0
    b.weigh(6)
    assert list(rig.turns.unweighed) == [b]
