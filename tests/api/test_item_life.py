"""Enqueue and dequeue: checks of requests, answers item by item, quotas, and requests that go to another host."""

from dataclasses import replace
from typing import Any

import pytest

from foqs.api import intake, item_life
from foqs.config.schema import QuotaKeys
from foqs.errors import Invalid, NotServed, OutcomeUnknown, Overloaded, Unavailable
from foqs.idl import idl
from foqs.policies.settings import Settings
from foqs.wire.usual_requests import Wants
from tests.api.wire import spec
from tests.support.one_host import FORWARDED, OneHost, kinds, messages, put, refused, routing_of, take

pytestmark = pytest.mark.memory


@pytest.fixture
def host() -> OneHost:
    return OneHost(1)


# ------------------------------------------------------------------------------------------ enqueue


def test_items_of_an_enqueue_are_answered_one_by_one(host: OneHost) -> None:
    answer = host.ask("Enqueue", ns="n", items=[spec("t", b"a"), spec("t", None), spec("", b"c"), spec("t", b"d")])
    assert kinds(answer) == [None, Invalid, Invalid, None]
    assert messages(answer)[1:3] == ["payload is missing", "topic must have 1 to 255 bytes"]
    assert [item.payload for item in take(host).items] == [b"a", b"d"]


def test_every_field_of_an_item_comes_back(host: OneHost) -> None:
    """The times are the host's. Empty metadata and headers are not None."""
    headers = {"a": "1", "ü": "😀", "": ""}
    fields = {"metadata": b"meta\0", "headers": headers, "priority": -7, "delivery": 2}
    (full,) = put(host, b"\0\xffpayload", **fields, lease_ms=45_000, ttl_ms=99_000)
    (plain,), (empty,) = put(host, b""), put(host, b"", metadata=b"", headers={}, priority=1)
    items = take(host).items
    now_ms = host.now_ms
    assert [
        (item.id, item.payload, item.metadata, item.headers, item.priority, item.delivery, item.expires_at_ms)
        for item in items
    ] == [
        (full, b"\0\xffpayload", b"meta\0", headers, -7, 2, now_ms + 99_000),
        (plain, b"", None, None, 0, 1, None),
        (empty, b"", b"", {}, 1, 1, None),
    ]
    assert [item.lease_expires_at_ms - now_ms for item in items] == [45_000, 30_000, 30_000]
    assert {(item.ns, item.topic, item.attempt, item.state) for item in items} == {("n", "t", 1, None)}
    assert {(item.enqueued_at_ms, item.deliver_after_ms) for item in items} == {(now_ms, now_ms)}
    assert all(item.lease for item in items)


def test_a_dedup_key_is_one_item_until_it_is_forgotten(host: OneHost) -> None:
    def keyed(payload: bytes = b"x", ns: str = "n", **fields: Any) -> Any:
        return host.ask("Enqueue", ns=ns, items=[spec("t", payload, dedup_key="k", **fields)]).outcomes[0]

    first, again = keyed(priority=5), keyed(priority=-5, delay_ms=1_000)
    assert (first.duplicate, again.id, again.duplicate) == (None, first.id, True)
    assert keyed(ns="m").duplicate is None, "a namespace has keys of its own"
    (item,) = take(host).items
    assert (item.id, item.priority) == (first.id, 5)
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
    assert keyed().id == first.id, "also when the item is gone"
    assert keyed(b"y").error.message == "the dedup_key was enqueued with another topic or payload before"
    host.wait(host.engine.state.shards[1].queue.dedup_window_ms + 1)
    assert keyed().duplicate is None


def test_an_enqueue_of_invalid_items_reaches_no_shard(host: OneHost) -> None:
    call = host.begin("Enqueue", ns="n", items=[spec("t", None)])
    assert kinds(call.answer) == [Invalid]
    assert not host.engine.state.dirty


