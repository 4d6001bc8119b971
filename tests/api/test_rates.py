"""GetRates: what counts as stored, delivered, acked and failed, in which step; how the answers of hosts make one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from foqs.bounds import RATE_STEPS
from foqs.errors import Invalid, Unavailable
from foqs.fairness.rates import STEP_MS
from foqs.figures import MOST_OLDEST
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.api.wire import spec
from tests.support.one_host import FORWARDED, OneHost, put, refused, routing_of, take

pytestmark = pytest.mark.memory

KINDS = ("enqueued", "delivered", "acked", "failed")


def sums(host: OneHost, ns: str = "n") -> tuple[int, ...]:
    """End the step. Return the sums of its namespace over all steps, by kind."""
    host.wait(STEP_MS)
    (found,) = host.ask("GetRates", ns=ns).namespaces
    return tuple(sum(getattr(found, kind)) for kind in KINDS)


def by_step(answer: Any, ns: str, kind: str = "enqueued") -> list[int]:
    """The counts of the last three steps."""
    (found,) = [one for one in answer.namespaces if one.ns == ns]
    return list(getattr(found, kind))[-3:]


def nack(host: OneHost, items: Sequence[Any], **fields: Any) -> None:
    host.ask("Nack", items=[idl.NackItem(item.id, item.lease, **fields) for item in items])


def ack(host: OneHost, items: Sequence[Any]) -> None:
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease) for item in items])


# ------------------------------------------------------------------------------------------ what counts


def test_an_item_that_is_stored_delivered_and_acked() -> None:
    host = OneHost(1, 2)
    put(host, *[b"x"] * 5)
    put(host, b"later", delay_ms=9_000)
    ack(host, take(host, 3).items)
    assert sums(host) == (6, 3, 3, 0)


def test_a_lease_that_is_acked_after_its_end() -> None:
    host = OneHost(1)
    put(host, b"x")
    items = take(host, lease_ms=1_000).items
    host.wait(2_000)
    ack(host, items)
    host.wait(1_000)
    assert sums(host) == (1, 1, 1, 1)


def test_acks_with_the_next_dequeue() -> None:
    host = OneHost(1)
    put(host, b"x", b"y")
    acks = [idl.AckItem(item.id, item.lease) for item in take(host, 1).items]
    host.ask("AckAndDequeue", ns="n", acks=acks, wants=[idl.TopicCount("t", 1)])
    assert sums(host) == (2, 2, 1, 0)


def test_topics_of_one_request() -> None:
    host = OneHost(1)
    host.ask("Enqueue", ns="n", items=[spec("t"), spec("u"), spec("u", b"x", fairness_key="a")])
    items = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 5), idl.TopicCount("u", 5)]).items
    assert len(items) == 3
    ack(host, items)
    assert sums(host) == (3, 3, 3, 0)


def test_attempts_that_fail() -> None:
    """With a nack, a rejection, and the end of a lease. A release is no failure, but the delivery counts."""
    host = OneHost(1)
    put(host, *[b"x"] * 4)
    failed, rejected, released, expired = take(host, lease_ms=5_000).items
    nack(host, [failed], failed=True, delay_ms=600_000)
    nack(host, [rejected], reject=True)
    nack(host, [released], release=True)
    assert expired
    host.wait(6_000)
    assert sums(host) == (4, 4, 0, 3)


def test_an_at_most_once_item() -> None:
    host = OneHost(1)
    put(host, b"x", b"y", delivery=idl.Delivery.AT_MOST_ONCE)
    acked, dropped = take(host, lease_ms=5_000).items
    ack(host, [acked])
    assert dropped
    host.wait(6_000)
    assert sums(host) == (2, 2, 1, 1)


def test_an_item_that_its_topic_keeps() -> None:
    host = OneHost(1)
    host.settings.apply(Settings("n", 1, {"topic.t": '{"keep": {"completed_ms": 60000}}'}))
    put(host, b"x")
    ack(host, take(host).items)
    assert sums(host) == (1, 1, 1, 0)


def test_duplicates_and_items_that_end_without_an_ack() -> None:
    host = OneHost(1)
    put(host, b"x", dedup_key="k")
    put(host, b"x", dedup_key="k")
    (item_id,) = put(host, b"y")
    put(host, b"z", ttl_ms=1_000)
    host.ask("DeleteItems", ids=[item_id])
    assert sums(host) == (3, 0, 0, 0)


def test_dead_letters_that_go_back() -> None:
    host = OneHost(1)
    put(host, b"x")
    nack(host, take(host).items, reject=True)
    assert host.ask("RedriveItems", ns="n", topic="t.dlq").at_least == 1
    assert sums(host) == (1, 1, 0, 1), "a redrive stores no item"


def test_counts_are_of_their_steps() -> None:
    host = OneHost(1)
    put(host, b"x")
    host.wait(STEP_MS)
    put(host, b"x", b"y")
    host.wait(2 * STEP_MS)
    answer = host.ask("GetRates", ns="n")
    assert by_step(answer, "n") == [1, 2, 0]
    assert (answer.step_ms, answer.first_at_ms) == (STEP_MS, host.now_ms - RATE_STEPS * STEP_MS)
    host.now_ms += STEP_MS // 2  # in the next step, without a tick
    put(host, b"x")
    again = host.ask("GetRates", ns="n", steps=3)
    assert (by_step(again, "n"), again.first_at_ms) == ([1, 2, 0], host.now_ms - STEP_MS // 2 - 3 * STEP_MS)


def test_a_tick_is_due_at_the_end_of_a_step() -> None:
    host = OneHost(1)
    host.wait(STEP_MS - 300)
    assert host.engine.next_ms(host.now_ms) <= host.now_ms + 300
    put(host, b"x")
    host.wait(300)
    put(host, b"x", b"y")
    host.wait(STEP_MS)
    assert by_step(host.ask("GetRates", ns="n"), "n") == [0, 1, 2]


def test_a_clock_that_is_set_changes_no_age() -> None:
    host = OneHost(1)
    host.wait(STEP_MS)
    put(host, b"x")
    host.wait(STEP_MS)
    host.now_ms += 3_600_000
    host.engine.clock_set(3_600_000)
    assert by_step(host.ask("GetRates", ns="n"), "n") == [0, 0, 1]


def test_counts_cover_the_time_since_the_start() -> None:
    host = OneHost(1)
    begun_ms = host.now_ms
    host.wait(2 * STEP_MS)
    assert host.ask("GetRates").covers_from_ms == begun_ms
    assert host.ask("GetRates", steps=1).covers_from_ms == host.ask("GetRates", steps=1).first_at_ms > begun_ms


# ------------------------------------------------------------------------------------------ which namespaces


def enqueue(host: OneHost, ns: str, items: int = 1) -> None:
    host.ask("Enqueue", ns=ns, items=[spec("t") for _ in range(items)])


def names(answer: Any) -> list[str]:
    return [one.ns for one in answer.namespaces]


def test_the_namespaces_with_the_most_traffic() -> None:
    host = OneHost(1)
    for ns, items in (("a", 1), ("b", 3), ("c", 1)):
        enqueue(host, ns, items)
    assert host.ask("GetRates").namespaces == [], "the step goes on"
    host.wait(STEP_MS)
    everything, most = host.ask("GetRates"), host.ask("GetRates", limit=2)
    assert (names(everything), everything.more) == (["b", "a", "c"], False)
    assert (names(most), most.more) == (["b", "a"], True)
    host.wait(STEP_MS)
    assert names(host.ask("GetRates", steps=1)) == []


def test_a_namespace_without_traffic_has_an_entry() -> None:
    (found,) = OneHost(1).ask("GetRates", ns="n").namespaces
    assert (found.ns, *[getattr(found, kind) for kind in KINDS]) == ("n", [], [], [], [])


def test_a_caller_sees_the_rates_of_its_namespaces() -> None:
    host = OneHost(1)
    for ns in ("mine", "other"):
        enqueue(host, ns)
    host.wait(STEP_MS)
    host.engine.state.topics.rates._left_out = 1
    assert host.ask("GetRates").more
    call = host.call("GetRates", within=frozenset({"mine"}))
    assert (names(call.answer), call.answer.more) == (["mine"], False), "nor that there are further ones"


@pytest.mark.parametrize("namespaces", [49, 50, 51, 120])
def test_many_namespaces_are_read_in_parts(namespaces: int) -> None:
    host = OneHost(1)
    for number in range(namespaces):
        enqueue(host, f"n{number:03}")
    host.wait(STEP_MS)
    assert names(host.ask("GetRates", limit=1_000)) == [f"n{number:03}" for number in range(namespaces)]


@pytest.mark.parametrize(
    "fields", [{"ns": ""}, {"steps": 0}, {"steps": RATE_STEPS + 1}, {"limit": 0}, {"limit": 1_001}]
)
def test_values_out_of_bounds(fields: dict[str, Any]) -> None:
    assert refused(OneHost(1), "GetRates", **fields)


# ------------------------------------------------------------------------------------------ several hosts


def theirs(host: OneHost, *counts: int, later: int = 0, covers_ms: int = 0, ns: str = "n", more: bool = False) -> Any:
    """The answer of a host whose last three steps have these counts of enqueued items."""
    first_at_ms = (host.now_ms // STEP_MS - 3 + later) * STEP_MS
    return idl.GetRatesResponse(STEP_MS, first_at_ms, covers_ms, [idl.NamespaceRates(ns, list(counts))], more, [])


def test_counts_of_all_hosts_are_added() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}, "c", "d"))
    put(host, b"x")
    host.wait(STEP_MS)
    call = host.call("GetRates", steps=3, limit=7)
    answers = {
        "b:1": theirs(host, 10, 20, 30, covers_ms=host.now_ms - 5_000, more=True),
        "c:1": theirs(host, 1, 2, 3, ns="m"),
        "d:1": Unavailable("gone"),
    }
    while asked := host.to("GetRates"):
        request = host.reply("GetRates", answers[asked[0].address])
        assert (request.ns, request.steps, request.limit, request.context.hops) == (None, 3, 7, 1)
    answer = call.answer
    assert [by_step(answer, ns) for ns in ("n", "m")] == [[10, 20, 31], [1, 2, 3]]
    assert (names(answer), answer.more, answer.missing) == (["n", "m"], True, ["d:1"])
    assert answer.covers_from_ms == host.now_ms - 5_000, "the latest start"


@pytest.mark.parametrize(
    ("later", "expected"),
    [(0, [1, 2, 4]), (1, [0, 1, 3]), (-1, [2, 3, 1]), (3, [0, 0, 1]), (-3, [0, 0, 1]), (1 << 40, [0, 0, 1])],
)
def test_steps_are_aligned_by_their_times(later: int, expected: list[int]) -> None:
    """The other host answered in another step, or its clock differs."""
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    put(host, b"x")
    host.wait(STEP_MS)
    call = host.call("GetRates", ns="n", steps=3)
    host.reply("GetRates", theirs(host, 1, 2, 3, later=later))
    assert by_step(call.answer, "n") == expected


def test_a_host_that_does_not_know_the_method_is_missing() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    call = host.call("GetRates", ns="n")
    host.reply("GetRates", Invalid("the server refused the call: unknown method"))
    assert call.answer.missing == ["b:1"]


def test_the_items_of_a_namespace() -> None:
    host = OneHost(1, 2)
    put(host, *[b"x"] * 5)
    put(host, b"later", delay_ms=9_000)
    take(host, 2)
    host.ask("Enqueue", ns="m", items=[spec("other")])
    (found,) = host.ask("GetRates", ns="n", items=True).namespaces
    assert (found.ready, found.delayed, found.leased, [one.topic for one in found.oldest]) == (3, 1, 2, ["t"])
    (topic,) = host.ask("GetActiveTopics", ns="n").topics
    assert found.oldest[0].oldest_ready_at_ms == topic.oldest_ready_at_ms
    (plain,) = host.ask("GetRates", ns="n").namespaces
    assert (plain.ready, plain.delayed, plain.leased, plain.oldest) == (None, None, None, None)
    (empty,) = host.ask("GetRates", ns="none", items=True).namespaces
    assert (empty.ready, empty.delayed, empty.leased, empty.oldest) == (0, 0, 0, [])


@pytest.mark.parametrize("topics", [249, 250, 251, 1_203])
def test_the_items_of_many_topics(topics: int) -> None:
    host = OneHost(1)
    for number in range(topics):
        host.ask("Enqueue", ns="n", items=[spec(f"t{topics - number:05}")])
        if number < 7:
            host.now_ms += 70_000
    (found,) = host.ask("GetRates", ns="n", items=True).namespaces
    assert (found.ready, found.delayed, found.leased) == (topics, 0, 0)
    assert [one.topic for one in found.oldest] == [f"t{topics - number:05}" for number in range(MOST_OLDEST)]


def test_a_caller_without_rights_learns_no_counts() -> None:
    host = OneHost(1)
    put(host, b"x")
    call = host.call("GetRates", ns="n", items=True, within=frozenset({"mine"}))
    (found,) = call.answer.namespaces
    assert (found.ready, found.oldest) == (None, None)


def test_items_of_all_hosts_are_added() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    put(host, b"x")
    call = host.call("GetRates", ns="n", items=True)
    answer = theirs(host, 1)
    old = [idl.OldestTopic(name, at_ms) for name, at_ms in (("t", 9), ("b", 3), ("c", 4), ("d", 5), ("e", 8), ("f", 7))]
    answer.namespaces[0].ready, answer.namespaces[0].leased, answer.namespaces[0].oldest = 10, 20, old
    assert host.reply("GetRates", answer).items is True
    (found,) = call.answer.namespaces
    assert (found.ready, found.delayed, found.leased) == (11, 0, 20)
    assert [(one.topic, one.oldest_ready_at_ms) for one in found.oldest] == [
        ("b", 3), ("c", 4), ("d", 5), ("f", 7), ("e", 8),
    ]  # fmt: skip


def test_a_forwarded_request_asks_no_further_host() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    assert host.ask("GetRates", context=FORWARDED).missing == []
    assert not host.to("GetRates")
