"""Dead letters of several real hosts: listed and redriven through any of them, while shards move and hosts die."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foqs.engine.dead_letters import PageAsk
from foqs.engine.engine import Engine
from foqs.errors import NotFound, Unavailable
from foqs.idl import idl
from foqs.peers.forwarded import HERE, Route
from foqs.peers.forwarder import LoneForwarder
from foqs.peers.gather import FailureGathering
from foqs.peers.redrive import PAGE_ITEMS, Plan, Redrive, Redriven
from foqs.policies.failures import FailureFilter
from foqs.rows import FailureGroup
from foqs.shardmgr.routing import Routing
from tests.api.wire import Wire
from tests.engine.laboratory import Laboratory
from tests.peers.exchanges import Log, Rig
from tests.peers.nodes import Cluster
from tests.support.timers import TestTimers

DEAD = {"ns": "test", "topic": "t.dlq"}


def dead(wire: Wire, *reasons: str) -> list[int]:
    """Store an item for each of `reasons` on the wire's host, and reject it there for that reason."""
    ids = wire.put("t", *[b"x" for _ in reasons])
    items: list[Any] = []
    while len(items) < len(ids):
        items += wire.dequeue("t", len(ids), wait_ms=10_000)
    nacks = [
        idl.NackItem(item.id, item.lease, reason=reason, reject=True)
        for item, reason in zip(items, reasons, strict=True)
    ]
    assert wire.settle("Nack", nacks, ns="test") == [0] * len(ids)
    return ids


def redrive(wire: Wire, **fields: Any) -> Any:
    return wire.ask("RedriveItems", **DEAD, **fields)


def counts(wire: Wire) -> dict[str, int]:
    answer = wire.ask("ListFailures", **DEAD)
    assert answer.missing == []
    return {group.sample_reason: group.count for group in answer.groups}


def test_dead_letters_of_all_hosts(cluster: Cluster) -> None:
    a, b, c = cluster.add("a", 1, 4), cluster.add("b", 2, 3), cluster.add("c")
    cluster.tell()
    ids = [*dead(cluster.wire(a), "x", "x", "y"), *dead(cluster.wire(b), "x", "y", "z")]
    wire = cluster.wire(c)
    assert counts(wire) == counts(cluster.wire(a)) == {"x": 3, "y": 2, "z": 1}
    answer = redrive(wire, dry_run=True)
    assert (answer.at_least, answer.at_most, answer.more, answer.missing_shards) == (6, 6, False, [])
    assert redrive(wire, per_fingerprint=1).at_least == 3
    assert counts(wire) == {"x": 2, "y": 1}
    answer = redrive(wire, count=2)
    assert (answer.at_least, answer.at_most, answer.more) == (2, 2, True)
    assert redrive(wire).at_least == 1
    assert counts(wire) == {}
    assert sorted(item.id for item in wire.listed("t")) == sorted(ids)


def test_a_shard_that_moves_during_a_redrive(cluster: Cluster) -> None:
    a, b, c = cluster.add("a", 1, host={"confirm_ms": 1_000}), cluster.add("b", 2), cluster.add("c")
    cluster.tell()
    ids = dead(cluster.wire(b), "x", "y")
    cluster.move(2, a)
    wire = cluster.wire(c)
    wire.send_call("RedriveItems", **DEAD)
    cluster.until(lambda: c.counters.forwarded > 0, "a page that is asked for")
    cluster.tell(cluster.routing(a, c))
    answer = wire.receive("RedriveItems")
    # The page that was in flight counts as in doubt, if its reply was lost.
    assert answer.at_least <= 2 <= answer.at_most
    assert not answer.missing_shards
    assert sorted(item.id for item in cluster.wire(a).listed("t")) == ids


# ------------------------------------------------------------------------------------------ the parts


def alone(lab: Laboratory) -> LoneForwarder:
    return LoneForwarder(lab.engine, lambda: "here:1", TestTimers(lambda: lab.now_ms), Log())


def test_owners_of_a_cluster() -> None:
    rig = Rig({1: "b", 2: "c"}, shards=(3,))
    find = rig.exchange.find
    assert find(1) == Route("b:1", 1, "b")
    assert isinstance(find(3), Unavailable)
    rig.routing = replace(rig.routing, disabled=frozenset({3}))
    assert isinstance(find(3), NotFound), "it is not waited for"
    assert isinstance(find(4), NotFound)


def test_a_shard_that_is_removed_during_a_redrive_is_not_missing() -> None:
    lab = Laboratory(1)
    found: list[Redriven] = []
    exchange = alone(lab).exchange
    routing = Routing(shards=frozenset({1, 2, 3}), disabled=frozenset({1, 2, 3}))
    exchange.routing = lambda: routing
    exchange.serves = lambda number: False  # type: ignore[method-assign]
    plan = Plan(PageAsk(("n", "t.dead"), 0, None, FailureFilter(), 0), 0, 0, 5_000)
    redrive = Redrive(exchange, plan, lambda *_: None, found.append)
    routing = replace(routing, shards=frozenset({1, 3}))
    redrive.begin(10_000)
    while lab.engine.state.slices.next_slice:
        lab.engine.pump(lab.now_ms)
    assert [(one.missing, one.more) for one in found] == [({1, 3}, False)]


def test_owners_of_a_lone_host() -> None:
    lab = Laboratory(1, 2)
    lone = alone(lab)
    assert lone.exchange.find(1) is HERE
    lab.engine.lose(lab.engine.state.shards[2], lab.now_ms)
    lone.changed()
    assert (lone.routing().shards, lone.routing().unowned) == ({1, 2}, {2})
    assert isinstance(lone.exchange.find(2), Unavailable)


def test_a_gathering_waits_for_all_hosts() -> None:
    answers: list[Any] = []
    gathering = FailureGathering(1, [], lambda *found: answers.append(found))
    gathering.here("a", ([FailureGroup(5, 1, 2, 1, 2, 3, b"r")], False))
    assert answers == []
    gathering.add_answer("b", idl.ListFailuresResponse([idl.FailureGroup(1, -5, 1, 1, 1, 1, "s")], None, []))
    gathering.end([])
    assert answers == [([FailureGroup(-5, 1, 1, 1, 1, 1, b"s")], True, [])]


def test_a_redrive_without_shards_ends_at_once() -> None:
    lab = Laboratory()
    answers: list[Any] = []
    assert isinstance(lab.engine, Engine)
    plan = Plan(PageAsk(("n", "t.dead"), 0, None, FailureFilter(), 0), 0, 0, 1_000)
    Redrive(alone(lab).exchange, plan, lambda *_: None, answers.append).begin(1_000)
    assert (answers[0].at_most, answers[0].more) == (0, False)
    assert PAGE_ITEMS == 500
