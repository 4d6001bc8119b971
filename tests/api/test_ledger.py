"""Ledgers of delivered items: what they waited for."""

from __future__ import annotations

import random
from typing import Any

import pytest

from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.support.one_host import OneHost, put, routing_of, take

pytestmark = pytest.mark.memory


def ledgers(answer: Any) -> list[tuple[int, int | None]]:
    return [(item.ledger.waited_ms, item.ledger.overtaken) for item in answer.items]


def test_an_item_says_how_long_it_waited_and_what_overtook_it() -> None:
    one = OneHost(1, 2)
    put(one, b"before")
    assert ledgers(take(one, ledger=True)) == [(0, None)], "it was ready before the first question"
    put(one, b"x", b"y")
    one.wait(1_000)
    put(one, b"later", delay_ms=2_000)
    put(one, b"urgent", priority=-1)
    assert ledgers(take(one, 2, ledger=True)) == [(0, 0), (1_000, 1)]
    one.wait(2_000)
    one.wait(1_000)
    rest = ledgers(take(one, ledger=True)) + ledgers(take(one, ledger=True))  # a shard is confirmed between the two
    assert rest == [(4_000, 1), (1_000, 0)]


def test_an_item_that_was_given_back_begins_again() -> None:
    one = OneHost(1)
    take(one, ledger=True)
    put(one, b"x", priority=3)
    put(one, b"urgent")
    first, second = take(one, ledger=True).items
    assert (first.ledger.overtaken, second.ledger.overtaken) == (0, 1)
    one.ask("Nack", items=[idl.NackItem(second.id, second.lease, delay_ms=500)])
    one.wait(1_500)
    (again,) = take(one, ledger=True).items
    assert (again.ledger.waited_ms, again.ledger.overtaken, again.attempt) == (1_000, 0, 2)


def test_a_consumer_that_does_not_ask_gets_none() -> None:
    one = OneHost(1)
    put(one, b"x", b"y")
    take(one, 1, ledger=True)
    put(one, b"z")
    assert [item.ledger for item in take(one).items] == [None, None]
    assert one.engine.state.topics.ledgers[("n", "t")].delivered == 3
    one.wait(60_000)
    one.wait(1_000)
    assert one.engine.state.topics.ledgers == {}


def of_tenants(answer: Any) -> list[tuple[str, int | None, int | None]]:
    return [(item.fairness_key, item.ledger.overtaken, item.ledger.other_tenants) for item in answer.items]


def test_tenants_take_turns_without_overtaking() -> None:
    one = OneHost(1)
    take(one, ledger=True)
    for tenant in "ab":
        for _ in range(3):
            put(one, b"x", fairness_key=tenant, priority=5)
    first = of_tenants(take(one, 4, ledger=True))
    assert {tenant for tenant, _, _ in first} == {"a", "b"}
    put(one, b"urgent", fairness_key="a")
    second = of_tenants(take(one, 10, ledger=True))
    order = [tenant for tenant, _, _ in first + second]
    given = [len(order[:at]) - order[:at].count(tenant) for at, tenant in enumerate(order)]
    urgent = len(first) + order[len(first) :].index("a")
    given[urgent] -= order[: len(first)].count("b")  # it was not there yet
    assert [others for _, _, others in first + second] == given
    overtaken = [int(at > urgent and tenant == "a") for at, tenant in enumerate(order)]
    assert [own for _, own, _ in first + second] == overtaken


def test_a_flow_that_waits_for_a_token_is_overtaken() -> None:
    one = OneHost(1)
    one.settings.apply(Settings("n", 1, {"throttle.k": '{"per_second": 0.5}'}))
    take(one, ledger=True)
    (held,) = put(one, b"x", throttle_keys=["k"], fairness_key="a")
    one.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)])
    one.wait(1)  # the coordinator answers that it has no token yet
    put(one, b"x", priority=5, fairness_key="a")
    put(one, b"urgent", fairness_key="a")
    found = of_tenants(take(one, ledger=True))
    assert found == [("a", 0, 0), ("a", 1, 0)], "the parked flow is not before them"
    (second,) = put(one, b"y", throttle_keys=["k"], fairness_key="a")
    for item_id, overtaken in ((held, 2), (second, 0)):
        call = one.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=60_000, ledger=True)
        while not call.answers:
            one.wait(1_000)
        assert [item.id for item in call.answer.items] == [item_id]
        assert of_tenants(call.answer) == [("a", overtaken, 0)]


def test_an_item_beside_very_many_lanes_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.engine.shard_memory._MERGED", 2)
    one = OneHost(1)
    take(one, ledger=True)
    for key in ("k", "l", "m"):
        put(one, b"x", throttle_keys=[key])
    assert sorted(str(item.ledger.overtaken) for item in take(one, ledger=True).items) == ["0", "0", "None"]


def test_a_forwarded_dequeue_asks_for_ledgers() -> None:
    member = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    member.forwarder.watch._learn("b:1", ("n", "t"), 1, 1)  # type: ignore[union-attr]
    call = member.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)], wait_ms=1_000, ledger=True)
    item = idl.Item(2 << 48 | 1, 5, 1, "n", "t", ledger=idl.Ledger(7, 3))
    assert member.reply("Dequeue", idl.DequeueResponse([item])).ledger is True
    assert ledgers(call.answer) == [(7, 3)]


def test_an_ack_and_dequeue_asks_for_ledgers() -> None:
    one = OneHost(1)
    take(one, ledger=True)
    put(one, b"x")
    answer = one.ask("AckAndDequeue", ns="n", acks=[], wants=[idl.TopicCount("t", 1)], ledger=True)
    assert ledgers(answer) == [(0, 0)]


@pytest.mark.parametrize("seed", range(8))
def test_numbers_of_random_runs_are_those_of_a_list(seed: int) -> None:
    """Beside the host, a list knows all items in their order."""
    dice, one = random.Random(seed), OneHost(1)
    tenants = ["a", "b", "c"] if seed % 2 else [""]
    take(one, ledger=True)
    ahead: dict[int, set[int]] = {}
    since: dict[int, int] = {}
    ready: dict[int, tuple[str, int, int]] = {}
    given: list[tuple[str, int]] = []

    def became_ready(item_id: int, tenant: str, priority: int, after_ms: int) -> None:
        ahead[item_id] = {
            other for other, (name, urgency, at_ms) in ready.items()
            if name == tenant and (urgency, at_ms, other) < (priority, after_ms, item_id)
        }  # fmt: skip
        since[item_id] = len(given)
        ready[item_id] = (tenant, priority, after_ms)

    for _ in range(150):
        if dice.random() < 0.6:
            tenant, priority = dice.choice(tenants), dice.randrange(3)
            (item_id,) = put(one, b"x", fairness_key=tenant, priority=priority)
            became_ready(item_id, tenant, priority, one.now_ms)
        else:
            items = take(one, dice.randrange(1, 4), ledger=True).items
            for item in items:
                tenant = ready.pop(item.id)[0]
                later = given[since[item.id] :]
                before = ahead[item.id]
                own = 0
                for name, other in later:
                    own += name == tenant and other not in before
                    before.discard(other)  # another delivery of it overtakes
                others = sum(name != tenant for name, _ in later)
                assert (item.ledger.overtaken, item.ledger.other_tenants) == (own, others if seed % 2 else None)
                given.append((tenant, item.id))
            for item in [item for item in items if dice.random() < 0.2]:
                one.ask("Nack", items=[idl.NackItem(item.id, item.lease)])
                became_ready(item.id, item.fairness_key or "", item.priority, item.deliver_after_ms)
        one.now_ms += dice.randrange(3)
