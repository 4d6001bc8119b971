"""GetResult and kept items on one host: how items end, the rows that stay, and when these are removed."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.errors import Invalid, NotFound, NotServed, Overloaded
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.api.wire import spec
from tests.support.one_host import FORWARDED, OneHost, kinds, put, routing_of, take

S = idl.ItemState
KEEP = '{"keep": {"completed_ms": 1000, "failed_ms": 2000}}'


@pytest.fixture
def host() -> OneHost:
    made = OneHost(1)
    made.settings.apply(Settings("n", 1, {"topic.*": KEEP}))
    return made


def ack(host: OneHost, item: Any, result: bytes | None = None) -> Any:
    return host.ask("Ack", items=[idl.AckItem(item.id, item.lease, result)])


def done(host: OneHost, payload: bytes = b"x", result: bytes | None = None) -> int:
    """Return the id of an item that was acked."""
    (item_id,) = put(host, payload)
    (item,) = take(host, 1).items
    assert kinds(ack(host, item, result)) == [None]
    return item_id


def test_a_completed_item_keeps_its_result_for_its_time(host: OneHost) -> None:
    item_id = done(host, b"work", b"done \xff")
    got = host.ask("GetResult", id=item_id)
    assert (got.state, got.result, got.ended_at_ms, got.failure) == (S.COMPLETED, b"done \xff", host.now_ms, None)
    found = host.ask("GetItem", id=item_id)
    assert (found.state, found.item.result, found.item.payload) == (S.COMPLETED, b"done \xff", b"work")
    assert (found.item.ended_at_ms, found.item.attempt, found.item.lease) == (host.now_ms, 1, 0)
    explained = host.ask("ExplainItem", id=item_id)
    assert (explained.state, explained.reasons) == (S.COMPLETED, [])
    host.wait(1_000)
    for method in ("GetResult", "GetItem"):
        assert isinstance(host.call(method, id=item_id).answer, NotFound)
    assert host.dbs[1].items == {}
    assert host.dbs[1].results == {}


def test_an_item_without_a_result(host: OneHost) -> None:
    got = host.ask("GetResult", id=done(host))
    assert (got.state, got.result) == (S.COMPLETED, None)


def test_a_topic_that_keeps_no_results() -> None:
    host = OneHost(1)
    keep = '{"keep": {"completed_ms": 1000, "results": false}}'
    host.settings.apply(Settings("n", 1, {"topic.*": keep}))
    (item_id,) = put(host, b"x")
    waiting = host.begin("GetResult", id=item_id, wait_ms=9_000)
    (item,) = take(host, 1).items
    ack(host, item, b"r")
    assert waiting.answer.result == b"r", "the caller waited"
    assert (host.ask("GetResult", id=item_id).state, host.ask("GetResult", id=item_id).result) == (S.COMPLETED, None)


@pytest.mark.parametrize("reject", [True, False])
def test_a_failed_item_is_kept_with_its_reason(reject: bool) -> None:
    host = OneHost(1)
    policy = '{"keep": {"failed_ms": 2000}, "dead": null, "max_attempts": 1}'
    host.settings.apply(Settings("n", 1, {"topic.*": policy}))
    put(host, b"x")
    (item,) = take(host, 1).items
    nack = idl.NackItem(item.id, item.lease, reason="no such order 7", **{"reject" if reject else "failed": True})
    assert kinds(host.ask("Nack", items=[nack])) == [None]
    got = host.ask("GetResult", id=item.id)
    assert (got.state, got.result, got.ended_at_ms) == (S.FAILED, None, host.now_ms)
    failure = got.failure
    cause = idl.FailureCause.REJECTED if reject else idl.FailureCause.FAILED
    assert (failure.cause, failure.reason, failure.attempts, failure.topic) == (cause, "no such order 7", 1, "t")
    assert host.ask("GetItem", id=item.id).item.failure == failure
    (listed,) = host.ask("ListItems", ns="n", topic="t", state=S.FAILED).items
    assert (listed.failure, listed.ended_at_ms) == (failure, got.ended_at_ms)
    assert host.ask("ListFailures", ns="n", topic="t").groups == []
    host.wait(2_000)
    assert isinstance(host.call("GetResult", id=item.id).answer, NotFound)


def test_a_dead_letter_is_a_failure_until_it_is_redriven(host: OneHost) -> None:
    put(host, b"x")
    (item,) = take(host, 1).items
    waiting = host.begin("GetResult", id=item.id, wait_ms=9_000)
    host.ask("Nack", items=[idl.NackItem(item.id, item.lease, reject=True, reason="bad")])
    for got in (waiting.answer, host.ask("GetResult", id=item.id)):
        assert (got.state, got.failure.reason) == (S.FAILED, "bad")
    assert host.ask("GetTopicStats", ns="n", topic="t.dlq").failed == 0
    host.ask("RedriveItems", ns="n", topic="t.dlq")
    assert host.ask("GetResult", id=item.id).state == S.READY
    waiting = host.begin("GetResult", id=item.id, wait_ms=9_000)
    (item,) = take(host, 1).items
    ack(host, item, b"at last")
    assert waiting.answer.result == b"at last"


def test_a_call_waits_for_the_commit() -> None:
    host = OneHost(1)
    (item_id,) = put(host, b"x")
    first, second = (host.begin("GetResult", id=item_id, wait_ms=5_000) for _ in range(2))
    host.run()
    (item,) = take(host, 1).items
    acked = host.begin("Ack", items=[idl.AckItem(item.id, item.lease, b"r")])
    assert first.answers == acked.answers == []
    host.run()
    assert (first.answer.result, second.answer.result, first.answer.state) == (b"r", b"r", S.COMPLETED)
    assert isinstance(host.call("GetResult", id=item_id).answer, NotFound), "nothing is kept"
    assert host.engine.state.awaited.count == 0


def test_after_the_wait_the_answer_is_the_state() -> None:
    host = OneHost(1)
    (item_id,) = put(host, b"x")
    for state in (S.READY, S.LEASED):
        waiting = host.begin("GetResult", id=item_id, wait_ms=1_000)
        host.wait(999)
        assert waiting.answers == []
        host.wait(1)
        assert (waiting.answer.state, waiting.answer.result) == (state, None)
        take(host, 1, lease_ms=60_000)
    assert host.engine.state.awaited.count == 0


@pytest.mark.parametrize(
    ("end", "way"), [("delete", "it was deleted"), ("ttl", "its TTL ended"), ("once", "an at-most-once item ended")]
)
def test_other_ends_are_not_found_with_the_way(host: OneHost, end: str, way: str) -> None:
    fields = {"ttl": {"ttl_ms": 500}, "once": {"delivery": idl.Delivery.AT_MOST_ONCE}}
    (item_id,) = put(host, b"x", **fields.get(end, {}))
    if end == "once":
        take(host, 1, lease_ms=500)
    waiting = host.begin("GetResult", id=item_id, wait_ms=60_000)
    host.run()
    if end == "delete":
        host.ask("DeleteItems", ids=[item_id])
    host.wait(600)
    error = waiting.answer
    assert isinstance(error, NotFound)
    assert error.message.endswith(way)
    later = host.call("GetResult", id=item_id).answer
    assert isinstance(later, NotFound)


def test_waiters_are_bounded() -> None:
    host = OneHost(1)
    config = host.engine.state.config
    limits = config.limits.model_copy(update={"result_waiters": 2})
    host.engine.state.config = config.model_copy(update={"limits": limits})
    ids = put(host, b"a", b"b")
    waiting = [host.begin("GetResult", id=ids[0], wait_ms=5_000) for _ in range(2)]
    refused = host.call("GetResult", id=ids[1], wait_ms=5_000).answer
    assert isinstance(refused, Overloaded)
    assert "limits.result_waiters" in refused.message
    assert host.ask("GetResult", id=ids[1]).state == S.READY, "a call without a wait takes no place"
    assert waiting[0].on_lost is not None
    waiting[0].on_lost()
    host.begin("GetResult", id=ids[1], wait_ms=5_000)
    host.run()
    assert host.engine.state.awaited.count == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "id is missing"),
        ({"id": 1, "wait_ms": -1}, "wait_ms is -1, not in 0..60000"),
        ({"id": 1, "wait_ms": 60_001}, "wait_ms is 60001, not in 0..60000"),
    ],
)
def test_a_request_is_checked(host: OneHost, fields: dict[str, int], says: str) -> None:
    error = host.call("GetResult", **fields).answer
    assert isinstance(error, Invalid)
    assert error.message == says


def test_a_result_that_is_too_long_fails_alone(host: OneHost) -> None:
    put(host, b"a", b"b")
    items = take(host, 2).items
    acks = [idl.AckItem(item.id, item.lease, b"r" * size) for item, size in zip(items, (65_537, 65_536), strict=True)]
    first, second = host.ask("Ack", items=acks).outcomes
    assert first.error.message == "result has 65537 bytes, more than 65536"
    assert second.error is None
    assert host.ask("GetResult", id=items[0].id).state == S.LEASED
    assert len(host.ask("GetResult", id=items[1].id).result) == 65_536


def test_acks_of_a_dequeue_bring_results(host: OneHost) -> None:
    put(host, b"a", b"b")
    (item,) = take(host, 1).items
    both = host.ask(
        "AckAndDequeue", ns="n", acks=[idl.AckItem(item.id, item.lease, b"r")], wants=[idl.TopicCount("t", 1)]
    )
    assert [one.error for one in both.outcomes] == [None]
    assert [one.payload for one in both.items] == [b"b"]
    assert host.ask("GetResult", id=item.id).result == b"r"


def test_kept_items_are_counted_and_listed(host: OneHost) -> None:
    ids = [done(host, b"%d" % number) for number in range(3)]
    put(host, b"ready")
    stats = host.ask("GetTopicStats", ns="n", topic="t")
    assert (stats.ready, stats.delayed, stats.leased, stats.completed, stats.failed) == (1, 0, 0, 3, 0)
    listed = host.ask("ListItems", ns="n", topic="t", state=S.COMPLETED, limit=2)
    rest = host.ask("ListItems", ns="n", topic="t", state=S.COMPLETED, limit=2, cursor=listed.cursor)
    assert [item.id for item in (*listed.items, *rest.items)] == ids
    assert {item.state for item in listed.items} == {S.COMPLETED}
    every = host.ask("ListItems", ns="n", topic="t").items
    assert [item.state for item in every] == [S.READY, *[S.COMPLETED] * 3]
    topics = host.ask("GetActiveTopics", ns="n").topics
    assert [(one.topic, one.ready) for one in topics] == [("t", 1)]
    (stored,) = host.ask("GetServerInfo", count_items=True).shard_items.values()
    assert stored == 1, "kept items are not among them"


def test_kept_items_are_deleted_on_request(host: OneHost) -> None:
    item_id, other = done(host, b"a", b"r"), done(host, b"b")
    assert kinds(host.ask("DeleteItems", ids=[item_id, item_id, 5])) == [None, None, NotFound]
    assert isinstance(host.call("GetResult", id=item_id).answer, NotFound)
    assert host.ask("GetResult", id=other).state == S.COMPLETED
    assert host.ask("GetTopicStats", ns="n", topic="t").completed == 1
    assert kinds(host.ask("DeleteItems", ids=[item_id])) == [NotFound]


def test_a_kept_item_takes_no_ack_and_no_extension(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    (item,) = take(host, 1).items
    ack(host, item)
    assert kinds(ack(host, item)) == [NotFound]
    assert kinds(host.ask("ExtendLease", items=[idl.ExtendItem(item.id, item.lease, 1_000)])) == [NotFound]
    assert host.ask("GetResult", id=item_id).state == S.COMPLETED


def test_the_oldest_go_first_when_there_are_too_many() -> None:
    host = OneHost(1)
    host.settings.apply(Settings("n", 1, {"topic.*": '{"keep": {"completed_ms": 60000, "most": 3}}'}))
    ids = []
    for number in range(6):
        ids.append(done(host, b"%d" % number))
        host.wait(1)
    left = [item.id for item in host.ask("ListItems", ns="n", topic="t", state=S.COMPLETED).items]
    assert left == ids[-len(left) :]
    assert 1 <= len(left) <= 3
    assert host.ask("GetTopicStats", ns="n", topic="t").completed == len(left)


def test_most_counts_the_tenants_of_a_topic_together() -> None:
    host = OneHost(1)
    host.settings.apply(Settings("n", 1, {"topic.*": '{"keep": {"completed_ms": 60000, "most": 4}}'}))
    ids = []
    for number in range(12):
        host.ask("Enqueue", ns="n", items=[spec("t", fairness_key=f"tenant {number % 3}")])
        (item,) = take(host, 1).items
        ack(host, item)
        ids.append(item.id)
        host.wait(1)
    left = sorted(item.id for item in host.ask("ListItems", ns="n", topic="t", state=S.COMPLETED).items)
    assert left == ids[-len(left) :]
    assert 1 <= len(left) <= 4


def test_a_new_owner_counts_and_removes_kept_items(host: OneHost) -> None:
    item_id = done(host, b"a", b"r")
    host.reopen()
    assert host.ask("GetTopicStats", ns="n", topic="t").completed == 1
    assert host.ask("GetResult", id=item_id).result == b"r"
    host.wait(20_000)
    assert host.dbs[1].items == {}
    assert host.ask("GetTopicStats", ns="n", topic="t").completed == 0


def test_the_row_of_a_lane_stays_while_it_has_kept_items(host: OneHost) -> None:
    host.engine.state.config.host.__dict__["lane_idle_ms"] = 100
    item_id = done(host)
    host.wait(900)
    host.ask("Enqueue", ns="n", items=[spec("other")])
    assert host.ask("GetResult", id=item_id).state == S.COMPLETED
    host.wait(5_000)
    host.ask("Enqueue", ns="n", items=[spec("other")])
    host.wait(5_000)
    assert [lane.topic for lane in host.dbs[1].lanes.values()] == [b"other"]


def test_an_item_is_found_by_its_key(host: OneHost) -> None:
    (item_id,), (other,) = (put(host, b"x", dedup_key=f"order {number}") for number in (7, 8))
    assert host.ask("GetItem", ns="n", dedup_key="order 7").item.id == item_id
    assert host.ask("GetItem", ns="n", dedup_key="order 8").item.id == other
    (item,) = take(host, 1).items
    ack(host, item, b"r")
    found = host.ask("GetItem", ns="n", dedup_key="order 7")
    assert (found.item.id, found.state, found.item.result) == (item_id, S.COMPLETED, b"r")
    for fields in ({"ns": "n", "dedup_key": "order 9"}, {"ns": "m", "dedup_key": "order 7"}):
        assert isinstance(host.call("GetItem", **fields).answer, NotFound)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"id": 1, "ns": "n", "dedup_key": "k"}, "give an id, or ns and dedup_key"),
        ({"id": 1, "ns": "n"}, "give an id, or ns and dedup_key"),
        ({"dedup_key": "k"}, "ns is missing"),
        ({"ns": "n", "dedup_key": ""}, "dedup_key"),
    ],
)
def test_a_look_by_key_is_checked(host: OneHost, fields: dict[str, Any], says: str) -> None:
    error = host.call("GetItem", **fields).answer
    assert isinstance(error, Invalid)
    assert says in error.message


def test_a_caller_sees_results_of_its_namespaces_only(host: OneHost) -> None:
    item_id = done(host)
    for method in ("GetResult", "GetItem"):
        assert isinstance(host.call(method, within={"other"}, id=item_id).answer, NotFound)
    assert host.call("GetResult", within={"n"}, id=item_id).answer.state == S.COMPLETED


# ------------------------------------------------------------------------------------------ clusters


def test_a_wait_goes_on_at_the_next_owner() -> None:
    """The owner loses the shard during the wait: the caller's host asks the next owner for the rest of the wait."""
    host = OneHost(1, routing=routing_of({1: "a"}, "b"))
    (item_id,) = put(host, b"x")
    waiting = host.begin("GetResult", id=item_id, wait_ms=9_000)
    host.run()
    host.wait(1_000)
    host.learn(routing_of({1: "b"}))
    host.engine.lose(host.engine.state.shards[1], host.now_ms)
    host.run()
    (sent,) = host.to("GetResult")
    assert (sent.request.id, sent.request.wait_ms, sent.request.context.hops) == (item_id, 8_000, 1)
    host.reply("GetResult", idl.GetResultResponse(S.COMPLETED, b"r", 5))
    assert waiting.answer.result == b"r"


