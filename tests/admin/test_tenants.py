"""Tenants with the most ready items have series of their own, and no service counts twice."""

from __future__ import annotations

import asyncio

import pytest

from foqs.admin.series import MOST_OF_TOPIC, TenantSeries, TopicTenants, count_tenants
from foqs.fairness.keys import TopicKey
from foqs.fairness.tenants import Level, Tenant
from foqs.fairness.turns import Turns
from tests.api.test_throttles import Throttled

SERVED, WEIGHTS, READY = "foqs_tenant_served_total", "foqs_tenant_weight", "foqs_tenant_ready_items"


def topic(**tenants: tuple[int, float]) -> TopicTenants:
    """Return tenants of weight 2, each with its ready items and its service."""
    made = TopicTenants()
    for name, (ready, served) in tenants.items():
        made.add(name, ready, 2.0, served)
    return made


def of(*topics: TopicTenants) -> dict[TopicKey, TopicTenants]:
    return {("ns", f"t{number}"): one for number, one in enumerate(topics)}


def test_all_fit() -> None:
    rows = TenantSeries(3).rows(of(topic(a=(5, 1.0), b=(0, 0.0)), topic(a=(0, 2.0))))
    a, b, elsewhere = ("ns", "t0", "a"), ("ns", "t0", "b"), ("ns", "t1", "a")
    assert dict(rows[READY]) == {a: 5, b: 0, elsewhere: 0}
    assert dict(rows[SERVED]) == {a: 1.0, b: 0.0, elsewhere: 2.0}
    assert dict(rows[WEIGHTS]) == {a: 2.0, b: 2.0, elsewhere: 2.0}


def test_further_tenants_are_summed_by_topic_or_over_topics() -> None:
    """A tenant that is idle adds no weight."""
    found = of(topic(a=(9, 1.0), b=(3, 2.0), c=(2, 4.0), d=(0, 0.0)), topic(a=(1, 8.0)), topic(b=(0, 16.0)))
    rows = TenantSeries(1).rows(found)
    a, rest, further = ("ns", "t0", "a"), ("ns", "t0", "other"), ("other", "other", "other")
    assert dict(rows[READY]) == {a: 9, rest: 5, further: 1}
    assert dict(rows[SERVED]) == {a: 1.0, rest: 6.0, further: 24.0}
    assert dict(rows[WEIGHTS]) == {a: 2.0, rest: 4.0, further: 4.0}


def test_a_topic_has_a_bounded_number_of_series() -> None:
    many = TopicTenants()
    for number in range(3 * MOST_OF_TOPIC):
        many.add(f"{number:03}", number, 1.0, 1.0)
    rows = TenantSeries(10_000).rows(of(many))
    assert len(rows[READY]) == MOST_OF_TOPIC + 1
    assert sum(value for _, value in rows[READY]) == sum(range(3 * MOST_OF_TOPIC))
    assert sum(value for _, value in rows[SERVED]) == 3 * MOST_OF_TOPIC
    assert dict(rows[READY])["ns", "t0", "149"] == 149


def test_a_tenant_named_other_is_counted_with_the_rest() -> None:
    rows = TenantSeries(9).rows(of(topic(other=(50, 1.0), a=(1, 1.0))))
    assert dict(rows[READY]) == {("ns", "t0", "a"): 1, ("ns", "t0", "other"): 50}


def test_counters_only_grow_while_their_series_lasts() -> None:
    series = TenantSeries(1)
    a, b, rest = ("ns", "t0", "a"), ("ns", "t0", "b"), ("ns", "t0", "other")
    assert dict(series.rows(of(topic(a=(2, 5.0), b=(1, 7.0))))[SERVED]) == {a: 5.0, rest: 7.0}
    assert dict(series.rows(of(topic(a=(2, 1.0), b=(1, 2.0))))[SERVED]) == {a: 6.0, rest: 9.0}
    assert dict(series.rows(of(topic(a=(1, 1.0), b=(2, 3.0))))[SERVED]) == {b: 3.0, rest: 10.0}


@pytest.mark.memory
def test_a_host_counts_its_tenants_with_their_weights() -> None:
    host = Throttled({"weight.a": "3"})
    host.put(40, tenant="a")
    host.put(40, tenant="b")
    host.put(1, topic="plain")
    rests: list[int] = []

    async def rest() -> None:
        rests.append(1)

    def counted() -> dict[str, tuple[int, float, float]]:
        (found,) = asyncio.run(count_tenants(host.engine.state, rest)).items()
        assert (found[0], found[1].rest) == (("n", "t"), None)
        return {name: (ready, served, weight) for ready, served, name, weight in found[1].most}

    assert counted() == {"a": (40, 0.0, 3), "b": (40, 0.0, 1)}
    assert host.got(20) == 20
    after = counted()
    assert (after["a"][1], after["a"][0]) == (pytest.approx(15, abs=1), 40 - after["a"][1])
    assert after["a"][1] + after["b"][1] == 20
    assert counted() == {name: (ready, 0.0, weight) for name, (ready, _, weight) in after.items()}
    assert rests


def test_service_given_back_is_taken_off_the_next() -> None:
    tenant = Tenant("a", Turns(), Level(0), 0.0)  # type: ignore[arg-type, var-annotated]
    newly = []
    for served in (5.0, 3.0, 4.0, 9.0):
        tenant.served = served
        newly.append(tenant.newly_served())
    assert newly == [5.0, 0.0, 0.0, 4.0]
