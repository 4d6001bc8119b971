"""How the policy of a topic decides the turns of its tenants, and which item of a topic is the most urgent."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from foqs.engine.ready_lanes import most_urgent
from foqs.idl import idl
from foqs.policies.settings import Settings
from foqs.rows import AT_MOST_ONCE
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.tenants import of, set_policy, store, taken, tenant, tenant_of
from tests.sim.audit import audit_topics
from tests.support.one_host import OneHost, put, take


def ack_all(lab: Laboratory, ids: list[int]) -> None:
    lab.ack(*[(item_id, lab.lease_of(item_id)) for item_id in ids])
    lab.settle()


def test_bytes_are_shared() -> None:
    lab = Laboratory(1)
    set_policy(lab, {"fair": {"unit": "bytes"}})
    lab.stored(*[lab.item(b"x" * 1_000) for _ in range(200)], key=of("large"))
    lab.stored(*[lab.item(b"x" * 100) for _ in range(2_000)], key=of("small"))
    got = Counter(taken(lab, 550))
    assert abs(got["large"] - 50) <= 3


def test_time_of_leases_is_shared() -> None:
    """A tenant whose leases take 100 ms and not 10 ms gets a tenth of the items, though all have the same size."""
    lab = Laboratory(1)
    set_policy(lab, {"fair": {"unit": "busy"}})
    store(lab, {"slow": 300, "fast": 2_000})
    got: Counter[str] = Counter()
    for turn in range(600):
        (item_id,) = lab.taken(count=1)
        name = tenant_of(lab, item_id)
        lab.go_on(100 if name == "slow" else 10)
        ack_all(lab, [item_id])
        if turn >= 100:
            got[name] += 1
    assert abs(got["slow"] - 500 / 11) <= 5
    assert not lab.engine.state.topics[KEY].turns.charges  # type: ignore[union-attr]


def test_items_that_were_not_begun_are_not_charged() -> None:
    for fair in ({}, {"unit": "bytes"}):
        lab = Laboratory(1)
        set_policy(lab, {"fair": fair})
        store(lab, {"a": 100, "b": 100})
        taken(lab, 50)
        starts = [tenant(lab, name).start for name in "ab"]
        lab.dequeue(count=40, delivers=lambda: False)
        assert [tenant(lab, name).start for name in "ab"] == starts
        assert abs(Counter(taken(lab, 40))["a"] - 20) <= 1
        audit_topics(lab.engine)


def test_throttles_of_a_policy_begin_turns() -> None:
    lab = Laboratory(1)
    lab.stored(*[lab.item() for _ in range(10)])
    assert len(lab.taken(count=2)) == 2
    set_policy(lab, {"throttles": ["api"]})
    assert len(lab.taken(count=3)) == 3
    assert set(lab.engine.state.topics[KEY].turns.tenants) == {""}  # type: ignore[union-attr]
    answers = lab.dequeue(count=10)
    assert len(answers[0]) == 5
    set_policy(lab, {})
    answers = lab.dequeue(10_000, count=10)
    lab.stored()
    assert len(answers[0]) == 1
    audit_topics(lab.engine)


def test_consumers_of_a_plain_topic_wait_for_its_turns() -> None:
    lab = Laboratory(1)
    lab.stored()
    assert len(lab.taken()) == 1
    waiting = [lab.dequeue(10_000, count=1) for _ in range(3)]
    set_policy(lab, {"throttles": ["api"]})
    lab.stored(*[lab.item() for _ in range(3)])
    assert all(len(answers[0]) == 1 for answers in waiting)


def test_paused_topics_give_no_turns() -> None:
    lab = Laboratory(1)
    store(lab, {"a": 5, "b": 5})
    set_policy(lab, {"paused": True})
    assert taken(lab, 10) == []
    answers = lab.dequeue(10_000, count=10)
    set_policy(lab, {"paused": False})
    assert len(answers[0]) == 10


def test_leases_of_tenants_that_are_committed_first() -> None:
    """Of at-most-once items, and of topics whose attempts are exact."""
    policies: list[dict[str, Any]] = [{}, {"exact_attempts": True, "max_attempts": 2}]
    for policy in policies:
        lab = Laboratory(1)
        set_policy(lab, policy)
        delivery = {} if policy else {"delivery": AT_MOST_ONCE}
        for name in "ab":
            lab.stored(*[lab.item(**delivery) for _ in range(3)], key=of(name))
        answers = lab.dequeue(count=6)
        assert not answers
        lab.settle()
        assert Counter(tenant_of(lab, item_id) for item_id in answers[0]) == {"a": 3, "b": 3}
        audit_topics(lab.engine)


def test_attempts_are_limited() -> None:
    lab = Laboratory(1)
    set_policy(lab, {"max_attempts": 1, "dead": {}})
    store(lab, {"a": 2, "b": 1})
    assert len(lab.taken(count=3, lease_ms=1_000)) == 3
    lab.go_on(5_000)
    assert taken(lab, 10) == []
    assert len(lab.taken(keys=[("ns", "topic.dlq")])) == 3


pytestmark = pytest.mark.memory


def urgent(host: OneHost, topic: str = "t") -> int | None:
    return most_urgent(host.engine.state, ("n", topic), host.now_ms)


def test_the_first_item_of_all_healthy_shards() -> None:
    host = OneHost(1, 2)
    assert urgent(host) is None
    for priority in (7, 3, 5, 3, 9, 3):
        put(host, b"x", priority=priority)
    assert urgent(host) == 3
    assert len(host.engine.state.topics[("n", "t")].lanes()) == 2
    (item,) = take(host, 1).items
    assert urgent(host) == 3, "another one"
    host.engine.state.shards[1].owner.breaker.trip(host.now_ms)
    host.engine.state.shards[2].owner.breaker.trip(host.now_ms)
    assert urgent(host) is None
    assert item.priority == 3


def test_a_page_that_is_not_in_memory_is_not_read() -> None:
    host = OneHost(1)
    put(host, b"x")
    host.reopen()
    assert urgent(host) is None


def test_tenants_count_where_priorities_order_them() -> None:
    host = OneHost(1)
    put(host, b"x", priority=5, fairness_key="a")
    put(host, b"x", priority=2, fairness_key="b")
    assert urgent(host) is None, "a tenant's priorities order its own items only"
    host.engine.apply_settings(Settings("n", 1, {"topic.t": '{"fair": {"scope": "topic"}}'}))
    assert urgent(host) == 2, "before any turn"
    (first,) = take(host, 1).items
    assert (first.priority, urgent(host)) == (2, 5)


def test_an_item_that_waits_for_a_throttle_does_not_count() -> None:
    host = OneHost(1)
    entries = {"topic.t": '{"fair": {"scope": "topic"}}', "throttle.k": '{"per_second": 0.001}'}
    host.settings.apply(Settings("n", 1, entries))
    put(host, b"x", priority=1, throttle_keys=["k"])
    host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)])
    host.wait(1)
    put(host, b"x", priority=4)
    assert urgent(host) == 4, "of the same tenant"
