"""Consumers that the forwarder sends to hosts with ready items: in which order, how many, and after which answers."""

from collections import Counter
from typing import Any

import pytest

from foqs.errors import LostReply, NotSent, OutcomeUnknown
from foqs.idl import LeasedBytes, idl
from foqs.peers.ready_topics import NO_ANSWER_MS
from foqs.wire.protocol import encode_struct
from tests.support.one_host import Call, OneHost, put, routing_of

pytestmark = pytest.mark.memory

WAIT_MS = 60_000


@pytest.fixture
def host() -> OneHost:
    """Host "a" has shard 1, host "b" shard 2."""
    return OneHost(1, routing=routing_of({1: "a", 2: "b"}))


def publish(host: OneHost, *topics: str, version: int = 1) -> None:
    """Host "b" publishes topics, as the answer to the question that is open."""
    host.reply("WatchTopics", idl.WatchTopicsResponse(version, False, [idl.TopicNews("n", one, 5) for one in topics]))


def consumer(host: OneHost, *topics: str, wait_ms: int = WAIT_MS) -> Call:
    wants = [idl.TopicCount(topic, 1) for topic in topics or ("t",)]
    return host.call("Dequeue", ns="n", wants=wants, wait_ms=wait_ms)


def items(*ids: int) -> Any:
    return idl.DequeueResponse([idl.Item(id=one, lease=one + 1, payload=b"") for one in ids])


def in_bytes(response: Any) -> LeasedBytes:
    """Return a reply that was read without the codec."""
    return LeasedBytes(encode_struct(response), lambda: response)


def nothing(version: int | None = 1) -> Any:
    return idl.DequeueResponse([], news_version=version)


def test_a_consumer_is_sent_to_the_host_that_has_its_topic(host: OneHost) -> None:
    publish(host, "t")
    call = consumer(host)
    request = host.reply("Dequeue", items(7))
    assert (request.wait_ms, request.context.hops) == (None, 1)
    assert [item.id for item in call.answer.items] == [7]


def test_the_bytes_of_leased_items_are_passed_on(host: OneHost) -> None:
    publish(host, "t")
    call = consumer(host)
    host.reply("Dequeue", in_bytes(items(7)))
    assert call.answer == items(7)


def test_a_waiting_consumer_is_sent_when_its_topic_is_published(host: OneHost) -> None:
    call = consumer(host)
    assert not host.to("Dequeue")
    publish(host, "other")
    assert not host.to("Dequeue")
    publish(host, "t", version=2)
    host.reply("Dequeue", items(7))
    assert [item.id for item in call.answer.items] == [7]


def test_no_more_consumers_are_sent_than_items_are_ready(host: OneHost) -> None:
    for _ in range(4):
        consumer(host)
    host.reply("WatchTopics", idl.WatchTopicsResponse(1, False, [idl.TopicNews("n", "t", 2)]))
    assert len(host.to("Dequeue")) == 2


def test_each_consumer_that_gets_an_item_sends_the_next(host: OneHost) -> None:
    first, second = consumer(host), consumer(host)
    host.reply("WatchTopics", idl.WatchTopicsResponse(1, False, [idl.TopicNews("n", "t", 1)]))
    assert len(host.to("Dequeue")) == 1
    host.reply("Dequeue", items(7))
    host.reply("Dequeue", items(8))
    assert [call.answer.items[0].id for call in (first, second)] == [7, 8], "first come, first served"


def test_a_host_without_items_gets_no_consumer_until_news(host: OneHost) -> None:
    publish(host, "t")
    call = consumer(host)
    host.reply("Dequeue", nothing(version=1))
    assert not host.to("Dequeue")
    consumer(host)
    assert not host.to("Dequeue")
    publish(host, "t", version=2)
    host.reply("Dequeue", items(7))
    assert [item.id for item in call.answer.items] == [7]


def test_an_empty_answer_older_than_the_news_drops_nothing(host: OneHost) -> None:
    publish(host, "t", version=2)
    consumer(host)
    host.reply("Dequeue", nothing(version=1))
    assert host.to("Dequeue"), "sent again"


def test_a_host_that_does_not_answer_is_skipped_for_a_while(host: OneHost) -> None:
    publish(host, "t")
    call = consumer(host)
    host.reply("Dequeue", NotSent("refused"))
    assert not host.to("Dequeue")
    host.wait(NO_ANSWER_MS)
    host.reply("Dequeue", items(7))
    assert [item.id for item in call.answer.items] == [7]


def test_a_lost_answer_may_have_held_items(host: OneHost) -> None:
    publish(host, "t")
    call = consumer(host)
    host.reply("Dequeue", LostReply("lost"))
    assert type(call.answer) is OutcomeUnknown


