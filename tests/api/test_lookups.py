"""GetItem, ListItems and GetActiveTopics: states, bounds, hidden namespaces, and answers that other hosts give."""

import base64
import json
from typing import Any

import pytest

from foqs.config.access import Namespaces
from foqs.errors import Invalid, NotFound, NotSent, NotServed, Overloaded, Unavailable
from foqs.fairness.rates import STEP_MS
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.api.wire import State, spec
from tests.support.one_host import ADDRESS, FORWARDED, OneHost, put, refused, routing_of, take

pytestmark = pytest.mark.memory


@pytest.fixture
def host() -> OneHost:
    return OneHost(1)


@pytest.fixture
def member() -> OneHost:
    """A host with shard 1; host "b" has shard 2."""
    return OneHost(1, routing=routing_of({1: "a", 2: "b"}))


def payloads(answer: Any) -> list[bytes]:
    return [item.payload for item in answer.items]


def topics(answer: Any) -> list[tuple[str, str, int]]:
    return [(one.ns, one.topic, one.ready) for one in answer.topics]


# ------------------------------------------------------------------------------------------ GetItem


def test_an_item_is_shown_in_its_state(host: OneHost) -> None:
    (ready,), (delayed,) = put(host, b"r"), put(host, b"d", delay_ms=500)
    assert host.ask("GetItem", id=ready).state == State.READY
    shown = host.ask("GetItem", id=delayed)
    assert (shown.state, shown.item.deliver_after_ms) == (State.DELAYED, host.now_ms + 500)
    (item,) = take(host, lease_ms=700).items
    shown = host.ask("GetItem", id=ready)
    assert (shown.state, shown.item.lease_expires_at_ms) == (State.LEASED, item.lease_expires_at_ms)
    assert (shown.item.lease, shown.item.payload, shown.item.state) == (0, b"r", State.LEASED)


def test_an_item_that_is_not_there_is_not_found(host: OneHost) -> None:
    assert refused(host, "GetItem") == "id is missing"
    assert type(host.ask("GetItem", id=1 << 48 | 9)) is NotFound
    assert type(host.ask("GetItem", id=7 << 48 | 9)) is NotFound


def said(host: OneHost, method: str, item_id: int, **more: Any) -> str:
    """What a request says of an id without an item."""
    answer = host.ask(method, id=item_id, **more)
    return answer.reasons[0].text if method == "ExplainItem" else answer.message


@pytest.mark.parametrize("method", ["GetItem", "GetResult", "ExplainItem"])
def test_an_id_without_an_item_is_explained(host: OneHost, method: str) -> None:
    (item_id,) = put(host, b"x")
    host.ask("DeleteItems", ids=[item_id])
    acked = said(host, method, item_id)
    assert "no such item: it was acked or deleted, its TTL ended, it failed for good, or it never was" in acked
    assert "keep={" in acked
    assert "no such item: shard 1 has not given this id" in said(host, method, item_id + 100_000)
    assert "names shard 7, which the service does not have" in said(host, method, 7 << 48 | 9)
    for impossible in (5, -1, 1 << 48):
        assert f"no such item: {impossible} is no item's id" in said(host, method, impossible)
    limited = said(host, method, item_id + 100_000, within=Namespaces.of(["other"]))
    assert limited == acked, "how many ids a shard has given is for callers that may see all"


