"""GetTopicStats of a cluster: the counts of all hosts, and the names of those that did not answer."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.errors import LostReply, Unavailable
from foqs.idl import idl
from tests.support.one_host import FORWARDED, OneHost, put, routing_of, take

pytestmark = pytest.mark.memory


def counts(answer: Any) -> tuple[int, int, int]:
    return (answer.ready, answer.delayed, answer.leased)


def test_counts_of_all_hosts_are_added() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b", 3: "c"}))
    put(host, b"x")
    call = host.call("GetTopicStats", ns="n", topic="t")
    request = host.reply("GetTopicStats", idl.GetTopicStatsResponse(10, 20, 30))
    assert (request.ns, request.topic, request.context.hops) == ("n", "t", 1)
    assert not call.answers
    host.reply("GetTopicStats", idl.GetTopicStatsResponse(100, 200, 300))
    assert (counts(call.answer), call.answer.missing) == ((111, 220, 330), [])


def test_hosts_without_an_answer_are_named() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}, "c", "d"))
    put(host, b"x")
    call = host.call("GetTopicStats", ns="n", topic="t")
    asked = [sent.address for sent in host.to("GetTopicStats")]
    for outcome in (LostReply("lost"), idl.GetTopicStatsResponse(1, 0, 0), Unavailable("stopping")):
        host.reply("GetTopicStats", outcome)
    assert counts(call.answer) == (2, 0, 0)
    assert call.answer.missing == sorted([asked[0], asked[2]])


def test_a_forwarded_request_counts_the_items_of_one_host() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    put(host, b"x")
    assert counts(host.ask("GetTopicStats", ns="n", topic="t", context=FORWARDED)) == (1, 0, 0)
    assert not host.to("GetTopicStats")


def test_leases_of_a_worker_on_several_hosts_are_added() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    put(host, b"x", b"y")
    take(host, 2)
    host.wait(100)
    call = host.call("GetTopicStats", ns="n", topic="t")
    theirs = [idl.WorkerStats("w", 3, 50), idl.WorkerStats("", 1, 2_000)]
    host.reply("GetTopicStats", idl.GetTopicStatsResponse(0, 0, 4, workers=theirs))
    assert call.answer.workers == [idl.WorkerStats("", 3, 2_000, 0), idl.WorkerStats("w", 3, 50, 0)]


def test_hung_handlers_are_reported_to_one_host_at_a_time() -> None:
    """A worker that reports to another host is counted once, by its largest report."""
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 0, None, 2)], worker="w")
    call = host.call("GetTopicStats", ns="n", topic="t")
    theirs = [idl.WorkerStats("v", 9, 50, 0), idl.WorkerStats("w", 1, 30, 3), idl.WorkerStats("x", 0, 0, 1)]
    host.reply("GetTopicStats", idl.GetTopicStatsResponse(0, 0, 4, workers=theirs))
    assert call.answer.workers == [
        idl.WorkerStats("w", 1, 30, 3), idl.WorkerStats("x", 0, 0, 1), idl.WorkerStats("v", 9, 50, 0),
    ]  # fmt: skip


def tenants(answer: Any) -> list[tuple[str, int, int, int, float, float]]:
    return [(one.fairness_key, one.weight, one.ready, one.parked, one.served, one.share) for one in answer.tenants]


def test_tenants_of_all_hosts_are_added() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b", 3: "c"}))
    for tenant, weight in (("x", 1), ("x", 1), ("y", 2)):
        put(host, b"", fairness_key=tenant, weight=weight)
    call = host.call("GetTopicStats", ns="n", topic="t", limit=2)
    theirs = [idl.TenantStats("y", 3, 10, 4, 2.5, 1.0), idl.TenantStats("z", 5, 1, 1, 7.0, 0.0)]
    assert host.reply("GetTopicStats", idl.GetTopicStatsResponse(11, 0, 0, tenants=theirs)).limit is None
    more = idl.TenantStats("", 6, 50, 20, 8.0, 1.0)
    host.reply("GetTopicStats", idl.GetTopicStatsResponse(50, 0, 0, tenants=[], more_tenants=more))
    assert tenants(call.answer) == [("y", 3, 11, 4, 2.5, 0.3), ("x", 1, 2, 0, 0.0, 0.1)]
    assert call.answer.more_tenants == idl.TenantStats("", 6, 51, 21, 15.0, 0.6, False, waits_for="")


def test_a_forwarded_request_has_all_tenants_of_a_host() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    for number in range(150):
        put(host, b"", fairness_key=f"t{number}")
    answer = host.ask("GetTopicStats", ns="n", topic="t", context=FORWARDED)
    assert (len(answer.tenants), answer.more_tenants) == (150, None)
