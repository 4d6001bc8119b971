"""ListFailing of a cluster: the counts of all hosts by topic and group, and the names of hosts without an answer."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.errors import Unavailable
from foqs.figures import MOST_FAILING_WORKERS
from foqs.idl import idl
from foqs.policies.failures import fingerprint
from tests.support.one_host import FORWARDED, OneHost, refused, routing_of

pytestmark = pytest.mark.memory

WHY = f"{fingerprint('why 1') & ((1 << 64) - 1):016x}"


def group(minute: int, last_ms: int, number: str = WHY, *workers: str, **fields: Any) -> Any:
    made = idl.FailingGroup(1, number, minute, 10 * minute, 60 * minute, 70 * minute, 2, 5, last_ms, 3, "why 2", 9)
    made.worker, made.workers, made.more_workers = "w2", list(workers), False
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def fail(host: OneHost, reason: str = "why 1", topic: str = "t", worker: str = "w1") -> None:
    host.ask("Enqueue", ns="n", items=[idl.ItemSpec(topic=topic, payload=b"x")])
    (item,) = host.ask("Dequeue", ns="n", wants=[idl.TopicCount(topic, 1)], worker=worker).items
    host.ask("Nack", items=[idl.NackItem(item.id, item.lease, failed=True, reason=reason)])


def test_groups_of_all_hosts_are_added() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    fail(host)
    call = host.call("ListFailing", ns="n")
    theirs = idl.FailingTopic("t", 100, 200, [group(4, host.now_ms + 1, WHY, "w0", "w2")])
    request = host.reply("ListFailing", idl.ListFailingResponse([theirs], False, []))
    assert (request.ns, request.topic, request.limit, request.context.hops) == ("n", None, 1_000, 1)
    (topic,) = call.answer.topics
    assert (topic.topic, topic.acked_10_minutes, topic.acked_hour) == ("t", 100, 200)
    (found,) = topic.groups
    counts = found.last_minute, found.last_10_minutes, found.last_hour, found.failures, found.ended
    assert counts == (5, 41, 241, 281, 2)
    assert (found.first_failed_at_ms, found.last_failed_at_ms, found.attempts) == (5, host.now_ms + 1, 3)
    assert (found.reason, found.item_id, found.worker) == ("why 2", 9, "w2"), "of the last one"
    assert (found.workers, found.more_workers) == (["w0", "w1", "w2"], False)
    assert (call.answer.more, call.answer.missing) == (False, [])


def test_the_sample_is_of_the_host_with_the_last_failure() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    fail(host)
    call = host.call("ListFailing", ns="n", topic="t")
    workers = [f"v{number}" for number in range(MOST_FAILING_WORKERS)]
    theirs = idl.FailingTopic("t", 0, 0, [group(4, host.now_ms - 1, WHY, *workers)])
    host.reply("ListFailing", idl.ListFailingResponse([theirs], False, []))
    (found,) = call.answer.topics[0].groups
    assert (found.reason, found.worker, found.more_workers) == ("why 1", "w1", True)
    assert len(found.workers) == MOST_FAILING_WORKERS


def test_topics_and_groups_are_in_the_order_of_what_fails_now() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    for topic, count in (("t", 1), ("u", 3), ("v", 2)):
        for _ in range(count):
            fail(host, topic=topic)
    call = host.call("ListFailing", ns="n", limit=2)
    theirs = idl.FailingTopic("t", 0, 0, [group(2, 7, "0" * 16), group(9, 7, "1" * 16)])
    host.reply("ListFailing", idl.ListFailingResponse([theirs], False, []))
    assert [topic.topic for topic in call.answer.topics] == ["t", "u"]
    assert [one.last_minute for one in call.answer.topics[0].groups] == [9, 2, 1]
    assert call.answer.more


def test_hosts_without_an_answer_are_named() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}, "c"))
    fail(host)
    call = host.call("ListFailing", ns="n")
    asked = [sent.address for sent in host.to("ListFailing")]
    host.reply("ListFailing", Unavailable("gone"))
    host.reply("ListFailing", idl.ListFailingResponse([], True, []))
    assert call.answer.missing == asked[:1]
    assert len(call.answer.topics) == 1
    assert call.answer.more, "the other host has more topics than it counts"


def test_a_forwarded_request_asks_no_further_host() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    fail(host)
    assert len(host.ask("ListFailing", ns="n", context=FORWARDED).topics) == 1
    assert not host.to("ListFailing")


def test_a_lone_host_answers_by_itself() -> None:
    host = OneHost(1)
    fail(host)
    (topic,) = host.ask("ListFailing", ns="n").topics
    assert topic.groups[0].failures == 1


def test_bad_requests_are_refused() -> None:
    host = OneHost(1)
    assert refused(host, "ListFailing") == "ns is missing"
    assert refused(host, "ListFailing", ns="n", topic="x" * 256) == "topic must have 1 to 255 bytes"
    assert refused(host, "ListFailing", ns="n", limit=1_001) == "limit is 1001, not in 1..1000"
