"""Ledgers say which more urgent items other hosts have."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.errors import Invalid
from foqs.fairness.balance import BEAT_MS
from foqs.fairness.keys import TopicKey
from foqs.idl import idl
from foqs.peers import tenant_shares
from foqs.peers.tenant_shares import HEARD_MS, Elsewhere, Urgent
from foqs.policies.settings import Settings
from tests.peers.nodes import Cluster
from tests.support.one_host import OneHost, put, routing_of, take
from tests.support.waiting import wait_until

KEY = ("n", "t")
ROUTING = routing_of({1: "a", 2: "b"})


class Rig:
    def __init__(self, *keys: TopicKey) -> None:
        self.now_ms = 1_000
        self.wanted = dict.fromkeys(keys)
        self.elsewhere = Elsewhere(self.wanted, lambda: self.now_ms)


def test_the_most_urgent_of_all_hosts_counts_for_a_while() -> None:
    rig = Rig(KEY)
    assert rig.elsewhere.most_urgent(KEY) is None
    rig.elsewhere.heard("b:1", [KEY], [5])
    rig.now_ms += 400
    rig.elsewhere.heard("c:1", [KEY], [7])
    rig.now_ms += 100
    assert rig.elsewhere.most_urgent(KEY) == Urgent(5, 500)
    rig.elsewhere.heard("b:1", [KEY], [None])
    assert rig.elsewhere.most_urgent(KEY) == Urgent(7, 100)
    rig.now_ms += HEARD_MS - 101
    assert rig.elsewhere.most_urgent(KEY) == Urgent(7, HEARD_MS - 1)
    rig.now_ms += 1
    assert rig.elsewhere.most_urgent(KEY) is None


def test_only_wanted_topics_are_asked_for_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_shares, "MOST_ASKED", 2)
    keys = [("n", name) for name in "abc"]
    rig = Rig(*keys)
    assert [rig.elsewhere.ask() for _ in range(3)] == [keys[:2], keys[2:], keys[:2]]
    rig.elsewhere.heard("b:1", [*keys, KEY], [1, 2, 3, 4])
    rig.elsewhere.heard("old:1", keys, [])
    assert [rig.elsewhere.most_urgent(key) for key in (keys[2], KEY)] == [Urgent(3, 0), None]
    rig.wanted.clear()
    rig.elsewhere.ask()
    assert rig.elsewhere.ask() == []
    assert rig.elsewhere.most_urgent(keys[2]) is None


# ------------------------------------------------------------------------------------------ hosts


@pytest.fixture
def pair() -> tuple[OneHost, OneHost]:
    a, b = (OneHost(number, routing=ROUTING, name=name) for number, name in enumerate("ab", 1))
    a.shares.begin()
    return a, b


def beat(a: OneHost, b: OneHost) -> int:
    """Let host a ask b; return how many requests that took."""
    a.wait(BEAT_MS)
    b.wait(BEAT_MS)
    requests = a.to("TellShares")
    for sent in requests:
        request = sent.request
        a.reply("TellShares", b.ask("TellShares", host="a", topics=request.topics, urgent=request.urgent))
    return len(requests)


def told(answer: Any) -> list[tuple[int | None, int | None]]:
    return [(one.ledger.more_urgent_elsewhere, one.ledger.more_urgent_age_ms) for one in answer.items]


@pytest.mark.memory
def test_hosts_ask_only_while_a_consumer_wants_ledgers(pair: tuple[OneHost, OneHost]) -> None:
    a, b = pair
    put(a, b"x", b"y", b"z", priority=5)
    put(b, b"x", priority=2)
    assert beat(a, b) == 0
    assert told(take(a, 1, ledger=True)) == [(None, None)]
    assert beat(a, b) == 1
    a.monotonic_ms += 30
    assert told(take(a, 1, ledger=True)) == [(2, 30)]
    take(b)
    beat(a, b)
    assert told(take(a, 1, ledger=True)) == [(None, None)]
    for _ in range(62_000 // BEAT_MS):
        asked = beat(a, b)
    assert asked == 0


@pytest.mark.memory
def test_only_lower_priorities_are_more_urgent(pair: tuple[OneHost, OneHost]) -> None:
    a, b = pair
    take(a, ledger=True)
    for priority in (2, 3, 4):
        put(a, b"x", priority=priority)
    put(b, b"x", priority=3)
    beat(a, b)
    assert told(take(a, ledger=True)) == [(None, None), (None, None), (3, 0)]


@pytest.mark.memory
@pytest.mark.parametrize("scope", ["tenant", "topic"])
def test_priorities_of_other_tenants_count_by_the_scope(pair: tuple[OneHost, OneHost], scope: str) -> None:
    a, b = pair
    for host in pair:
        host.engine.apply_settings(Settings("n", 1, {"topic.t": f'{{"fair": {{"scope": "{scope}"}}}}'}))
    take(a, ledger=True)
    put(b, b"x", priority=1)
    beat(a, b)
    put(a, b"x", priority=4, fairness_key="x")
    assert told(take(a, ledger=True)) == [(1, 0) if scope == "topic" else (None, None)]


@pytest.mark.memory
def test_fields_of_a_question_are_checked(pair: tuple[OneHost, OneHost]) -> None:
    a, _ = pair
    many = [idl.TopicUrgency("n", "t")] * 1_001
    assert type(a.ask("TellShares", host="b", topics=[], urgent=many)) is Invalid
    assert type(a.ask("TellShares", host="b", topics=[], urgent=[idl.TopicUrgency(None, "t")])) is Invalid
    answer = a.ask("TellShares", host="b", topics=[], urgent=[idl.TopicUrgency("n", "none")])
    assert answer.urgent == [idl.TopicUrgency("n", "none", None)]


def test_real_hosts_know_of_each_other(cluster: Cluster) -> None:
    a, b = cluster.add("a", 1), cluster.add("b", 2)
    cluster.tell()
    on_a, on_b = cluster.wire(a), cluster.wire(b)
    on_b.put("t", b"urgent", priority=1)
    found: list[Any] = []

    def heard() -> bool:
        on_a.put("t", b"x", priority=5)
        item = on_a.one("t", ledger=True)
        assert on_a.ack(item) == [0]
        found.append(item.ledger)
        return item.ledger.more_urgent_elsewhere is not None

    wait_until(heard, "news of the other host")
    assert (found[0].more_urgent_elsewhere, found[-1].more_urgent_elsewhere) == (None, 1)
    assert 0 <= found[-1].more_urgent_age_ms < HEARD_MS
    assert found[-1].overtaken == 0