def test_an_enqueue_as_a_whole_is_checked_first(host: OneHost) -> None:
    items = [spec("t")]
    assert refused(host, "Enqueue", items=items) == "ns is missing"
    assert refused(host, "Enqueue", ns="n") == "items is empty"
    assert refused(host, "Enqueue", ns="n", items=items * 10_001) == "items has 10001 entries, more than 10000"


def stored(host: OneHost, topic: str, ns: str = "n") -> type | None:
    """The error of an item of the topic; None if it is stored."""
    (kind,) = kinds(host.ask("Enqueue", ns=ns, items=[spec(topic)]))
    return kind


def test_a_known_topic_follows_its_policy(host: OneHost) -> None:
    assert stored(host, "t") is None
    host.engine.apply_settings(Settings("n", 1, {"topic.t": '{"closed": true}'}))
    assert (stored(host, "t"), stored(host, "u")) == (Unavailable, None)
    host.engine.apply_settings(Settings("n", 2, {"topic.t": '{"ttl_ms": 5000}'}))
    assert [stored(host, "t") for _ in range(2)] == [None, None]
    assert [item.expires_at_ms - item.enqueued_at_ms for item in take(host).items[1:]] == [5_000, 5_000]


def test_a_known_topic_follows_the_limits(host: OneHost) -> None:
    assert (stored(host, "tt"), stored(host, "tt")) == (None, None)
    assert host.service is not None
    host.service.host.limits = replace(host.limits, name_bytes=1)
    assert (stored(host, "tt"), stored(host, "t")) == (Invalid, None)
    assert refused(host, "Enqueue", ns="nn", items=[spec("t")]) == "ns must have 1 to 1 bytes"


def test_few_topics_and_namespaces_are_known(host: OneHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_life, "_NAMESPACES", 2)
    monkeypatch.setattr(intake, "_MOST_PLAIN", 2)
    assert host.service is not None
    known = host.methods["Enqueue"].__self__  # type: ignore[attr-defined]
    for ns in "nmk":
        assert [stored(host, topic, ns) for topic in "tuvt"] == [None] * 4
    assert {ns: list(topics) for ns, topics in known._known.topics.items()} == {"k": ["t", "u"]}


def test_a_quota_refuses_the_items_beyond_it() -> None:
    host = OneHost(1, quotas={"n": QuotaKeys(enqueues_per_second=2)})
    host.wait(2_000)
    answer = host.ask("Enqueue", ns="n", items=[spec("t"), spec("t", None), spec("t"), spec("t")])
    assert kinds(answer) == [None, Invalid, None, Overloaded]
    assert answer.outcomes[3].error.retry_after_ms >= 1
    assert kinds(host.ask("Enqueue", ns="other", items=[spec("t")] * 3)) == [None] * 3, "no quota is set for it"


def test_a_forwarded_enqueue_was_charged_by_the_first_host() -> None:
    host = OneHost(1, routing=routing_of({1: "a"}), quotas={"n": QuotaKeys(enqueues_per_second=1)})
    answer = host.ask("Enqueue", ns="n", items=[spec("t")] * 3, context=FORWARDED)
    assert kinds(answer) == [None] * 3
    assert host.engine.state.counters.quota_refused == 0


def test_a_host_without_a_shard_forwards_the_valid_items() -> None:
    host = OneHost(routing=routing_of({2: "b"}))
    call = host.call("Enqueue", ns="n", items=[spec("t", None), spec("t", b"x"), spec("t", b"y")])
    (sent,) = host.to("Enqueue")
    assert (sent.address, [item.payload for item in sent.request.items]) == ("b:1", [b"x", b"y"])
    assert sent.request.context.hops == 1
    error = idl.ItemError(4, "full", 9)
    host.reply("Enqueue", idl.EnqueueResponse([idl.EnqueueOutcome(error=error), idl.EnqueueOutcome(id=5)]))
    assert kinds(call.answer) == [Invalid, Overloaded, None]
    assert call.answer.outcomes[2].id == 5