def test_an_item_of_a_hidden_namespace_is_not_shown(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    assert type(host.ask("GetItem", within=Namespaces.of(["other"]), id=item_id)) is NotFound
    assert host.ask("GetItem", within=Namespaces.of(["n"]), id=item_id).item.payload == b"x"


def test_an_item_of_another_host_is_asked_of_that_host(member: OneHost) -> None:
    call = member.call("GetItem", id=2 << 48 | 9)
    assert [sent.address for sent in member.to("GetItem")] == ["b:1"]
    request = member.reply("GetItem", idl.GetItemResponse(idl.Item(id=9), State.READY))
    assert (request.id, request.context.hops) == (2 << 48 | 9, 1)
    assert call.answer.item.id == 9
    assert type(member.ask("GetItem", id=2 << 48 | 9, context=FORWARDED)) is NotServed


def test_a_look_follows_a_shard_that_arrives_here(member: OneHost) -> None:
    (item_id,) = put(member, b"x")
    member.engine.retire(member.engine.state.shards[1])
    call = member.call("GetItem", id=item_id)
    assert not call.answers
    member.engine.drained(member.engine.state.shards[1], member.now_ms)
    member.engine.add(1)
    member.open(1)
    member.run()
    assert call.answer.item.payload == b"x"


# ------------------------------------------------------------------------------------------ ListItems


def test_a_list_has_ready_items_in_order_then_the_rest(host: OneHost) -> None:
    put(host, b"later", priority=1)
    put(host, b"first")
    put(host, b"delayed", delay_ms=500)
    answer = host.ask("ListItems", ns="n", topic="t")
    assert payloads(answer) == [b"first", b"later", b"delayed"]
    assert [item.state for item in answer.items] == [State.READY, State.READY, State.DELAYED]
    assert answer.cursor is None
    assert payloads(host.ask("ListItems", ns="n", topic="t", state=State.DELAYED)) == [b"delayed"]


def test_pages_of_a_list_have_every_item_once() -> None:
    host = OneHost(1, 2)
    put(host, *(b"%d" % n for n in range(7)))
    found, cursor = [], None
    while True:
        page = host.ask("ListItems", ns="n", topic="t", limit=2, cursor=cursor)
        assert len(page.items) <= 2
        found += payloads(page)
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(found) == [b"%d" % n for n in range(7)]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"ns": None}, "ns is missing"),
        ({"ns": b"\xff"}, "ns is not UTF-8"),
        ({"topic": None}, "topic is missing"),
        ({"topic": "a\n"}, "topic holds a control character"),
        ({"limit": 0}, "limit is 0, not in 1..1000"),
        ({"limit": 1_001}, "limit is 1001, not in 1..1000"),
        ({"state": 9}, "state is none of READY, DELAYED, LEASED, COMPLETED, FAILED, BEHIND"),
        ({"state": -1}, "state is none of READY, DELAYED, LEASED, COMPLETED, FAILED, BEHIND"),
    ],
    ids=str,
)
def test_a_list_is_checked(host: OneHost, fields: dict[str, Any], why: str) -> None:
    assert refused(host, "ListItems", **{"ns": "n", "topic": "t", **fields}) == why


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


CURSORS = ["", "*", "x", "ü", "=", "AAAA", b"\xff\xfe", "bm90IGpzb24=", base64.b64encode(b"\xff\xff").decode()]
CURSORS += [base64.b64encode(b"[" * 5_000).decode(), *map(encoded, ([], {}, None, 5, [[], []], ["a"] * 3, [1, 2]))]


@pytest.mark.parametrize("cursor", CURSORS, ids=lambda cursor: repr(cursor)[:20])
def test_a_cursor_of_no_answer_is_refused(host: OneHost, cursor: Any) -> None:
    for method, fields in (("GetActiveTopics", {}), ("ListItems", {"ns": "n", "topic": "t"})):
        assert "cursor is not" in refused(host, method, cursor=cursor, **fields)


FORGED = [
    [1, "ready", [1, 2]], [1, "delayed", [1, 2, 3]], [1, "nonsense", []], [1, "ready", ["x", 2, 3]],
    [1, "ready", [True, 2, 3]], [1, "ready", [2**80, 2, 3]], [1, "leased", [-(2**64), 3]], [2**70, "ready", []],
    [1, "ready", [], [0, 0]], [1, "ready", [1, 2, 3], [0, 9]], [1, "ready", [99, 0, 2, 3], [5, 9]],
    [1, "leased", [2, 3], [9, 5]], [1, "leased", [2, 3], [-1, 5]], [1, "delayed", [], [2**80, 2**90]],
    [1, "delayed", [], ["x", None]], [1, "delayed", [], []], [True, "ready", []], [1, 2, 3],
]  # fmt: skip


