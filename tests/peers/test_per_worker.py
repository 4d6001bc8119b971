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


def dequeue(host: OneHost, worker: str, wait_ms: int = 0, **fields: Any) -> Any:
    wants = [idl.TopicCount("t", 1)]
    call = host.call("Dequeue", ns="n", wants=wants, worker=worker, wait_ms=wait_ms, **fields)
    host.wait(1)
    return call


def test_a_forwarded_worker_at_its_limit_hides_no_items() -> None:
    host = host_of()
    host.ask("Enqueue", ns="n", items=[spec("t", b"x"), spec("t", b"y")])
    assert len(dequeue(host, "w", context=FORWARDED).answer.items) == 1
    empty = dequeue(host, "w", context=FORWARDED).answer
    assert (empty.reason, empty.news_version) == ("per_worker", None)
    assert dequeue(host, "v", context=FORWARDED).answer.items


def test_a_host_that_refuses_one_worker_is_asked_for_the_next() -> None:
    host = host_of()
    host.reply("WatchTopics", idl.WatchTopicsResponse(1, False, [idl.TopicNews("n", "t", 5)]))
    first = dequeue(host, "w", wait_ms=5_000)
    assert [sent.address for sent in host.to("Dequeue")] == ["b:1"]
    host.reply("Dequeue", idl.DequeueResponse([], None, None, 100, "per_worker"))
    host.wait(50)
    assert not first.answers
    assert not host.to("Dequeue"), "it is not asked again for this worker"
    host.wait(60)
    assert first.answer.items == []
    dequeue(host, "v", wait_ms=5_000)
    assert [sent.address for sent in host.to("Dequeue")] == ["b:1"]