def test_a_forwarded_enqueue_is_refused_where_no_shard_is() -> None:
    host = OneHost(routing=routing_of({2: "b"}))
    answer = host.ask("Enqueue", ns="n", items=[spec("t")], context=FORWARDED)
    assert kinds(answer) == [Unavailable]
    assert not host.to("Enqueue")
    nowhere = OneHost(routing=routing_of({}))
    assert kinds(nowhere.ask("Enqueue", ns="n", items=[spec("t")])) == [Unavailable]


def test_a_key_goes_to_the_owner_of_its_slot() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    host.learn(routing_of({2: "b"}))
    call = host.call("Enqueue", ns="n", items=[spec("t", b"x"), spec("t", b"y", dedup_key="k")])
    (sent,) = host.to("Enqueue")
    assert [item.dedup_key for item in sent.request.items] == ["k"]
    host.reply("Enqueue", idl.EnqueueResponse([idl.EnqueueOutcome(id=5, duplicate=True)]))
    assert (call.answer.outcomes[0].error, call.answer.outcomes[1].id) == (None, 5)
    assert call.answer.outcomes[1].duplicate


def test_a_forwarded_key_whose_slot_is_gone_is_not_served() -> None:
    """The asking host asks again; this host takes the slot if the record says that it should."""
    host = OneHost(1, routing=routing_of({}, "b"))
    assert not host.engine.state.shards[1].queue.keys.held.bits
    host.routing = routing_of({1: "a"})
    answer = host.ask("Enqueue", ns="n", items=[spec("t", b"x", dedup_key="k")], context=FORWARDED)
    assert kinds(answer) == [NotServed]
    assert host.engine.state.shards[1].queue.keys.held.bits


def test_owners_are_wanted_when_slots_have_none() -> None:
    host = OneHost(1, routing=routing_of({}))
    host.call("Enqueue", ns="n", items=[spec("t")])
    assert host.shared == 0
    host.call("Enqueue", ns="n", items=[spec("t", dedup_key="k")])
    assert host.shared == 1


def test_an_outcome_that_is_unknown_is_reported(host: OneHost) -> None:
    """The batch is sent, and its result does not arrive in the time of the caller."""
    call = host.begin("Enqueue", ns="n", items=[spec("t")], context=idl.RequestContext(timeout_ms=100))
    host.send()
    host.now_ms += 100
    host.engine.tick(host.now_ms)
    assert kinds(call.answer) == [OutcomeUnknown]
    assert call.doubts == [(1, "the shard did not answer in time; the change may have been made")]


# ------------------------------------------------------------------------------------------ dequeue


NAME = "must have 1 to 255 bytes"
COUNTS = "the sum of the counts is 10001, not in 1..10000"