@pytest.mark.parametrize("parts", FORGED, ids=str)
def test_a_cursor_that_is_wrong_inside_does_no_harm(host: OneHost, parts: list[Any]) -> None:
    """It is refused, or the page is short; it never costs the shard."""
    put(host, *[b""] * 23)
    answer = host.ask("ListItems", ns="n", topic="t", cursor=encoded(parts))
    assert type(answer) is Invalid or len(answer.items) <= 23
    assert len(take(host, 100).items) == 23


def test_a_cursor_goes_with_the_state_that_it_was_made_for(host: OneHost) -> None:
    put(host, *[b""] * 5)
    cursor = host.ask("ListItems", ns="n", topic="t", limit=1).cursor
    refused(host, "ListItems", ns="n", topic="t", state=State.LEASED, cursor=cursor)


def test_a_list_of_one_shard_needs_that_shard_here(member: OneHost) -> None:
    put(member, b"x")
    assert payloads(member.ask("ListItems", ns="n", topic="t", shard=1)) == [b"x"]
    assert type(member.ask("ListItems", ns="n", topic="t", shard=2)) is NotServed


def test_a_list_of_a_cluster_goes_from_shard_to_shard(member: OneHost) -> None:
    call = member.call("ListItems", ns="n", topic="t")
    first = member.reply("ListItems", idl.ListItemsResponse([], None))
    assert first.shard == 1, "asked of the host itself, as any other shard"
    second = member.reply("ListItems", idl.ListItemsResponse([idl.Item(id=9)], None))
    assert second.shard == 2
    assert ([item.id for item in call.answer.items], call.answer.cursor) == ([9], None)


# ------------------------------------------------------------------------------------------ GetActiveTopics


def test_active_topics_are_sorted_with_their_ready_items(host: OneHost) -> None:
    for topic in ("b", "a", "b"):
        host.ask("Enqueue", ns="n", items=[spec(topic)])
    host.ask("Enqueue", ns="m", items=[spec("z"), spec("late", delay_ms=500)])
    answer = host.ask("GetActiveTopics")
    assert topics(answer) == [("m", "z", 1), ("n", "a", 1), ("n", "b", 2)]
    assert [one.hosts for one in answer.topics] == [[ADDRESS]] * 3
    assert topics(host.ask("GetActiveTopics", ns="m")) == [("m", "z", 1)]
    assert topics(host.ask("GetActiveTopics", within=Namespaces.of(["m"]))) == [("m", "z", 1)]


def test_a_cursor_goes_on_behind_the_last_topic(host: OneHost) -> None:
    host.ask("Enqueue", ns="n", items=[spec(topic) for topic in "abc"])
    page = host.ask("GetActiveTopics", limit=2)
    assert [one.topic for one in page.topics] == ["a", "b"]
    rest = host.ask("GetActiveTopics", limit=2, cursor=page.cursor)
    assert ([one.topic for one in rest.topics], rest.cursor) == (["c"], None)


def test_all_topics_are_counted_by_state(host: OneHost) -> None:
    put(host, b"x", b"y", b"z")
    take(host, 1)
    host.ask("Enqueue", ns="n", items=[spec("late", delay_ms=500)])
    host.ask("Enqueue", ns="n", items=[spec("leased")])
    host.ask("Dequeue", ns="n", wants=[idl.TopicCount("leased", 1)])
    host.ask("Enqueue", ns="n", items=[spec("done")])
    (done,) = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("done", 1)]).items
    host.ask("Ack", items=[idl.AckItem(done.id, done.lease)])
    found = host.ask("GetActiveTopics", all=True).topics
    assert [(one.topic, one.ready, one.delayed, one.leased) for one in found] == [
        ("late", 0, 1, 0),
        ("leased", 0, 0, 1),
        ("t", 2, 0, 1),
    ]
    assert [bool(one.oldest_ready_at_ms) for one in found] == [False, False, True]
    (plain,) = host.ask("GetActiveTopics").topics
    assert (plain.topic, plain.delayed, plain.leased) == ("t", None, None)
    page = host.ask("GetActiveTopics", all=True, limit=2)
    rest = host.ask("GetActiveTopics", all=True, limit=2, cursor=page.cursor)
    assert ([one.topic for one in rest.topics], rest.cursor) == (["t"], None)