def test_doubtful_items_are_passed_on(host: OneHost) -> None:
    publish(host, "t")
    call = consumer(host)
    host.reply("Dequeue", idl.DequeueResponse([], doubtful=[7]))
    assert (call.answer.items, call.answer.doubtful) == ([], [7])


@pytest.mark.parametrize("form", [lambda response: response, in_bytes])
def test_leases_of_a_consumer_that_is_gone_are_released(host: OneHost, form: Any) -> None:
    """The next consumer of the topic is sent in its place."""
    first, _ = consumer(host), consumer(host)
    host.reply("WatchTopics", idl.WatchTopicsResponse(1, False, [idl.TopicNews("n", "t", 1)]))
    assert len(host.to("Dequeue")) == 1
    first.lost()
    host.reply("Dequeue", form(items(7, 8)))
    (sent,) = host.to("Nack")
    assert [(one.id, one.lease, one.release) for one in sent.request.items] == [(7, 8, True), (8, 9, True)]
    assert not first.answers
    assert len(host.to("Dequeue")) == 1


def test_a_consumer_waits_here_after_an_empty_answer(host: OneHost) -> None:
    publish(host, "t")
    call = consumer(host, wait_ms=500)
    host.wait(100)
    host.reply("Dequeue", nothing())
    host.wait(399)
    assert not call.answers
    host.wait(1)
    assert call.answer.items == []


def test_a_consumer_that_does_not_wait_gets_the_empty_answer(host: OneHost) -> None:
    publish(host, "t")
    call = consumer(host, wait_ms=0)
    host.reply("Dequeue", nothing())
    assert call.answer.items == []


def test_a_consumer_of_several_topics_goes_where_any_is(host: OneHost) -> None:
    publish(host, "u")
    consumer(host, "t", "u")
    assert [sent.address for sent in host.to("Dequeue")] == ["b:1"]


def test_a_host_that_left_the_cluster_gets_no_consumer(host: OneHost) -> None:
    publish(host, "t")
    host.learn(routing_of({1: "a", 2: "c"}))
    consumer(host)
    assert not host.to("Dequeue")


def test_an_item_here_is_taken_before_any_elsewhere(host: OneHost) -> None:
    publish(host, "t")
    put(host, b"x")
    assert [item.payload for item in consumer(host).answer.items] == [b"x"]
    assert not host.to("Dequeue")


def test_an_empty_answer_says_what_the_other_host_said(host: OneHost) -> None:
    publish(host, "t")
    call = consumer(host, wait_ms=500)
    host.reply("Dequeue", idl.DequeueResponse([], news_version=1, retry_after_ms=800, reason="throttled: acme"))
    host.wait(500)
    assert (call.answer.items, call.answer.reason, call.answer.retry_after_ms) == ([], "throttled: acme", 300)


def test_the_last_host_says_why_there_are_no_items(host: OneHost) -> None:
    publish(host, "t")
    call = consumer(host, wait_ms=500)
    host.reply("Dequeue", idl.DequeueResponse([], news_version=1, retry_after_ms=800, reason="throttled: acme"))
    publish(host, "t", version=2)
    host.reply("Dequeue", nothing(version=2))
    host.wait(500)
    assert (call.answer.reason, call.answer.retry_after_ms) == (None, None)


# ---------------------------------------------------------------------------------------------- many topics, one bound

MANY = [f"t{n:03}" for n in range(200)]


def worker(host: OneHost, *topics: str, most: int = 3, wait_ms: int = WAIT_MS) -> Call:
    wants = [idl.TopicCount(topic, most) for topic in topics or MANY]
    return host.call("Dequeue", ns="n", wants=wants, wait_ms=wait_ms, most=most)


def stock(host: OneHost, topic: str, count: int) -> None:
    host.ask("Enqueue", ns="n", items=[idl.ItemSpec(topic, b"x")] * count)


@pytest.mark.parametrize("topic", [MANY[0], MANY[100], MANY[199]])
def test_news_of_any_topic_sends_a_consumer_with_its_bound(host: OneHost, topic: str) -> None:
    """The other host is asked for the topics that it is known to have."""
    call = worker(host)
    publish(host, topic)
    request = host.reply("Dequeue", items(7))
    assert ([want.topic for want in request.wants], [want.count for want in request.wants]) == ([topic], [3])
    assert request.most == 3
    assert [item.id for item in call.answer.items] == [7]


