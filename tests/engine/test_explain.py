"""ExplainItem: each state of an item, or of a topic, gives the reason that has to end first."""

from typing import Any

import pytest

from foqs.engine import explain
from foqs.fairness.keys import lane_key
from foqs.idl import idl
from foqs.item import Item
from foqs.policies.settings import Settings
from foqs.prefetch.lane import Window
from foqs.shardmgr.lifecycle import ShardState
from tests.api.wire import State
from tests.support.one_host import OneHost, put, take

pytestmark = pytest.mark.memory
R = idl.Reason


@pytest.fixture
def host() -> OneHost:
    return OneHost(1)


def why(host: OneHost, item_id: int) -> Any:
    return host.ask("ExplainItem", id=item_id)


def of_topic(host: OneHost, topic: str = "t") -> Any:
    return host.ask("ExplainItem", ns="n", topic=topic)


def codes(answer: Any) -> list[int]:
    return [reason.code for reason in answer.reasons]


def asked(host: OneHost) -> None:
    """A consumer asks for the topic, and takes an item that comes first."""
    urgent = put(host, b"urgent", priority=-99)
    assert [item.id for item in take(host, 1).items] == urgent


def pause(host: OneHost) -> None:
    host.engine.apply_settings(Settings("n", 7, {"topic.t*": '{"paused": true}'}))


def no_database(host: OneHost) -> None:
    host.engine.state.shards[1].owner.breaker.trip(host.now_ms)


def window_of(host: OneHost, number: int) -> Window[Item]:
    shard = host.engine.state.shards[number]
    return shard.memory.open_window(shard.memory.lanes[lane_key(("n", "t"))])


def with_short_windows(rows: int) -> OneHost:
    host = OneHost(1)
    host.engine.state.shards[1].configure(host.engine.state.config.host.model_copy(update={"window_rows": rows}))
    return host


# ------------------------------------------------------------------------------------------ an item