def minute(topic: Any) -> tuple[Any, ...]:
    return topic.enqueued_minute, topic.delivered_minute, topic.acked_minute, topic.failed_minute


def test_topics_have_the_events_of_the_last_minute(host: OneHost) -> None:
    put(host, b"x", b"y", b"z")
    one, other = take(host, 2).items
    host.ask("Ack", items=[idl.AckItem(one.id, one.lease)])
    host.ask("Nack", items=[idl.NackItem(other.id, other.lease, failed=True)])
    host.ask("Enqueue", ns="n", items=[spec("done")])
    (done,) = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("done", 1)]).items
    host.ask("Ack", items=[idl.AckItem(done.id, done.lease)])
    assert [minute(one) for one in host.ask("GetActiveTopics", rates=True).topics] == [(0, 0, 0, 0)]
    host.now_ms += STEP_MS  # without a tick
    assert [(one.topic, *minute(one)) for one in host.ask("GetActiveTopics", all=True, rates=True).topics] == [
        ("done", 1, 1, 1, 0),
        ("t", 3, 2, 1, 1),
    ]
    assert minute(host.ask("GetTopicStats", ns="n", topic="t")) == (3, 2, 1, 1)
    assert minute(host.ask("GetTopicStats", ns="n", topic="none")) == (0, 0, 0, 0)
    (ready,) = host.ask("GetActiveTopics", rates=True).topics
    assert ready.topic == "t", "topics without ready items are listed with `all`"
    (plain,) = host.ask("GetActiveTopics").topics
    assert (*minute(plain), plain.paused, plain.closed) == (None,) * 6
    host.wait(60_000)
    assert ("done", 0) not in [
        (one.topic, one.ready) for one in host.ask("GetActiveTopics", all=True, rates=True).topics
    ]


def test_a_tick_ends_the_minute_of_topics_without_a_reader(host: OneHost) -> None:
    put(host, b"x")
    host.wait(STEP_MS)
    put(host, b"y", b"z")
    host.wait(50_000)
    (topic,) = host.ask("GetActiveTopics", rates=True).topics
    assert topic.enqueued_minute == 3
    host.wait(STEP_MS)
    (topic,) = host.ask("GetActiveTopics", rates=True).topics
    assert topic.enqueued_minute == 2


def test_topics_say_if_they_are_paused_or_closed(host: OneHost) -> None:
    host.engine.apply_settings(Settings("n", 1, {"topic.a": '{"paused": true}', "topic.b": '{"closed": true}'}))
    for ns, topic in (("n", "a"), ("n", "c"), ("m", "a")):
        host.ask("Enqueue", ns=ns, items=[spec(topic)])
    found = host.ask("GetActiveTopics", rates=True).topics
    assert [(one.ns, one.topic, one.paused, one.closed) for one in found] == [
        ("m", "a", False, False),
        ("n", "a", True, False),
        ("n", "c", False, False),
    ]


def test_the_last_minute_of_all_hosts_is_added(member: OneHost) -> None:
    member.ask("Enqueue", ns="n", items=[spec("t"), spec("u"), spec("v")])
    member.wait(STEP_MS)
    call = member.call("GetActiveTopics", all=True, rates=True)
    there = [
        idl.ActiveTopic("n", "t", 4, 3, ["b:1"], 5, 6, 10, 20, 30, 40, False, False),
        idl.ActiveTopic("n", "u", 4, 3, ["b:1"], 5, 6),
    ]
    assert member.reply("GetActiveTopics", idl.GetActiveTopicsResponse(there)).rates is True
    assert [(one.topic, *minute(one)) for one in call.answer.topics] == [
        ("t", 11, 20, 30, 40),
        ("u", None, None, None, None),
        ("v", 1, 0, 0, 0),
    ], "a host that does not know makes the sum unknown"
    call = member.call("GetTopicStats", ns="n", topic="t")
    theirs = idl.GetTopicStatsResponse(enqueued_minute=2, delivered_minute=3, acked_minute=4, failed_minute=None)
    member.reply("GetTopicStats", theirs)
    assert minute(call.answer) == (3, 3, 4, None)


