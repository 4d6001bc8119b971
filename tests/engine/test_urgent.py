"""The most urgent item that a host could deliver, as it reports it to other hosts."""

from __future__ import annotations

import pytest

from foqs.engine.ready_lanes import most_urgent
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.support.one_host import OneHost, put, take

pytestmark = pytest.mark.memory


def urgent(host: OneHost, topic: str = "t") -> int | None:
    return most_urgent(host.engine, ("n", topic), host.now_ms)


def test_the_first_item_of_all_healthy_shards() -> None:
    host = OneHost(1, 2)
    assert urgent(host) is None
    for priority in (7, 3, 5, 3, 9, 3):
        put(host, b"x", priority=priority)
    assert urgent(host) == 3
    assert len(host.engine.topics[("n", "t")].lanes()) == 2
    (item,) = take(host, 1).items
    assert urgent(host) == 3, "another one"
    host.engine.shards[1].breaker.trip(host.now_ms)
    host.engine.shards[2].breaker.trip(host.now_ms)
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