def test_a_deliverable_item_has_no_reason(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    asked(host)
    assert why(host, item_id) == idl.ExplainItemResponse([], None, State.READY)


def test_an_item_that_is_gone(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    (item,) = take(host).items
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
    for gone in (item_id, 1 << 48 | 99, 7 << 48 | 1, -1):
        answer = why(host, gone)
        assert (codes(answer), answer.state) == ([R.GONE], None)


def test_an_item_of_a_shard_that_is_not_served(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    host.engine.drained(host.engine.state.shards[1], host.now_ms)
    assert codes(why(host, item_id)) == [R.SHARD_NOT_SERVED]
    host.engine.state.shards[1].owner.to(ShardState.ASSIGNED)
    host.open(1)
    host.engine.drain(host.now_ms)
    assert codes(why(host, item_id)) == [R.SHARD_NOT_SERVED], "the host shuts down"


def test_an_item_of_an_owner_in_grace(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    host.reopen(clean=False)
    answer = why(host, item_id)
    assert codes(answer) == [R.OWNER_IN_GRACE, R.NO_CONSUMER, R.NOT_LOADED]
    until_ms = answer.reasons[0].until_ms
    assert until_ms > host.now_ms
    consumer = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=60_000)
    host.wait(until_ms - host.now_ms - 1)
    assert (consumer.answers, codes(why(host, item_id))) == ([], [R.OWNER_IN_GRACE])
    host.wait(1)
    assert [item.id for item in consumer.answer.items] == [item_id]


def test_an_item_behind_an_open_breaker(host: OneHost) -> None:
    ready, leased = put(host, b"x", b"y")
    pause(host)
    no_database(host)
    reason, paused, *_ = why(host, ready).reasons
    assert (reason.code, reason.until_ms) == (
        R.BREAKER_OPEN,
        host.now_ms + host.engine.state.shards[1].owner.breaker.settings.pause_ms,
    )
    assert paused.code == R.PAUSED, "from memory"
    unknown = why(host, 1 << 48 | 99)
    assert (codes(unknown), unknown.state) == ([R.BREAKER_OPEN], None)
    assert codes(why(host, leased))[0] == R.BREAKER_OPEN


def test_a_database_that_fails_during_the_look_up(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    call = host.begin("ExplainItem", id=item_id, context=idl.RequestContext(timeout_ms=3_000))
    host.send()
    host.now_ms += 3_000
    host.engine.tick(host.now_ms)
    assert codes(call.answer)[0] == R.BREAKER_OPEN


@pytest.mark.parametrize("again", [False, True])
def test_a_delayed_item(host: OneHost, again: bool) -> None:
    (item_id,) = put(host, b"x", delay_ms=None if again else 90_000)
    text = "Its delay ends in 1.5 min."
    if again:
        (item,) = take(host).items
        host.ask("Nack", items=[idl.NackItem(item.id, item.lease, delay_ms=90_000)])
        text = "Attempt 1 has ended, and the next comes in 1.5 min."
    answer = why(host, item_id)
    assert answer.state == State.DELAYED
    assert answer.reasons == [idl.ExplainReason(R.DELAYED, text, host.now_ms + 90_000)]


def test_a_leased_item_names_its_worker(host: OneHost) -> None:
    ids = put(host, b"x", b"y")
    take(host, 1, worker="w 1", lease_ms=5_000)
    take(host, 1, lease_ms=5_000)
    first, second = (why(host, item_id) for item_id in ids)
    text = "Worker w 1 has leased it, and the lease ends in 5.0 s; see foqs topic stats t --ns n."
    assert first.reasons == [idl.ExplainReason(R.LEASED, text, host.now_ms + 5_000, by="w 1", since_ms=host.now_ms)]
    assert (first.state, second.reasons[0].by) == (State.LEASED, None)
    assert second.reasons[0].text.startswith("A consumer has leased it,")


def test_an_item_behind_more_urgent_ones() -> None:
    host = OneHost(1, 2)
    ids = [item_id for payload in (b"a", b"b", b"c") for item_id in put(host, payload)]
    ids += put(host, b"first", priority=-1)
    for shard in (1, 2):
        window_of(host, shard).used_ms = host.now_ms
    assert len({item_id >> 48 for item_id in ids}) == 2, "the windows of both shards are merged"
    counts = []
    for item_id in ids:
        answer = why(host, item_id)
        assert codes(answer) in ([R.BEHIND_IN_LANE], [])
        counts += [reason.count for reason in answer.reasons] or [0]
    assert counts[3] == 0
    assert sorted(counts) == [0, 1, 2, 3]
    assert (
        why(host, ids[counts.index(1)]).reasons[0].text
        == "1 ready item of the topic comes first, by priority and then by time."
    )


def test_an_item_beyond_the_window_is_behind_a_range() -> None:
    host = with_short_windows(10)
    ids = put(host, *[b"x"] * 50)
    behind, *rest = why(host, ids[-1]).reasons
    assert (behind.code, behind.count) == (R.BEHIND_IN_LANE, 10)
    assert behind.text == "10 to 49 ready items of the topic come first, by priority and then by time."
    assert [reason.code for reason in rest] == [R.NO_CONSUMER, R.NOT_LOADED]


def test_an_item_without_a_consumer(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    (reason,) = why(host, item_id).reasons
    text = (
        "No consumer waits for the topic on the item's host, and none has asked since it was ready; "
        "see foqs consumers --topic t --ns n."
    )
    assert (reason.code, reason.text) == (R.NO_CONSUMER, text)
    asked(host)
    host.now_ms += explain.LATELY_MS - 1
    assert codes(why(host, item_id)) == []
    host.now_ms += 1
    (reason,) = why(host, item_id).reasons
    assert "the last one asked 10.0 s ago" in reason.text


def test_a_consumer_that_waits_is_a_consumer(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    pause(host)
    assert codes(why(host, item_id)) == [R.PAUSED, R.NO_CONSUMER]
    host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=60_000)
    host.wait(20_000)
    assert codes(why(host, item_id)) == [R.PAUSED]
    assert codes(of_topic(host)) == [R.PAUSED]


def test_an_item_whose_page_or_body_is_not_loaded(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    asked(host)
    shard = host.engine.state.shards[1]
    item = shard.memory.known[item_id]
    item.body = None
    assert codes(why(host, item_id)) == [R.NOT_LOADED]
    assert codes(of_topic(host)) == [R.NOT_LOADED]
    host.reopen()
    no_consumer, not_loaded = why(host, item_id).reasons
    assert (no_consumer.code, not_loaded.code) == (R.NO_CONSUMER, R.NOT_LOADED)
    assert not_loaded.text.endswith("Up to 1 ready item may be before it.")
    window_of(host, 1).used_ms = host.now_ms
    assert codes(why(host, item_id)) == [R.NOT_LOADED]
    assert codes(of_topic(host)) == [R.NOT_LOADED]


# ------------------------------------------------------------------------------------------ the estimate


def test_an_estimate_needs_a_rate_and_the_number_of_items() -> None:
    host = with_short_windows(100)
    ids = put(host, *[b"x"] * 300)
    assert why(host, ids[-1]).eta_ms is None
    for _ in range(10):
        take(host, 10)
        host.wait(1_000)
    behind = why(host, ids[120])
    assert (behind.reasons[0].count, behind.eta_ms) == (20, 2_222), "90 items in 10 s"
    assert why(host, ids[-1]).eta_ms is None, "the number is not known"
    pause(host)
    assert why(host, ids[120]).eta_ms is None


# ------------------------------------------------------------------------------------------ a topic


def test_a_topic_without_items(host: OneHost) -> None:
    assert of_topic(host, "none").reasons == [idl.ExplainReason(R.GONE, "The topic has no items.")]


def test_a_topic_with_nothing_ready(host: OneHost) -> None:
    put(host, b"later", b"later", delay_ms=9_000)
    put(host, b"now")
    take(host)
    pause(host)
    delayed, leased, paused = of_topic(host).reasons
    assert (delayed.code, delayed.count) == (R.DELAYED, 2)
    assert (leased.code, leased.count) == (R.LEASED, 1)
    assert delayed.text == "2 items are delayed, and none is ready: see foqs items t --ns n --state delayed."
    assert paused.code == R.PAUSED


def test_a_topic_is_held_only_by_all_its_shards() -> None:
    host = OneHost(1, 2)
    for _ in range(8):
        put(host, b"x")
    assert len(host.engine.state.topics[("n", "t")].lanes()) == 2
    asked(host)
    assert codes(of_topic(host)) == []
    no_database(host)
    assert codes(of_topic(host)) == []
    host.engine.state.shards[2].owner.breaker.trip(host.now_ms)
    assert codes(of_topic(host)) == [R.BREAKER_OPEN, R.BREAKER_OPEN]


def test_a_topic_without_a_consumer(host: OneHost) -> None:
    put(host, b"x")
    assert codes(of_topic(host)) == [R.NO_CONSUMER]
    asked(host)
    assert codes(of_topic(host)) == []


# ------------------------------------------------------------------------------------------ an extended lease


def extend(host: OneHost, item: Any, lease_ms: int | None = None) -> None:
    (outcome,) = host.ask("ExtendLease", items=[idl.ExtendItem(item.id, item.lease, lease_ms)]).outcomes
    assert outcome.error is None


@pytest.mark.parametrize("written", [False, True])
def test_an_extended_lease_says_since_when_it_is_held(host: OneHost, written: bool) -> None:
    (item_id,) = put(host, b"x")
    (item,) = take(host, 1, worker="w", lease_ms=30_000).items
    given_ms = host.now_ms
    for at in range(5):
        host.wait(20_000 if written or at else 10)
        extend(host, item, 30_000)
    host.wait(5_000)
    (reason,) = why(host, item_id).reasons
    held = "1.8 min" if written else "1.4 min"
    assert reason.text == (
        f"Worker w has held it for {held} (extended 5 times, last 5.0 s ago), and the lease ends in 25.0 s; see foqs "
        "topic stats t --ns n."
    )
    assert (reason.since_ms, reason.count, reason.until_ms) == (given_ms, 5, host.now_ms + 25_000)
    (worker,) = host.ask("GetTopicStats", ns="n", topic="t").workers
    assert worker.oldest_lease_ms == host.now_ms - given_ms
    host.ask("Nack", items=[idl.NackItem(item.id, item.lease)])
    take(host, 1, worker="w")
    assert why(host, item_id).reasons[0].count is None, "another lease"


def test_a_lease_that_was_extended_once(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    (item,) = take(host, 1, lease_ms=30_000).items
    host.wait(2_000)
    extend(host, item)
    given = idl.ExtendItem(item.id, item.lease, begun=True)
    assert host.ask("ExtendLease", items=[given]).outcomes[0].error is None
    (reason,) = why(host, item_id).reasons
    assert reason.text.startswith("A consumer has held it for 2.0 s (extended once, 0 ms ago), and the lease ends in")


def test_extensions_make_no_lease_of_an_earlier_owner_younger(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    (item,) = take(host, 1, worker="w", lease_ms=30_000).items
    host.wait(10_000)
    host.reopen()
    opened_ms = host.now_ms
    for _ in range(3):
        host.wait(15_000)
        extend(host, item, 30_000)
    reason = why(host, item_id).reasons[0]
    assert reason.since_ms <= opened_ms
    held = f"{(host.now_ms - reason.since_ms) / 1_000:.1f} s"
    assert reason.text.startswith(f"A consumer has held it for at least {held} (extended 3 times, last 0 ms ago)")
    (worker,) = [one for one in host.ask("ListConsumers", ns="n").consumers if one.held]
    assert worker.oldest_lease_ms >= 45_000
