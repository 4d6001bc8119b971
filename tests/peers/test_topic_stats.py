"""GetTopicStats of a cluster: the counts of all hosts, and the names of those that did not answer."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.errors import LostReply, Unavailable
from foqs.idl import idl
from foqs.peers.topic_stats import TopicCounts
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


def test_a_host_alone_waits_for_no_other() -> None:
    done: list[Any] = []
    workers = [idl.WorkerStats("w", 1, 5)]
    TopicCounts((1, 2, 3), workers, (), lambda *found: done.append(found))
    assert done == [((1, 2, 3), workers, [])]


def test_leases_of_a_worker_on_several_hosts_are_added() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    put(host, b"x", b"y")
    take(host, 2)
    host.wait(100)
    call = host.call("GetTopicStats", ns="n", topic="t")
    theirs = [idl.WorkerStats("w", 3, 50), idl.WorkerStats("", 1, 2_000)]
    host.reply("GetTopicStats", idl.GetTopicStatsResponse(0, 0, 4, workers=theirs))
    assert call.answer.workers == [idl.WorkerStats("", 3, 2_000), idl.WorkerStats("w", 3, 50)]
