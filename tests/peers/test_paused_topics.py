"""Consumers of a paused topic are sent to no host, and items that another host gives for it go back."""

from typing import Any

import pytest

from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.peers.test_forwarder_consumers import consumer, in_bytes, publish
from tests.support.one_host import FORWARDED, OneHost, put, routing_of, take

pytestmark = pytest.mark.memory


@pytest.fixture
def host() -> OneHost:
    """Host "a" has shard 1, host "b" shard 2."""
    return OneHost(1, routing=routing_of({1: "a", 2: "b"}))


def pause(host: OneHost, *topics: str, version: int = 1) -> None:
    """Pause exactly these topics."""
    entries = {f"topic.{topic}": '{"paused": true}' for topic in topics}
    host.engine.apply_settings(Settings("n", version, entries))
    host.run()


def resume(host: OneHost, version: int = 2) -> None:
    pause(host, version=version)


def items(**ids: int) -> Any:
    """A reply with an item of each topic."""
    return idl.DequeueResponse([idl.Item(id=one, lease=9, ns="n", topic=topic) for topic, one in ids.items()])


def test_a_consumer_of_a_paused_topic_is_sent_nowhere(host: OneHost) -> None:
    pause(host, "t")
    call = consumer(host)
    publish(host, "t")
    assert not host.to("Dequeue")
    resume(host)
    host.reply("Dequeue", items(t=7))
    assert [item.id for item in call.answer.items] == [7]


def test_another_host_is_asked_for_the_other_topics_alone(host: OneHost) -> None:
    publish(host, "t", "u")
    pause(host, "t")
    consumer(host, "t", "u")
    (sent,) = host.to("Dequeue")
    assert [want.topic for want in sent.request.wants] == ["u"]


def test_a_host_keeps_the_topics_that_it_was_not_asked_for(host: OneHost) -> None:
    """Its answer that it has nothing is about the other topics."""
    publish(host, "t", "u")
    pause(host, "t")
    call = consumer(host, "t", "u")
    host.reply("Dequeue", idl.DequeueResponse([], news_version=1))
    resume(host)
    assert [want.topic for want in host.to("Dequeue")[0].request.wants] == ["t", "u"]
    host.reply("Dequeue", items(t=7))
    assert [item.id for item in call.answer.items] == [7]


@pytest.mark.parametrize("form", [lambda response: response, in_bytes])
def test_items_that_arrive_after_a_pause_go_back(host: OneHost, form: Any) -> None:
    publish(host, "t", "u")
    call = consumer(host, "t", "u")
    pause(host, "t")
    host.reply("Dequeue", form(items(t=7, u=8)))
    assert [item.id for item in call.answer.items] == [8]
    (sent,) = host.to("Nack")
    assert [(item.id, item.lease, item.release) for item in sent.request.items] == [(7, 9, True)]


def test_a_consumer_whose_items_went_back_waits_on(host: OneHost) -> None:
    publish(host, "t")
    call = consumer(host)
    pause(host, "t")
    host.reply("Dequeue", items(t=7))
    assert not call.answers
    assert len(host.to("Nack")) == 1
    (item_id,) = put(host, b"x")
    assert not call.answers
    resume(host)
    assert [item.id for item in call.answer.items] == [item_id]


def test_other_hosts_learn_of_a_topic_when_it_is_resumed(host: OneHost) -> None:
    pause(host, "t")
    put(host, b"x")
    assert host.ask("WatchTopics").topics == []
    empty = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], context=FORWARDED)
    assert (empty.items, empty.reason) == ([], "paused")
    waiting = host.call("WatchTopics", version=empty.news_version, wait_ms=10_000)
    assert not waiting.answers
    resume(host)
    assert [(news.topic, news.ready) for news in waiting.answer.topics] == [("t", 1)]


def test_a_topic_that_is_published_and_then_paused_is_forgotten(host: OneHost) -> None:
    put(host, b"x")
    assert len(host.ask("WatchTopics").topics) == 1
    pause(host, "t")
    assert host.ask("WatchTopics").topics == []
    resume(host)
    assert len(host.ask("WatchTopics").topics) == 1


def test_an_empty_reply_says_that_a_topic_is_paused(host: OneHost) -> None:
    assert take(host).reason is None
    pause(host, "t")
    assert take(host).reason == "paused"
    put(host, b"x")
    both = [idl.TopicCount("t", 1), idl.TopicCount("u", 1)]
    assert host.ask("Dequeue", ns="n", wants=both).reason == "paused"
    resume(host)
    reply = take(host)
    assert (len(reply.items), reply.reason) == (1, None)


def test_items_of_a_paused_tenant_go_back(host: OneHost) -> None:
    """Another host gave them before it acted on the settings; its other items reach the consumer."""
    publish(host, "t")
    call = consumer(host)
    host.engine.apply_settings(Settings("n", 1, {"topic.t": '{"paused_tenants": ["a"]}'}))
    host.run()
    given = [
        idl.Item(id=one, lease=9, ns="n", topic="t", fairness_key=key) for one, key in ((7, "a"), (8, "b"), (6, None))
    ]
    host.reply("Dequeue", idl.DequeueResponse(given))
    assert [item.id for item in call.answer.items] == [8, 6]
    (back,) = host.to("Nack")
    assert [(item.id, item.release) for item in back.request.items] == [(7, True)]
