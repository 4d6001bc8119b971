"""A tenant that its topic's policy pauses (`paused_tenants`): its items wait, and cost other tenants nothing."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from foqs.errors import Invalid
from foqs.idl import idl
from foqs.ids import shard_of
from foqs.policies.settings import Settings
from foqs.policies.topic_policy import parse
from tests.api.test_throttles import Throttled
from tests.api.wire import spec

pytestmark = pytest.mark.memory

R = idl.Reason


def pausing(*tenants: str, **more: str) -> dict[str, str]:
    return {"topic.t": json.dumps({"paused_tenants": list(tenants)}), **more}


def host_with(entries: dict[str, str] | None = None, *shards: int) -> Throttled:
    return Throttled(entries or {}, *shards)


def served(host: Throttled, count: int = 100, wait_ms: int = 0) -> Counter[str]:
    call = host.dequeue(count, wait_ms=wait_ms)
    if not call.answers:
        host.wait(1)
    return Counter(item.fairness_key or "" for item in call.answer.items)


@pytest.mark.parametrize("when", ["before its items", "after its items", "in another owner's hands"])
def test_only_the_items_of_a_paused_tenant_wait(when: str) -> None:
    host = host_with(pausing("a") if when == "before its items" else None)
    for tenant in ("a", "b", None):
        host.put(3, tenant=tenant)
    host.apply(pausing("a"))
    if when == "in another owner's hands":
        host.reopen()
        served(host)  # reads the pages
    assert served(host) + served(host) <= Counter({"b": 3, "": 3})
    host.apply({})
    assert served(host)["a"] == 3


def test_the_tenant_without_a_key_is_an_empty_text() -> None:
    host = host_with()
    host.put(3)
    host.apply(pausing(""))
    host.put(2)
    assert served(host) == Counter()
    host.put(2, tenant="b")
    assert served(host) == Counter(b=2)
    host.apply({})
    assert served(host) == Counter({"": 5})


def test_a_consumer_that_waits_gets_its_items_at_the_resume() -> None:
    host = host_with(pausing("a"))
    call = host.dequeue(10, wait_ms=60_000)
    host.put(3, tenant="a")
    host.wait(1_000)
    assert not call.answers
    host.apply(pausing("b"))
    assert len(call.answer.items) == 3


def test_a_consumer_that_waits_gets_items_of_another_tenant() -> None:
    host = host_with(pausing("a"))
    host.put(3, tenant="a")
    call = host.dequeue(10, wait_ms=60_000)
    host.put(1, tenant="b")
    assert [item.fairness_key for item in call.answer.items] == ["b"]


def test_leases_that_are_committed_first_are_given_back() -> None:
    """The tenant is paused between the choice of an at-most-once item and its delivery."""
    host = host_with(None, 1)
    host.ask("Enqueue", ns="n", items=[spec("t", b"x", fairness_key="a", delivery=idl.Delivery.AT_MOST_ONCE)])
    call = host.begin("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=0)
    sent = host.send()
    assert sent and not call.answers, "the lease is being committed"
    host.version += 1
    host.settings.apply(Settings("n", host.version, pausing("a")))
    for shard, batch in sent:
        host.arrive(shard, batch)
    host.run()
    host.wait(100)
    assert list(call.answer.items) == []
    host.apply({})
    assert served(host) == Counter(a=1)


def test_no_credit_for_the_time_of_the_pause() -> None:
    """Promise 10: the turns are equal from the resume on."""
    host = host_with(pausing("a"), 1)
    host.put(100, tenant="a")
    host.put(100, tenant="b")
    assert served(host, 50) == Counter(b=50)
    host.apply({})
    first = served(host, 40)
    assert abs(first["a"] - first["b"]) <= 2, first


def test_a_pause_forgives_no_debt_of_its_turns() -> None:
    host = host_with(None, 1)
    host.put(100, tenant="a")
    assert served(host, 10) == Counter(a=10)
    host.put(100, tenant="b")
    host.apply(pausing("a"))
    host.apply({})
    found = served(host, 40)
    assert abs(found["a"] - found["b"]) <= 12, found


@pytest.mark.parametrize("scope", ["tenant", "topic"])
def test_urgent_items_of_a_paused_tenant_hold_nothing_up(scope: str) -> None:
    entry = {"paused_tenants": ["a"], "fair": {"scope": scope}}
    host = host_with({"topic.t": json.dumps(entry)})
    host.ask("Enqueue", ns="n", items=[spec("t", b"x", fairness_key="a", priority=-9) for _ in range(3)])
    host.put(3, tenant="b")
    assert served(host, 2) == Counter(b=2)
    host.apply({"topic.t": json.dumps({"fair": {"scope": scope}})})
    assert served(host, 3)["a"] >= 2


def parked(host: Throttled, entry: str) -> None:
    """Let flows of the tenants a and b wait at `throttle.api`, a the longest."""
    host.apply({"throttle.api": entry})
    host.put(3, "api", tenant="a")
    assert host.got(1) == 1
    host.dequeue(1)
    host.wait(10)
    host.put(3, "api", tenant="b")
    host.dequeue(10)
    host.wait(10)


def test_a_paused_tenant_leaves_the_token_to_another() -> None:
    """Promise 12: its flow has waited longest, and would get the next token."""
    host = host_with()
    parked(host, '{"per_second": 1, "burst": 1}')
    call = host.dequeue(1, wait_ms=60_000)
    host.apply(pausing("a", **{"throttle.api": '{"per_second": 1, "burst": 1}'}))
    host.pass_ms(1_500)
    assert [item.fairness_key for item in call.answer.items] == ["b"]
    host.apply({"throttle.api": '{"per_second": 1, "burst": 1}'})
    got: list[str] = []
    for _ in range(4):
        again = host.dequeue(1, wait_ms=60_000)
        host.pass_ms(1_500)
        got += [item.fairness_key for item in again.answer.items]
    assert Counter(got) == Counter(a=2, b=2)


def test_a_paused_tenant_leaves_the_slot_to_another() -> None:
    host = host_with(None, 1)
    parked(host, '{"concurrency": 1}')
    item = next(iter(host.engine.state.shards[1].memory.known.values()))
    held = [one for one in host.engine.state.shards[1].memory.known.values() if one.lease]
    assert item and len(held) == 1
    call = host.dequeue(1, wait_ms=60_000)
    host.apply(pausing("a", **{"throttle.api": '{"concurrency": 1}'}))
    host.ask("Ack", items=[idl.AckItem(held[0].id, held[0].lease)])
    host.pass_ms(1_500)
    assert [one.fairness_key for one in call.answer.items] == ["b"]


def test_a_token_that_was_kept_for_a_paused_tenant_is_free() -> None:
    """Its flow keeps a token of the slow key while it waits for the fast one."""
    both = {"throttle.slow": '{"per_second": 0.01, "burst": 1}', "throttle.none": '{"per_second": 0.02, "burst": 1}'}
    host = host_with()
    host.apply(both)
    host.wait(200_000)
    host.put(1, "none", tenant="x")
    assert host.got() == 1  # the faster key is dry
    host.put(1, "slow", "none", tenant="a")
    host.dequeue(1)
    host.pass_ms(50)
    host.put(1, "slow", tenant="b")
    call = host.dequeue(1, wait_ms=600_000)
    host.pass_ms(600)
    host.apply(pausing("a", **both))
    host.pass_ms(600)
    assert [one.fairness_key for one in call.answer.items] == ["b"]


def reasons(host: Throttled, **what: Any) -> list[Any]:
    return [one for one in host.ask("ExplainItem", **what).reasons if one.code == R.PAUSED]


def test_explanations_name_the_entry_and_the_tenant() -> None:
    host = host_with(pausing("a", ""))
    (item, plain) = host.ask("Enqueue", ns="n", items=[spec("t", b"x", fairness_key="a"), spec("t", b"x")]).outcomes
    (reason,) = reasons(host, id=item.id)
    assert (reason.key, reason.tenant) == ("topic.t", "a")
    assert reason.text == ("The settings entry topic.t pauses tenant 'a' of the topic; see foqs topic policy t --ns n.")
    (reason,) = reasons(host, id=plain.id)
    assert (reason.key, reason.tenant) == ("topic.t", "")
    assert "pauses the items of the topic without a fairness key" in reason.text
    (reason,) = reasons(host, ns="n", topic="t")
    assert (reason.key, reason.tenant, reason.count) == ("topic.t", None, 2)
    assert reason.text == (
        "2 tenants with ready items are paused by the settings entry topic.t, and no other one has any; "
        "see foqs topic tenants t --ns n."
    )
    host.put(1, tenant="b")
    assert reasons(host, ns="n", topic="t") == []


def test_a_topic_of_paused_and_throttled_tenants_says_both() -> None:
    host = host_with()
    parked(host, '{"per_second": 1, "burst": 1}')
    host.apply(pausing("a", **{"throttle.api": '{"per_second": 1, "burst": 1}'}))
    (reason,) = reasons(host, ns="n", topic="t")
    assert "and the items of the other ones wait for throttles; see" in reason.text
    found = host.ask("GetTopicStats", ns="n", topic="t")
    assert (found.ready, found.ready_paused, found.ready_throttled) == (5, 2, 3)


def test_listed_topics_say_what_holds_their_ready_items() -> None:
    host = host_with()
    parked(host, '{"per_second": 1, "burst": 1}')
    host.apply(pausing("a", **{"throttle.api": '{"per_second": 1, "burst": 1}', "topic.u": '{"paused": true}'}))
    host.put(2, topic="u")
    host.put(1, topic="v.dlq")
    found = {one.topic: one for one in host.ask("GetActiveTopics", ns="n", all=True).topics}
    counts = {name: (one.ready, one.ready_paused, one.ready_throttled, one.dead) for name, one in found.items()}
    assert counts == {"t": (5, 2, 3, None), "u": (2, 2, 0, None), "v.dlq": (1, 0, 0, True)}
    (plain, *_) = host.ask("GetActiveTopics", ns="n").topics
    assert (plain.ready_paused, plain.ready_throttled, plain.dead) == (None, None, None), (
        "only where they are asked for"
    )


def test_an_empty_answer_says_why() -> None:
    host = host_with(pausing("a"))
    host.put(1, tenant="a")
    assert host.dequeue().answer.reason == "paused_tenants"
    host.put(1, tenant="b")
    assert len(host.dequeue().answer.items) == 1
    host.apply({"topic.t": '{"paused": true, "paused_tenants": ["a"]}'})
    assert host.dequeue().answer.reason == "paused"


def test_the_statistics_mark_it() -> None:
    host = host_with(pausing("a", "c"))
    host.put(2, tenant="a")
    host.put(1, tenant="b")
    found = {one.fairness_key: one for one in host.ask("GetTopicStats", ns="n", topic="t").tenants}
    assert (found["a"].paused, found["a"].ready, found["a"].parked, found["a"].share) == (True, 2, 2, 0.0)
    assert (found["b"].paused, found["b"].share) == (False, 1.0)


def test_a_topic_of_paused_tenants_is_not_published() -> None:
    host = host_with(pausing("a"))
    host.put(2, tenant="a")
    assert host.engine.ready(("n", "t")) == 0
    host.apply({})
    assert host.engine.ready(("n", "t")) == 2
    host.apply(pausing("a"))
    assert host.engine.ready(("n", "t")) == 0


def test_many_paused_tenants_cost_a_dequeue_nothing() -> None:
    """A dequeue looks at none of them."""
    names = [f"t{at}" for at in range(300)]
    host = host_with({}, 1)
    for name in names:
        host.put(1, tenant=name)
    host.put(5, tenant="live")
    host.apply(pausing(*names))
    turns = host.engine.state.topics[("n", "t")].turns
    assert turns is not None
    seen: list[str] = []
    first = turns.first

    def look() -> Any:
        found = first()
        seen.append("" if found is None else found.name)
        return found

    turns.first = look  # type: ignore[method-assign]
    assert served(host, 3) == Counter(live=3)
    assert set(seen) <= {"live"}


def test_what_a_policy_may_name() -> None:
    host = host_with()
    answer = host.ask("PutSettings", ns="n", entries={"topic.t": json.dumps({"paused_tenants": ["x\n"]})}, remove=[])
    assert "paused_tenants[0]" in answer.message or "paused_tenants.0" in answer.message, answer.message
    with pytest.raises(Invalid, match="paused_tenants"):
        parse(json.dumps({"paused_tenants": ["a"] * 1_001}))
    assert parse('{"paused_tenants": ["", "a"]}').paused_tenants == ("", "a")


def test_shards_and_tenants_that_come_later_are_paused() -> None:
    host = host_with(pausing("a"), 1, 2)
    host.put(2, tenant="b")
    for _ in range(6):
        host.put(1, tenant="a")
    shards = {shard_of(item.id) for item in host.ask("ListItems", ns="n", topic="t", fairness_key="a").items}
    assert shards
    host.reopen()
    served(host)
    assert served(host)["a"] == 0


def test_an_item_with_a_throttle_key_gets_another_place() -> None:
    """It waits for its token there, and the parked flow counts its items."""
    host = host_with({"throttle.api": '{"per_second": 1, "burst": 1}'})
    specs = [spec("t", b"%d" % at, throttle_keys=["api"], fairness_key="x") for at in range(3)]
    _, second, third = [one.id for one in host.ask("Enqueue", ns="n", items=specs).outcomes]
    assert host.got(1) == 1
    host.dequeue(3)
    host.wait(10)
    host.ask("ChangeItems", ids=[third], priority=-1)
    host.ask("ChangeItems", ids=[second], delay_ms=600_000)
    call = host.dequeue(3, wait_ms=60_000)
    host.pass_ms(1_500)
    assert [item.payload for item in call.answer.items] == [b"2"]
    assert host.engine.ready(("n", "t")) == 0