def test_a_forwarded_wait_goes_back() -> None:
    host = OneHost(1, routing=routing_of({1: "a"}, "b"))
    (item_id,) = put(host, b"x")
    waiting = host.begin("GetResult", id=item_id, wait_ms=9_000, context=FORWARDED)
    host.run()
    host.engine.lose(host.engine.state.shards[1], host.now_ms)
    host.run()
    assert isinstance(waiting.answer, NotServed)


def test_a_key_of_another_host_is_found_there() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}, slots=None))
    host.learn(routing_of({2: "b"}, "a"))
    asked = host.begin("GetItem", ns="n", dedup_key="k")
    host.run()
    (sent,) = host.to("GetItem")
    assert (sent.request.id, sent.request.ns, sent.request.dedup_key) == (None, "n", "k")
    host.reply("GetItem", idl.GetItemResponse(idl.Item(id=2 << 48 | 9)))
    (sent,) = host.to("GetItem")
    assert (sent.request.id, sent.request.dedup_key) == (2 << 48 | 9, None)
    host.reply("GetItem", idl.GetItemResponse(idl.Item(id=2 << 48 | 9, topic="t"), S.READY))
    assert asked.answer.item.topic == "t"


def test_the_host_of_a_key_answers_another_host_with_the_id(host: OneHost) -> None:
    host = OneHost(1, routing=routing_of({1: "a"}, "b"))
    (item_id,) = put(host, b"x", dedup_key="k")
    answer = host.ask("GetItem", ns="n", dedup_key="k", context=FORWARDED)
    assert (answer.item.id, answer.item.topic) == (item_id, None)


def test_a_wait_for_a_shard_without_an_owner_lasts_until_its_end() -> None:
    host = OneHost(1, routing=routing_of({1: "a"}, "b"))
    (item_id,) = put(host, b"x")
    waiting = host.begin("GetResult", id=item_id, wait_ms=60_000)
    host.run()
    host.learn(routing_of({}, "a", "b", unowned=(1,)))
    host.engine.lose(host.engine.state.shards[1], host.now_ms)
    host.run()
    host.wait(40_000)
    assert waiting.answers == []
    host.learn(routing_of({1: "b"}))
    host.run()
    (sent,) = host.to("GetResult")
    assert sent.request.wait_ms == 20_000


def test_a_forwarded_wait_ends_with_its_caller() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    waiting = host.begin("GetResult", id=2 << 48 | 9, wait_ms=60_000)
    host.run()
    assert len(host.to("GetResult")) == 1
    assert waiting.on_lost is not None
    waiting.on_lost()
    host.reply("GetResult", NotServed())
    host.run()
    assert host.to("GetResult") == []
