"""Counters of topics: which topics have series of their own, and that no event is lost or counted twice."""

from __future__ import annotations

import pytest

from foqs.admin.series import TopicSeries
from foqs.counters import TopicEvents
from foqs.fairness.keys import TopicKey
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.support.one_host import OneHost, put, take

REST = ("other", "other")
A, B, C = ("n", "a"), ("n", "b"), ("n", "c")


def scrape(series: TopicSeries, living: set[TopicKey], **events: int) -> dict[TopicKey, float]:
    """Count that many enqueued items of topics of namespace n."""
    for topic, items in events.items():
        series.add(("n", topic), TopicEvents(enqueued=items))
    return dict(series.rows(living)["foqs_topic_enqueued_total"])


def test_the_first_topics_with_events_keep_their_series() -> None:
    series = TopicSeries(2)
    assert scrape(series, {A, B, C}, a=5, b=3, c=0) == {A: 5, B: 3}
    assert scrape(series, {A, B, C}, a=1, b=0, c=9) == {A: 6, B: 3, REST: 9}
    assert scrape(series, {A, B, C}, a=0, b=0, c=1) == {A: 6, B: 3, REST: 10}


def test_of_many_new_topics_the_busiest_get_the_places() -> None:
    assert scrape(TopicSeries(1), {A, B, C}, a=1, b=3, c=2) == {B: 3, REST: 3}
    assert scrape(TopicSeries(0), {A}, a=1) == {REST: 1}


def test_an_idle_topic_gives_way_and_the_rest_never_goes_back() -> None:
    series = TopicSeries(1)
    shown = scrape(series, {A, B}, a=5, b=2)
    assert shown == {A: 5, REST: 2}
    for _ in range(10):
        assert scrape(series, {A, B}, a=0, b=0) == shown
    assert scrape(series, {A, B}, a=0, b=4) == {B: 4, REST: 2}
    assert scrape(series, {A, B}, a=1, b=1) == {B: 5, REST: 3}


def test_a_topic_that_is_gone_leaves_its_place() -> None:
    series = TopicSeries(1)
    assert scrape(series, {A}, a=5) == {A: 5}
    assert scrape(series, {B}, b=1) == {B: 1}
    series.add_rest(TopicEvents(enqueued=2))
    assert scrape(series, {B}) == {B: 1, REST: 2}


def test_a_topic_that_is_named_like_the_rest_counts_there() -> None:
    series = TopicSeries(2)
    series.add(REST, TopicEvents(acked=1))
    series.add_rest(TopicEvents(acked=2))
    assert series.rows({REST})["foqs_topic_acked_total"] == [(REST, 3.0)]


def test_a_scrape_that_is_cut_off_loses_nothing() -> None:
    series = TopicSeries(2)
    series.add(A, TopicEvents(enqueued=1))
    assert scrape(series, {A}, a=2) == {A: 3}


# --------------------------------------------------------------------------------------------- the events


def events(host: OneHost, topic: str = "t") -> tuple[int, ...]:
    counters = host.engine.state.topics[("n", topic)].totals
    assert counters is not None
    return tuple(counters.take())


@pytest.mark.memory
def test_each_event_counts_at_its_topic() -> None:
    """(enqueued, delivered, acked, failed, dead)."""
    host = OneHost(1, 2)
    host.settings.apply(Settings("n", 1, {"topic.t": '{"retry": {"kind": "constant", "first_ms": 1}}'}))
    put(host, *[b"x"] * 5)
    one, two, three, four, five = take(host, 5).items
    host.ask("Ack", items=[idl.AckItem(one.id, one.lease)])
    host.ask("Nack", items=[idl.NackItem(two.id, two.lease, failed=True)])
    host.ask("Nack", items=[idl.NackItem(three.id, three.lease, reject=True)])
    host.ask("Nack", items=[idl.NackItem(four.id, four.lease, release=True)])
    assert events(host) == (5, 5, 1, 2, 1)
    host.wait(100_000)
    assert events(host) == (0, 0, 0, 1, 0), f"the lease of {five.id} ended by time"
    namespace = host.engine.state.counters.namespaces.of("n")
    assert (sum(namespace.attempts.counts), namespace.attempts.total) == (2, 2.0)
    assert sum(namespace.queue_seconds.counts) == 5
    again = take(host, 1).items[0]
    host.ask("Ack", items=[idl.AckItem(again.id, again.lease)])
    assert (sum(namespace.attempts.counts), namespace.attempts.total) == (3, 2.0 + again.attempt)
    assert sum(namespace.queue_seconds.counts) == 5 + (again.attempt == 1)


@pytest.mark.memory
def test_a_request_for_several_topics_counts_each() -> None:
    host = OneHost(1)
    put(host, b"x", b"x")
    host.ask("Enqueue", ns="n", items=[idl.ItemSpec("u", b"x")])
    answer = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("u", 5), idl.TopicCount("t", 5)])
    assert len(answer.items) == 3
    assert (events(host, "u"), events(host, "t")) == ((1, 1, 0, 0, 0), (2, 2, 0, 0, 0))
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease) for item in answer.items])
    assert (events(host, "u"), events(host, "t")) == ((0, 0, 1, 0, 0), (0, 0, 2, 0, 0))


@pytest.mark.memory
def test_the_time_in_queue_begins_when_an_item_is_ready() -> None:
    host = OneHost(1)
    put(host, b"x", delay_ms=60_000)
    host.wait(65_000)
    assert take(host, 1).items
    seconds = host.engine.state.counters.namespaces.of("n").queue_seconds
    assert sum(seconds.counts) == 1 and seconds.total == pytest.approx(5, abs=0.5)


@pytest.mark.memory
def test_events_of_a_forgotten_topic_are_kept_for_the_scrape() -> None:
    host = OneHost(1)
    put(host, b"x")
    (item,) = take(host, 1).items
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
    topics = host.engine.state.topics
    while ("n", "t") in topics:
        host.wait(60_000)
    assert topics.take_forgotten() == TopicEvents(1, 1, 1, 0, 0)
    assert topics.take_forgotten() == TopicEvents()
