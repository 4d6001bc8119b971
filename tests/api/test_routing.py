"""GetRouting and WatchTopics: the values, the long polls, and how each poll ends."""

import pytest

from foqs.errors import Unavailable
from foqs.idl import idl
from foqs.ids import HASH_SLOTS
from foqs.shardmgr.facts import Slots
from tests.support.one_host import ADDRESS, Call, OneHost, put, refused, routing_of

pytestmark = pytest.mark.memory

OWNERS = {1: "a", 2: "b"}
WAIT_MS = 60_000


@pytest.fixture
def member() -> OneHost:
    return OneHost(1, routing=routing_of(OWNERS))


def polling(host: OneHost, method: str = "GetRouting") -> Call:
    """A long poll for the next value."""
    return host.call(method, version=host.ask(method).version, wait_ms=WAIT_MS)


# ------------------------------------------------------------------------------------------ GetRouting


def test_a_lone_host_is_the_owner_of_its_shards() -> None:
    host = OneHost(2, 1)
    routing = host.ask("GetRouting")
    assert [(route.shard, route.host, route.epoch) for route in routing.shards] == [(1, ADDRESS, 1), (2, ADDRESS, 1)]
    assert routing.hosts == [ADDRESS]
    assert (set(routing.slots), len(routing.slots)) == ({1, 2}, HASH_SLOTS)


def test_a_member_gives_the_routing_of_its_cluster() -> None:
    host = OneHost(1, routing=routing_of(OWNERS, "c", slots=Slots()))
    routing = host.ask("GetRouting")
    assert [(route.shard, route.host) for route in routing.shards] == [(1, "a:1"), (2, "b:1")]
    assert routing.hosts == ["a:1", "b:1", "c:1"]
    assert routing.slots is None


def test_a_poll_with_an_old_version_is_answered_at_once(member: OneHost) -> None:
    now = member.ask("GetRouting")
    assert member.ask("GetRouting", version=now.version + 1, wait_ms=WAIT_MS) == now
    assert member.ask("GetRouting", version=now.version, wait_ms=0) == now
    assert member.ask("GetRouting", wait_ms=WAIT_MS) == now


def test_a_poll_is_answered_when_quiet_changes(member: OneHost) -> None:
    loud = member.ask("GetRouting")
    assert loud.quiet is None
    for quiet in (True, None):
        call = polling(member)
        member.quiet = bool(quiet)
        member.service.routing_changed()
        assert call.answer.quiet is quiet
        assert member.ask("GetRouting", version=call.answer.version, wait_ms=0) == call.answer
    assert call.answer == loud


def test_a_poll_is_answered_when_the_routing_changes(member: OneHost) -> None:
    call = polling(member)
    member.learn(routing_of(OWNERS))
    assert not call.answers, "the same content has the same version"
    member.learn(routing_of({1: "a", 2: "c"}))
    assert call.answer.version == member.ask("GetRouting").version
    assert call.answer.shards[1].host == "c:1"
    assert call.on_lost is None


def test_a_poll_ends_with_the_same_routing_in_time(member: OneHost) -> None:
    call = polling(member)
    member.wait(WAIT_MS - 1)
    assert not call.answers
    member.wait(1)
    assert call.answer.version == member.ask("GetRouting").version


def test_a_poll_whose_client_is_gone_is_forgotten(member: OneHost) -> None:
    call = polling(member)
    call.lost()
    member.learn(routing_of({1: "b"}))
    member.wait(WAIT_MS)
    assert call.tries == 0


def test_a_stopping_host_answers_its_polls(member: OneHost) -> None:
    call = polling(member)
    member.engine.drain(member.now_ms)
    assert call.answer.version == member.ask("GetRouting", wait_ms=WAIT_MS, version=call.answer.version).version


def test_bounds_of_a_poll(member: OneHost) -> None:
    assert refused(member, "GetRouting", wait_ms=600_001) == "wait_ms is 600001, not in 0..600000"
    assert refused(member, "WatchTopics", wait_ms=-1) == "wait_ms is -1, not in 0..600000"


def test_a_lone_hosts_poll_ends_when_a_shard_is_lost() -> None:
    host = OneHost(1, 2)
    call = polling(host)
    host.engine.lose(host.engine.state.shards[2], host.now_ms)
    host.service.routing_changed()  # type: ignore[union-attr]
    assert [route.shard for route in call.answer.shards] == [1]


# ------------------------------------------------------------------------------------------ WatchTopics


def test_the_first_watch_gets_all_ready_topics(member: OneHost) -> None:
    put(member, b"x", b"y")
    news = member.ask("WatchTopics", wait_ms=WAIT_MS)
    assert news.whole
    assert [(one.ns, one.topic, one.ready) for one in news.topics] == [("n", "t", 2)]


def test_a_watch_is_answered_when_a_topic_becomes_ready(member: OneHost) -> None:
    call = polling(member, "WatchTopics")
    assert not call.answers
    put(member, b"x")
    assert [one.topic for one in call.answer.topics] == ["t"]
    assert not call.answer.whole
    assert call.on_lost is None
    put(member, b"y")
    assert not member.call("WatchTopics", version=call.answer.version, wait_ms=WAIT_MS).answers, "published once"


def test_an_item_that_a_consumer_here_takes_is_no_news(member: OneHost) -> None:
    consumer = member.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=WAIT_MS)
    call = polling(member, "WatchTopics")
    put(member, b"x")
    assert [item.payload for item in consumer.answer.items] == [b"x"]
    assert not call.answers


def test_a_watch_ends_without_news_in_time(member: OneHost) -> None:
    call = polling(member, "WatchTopics")
    member.wait(WAIT_MS)
    assert (call.answer.topics, call.answer.whole) == ([], False)


def test_a_watch_whose_host_is_gone_is_forgotten(member: OneHost) -> None:
    call = polling(member, "WatchTopics")
    call.lost()
    put(member, b"x")
    assert call.tries == 0


def test_a_stopping_host_ends_watches_and_takes_none(member: OneHost) -> None:
    """A watch that was answered at once would be repeated at once."""
    call = polling(member, "WatchTopics")
    member.engine.drain(member.now_ms)
    assert call.answer.topics == []
    assert type(member.ask("WatchTopics")) is Unavailable
