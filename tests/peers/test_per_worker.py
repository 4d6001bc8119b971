"""A worker at its limit on one host of a cluster hides that host's items from no other worker."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.api.wire import spec
from tests.support.one_host import FORWARDED, OneHost, routing_of

pytestmark = pytest.mark.memory


def host_of() -> OneHost:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    host.settings.apply(Settings("n", 1, {"topic.t": '{"per_worker": 1}'}))
    return host


def dequeue(
    host: OneHost, worker: str, wait_ms: int = 0, holding: int | None = None, count: int = 1, **fields: Any
) -> Any:
    wants = [idl.TopicCount("t", count, holding)]
    call = host.call("Dequeue", ns="n", wants=wants, worker=worker, wait_ms=wait_ms, **fields)
    host.wait(1)
    return call


def test_a_forwarded_worker_at_its_limit_hides_no_items() -> None:
    host = host_of()
    host.ask("Enqueue", ns="n", items=[spec("t", b"x"), spec("t", b"y")])
    assert len(dequeue(host, "w", context=FORWARDED).answer.items) == 1
    empty = dequeue(host, "w", context=FORWARDED).answer
    assert empty.reason == "per_worker"
    watch = host.ask("WatchTopics", version=None, wait_ms=0)
    assert [news.topic for news in watch.topics] == ["t"]
    assert dequeue(host, "v", context=FORWARDED).answer.items


def test_a_topic_is_published_again_for_a_refused_worker() -> None:
    host = host_of()
    host.ask("Enqueue", ns="n", items=[spec("t", b"x"), spec("t", b"y")])
    (item,) = dequeue(host, "w", context=FORWARDED).answer.items
    before = host.ask("WatchTopics", version=None, wait_ms=0).version
    assert dequeue(host, "w", context=FORWARDED).answer.items == []
    waiting = host.call("WatchTopics", version=before, wait_ms=60_000)
    assert not waiting.answers
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
    assert [news.topic for news in waiting.answer.topics] == ["t"]
    assert dequeue(host, "w", context=FORWARDED).answer.items


def news(version: int) -> Any:
    return idl.WatchTopicsResponse(version, False, [idl.TopicNews("n", "t", 5)])


def refusal() -> Any:
    return idl.DequeueResponse([], None, 5, None, "per_worker", {"t": 1})


def test_a_host_that_refuses_one_worker_is_asked_for_the_next() -> None:
    host = host_of()
    host.reply("WatchTopics", news(1))
    first = dequeue(host, "w", wait_ms=5_000)
    assert [sent.address for sent in host.to("Dequeue")] == ["b:1"]
    host.reply("Dequeue", refusal())
    host.wait(4_900)
    assert not first.answers
    assert not host.to("Dequeue"), "it is not asked again for this worker"
    dequeue(host, "v", wait_ms=5_000)
    assert [sent.request.worker for sent in host.to("Dequeue")] == ["v"]
    host.wait(110)
    assert first.answer.items == []


def test_a_host_that_publishes_the_topic_again_is_asked_again() -> None:
    host = host_of()
    host.reply("WatchTopics", news(1))
    call = dequeue(host, "w", wait_ms=60_000)
    host.reply("Dequeue", refusal())
    host.reply("WatchTopics", news(2))
    assert [sent.request.worker for sent in host.to("Dequeue")] == ["w"]
    host.reply("Dequeue", refusal())
    host.wait(10_000)
    assert not host.to("Dequeue")
    assert not call.answers


def test_no_host_is_asked_for_a_worker_that_reports_enough() -> None:
    host = host_of()
    host.reply("WatchTopics", news(1))
    dequeue(host, "w", wait_ms=60_000, holding=1)
    assert not host.to("Dequeue")
    host.settings.apply(Settings("n", 2, {"topic.t": '{"per_worker": 3}'}))
    host.run()
    assert [sent.address for sent in host.to("Dequeue")] == ["b:1"]


def test_a_host_is_asked_for_no_more_than_a_worker_may_get() -> None:
    host = host_of()
    host.settings.apply(Settings("n", 2, {"topic.t": '{"per_worker": 3}'}))
    host.reply("WatchTopics", news(1))
    dequeue(host, "w", wait_ms=60_000, holding=1, count=10)
    (sent,) = host.to("Dequeue")
    assert [(want.count, want.holding) for want in sent.request.wants] == [(2, 1)]


def test_a_wait_that_is_ended_while_another_host_is_asked() -> None:
    host = host_of()
    host.reply("WatchTopics", news(1))
    call = dequeue(host, "w", wait_ms=60_000, holding=0)
    assert call.on_oneway is not None
    call.on_oneway()
    assert not call.answers, "the other host may send items"
    host.reply("Dequeue", idl.DequeueResponse([], None, 5))
    assert call.answer.items == []
