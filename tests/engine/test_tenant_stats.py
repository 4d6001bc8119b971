"""The tenants of a topic with the most ready items."""

from __future__ import annotations

import pytest

from foqs.engine import stats
from foqs.engine.stats import MostReady
from foqs.figures import TenantStats, TopicStats
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.support.one_host import OneHost, put, take

pytestmark = pytest.mark.memory


def found(host: OneHost) -> TopicStats:
    answers: list[TopicStats] = []
    stats.topic_stats(host.engine.state, ("n", "t"), host.now_ms, answers.append)
    host.run()
    (answer,) = answers
    return answer


def test_a_plain_topic_has_no_tenants() -> None:
    host = OneHost(1)
    assert found(host).tenants == ()
    put(host, b"x")
    assert (found(host).tenants, found(host).more_tenants) == ((), None)


def test_tenants_are_counted_with_their_weights_and_service() -> None:
    host = OneHost(1, 2)
    host.settings.apply(Settings("n", 1, {"weight.gold": "7", "throttle.k": '{"per_second": 0.001}'}))
    for tenant, weight in (("gold", 2), ("gold", 2), ("gold", 2), ("blue", 3), (None, None)):
        put(host, b"x", fairness_key=tenant, weight=weight)
    put(host, b"x", fairness_key="blue", throttle_keys=["k"])
    call = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)])
    host.wait(1)
    (item,) = call.answer.items
    take(host, 10)
    put(host, b"x", fairness_key="gold")
    served = {"gold": 3, "blue": 1, "": 1}
    assert {one.fairness_key: one for one in found(host).tenants} == {
        "gold": TenantStats("gold", 7, 1, 0, served["gold"]),
        "blue": TenantStats("blue", 3, 1, 1, served["blue"], waits_for="k"),
        "": TenantStats("", 1, 0, 0, served[""]),
    }
    assert item.topic == "t"


def test_the_most_ready_come_first_and_the_rest_is_added_up() -> None:
    found = MostReady(3)
    for name, weight, ready, parked in (
        ("a", 4, 1, 1),
        ("b", 1, 9, 0),
        ("c", 2, 5, 0),
        ("d", 8, 5, 0),
        ("e", 16, 2, 1),
    ):
        found.add(TenantStats(name, weight, ready, parked, 1.5))
    assert [one.fairness_key for one in found.named()] == ["b", "c", "d"]
    assert found.rest == TenantStats("", 16, 3, 2, 3.0), "weights of tenants that take turns"
    found.add_rest(TenantStats("", 5, 1, 0, 0.5))
    assert found.rest == TenantStats("", 21, 4, 2, 3.5)


def test_very_many_tenants_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_FLOWS", 10)
    monkeypatch.setattr(stats, "MOST_LISTED", 5)
    host = OneHost(1)
    for number in range(50):
        put(host, b"x", fairness_key=f"t{number}")
    answers: list[TopicStats] = []
    stats.topic_stats(host.engine.state, ("n", "t"), host.now_ms, answers.append)
    turns = 0
    while host.engine.state.slices.long_work:
        assert not answers
        host.engine.pump(host.now_ms)
        turns += 1
    assert turns >= 5
    (answer,) = answers
    assert len(answer.tenants) == 5
    assert answer.more_tenants == TenantStats("", 45, 45, 0, 0.0)