@pytest.mark.parametrize(
    ("wants", "fields", "why"),
    [
        (None, {}, "wants is empty"),
        ([], {}, "wants is empty"),
        ([(f"t{n}", 1) for n in range(1_001)], {}, "wants has 1001 entries, more than 1000"),
        ([("t", 1), ("t", 1)], {}, "wants lists a topic more than once"),
        ([("t", 1), ("u", 0)], {}, "count is 0, not in 1..10000"),
        ([("t", None)], {}, "count is 0, not in 1..10000"),
        ([("t", -1)], {}, "count is -1, not in 1..10000"),
        ([("t", 10_001)], {}, "count is 10001, not in 1..10000"),
        ([("t", 6_000), ("u", 4_001)], {}, COUNTS),
        ([("t", 1, None, None, 0), ("u", 1)], {"most": 1}, "weight is 0, not in 1..1000"),
        ([("t", 1), ("u", 1, None, None, -1)], {"most": 1}, "weight is -1, not in 1..1000"),
        ([("t", 1), ("u", 1, None, None, 1_001)], {"most": 1}, "weight is 1001, not in 1..1000"),
        ([("t", 1), ("u", 1, None, None, 1)], {}, "weight needs most"),
        ([(None, 1)], {}, "topic is missing"),
        ([("", 1)], {}, f"topic {NAME}"),
        ([("a" * 256, 1)], {}, f"topic {NAME}"),
        ([("a\n", 1)], {}, "topic holds a control character"),
        ([(b"\xff", 1)], {}, "topic is not UTF-8"),
        ([("t", 1)], {"ns": None}, "ns is missing"),
        ([("t", 1)], {"ns": "n" * 256}, f"ns {NAME}"),
        ([("t", 1)], {"ns": b"\xff"}, "ns is not UTF-8"),
        ([("t", 1)], {"lease_ms": 99}, "lease_ms is 99, not in 100..43200000"),
        ([("t", 1)], {"lease_ms": 43_200_001}, "lease_ms is 43200001, not in 100..43200000"),
        ([("t", 1)], {"wait_ms": -1}, "wait_ms is -1, not in 0..600000"),
        ([("t", 1)], {"wait_ms": 600_001}, "wait_ms is 600001, not in 0..600000"),
        ([("t", 1)], {"max_bytes": 0}, "max_bytes is 0, not in 1.."),
        ([("t", 1)], {"worker": ""}, "worker must have 1 to 128 bytes"),
        ([("t", 1)], {"worker": "ü" * 65}, "worker must have 1 to 128 bytes"),
        ([("t", 1)], {"worker": "a\0"}, "worker holds a control character"),
        ([("t", 1)], {"begins": -1}, "begins is negative"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("method", ["Dequeue", "AckAndDequeue"])
def test_a_wrong_dequeue_is_refused(host: OneHost, method: str, wants: Any, fields: dict[str, Any], why: str) -> None:
    made = wants and [idl.TopicCount(*want) for want in wants]
    assert refused(host, method, **{"ns": "n", "wants": made, **fields}).startswith(why)


@pytest.mark.parametrize("weight", [None, 1])
def test_a_topic_without_a_weight_has_the_weight_1(host: OneHost, weight: int | None) -> None:
    for topic in "tu":
        host.ask("Enqueue", ns="n", items=[spec(topic, b"x")] * 8)
    wants = [idl.TopicCount("t", 8, None, None, weight), idl.TopicCount("u", 8, None, None, 3)]
    for ask in ({"method": "Dequeue"}, {"method": "AckAndDequeue", "acks": []}):
        items = host.ask(ns="n", wants=wants, most=4, **ask).items
        assert sorted(item.topic for item in items) == ["t", "u", "u", "u"]


def test_equal_dequeues_are_checked_once_for_their_limits(host: OneHost) -> None:
    wants = Wants([idl.TopicCount("tt", 1)])
    wants.checked = None
    host.ask("Enqueue", ns="n", items=[spec("tt", b"a"), spec("tt", b"b")])
    (first,) = host.ask("Dequeue", ns="n", wants=wants).items
    checked = wants.checked
    (second,) = host.ask("Dequeue", ns="n", wants=wants).items
    assert ([first.payload, second.payload], wants.checked is checked) == ([b"a", b"b"], True)
    life: Any = host.methods["Dequeue"]
    life.__self__._host.limits = replace(host.limits, name_bytes=1)
    assert refused(host, "Dequeue", ns="n", wants=wants) == "topic must have 1 to 1 bytes"


def test_a_dequeue_at_its_bounds(host: OneHost) -> None:
    host.ask("Enqueue", ns="n", items=[spec("t999", b"x")])
    wants = [idl.TopicCount(f"t{n}", 10) for n in range(1_000)]
    (item,) = host.ask("Dequeue", ns="n", wants=wants, wait_ms=600_000, lease_ms=43_200_000).items
    assert (item.topic, item.lease_expires_at_ms) == ("t999", host.now_ms + 43_200_000)


@pytest.mark.parametrize(
    ("own", "asked", "lease_ms"), [(None, None, 30_000), (50_000, None, 50_000), (50_000, 900, 900), (None, 100, 100)]
)
def test_the_lease_of_a_consumer_comes_before_the_items_own(host: OneHost, own: Any, asked: Any, lease_ms: int) -> None:
    put(host, b"x", lease_ms=own)
    (item,) = take(host, lease_ms=asked).items
    assert item.lease_expires_at_ms == host.now_ms + lease_ms


def test_topics_come_in_the_order_of_wants(host: OneHost) -> None:
    """Each has its own count, and priorities do not reach over topics."""
    for number, topic in enumerate("abc"):
        host.ask("Enqueue", ns="n", items=[spec(topic, b"%d" % n, priority=-number) for n in range(4)])
    host.ask("Enqueue", ns="m", items=[spec("c")])
    wants = [idl.TopicCount(*want) for want in (("c", 2), ("none", 5), ("a", 10), ("b", 1))]
    items = host.ask("Dequeue", ns="n", wants=wants).items
    assert [(item.topic, item.payload) for item in items] == [
        ("c", b"0"), ("c", b"1"), ("a", b"0"), ("a", b"1"), ("a", b"2"), ("a", b"3"), ("b", b"0"),
    ]  # fmt: skip
    assert len({item.lease for item in items}) == 7


def test_expired_items_do_not_hide_the_items_behind_them(host: OneHost) -> None:
    host.ask("Enqueue", ns="n", items=[spec("t", b"", ttl_ms=150, priority=-1)] * 400)
    kept = put(host, *[b"kept"] * 8)
    host.now_ms += 150  # no scan has removed the expired items
    assert [item.id for item in take(host, 8).items] == kept


def test_a_consumer_that_waits_gets_the_next_item(host: OneHost) -> None:
    waiting = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=60_000)
    assert not waiting.answers
    put(host, b"x")
    assert [item.payload for item in waiting.answer.items] == [b"x"]
    assert waiting.on_lost is None, "a circle of references"


def test_a_wait_ends_with_an_empty_answer(host: OneHost) -> None:
    waiting = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=50)
    host.wait(49)
    assert not waiting.answers
    host.wait(1)
    assert (waiting.answer.items, waiting.answer.news_version) == ([], None)


def test_only_another_host_gets_the_version_of_the_news() -> None:
    host = OneHost(1, routing=routing_of({1: "a"}))
    assert take(host).news_version is None
    assert take(host, context=FORWARDED).news_version == host.news.after(None).version
    put(host, b"x")
    assert take(host, context=FORWARDED).news_version is None


def test_an_item_stays_ready_when_its_consumer_is_gone(host: OneHost) -> None:
    waiting = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=60_000)
    waiting.lost()
    put(host, b"x")
    assert waiting.tries == 0
    assert [item.attempt for item in take(host).items] == [1]


def test_max_bytes_bounds_an_answer_after_its_first_item(host: OneHost) -> None:
    """Payload, metadata and headers count together."""
    put(host, *[b"x" * 80] * 20, metadata=b"y" * 10, headers={"k": "v"})  # {"k": "v"} has 10 bytes
    assert [len(take(host, max_bytes=most).items) for most in (1, 100, 199, 200, 1_000)] == [1, 1, 1, 2, 10]


def test_a_stopping_host_refuses_new_work_only(host: OneHost) -> None:
    put(host, b"x")
    (item,) = take(host).items
    host.engine.drain(host.now_ms)
    assert type(take(host)) is Unavailable
    assert type(host.ask("Enqueue", ns="n", items=[spec("t")])) is Unavailable
    assert kinds(host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])) == [None]


def test_full_buffers_refuse_a_dequeue(host: OneHost) -> None:
    host.engine.state.budget.take(1 << 30)
    answer = take(host)
    assert (type(answer), answer.message) == (Overloaded, "the host's buffers are full")
