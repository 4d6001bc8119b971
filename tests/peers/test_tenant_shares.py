"""Hosts report to each other what they delivered, and balance the tenants of their topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from foqs.errors import Invalid, LostReply
from foqs.fairness.balance import BEAT_MS, SILENT_MS
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.support.one_host import OneHost, routing_of

pytestmark = pytest.mark.memory

ROUTING = routing_of({1: "a", 2: "b", 3: "c"})
KEY = ("n", "t")
WEIGHTS = {"x": 1, "y": 2, "z": 4}
_TICK_MS = 50


class Trio:
    """Three hosts of the same speed. Tenants always have items on their hosts; messages take no time."""

    def __init__(self, placement: Mapping[str, str], *, balance: bool = True) -> None:
        """`placement`: the hosts that have items of each tenant."""
        self.hosts = {name: OneHost(number, routing=ROUTING, name=name) for number, name in enumerate("abc", 1)}
        for name, host in self.hosts.items():
            if not balance:
                host.engine.apply_settings(Settings("n", 1, {"topic.t": '{"fair": {"balance": false}}'}))
            for tenant, at in placement.items():
                if name in at:
                    put(host, tenant, 20)
            host.shares.begin()
        self.delivered: Counter[str] = Counter()

    def run(self, seconds: int, items_a_tick: int = 5) -> Counter[str]:
        """Return how many items of each tenant were delivered."""
        before = self.delivered.copy()
        for _ in range(seconds * 1_000 // _TICK_MS):
            for host in self.hosts.values():
                items = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", items_a_tick)]).items
                for tenant, count in Counter(item.fairness_key or "" for item in items).items():
                    self.delivered[tenant] += count
                    put(host, tenant, count)
                host.ask("Ack", items=[idl.AckItem(item.id, item.lease) for item in items])
            for host in self.hosts.values():
                host.wait(_TICK_MS)
            self.carry()
        return self.delivered - before

    def carry(self) -> None:
        for host in self.hosts.values():
            while reports := host.to("TellShares"):
                there = self.hosts[reports[0].address.removesuffix(":1")]
                host.reply("TellShares", there.ask("TellShares", **fields_of(reports[0].request)))


def put(host: OneHost, tenant: str, count: int) -> None:
    key = tenant or None
    specs = [idl.ItemSpec(topic="t", payload=b"", fairness_key=key, weight=WEIGHTS.get(tenant)) for _ in range(count)]
    assert all(one.error is None for one in host.ask("Enqueue", ns="n", items=specs).outcomes)


def fields_of(request: Any) -> dict[str, Any]:
    return {"host": request.host, "topics": request.topics}


def shares(delivered: Counter[str]) -> dict[str, float]:
    return {tenant: count / delivered.total() for tenant, count in delivered.items()}


# ------------------------------------------------------------------------------------------ three hosts


def test_a_tenant_on_one_host_gets_its_due() -> None:
    trio = Trio({"x": "a", "y": "abc", "z": "abc"})
    trio.run(10)
    assert shares(trio.run(10)) == pytest.approx({"x": 1 / 7, "y": 2 / 7, "z": 4 / 7}, rel=0.05)


def test_without_the_balance_it_gets_a_third() -> None:
    trio = Trio({"x": "a", "y": "abc", "z": "abc"}, balance=False)
    trio.run(5)
    assert shares(trio.run(5))["x"] == pytest.approx(1 / 21, rel=0.05)
    assert not any(host.to("TellShares") for host in trio.hosts.values())


def test_a_host_with_one_tenant_reports_as_well() -> None:
    """Host a gives x its due of what b and c deliver of y, although those have nothing to balance."""
    trio = Trio({"x": "a", "y": "abc"})
    trio.run(10)
    assert shares(trio.run(5)) == pytest.approx({"x": 1 / 3, "y": 2 / 3}, rel=0.05)


def test_items_without_a_fairness_key_are_balanced_too() -> None:
    """The topic is a plain one on b and c, until a reports on its tenants."""
    trio = Trio({"x": "ab", "": "abc"})
    trio.run(10)
    assert shares(trio.run(5)) == pytest.approx({"x": 1 / 2, "": 1 / 2}, rel=0.05)
    trio = Trio({"x": "a", "": "bc"})
    trio.run(2)
    assert all(KEY not in trio.hosts[name].engine.state.topics.in_turns for name in "bc"), "a has nothing to balance"


def factors(host: OneHost) -> dict[str, float]:
    return {one.name: one.factor for one in host.engine.state.topics[KEY].turns.tenants.values()}


@pytest.mark.parametrize("entries", [{"weight.x": "8"}, {"topic.t": '{"fair": {"weights": {"x": 8}}}'}])
def test_shares_of_three_hosts_follow_a_change_of_weights(entries: dict[str, str]) -> None:
    """Also where the entry is removed again."""
    trio = Trio({"x": "abc", "y": "abc", "z": "abc"})
    trio.run(6)
    for version, found, x in ((1, entries, 8), (2, {}, 1)):
        for host in trio.hosts.values():
            host.engine.apply_settings(Settings("n", version, found))
        for _ in range(6):
            part = shares(trio.run(1))
            assert part == pytest.approx({"x": x / (x + 6), "y": 2 / (x + 6), "z": 4 / (x + 6)}, abs=0.02)


def test_shares_follow_another_unit() -> None:
    trio = Trio({"x": "abc", "y": "abc", "z": "abc"})
    trio.run(4)
    for host in trio.hosts.values():
        host.engine.apply_settings(Settings("n", 1, {"topic.t": '{"fair": {"unit": "bytes"}}'}))
    for _ in range(4):
        assert shares(trio.run(1)) == pytest.approx({"x": 1 / 7, "y": 2 / 7, "z": 4 / 7}, abs=0.02)


def test_weights_return_when_the_policy_forbids_the_balance() -> None:
    trio = Trio({"x": "a", "y": "abc", "z": "abc"})
    trio.run(4)
    host = trio.hosts["a"]
    assert factors(host)["x"] > 2 * factors(host)["y"]
    host.engine.apply_settings(Settings("n", 1, {"topic.t": '{"fair": {"balance": false}}'}))
    host.wait(BEAT_MS)
    assert factors(host) == {"x": 1, "y": 1, "z": 1}
    assert not host.to("TellShares")


def test_weights_return_when_other_hosts_are_silent() -> None:
    trio = Trio({"x": "a", "y": "abc", "z": "abc"})
    trio.run(4)
    host = trio.hosts["a"]
    for _ in range(30 * SILENT_MS // BEAT_MS):
        host.wait(BEAT_MS)
    assert factors(host) == {"x": 1, "y": 1, "z": 1}
    assert {one.name: one.weight for one in host.engine.state.topics[KEY].turns.tenants.values()} == WEIGHTS


# ------------------------------------------------------------------------------------------ one host


@pytest.fixture
def host() -> OneHost:
    host = OneHost(1, routing=ROUTING)
    host.shares.begin()
    return host


def report(host: OneHost, sender: str = "b", **served: int) -> Any:
    topic = idl.TopicShare(*KEY, [idl.TenantShare(tenant, count) for tenant, count in served.items()])
    return host.ask("TellShares", host=sender, topics=[topic])


def test_a_topic_with_one_tenant_is_not_reported(host: OneHost) -> None:
    put(host, "x", 5)
    host.wait(BEAT_MS)
    assert not host.to("TellShares")
    put(host, "y", 5)
    host.wait(BEAT_MS)
    (topic,) = host.to("TellShares")[0].request.topics
    assert topic == idl.TopicShare(*KEY, [idl.TenantShare("x", 0), idl.TenantShare("y", 0)])
    assert sorted(sent.address for sent in host.to("TellShares")) == ["b:1", "c:1"]


def test_a_plain_topic_is_not_reported(host: OneHost) -> None:
    put(host, "", 5)
    host.wait(BEAT_MS)
    assert not host.to("TellShares")
    assert not host.engine.state.topics.in_turns


def test_a_host_with_one_tenant_reports_while_another_has_two(host: OneHost) -> None:
    put(host, "x", 5)
    report(host, x=1)
    host.wait(BEAT_MS)
    assert not host.to("TellShares")
    report(host, x=1, y=1)
    host.wait(BEAT_MS)
    assert len(host.to("TellShares")) == 2


def test_a_host_that_does_not_answer_is_asked_once(host: OneHost) -> None:
    put(host, "x", 5)
    put(host, "y", 5)
    host.wait(BEAT_MS)
    host.wait(BEAT_MS)
    assert len(host.to("TellShares")) == 2
    host.reply("TellShares", LostReply("late"))
    host.wait(BEAT_MS)
    assert len(host.to("TellShares")) == 2


def test_topics_beyond_a_report_come_in_the_next(host: OneHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.peers.tenant_shares.MOST_SHARES", 3)
    for number in range(5):
        for tenant in "xy":
            item = idl.ItemSpec(topic=f"t{number}", payload=b"", fairness_key=tenant)
            host.ask("Enqueue", ns="n", items=[item])
    seen = []
    for _ in range(4):
        host.wait(BEAT_MS)
        seen.append([topic.topic for topic in host.to("TellShares")[0].request.topics])
        while host.to("TellShares"):
            host.reply("TellShares", idl.TellSharesResponse())
    assert seen == [["t0", "t1"], ["t2", "t3"], ["t4"], ["t0", "t1"]]


def test_the_heaviest_of_very_many_tenants_are_reported(host: OneHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs.peers.tenant_shares.MOST_TENANTS", 2)
    for tenant in "xyz":
        put(host, tenant, 5)
    host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 6)])  # weights are read at the first turn
    host.wait(BEAT_MS)
    (topic,) = host.to("TellShares")[0].request.topics
    assert [one.fairness_key for one in topic.tenants] == ["z", "y"]


def test_turns_that_a_report_begins_follow_the_policy(host: OneHost) -> None:
    host.engine.apply_settings(Settings("n", 1, {"topic.t": '{"fair": {"unit": "bytes"}}'}))
    put(host, "", 5)
    host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)])
    report(host, x=1, y=1)
    host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)])
    assert host.engine.state.topics[KEY].turns.unit == "bytes"


def test_a_topic_that_ends_is_forgotten(host: OneHost) -> None:
    put(host, "x", 1)
    report(host, x=1, y=1)
    host.wait(BEAT_MS)
    (item,) = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)]).items
    host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])
    report(host, x=1, y=1)
    while KEY in host.engine.state.topics:
        host.wait(60_000)
    report(host, x=1, y=1)
    host.wait(BEAT_MS)
    assert not host.engine.state.topics.in_turns
    assert not host.shares._shared


def test_fields_of_a_report_are_checked(host: OneHost) -> None:
    share = idl.TenantShare("x", 5)

    def wrong(host_id: str | None, *tenants: Any, ns: str | None = "n", topics: int = 1) -> str:
        topic = idl.TopicShare(ns, "t", list(tenants))
        answer = host.ask("TellShares", host=host_id, topics=[topic] * topics)
        assert type(answer) is Invalid, answer
        return answer.message

    assert wrong(None, share) == "host is missing"
    assert wrong("b", share, ns=None) == "ns is missing"
    assert wrong("b", idl.TenantShare("x", -1)) == "served is missing, or below 0"
    assert wrong("b", idl.TenantShare("x", None)) == "served is missing, or below 0"
    assert wrong("b", idl.TenantShare("a" * 300, 1)).startswith("fairness_key")
    assert wrong("b", *[share] * 257) == "tenants: more than 256"
    assert wrong("b", *[share] * 256, topics=17) == "topics: more than 4096 tenants"