def test_topics_of_dead_letters_are_listed_apart(host: OneHost) -> None:
    for name in ("t", "u", "u.dlq", "v.dlq"):
        host.ask("Enqueue", ns="n", items=[spec(name)])
    host.ask("Dequeue", ns="n", wants=[idl.TopicCount("v.dlq", 1)])
    assert topics(host.ask("GetActiveTopics", dead=True)) == [("n", "u.dlq", 1)]
    assert topics(host.ask("GetActiveTopics", dead=True, all=True)) == [("n", "u.dlq", 1), ("n", "v.dlq", 0)]
    page = host.ask("GetActiveTopics", dead=True, all=True, limit=1)
    rest = host.ask("GetActiveTopics", dead=True, all=True, limit=1, cursor=page.cursor)
    assert (topics(page), topics(rest), rest.cursor) == ([("n", "u.dlq", 1)], [("n", "v.dlq", 0)], None)


def test_each_host_is_asked_for_topics_of_dead_letters(member: OneHost) -> None:
    call = member.call("GetActiveTopics", dead=True)
    there = [idl.ActiveTopic("n", "t.dlq", 4, 3, ["b:1"])]
    assert member.reply("GetActiveTopics", idl.GetActiveTopicsResponse(there)).dead is True
    assert topics(call.answer) == [("n", "t.dlq", 4)]


def test_active_topics_are_checked(host: OneHost) -> None:
    assert refused(host, "GetActiveTopics", ns="") == "ns must have 1 to 255 bytes"
    for limit in (0, 10_001):
        assert refused(host, "GetActiveTopics", limit=limit) == f"limit is {limit}, not in 1..10000"


def test_topics_of_all_hosts_are_one_list(member: OneHost) -> None:
    member.ask("Enqueue", ns="n", items=[spec("t")])
    call = member.call("GetActiveTopics")
    assert not call.answers
    there = [idl.ActiveTopic("n", "t", 4, 3, ["b:1"]), idl.ActiveTopic("n", "u", 1, 5, ["b:1"])]
    member.reply("GetActiveTopics", idl.GetActiveTopicsResponse(there))
    assert topics(call.answer) == [("n", "t", 5), ("n", "u", 1)]
    assert call.answer.topics[0].hosts == ["a:1", "b:1"]
    assert topics(member.ask("GetActiveTopics", context=FORWARDED)) == [("n", "t", 1)], "no second hop"


def test_counts_of_all_hosts_are_added(member: OneHost) -> None:
    member.ask("Enqueue", ns="n", items=[spec("t", delay_ms=500), spec("u")])
    call = member.call("GetActiveTopics", all=True)
    there = [idl.ActiveTopic("n", "t", 4, 3, ["b:1"], 5, 6), idl.ActiveTopic("n", "u", 1, 5, ["b:1"])]
    assert member.reply("GetActiveTopics", idl.GetActiveTopicsResponse(there)).all is True
    assert [(one.topic, one.ready, one.delayed, one.leased) for one in call.answer.topics] == [
        ("t", 4, 6, 6),
        ("u", 2, 0, 0),
    ]
    assert call.answer.topics[0].oldest_ready_at_ms == 3, "a host without ready items has no oldest one"


def test_a_host_that_does_not_answer_is_left_out(member: OneHost) -> None:
    member.ask("Enqueue", ns="n", items=[spec("t")])
    call = member.call("GetActiveTopics")
    member.reply("GetActiveTopics", NotSent("gone"))
    assert topics(call.answer) == [("n", "t", 1)]


def test_full_buffers_refuse_a_look(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    host.engine.state.budget.take(1 << 30)
    assert type(host.ask("GetItem", id=item_id)) is Overloaded
    assert type(host.ask("ListItems", ns="n", topic="t")) is Overloaded


def test_a_look_at_a_silent_shard_ends_in_time(host: OneHost) -> None:
    (item_id,) = put(host, b"x")
    call = host.begin("GetItem", id=item_id, context=idl.RequestContext(timeout_ms=200))
    host.now_ms += 200
    host.engine.tick(host.now_ms)
    assert type(call.answer) is Unavailable
    assert not isinstance(call.answer, Invalid | NotServed)
