"""Enqueues in a topic whose policy bounds its stored items: the bound holds over hosts, requests and restarts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.config.schema import QuotaKeys
from foqs.errors import Overloaded, Unavailable
from foqs.idl import idl
from foqs.peers.coordinator import coordinator_hash_slot
from foqs.policies.settings import Settings
from foqs.shardmgr.facts import Slots
from tests.api.wire import spec
from tests.support.one_host import OneHost, kinds, messages, put, refused, routing_of, take

pytestmark = pytest.mark.memory


def full(bound: int) -> str:
    way_out = "`foqs topic policy t max_stored=N --ns n`"
    return f"the topic t is full (max_stored {bound}): ack items, or raise the bound, {way_out}"


def apply(host: OneHost, **most: int | None) -> None:
    """Bound the stored items of these topics, and of no other."""
    version = host.engine.state.policies.versions.get("n", 0) + 1
    entries = {f"topic.{topic}": json.dumps({"max_stored": items}) for topic, items in most.items()}
    host.engine.apply_settings(Settings("n", version, entries))


def enqueue(host: OneHost, *specs: Any) -> Any:
    return host.call("Enqueue", ns="n", items=list(specs))


def stored(answer: Any) -> list[bool]:
    return [kind is None for kind in kinds(answer)]


@pytest.fixture
def host() -> OneHost:
    return OneHost(1, 2)


def test_no_more_items_are_stored_than_the_bound(host: OneHost) -> None:
    apply(host, t=3)
    answer = enqueue(host, *[spec("t", b"x")] * 5).answer
    assert kinds(answer) == [None] * 3 + [Overloaded] * 2
    assert messages(answer)[3:] == [full(3)] * 2
    assert answer.outcomes[3].error.retry_after_ms == 1_000
    host.wait(2_000)
    assert stored(enqueue(host, spec("t", b"x")).answer) == [False]


def test_delayed_and_leased_items_count(host: OneHost) -> None:
    apply(host, t=3)
    put(host, b"x")
    put(host, b"later", delay_ms=60_000)
    take(host, 1)
    assert stored(enqueue(host, *[spec("t", b"x")] * 2).answer) == [True, False]


def test_an_ack_makes_room(host: OneHost) -> None:
    apply(host, t=2)
    put(host, b"x", b"y")
    items = take(host).items
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease) for item in items[:1]])
    host.wait(2_000)
    assert stored(enqueue(host, *[spec("t", b"z")] * 2).answer) == [True, False]


def test_items_from_before_the_bound_count(host: OneHost) -> None:
    put(host, *[b"x"] * 4)
    apply(host, t=5)
    assert stored(enqueue(host, *[spec("t", b"x")] * 2).answer) == [True, False]


def test_each_topic_of_a_request_has_its_own_bound(host: OneHost) -> None:
    apply(host, t=1, u=2)
    answer = enqueue(host, *[spec(topic, b"x") for topic in "tuvtuvtuv"]).answer
    assert stored(answer) == [True, True, True, False, True, True, False, False, True]


def test_items_with_keys_count_alike(host: OneHost) -> None:
    apply(host, t=2)
    specs = [spec("t", b"a", dedup_key="1"), spec("t", b"b"), spec("t", b"c", dedup_key="2"), spec("t", b"d")]
    assert stored(enqueue(host, *specs).answer) == [True, True, False, False]


def test_a_key_that_was_stored_before_takes_no_room(host: OneHost) -> None:
    apply(host, t=2)
    first = enqueue(host, spec("t", b"a", dedup_key="1")).answer
    again = enqueue(host, spec("t", b"a", dedup_key="1")).answer
    assert again.outcomes[0].id == first.outcomes[0].id
    host.wait(2_000)
    assert stored(enqueue(host, *[spec("t", b"b")] * 2).answer) == [True, False]


def test_refused_items_of_a_request_take_no_room(host: OneHost) -> None:
    apply(host, t=2)
    answer = enqueue(host, spec("t", None), spec("t", b"x"), spec("t", b"y", lease_ms=1), spec("t", b"z")).answer
    assert stored(answer) == [False, True, False, True]


def test_a_namespace_may_have_a_quota_as_well() -> None:
    host = OneHost(1, quotas={"n": QuotaKeys(enqueues_per_second=4, burst=4)})
    apply(host, t=2)
    host.wait(1_000)
    answer = enqueue(host, *[spec(topic, b"x") for topic in "ttutu"]).answer
    assert messages(answer) == [None, None, None, full(2), "the namespace's quota is used up"]


def test_another_bound_counts_from_the_next_enqueue(host: OneHost) -> None:
    apply(host, t=1)
    put(host, b"x")
    apply(host, t=3)
    host.wait(2_000)
    assert messages(enqueue(host, *[spec("t", b"x")] * 3).answer) == [None, None, full(3)]
    apply(host)
    assert stored(enqueue(host, *[spec("t", b"x")] * 3).answer) == [True] * 3


def test_a_topic_without_a_bound_asks_no_coordinator() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}, slots=Slots(0, (2,) * 1024, {}, 1)))
    apply(host, u=1)
    assert stored(enqueue(host, spec("t", b"x")).answer) == [True]
    assert not host.to("TakeTokens")


def test_a_coordinator_elsewhere_is_asked_for_the_topic() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}, slots=Slots(0, (2,) * 1024, {}, 1)))
    apply(host, t=9)
    call = enqueue(host, *[spec("t", b"x")] * 3)
    request = host.reply("TakeTokens", idl.TakeTokensResponse(2, True, 1_000))
    assert (request.ns, request.topic, request.wanted) == ("n", "t", 3)
    assert kinds(call.answer) == [None, None, Overloaded]


def test_a_coordinator_counts_the_topic_on_all_hosts() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    put(host, b"x")
    host.ask("Enqueue", ns="n", items=[spec("u", b"x")])
    apply(host, t=9)
    host.wait(5_000)
    fields = {"ns": "n", "holder": "b", "wanted": 9, "held": 0, "back": 0, "topic": "t"}
    host.ask("TakeTokens", number=1, **fields)
    host.sent.clear()
    host.wait(3_000)
    call = host.call("TakeTokens", number=2, **fields)
    request = host.reply("CountItems", idl.CountItemsResponse({2: 3}))
    assert (request.ns, request.topic) == ("n", "t")
    assert call.answer.granted == 5


def test_items_of_the_topic_here_are_counted() -> None:
    host = OneHost(1)
    put(host, b"x", b"y")
    put(host, b"later", delay_ms=9_000)
    host.ask("Enqueue", ns="n", items=[spec("u", b"x")])
    assert host.ask("CountItems", ns="n", topic="t").shards == {1: 3}
    assert host.ask("CountItems", ns="n", topic="none").shards == {1: 0}
    assert host.ask("CountItems", ns="n").shards == {1: 4}
    assert refused(host, "CountItems", ns="n", topic="") == "topic must have 1 to 255 bytes"


def test_a_host_that_knows_no_bound_grants_nothing(host: OneHost) -> None:
    fields = {"ns": "n", "holder": "b", "number": 1, "wanted": 1, "held": 0, "back": 0}
    assert type(host.ask("TakeTokens", topic="t", **fields)) is Unavailable


def test_topics_have_coordinators_of_their_own() -> None:
    slots = {coordinator_hash_slot("n", topic) for topic in ("", *"abcdefgh")}
    assert len(slots) > 6
    assert coordinator_hash_slot("n") == coordinator_hash_slot("n", "")