def test_a_consumer_of_many_topics_is_at_one_host_at_a_time(host: OneHost) -> None:
    """So no two hosts give it items, and its bound holds."""
    call = worker(host)
    publish(host, MANY[0])
    publish(host, MANY[1], version=2)
    stock(host, MANY[2], 5)
    assert len(host.to("Dequeue")) == 1 and not call.answers
    host.reply("Dequeue", items(7, 8))
    assert [item.id for item in call.answer.items] == [7, 8]
    assert not host.to("Dequeue")


def test_a_consumer_without_luck_elsewhere_gets_new_items_here(host: OneHost) -> None:
    call = worker(host)
    publish(host, MANY[0])
    stock(host, MANY[2], 5)
    host.reply("Dequeue", nothing())
    assert len(call.answer.items) == 3


def test_a_topic_of_another_host_waits_for_no_backlog_here(host: OneHost) -> None:
    stock(host, MANY[2], 200)
    publish(host, MANY[2], MANY[5])
    sent = 0
    for n in range(100):
        call = worker(host, wait_ms=0, most=1)
        for question in host.to("Dequeue"):
            assert [want.topic for want in question.request.wants if want.topic != MANY[2]] == [MANY[5]]
            host.reply("Dequeue", items(1_000 + n))
            sent += 1
        assert len(call.answer.items) == 1
    assert 3 <= sent <= 30


def weighted(host: OneHost, most: int = 1, **weights: int) -> Call:
    wants = [idl.TopicCount(topic, most, None, None, weight) for topic, weight in weights.items()]
    return host.call("Dequeue", ns="n", wants=wants, wait_ms=0, most=most)


@pytest.mark.parametrize("most", [1, 4])
def test_weights_hold_over_the_topics_of_all_hosts(host: OneHost, most: int) -> None:
    """Also where the other host has items of the topic that is ready here: it is asked for the chosen topic alone."""
    stock(host, "mail", 2_000)
    stock(host, "news", 2_000)
    publish(host, "mail", "bulk")
    got: Counter[str] = Counter()
    for n in range(400):
        call = weighted(host, most, mail=5, bulk=2, news=1)
        for question in host.to("Dequeue"):
            assert question.request.wants == [idl.TopicCount("bulk", most, None, None, 2)]
            host.reply("Dequeue", items(*range(10_000 * (n + 1), 10_000 * (n + 1) + most)))
            got["bulk"] += most
        got.update(item.topic for item in call.answer.items if item.topic is not None)
    assert sum(got.values()) == 400 * most
    for topic, share in (("mail", 5 / 8), ("bulk", 2 / 8), ("news", 1 / 8)):
        # Three standard deviations of 400 draws.
        assert abs(got[topic] / 400 / most - share) < 3 * (share * (1 - share) / 400) ** 0.5, got


def test_weights_choose_among_topics_that_only_other_hosts_have() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b", 3: "c"}))
    for topics in (("mail",), ("mail", "bulk")):
        publish(host, *topics)
    asked: Counter[str] = Counter()
    for n in range(400):
        weighted(host, mail=3, bulk=1)
        request = host.reply("Dequeue", items(n + 1))
        asked.update(want.topic for want in request.wants)
    assert asked.total() == 400 and 74 <= asked["bulk"] <= 126, asked


def test_a_chosen_topic_that_is_gone_holds_up_no_other(host: OneHost) -> None:
    stock(host, "mail", 10)
    publish(host, "bulk", "news")
    call = weighted(host, 2, mail=1, bulk=1_000, news=1_000)
    host.reply("Dequeue", nothing())
    assert [item.topic for item in call.answer.items] == ["mail", "mail"]
    stock(host, "other", 1)
    call = weighted(host, 2, other=1, news=1_000, bulk=1_000)
    (question,) = host.to("Dequeue")
    host.reply("Dequeue", nothing())
    assert len(question.request.wants) == 1 and len(call.answer.items) == 1


def test_topics_of_other_hosts_have_their_turns() -> None:
    """Also the last one in the request."""
    host = OneHost(1, routing=routing_of({1: "a", 2: "b", 3: "c"}))
    for address, topic in (("b:1", MANY[0]), ("c:1", MANY[199])):
        assert host.to("WatchTopics")[0].address == address
        host.reply("WatchTopics", idl.WatchTopicsResponse(1, False, [idl.TopicNews("n", topic, 500)]))
    asked: Counter[str] = Counter()
    for n in range(200):
        call = worker(host, wait_ms=0, most=1)
        (question,) = host.to("Dequeue")
        asked[question.address] += 1
        host.reply("Dequeue", items(n + 1))
        assert len(call.answer.items) == 1
    assert min(asked["b:1"], asked["c:1"]) > 60, asked
