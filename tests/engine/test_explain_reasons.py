"""Each reason of ExplainItem in a constructed state: the first one, with its time and its words, until it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from foqs.cli.look import code_name, reasons_table
from foqs.client.operator_types import Explanation, Reason
from foqs.engine import shard_life
from foqs.engine.explain import ORDER, in_order
from foqs.idl import idl
from foqs.policies.settings import Settings
from foqs.shardmgr.lifecycle import ShardState
from tests.support.one_host import OneHost, put, take

pytestmark = pytest.mark.memory
R = idl.Reason
ROOT = Path(__file__).parent.parent.parent


class Case(NamedTuple):
    """An item whose first reason has this code, time and text; `end` ends it."""

    host: OneHost
    item_id: int
    code: int
    until_ms: int | None
    text: str
    end: Callable[[], object]


def why(host: OneHost, item_id: int) -> Any:
    return host.ask("ExplainItem", id=item_id)


def first_of(host: OneHost, item_id: int) -> Any:
    return why(host, item_id).reasons[0]


def asked(host: OneHost) -> None:
    """A consumer asks for the topic, and takes an item that comes first."""
    urgent = put(host, b"urgent", priority=-99)
    assert [item.id for item in take(host, 1).items] == urgent


def settle(host: OneHost, version: int, **entries: str) -> None:
    host.settings.apply(Settings("n", version, {key.replace("_", ".", 1): text for key, text in entries.items()}))


def gone() -> Case:
    host = OneHost(1)
    (item_id,) = put(host, b"x", ttl_ms=1_000)
    host.now_ms += 1_000
    return Case(host, item_id, R.GONE, None, "Its TTL has ended: it is removed soon.", lambda: None)


def tried(host: OneHost, policy: str) -> int:
    """The id of an item that is ready again after two attempts, where the limit is 2 by now."""
    (item_id,) = put(host, b"x")
    for _ in range(2):
        (item,) = take(host).items
        host.ask("Nack", items=[idl.NackItem(item.id, item.lease)])
    settle(host, 1, topic_t=policy)
    return item_id


def ended() -> Case:
    host = OneHost(1)
    item_id = tried(host, '{"max_attempts": 2}')
    text = (
        "Its 2 attempts are used up: a dequeue that reaches it delivers it no more, but moves it to the dead-letter "
        "topic t.dlq."
    )
    return Case(host, item_id, R.EXHAUSTED, None, text, lambda: settle(host, 2, topic_t='{"max_attempts": 3}'))


def not_served() -> Case:
    host = OneHost(1)
    (item_id,) = put(host, b"x")
    shard = host.engine.state.shards[1]
    host.engine.drained(shard, host.now_ms)
    text = "No host serves shard 1 now: it is moved or opened, or its database is away; see foqs doctor."

    def end() -> None:
        host.open(1)

    shard.owner.to(ShardState.ASSIGNED)
    return Case(host, item_id, R.SHARD_NOT_SERVED, None, text, end)


def clock_in_doubt() -> Case:
    host = OneHost(1)
    (item_id,) = put(host, b"x")
    shard = host.engine.state.shards[1]
    shard.owner.hold()
    text = "The host of shard 1 waits until it knows which clock is right: its /readyz has the reason."
    return Case(host, item_id, R.CLOCK_IN_DOUBT, None, text, lambda: shard_life.unhold(host.engine.state, shard))


def in_grace() -> Case:
    host = OneHost(1)
    (item_id,) = put(host, b"x")
    host.reopen(clean=False)
    shard = host.engine.state.shards[1]
    assert shard.owner.grace_from_ms is not None
    until_ms = shard.owner.grace_from_ms + shard.config.confirm_ms + 1
    left = f"{(until_ms - host.now_ms) / 1_000:.1f} s"
    text = f"Shard 1 was taken from a host that may still run: no item of it is leased before that ends, in {left}."
    return Case(host, item_id, R.OWNER_IN_GRACE, until_ms, text, lambda: host.wait(until_ms - host.now_ms))


def broken() -> Case:
    host = OneHost(1)
    (item_id,) = put(host, b"x")
    breaker = host.engine.state.shards[1].owner.breaker
    breaker.trip(host.now_ms)
    text = "The database of shard 1 fails, is slow, or does not answer: see foqs doctor."
    until_ms = host.now_ms + breaker.settings.pause_ms

    def end() -> None:
        breaker.done(host.now_ms, ok=True, latency_ms=1)

    return Case(host, item_id, R.BREAKER_OPEN, until_ms, text, end)


def delayed() -> Case:
    host = OneHost(1)
    (item_id,) = put(host, b"x", delay_ms=7_200_000)
    end = lambda: host.wait(7_200_000)  # noqa: E731
    return Case(host, item_id, R.DELAYED, host.now_ms + 7_200_000, "Its delay ends in 2.0 h.", end)


def leased() -> Case:
    host = OneHost(1)
    (item_id,) = put(host, b"x")
    take(host, worker="w:1", lease_ms=5_000)
    text = "Worker w:1 has leased it, and the lease ends in 5.0 s; see foqs topic stats t --ns n."

    def end() -> None:
        host.ask("ReleaseLeases", ns="n", topic="t", worker="w:1")

    return Case(host, item_id, R.LEASED, host.now_ms + 5_000, text, end)


def behind_in_order() -> Case:
    host = OneHost(1)
    first, item_id = put(host, b"x", b"x", order_key="k")
    (leased,) = take(host).items
    text = f"Item {first} of the same order key has not ended."

    def end() -> None:
        host.ask("Ack", items=[idl.AckItem(first, leased.lease)])

    return Case(host, item_id, R.BEHIND_IN_ORDER, None, text, end)


def paused() -> Case:
    host = OneHost(1)
    (item_id,) = put(host, b"x")
    asked(host)
    settle(host, 7, topic_t='{"paused": true}')
    text = "The settings entry topic.t pauses the topic; see foqs topic policy t --ns n."
    return Case(host, item_id, R.PAUSED, None, text, lambda: settle(host, 8))


def throttled() -> Case:
    host = OneHost(1)
    settle(host, 3, throttle_k='{"per_second": 0.1, "burst": 1}')
    host.wait(60_000)
    ids = [put(host, b"x", fairness_key=tenant, throttle_keys=["k"])[0] for tenant in "ab"]
    consumer = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=600_000)
    host.wait(1)
    (got,) = consumer.answer.items
    host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=600_000)
    host.wait(1)
    (left,) = {*ids} - {got.id}
    (key,) = host.engine.state.throttling.keys.values()
    until_ms = host.now_ms + host.engine.state.throttling.due_in_ms(key)
    wait_s = (until_ms - host.now_ms) / 1_000
    text = (
        f"Throttle key 'k' has no token here: this item gets the next one in about {wait_s:.1f} s; "
        "the limit is 0.1 deliveries a second, 1 at once: see foqs throttle list --ns n."
    )
    return Case(host, left, R.THROTTLED, until_ms, text, lambda: settle(host, 4))


def behind_in_lane() -> Case:
    host = OneHost(1)
    asked(host)
    before, item_id = sorted(put(host, b"x", b"y"))
    text = "1 ready item of the topic comes first, by priority and then by time."
    return Case(host, item_id, R.BEHIND_IN_LANE, None, text, lambda: host.ask("DeleteItems", ids=[before]))


def behind_in_turn() -> Case:
    """The tenant has another flow, which waits for a throttle; that takes no turn of anyone, and gives none away."""
    host = OneHost(1)
    settle(host, 1, throttle_k='{"per_second": 0.001}', throttle_s='{"per_second": 0.001, "shadow": true}')
    put(host, b"x", fairness_key="late", throttle_keys=["k"])
    host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)])
    host.wait(1)
    for _ in range(20):
        put(host, b"x", fairness_key="other", weight=3)
    (first,) = put(host, b"x", fairness_key="late", throttle_keys=["s"])
    (item_id,) = put(host, b"x", fairness_key="late", throttle_keys=["s"])
    while [item.id for item in take(host, 1).items] != [first]:
        pass
    turns = first_of(host, item_id).count
    assert turns >= 1
    text = (
        f"About {turns} turns of other tenants come first; by weight, tenant 'late' has 25.00% of the turns of the "
        "waiting tenants."
    )
    return Case(host, item_id, R.BEHIND_IN_TURN, None, text, lambda: take(host, turns))


def no_consumer() -> Case:
    host = OneHost(1)
    (item_id,) = put(host, b"x")
    text = (
        "No consumer waits for the topic on the item's host, and none has asked since it was ready; "
        "see foqs consumers --topic t --ns n."
    )
    return Case(host, item_id, R.NO_CONSUMER, None, text, lambda: asked(host))


def per_worker() -> Case:
    host = OneHost(1)
    settle(host, 1, topic_t='{"per_worker": 1}')
    first, item_id = put(host, b"x", b"y")
    (item,) = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 2)], worker="w:1").items
    assert item.id == first
    host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 2)], worker="w:1", wait_ms=60_000)
    host.wait(1)
    text = (
        "The consumer that waits for the topic on the item's host may have no more items: worker w:1 holds 1, as the "
        "settings entry topic.t allows. It has to end one, or another worker to ask."
    )
    return Case(host, item_id, R.PER_WORKER, None, text, lambda: settle(host, 2))


def not_loaded() -> Case:
    host = OneHost(1)
    (item_id,) = put(host, b"x")
    asked(host)
    item = host.engine.state.shards[1].memory.known[item_id]
    body, item.body = item.body, None
    text = "Its body is not in memory: a dequeue that needs it reads it."

    def end() -> None:
        item.body = body

    return Case(host, item_id, R.NOT_LOADED, None, text, end)


CASES = [
    gone, ended, not_served, clock_in_doubt, in_grace, broken, delayed, leased, behind_in_order, paused, throttled,
    behind_in_lane, behind_in_turn, per_worker, no_consumer, not_loaded,
]  # fmt: skip


@pytest.mark.parametrize("build", CASES)
def test_the_first_reason_its_time_and_its_end(build: Callable[[], Case]) -> None:
    case = build()
    answer = why(case.host, case.item_id)
    first = answer.reasons[0]
    assert (first.code, first.text, first.until_ms) == (case.code, case.text, case.until_ms)
    shown = Explanation.of(answer)
    words = [column.cells for column in reasons_table(shown, case.host.now_ms).columns]
    assert [next(iter(cells)) for cells in words][::2] == [code_name(shown.reasons[0]), case.text]
    if case.code != R.GONE:
        case.end()
        assert case.code not in [reason.code for reason in why(case.host, case.item_id).reasons]


def test_each_reason_of_the_contract_has_its_case() -> None:
    reserved = {R.UNSPECIFIED, R.CONCURRENCY}
    assert {build().code for build in CASES} == set(R._VALUES_TO_NAMES) - reserved


def test_an_item_comes_when_its_token_does() -> None:
    case = throttled()
    host, (consumer,) = case.host, case.host.engine.state.waiting["n", "t"]
    assert case.until_ms is not None
    host.wait(case.until_ms - host.now_ms - 1)
    assert not consumer.done
    host.wait(1)
    host.wait(1)
    assert consumer.done
    assert why(host, case.item_id).state == idl.ItemState.LEASED


@pytest.mark.parametrize("dead", [True, False])
def test_an_item_without_attempts_ends_as_it_says(dead: bool) -> None:
    host = OneHost(1)
    policy = '{"max_attempts": 2}' if dead else '{"max_attempts": 2, "dead": null}'
    item_id = tried(host, policy)
    first = first_of(host, item_id)
    assert (first.code, first.key, first.count) == (R.EXHAUSTED, "t.dlq" if dead else None, 2)
    assert first.text.endswith("moves it to the dead-letter topic t.dlq." if dead else "removes it.")
    assert why(host, item_id).eta_ms is None
    consumer = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)])
    host.wait(100)  # the dequeue reads the body first
    assert consumer.answer.items == []
    if dead:
        (item,) = take_from(host, "t.dlq")
        assert item.id == item_id
    else:
        assert first_of(host, item_id).code == R.GONE


def take_from(host: OneHost, topic: str) -> list[Any]:
    items: list[Any] = host.ask("Dequeue", ns="n", wants=[idl.TopicCount(topic, 1)]).items
    return items


def test_a_delayed_item_without_attempts_says_so() -> None:
    host = OneHost(1)
    (item_id,) = put(host, b"x")
    (item,) = take(host).items
    host.ask("Nack", items=[idl.NackItem(item.id, item.lease, delay_ms=5_000)])
    settle(host, 1, topic_t='{"max_attempts": 1}')
    first, second = why(host, item_id).reasons
    assert (first.code, second.code, second.until_ms) == (R.EXHAUSTED, R.DELAYED, host.now_ms + 5_000)
    assert first.text.startswith("Its 1 attempt is used up:")


def test_a_shadow_throttle_is_no_reason() -> None:
    host = OneHost(1)
    settle(host, 1, throttle_s='{"per_second": 0.001, "shadow": true}')
    ids = put(host, b"x", b"y", b"z", throttle_keys=["s"])
    call = host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 2)])
    host.wait(1)
    assert len(call.answer.items) == 2
    (left,) = set(ids) - {item.id for item in call.answer.items}
    assert why(host, left).reasons == []


def test_the_order_has_each_reason_of_the_contract_once() -> None:
    assert sorted(ORDER) == sorted(set(R._VALUES_TO_NAMES) - {R.UNSPECIFIED})
    assert {reason.name: int(reason) for reason in Reason} == {R._VALUES_TO_NAMES[code]: code for code in ORDER}
    reasons = [idl.ExplainReason(code, "") for code in sorted(ORDER)]
    assert [reason.code for reason in in_order(reasons)] == list(ORDER)
    assert ORDER.index(R.PER_WORKER) < ORDER.index(R.NO_CONSUMER) < ORDER.index(R.NOT_LOADED)


def test_the_contract_and_the_page_list_the_reasons_in_the_order() -> None:
    names = [R._VALUES_TO_NAMES[code] for code in ORDER]
    contract = (ROOT / "thrift" / "foqs.thrift").read_text()
    listed = contract[: contract.index("enum Reason")].rpartition("must end: ")[2].partition(". ")[0]
    assert "".join(listed.replace("*", "").split()).split(",") == names
    page = (ROOT / "docs/run/explain.md").read_text().partition("| reason | meaning |")[2].partition("\n\n")[0]
    assert [line.split("|")[1].strip().upper() for line in page.splitlines()[2:]] == names


def test_a_consumer_that_polls_at_its_limit_is_the_reason() -> None:
    host = OneHost(1)
    settle(host, 1, topic_x='{"per_worker": 2}')
    host.settings.apply(Settings("n", 2, {"topic.*": '{"per_worker": 2}'}))
    *_, item_id = put(host, *(b"x" for _ in range(9)))
    assert len(take(host, 9, worker="w").items) == 2
    assert take(host, 9, worker="w").items == []
    behind, reason = why(host, item_id).reasons
    assert (behind.code, reason.code, reason.by, reason.count, reason.key) == (
        R.BEHIND_IN_LANE, R.PER_WORKER, "w", 2, "topic.*",
    )  # fmt: skip
    (of_topic,) = host.ask("ExplainItem", ns="n", topic="t").reasons
    assert (of_topic.code, of_topic.text) == (R.PER_WORKER, reason.text)
    host.wait(1)
    take(host, 1, worker="other")
    assert host.ask("ExplainItem", ns="n", topic="t").reasons == []
    take(host, 1, worker="w")
    host.wait(10_000)
    assert [one.code for one in host.ask("ExplainItem", ns="n", topic="t").reasons] == [R.NO_CONSUMER]
    assert not host.engine.state.holdings.full, "it is forgotten"


def test_a_consumer_of_several_topics_may_be_at_its_limit() -> None:
    host = OneHost(1)
    settle(host, 1, topic_t='{"per_worker": 1}')
    _, item_id = put(host, b"x", b"y")
    wants = [idl.TopicCount("t", 5), idl.TopicCount("other", 5)]
    for expected in (1, 0):
        host.wait(1)
        assert len(host.ask("Dequeue", ns="n", wants=wants, worker="w", most=5).items) == expected
    assert [one.code for one in why(host, item_id).reasons] == [R.PER_WORKER]


def test_a_consumer_with_room_is_no_reason() -> None:
    host = OneHost(1)
    settle(host, 1, topic_t='{"per_worker": 1}', throttle_k='{"per_second": 0.001, "burst": 1}')
    put(host, b"x", b"y", b"z", throttle_keys=["k"])
    wants = [idl.TopicCount("t", 1)]
    host.call("Dequeue", ns="n", wants=wants, worker="w")
    host.wait(1)
    for worker in ("w", "w", "free"):
        host.call("Dequeue", ns="n", wants=wants, worker=worker, wait_ms=60_000)
    host.wait(1)
    assert R.PER_WORKER not in [one.code for one in host.ask("ExplainItem", ns="n", topic="t").reasons]
