"""The tenants of a topic with the most ready items."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foqs.engine import stats
from foqs.engine.stats import MostReady, TenantCounts, most_ready
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.support.one_host import OneHost, put, take

pytestmark = pytest.mark.memory


def found(host: OneHost) -> MostReady:
    answers: list[MostReady] = []
    stats.tenants_of(host.engine.state, ("n", "t"), answers.append)
    host.run()
    (answer,) = answers
    return answer


def test_a_plain_topic_has_no_tenants() -> None:
    host = OneHost(1)
    assert found(host).named() == []
    put(host, b"x")
    assert (found(host).named(), found(host).rest) == ([], TenantCounts())


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
    assert dict(found(host).named()) == {
        "gold": TenantCounts(1, 0, 7, served["gold"]),
        "blue": TenantCounts(1, 1, 3, served["blue"]),
        "": TenantCounts(0, 0, 1, served[""]),
    }
    assert item.topic == "t"


def test_the_most_ready_come_first_and_the_rest_is_added_up() -> None:
    tenants = [(name, TenantCounts(ready, parked, weight, 1.5)) for name, ready, parked, weight in (
        ("a", 1, 1, 4), ("b", 9, 0, 1), ("c", 5, 0, 2), ("d", 5, 0, 8), ("e", 2, 1, 16),
    )]  # fmt: skip
    found = most_ready(tenants, 3)
    assert [name for name, _ in found.named()] == ["b", "c", "d"]
    assert found.rest == TenantCounts(3, 2, 16, 3.0), "weights of those that take turns"
    found.add_rest(TenantCounts(1, 0, 5, 0.5))
    assert found.rest == TenantCounts(4, 2, 21, 3.5)


def test_very_many_tenants_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_FLOWS", 10)
    monkeypatch.setattr(stats, "MOST_TENANTS", 5)
    host = OneHost(1)
    for number in range(50):
        put(host, b"x", fairness_key=f"t{number}")
    answers: list[MostReady] = []
    done: Callable[[MostReady], None] = answers.append
    stats.tenants_of(host.engine.state, ("n", "t"), done)
    turns = 0
    while host.engine.state.slices.long_work:
        assert not answers
        host.engine.pump(host.now_ms)
        turns += 1
    assert turns >= 5
    (answer,) = answers
    assert len(answer.named()) == 5
    assert answer.rest == TenantCounts(45, 0, 45, 0.0)
