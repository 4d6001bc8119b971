"""Items of tenants and throttle sets through hosts that do not store them."""

from __future__ import annotations

from typing import Any

from foqs.idl import idl
from tests.api.wire import Wire, spec
from tests.peers.nodes import Cluster

KEYS: list[dict[str, Any]] = [
    {},
    {"fairness_key": "acme", "weight": 3},
    {"fairness_key": "acme", "throttle_keys": ["db", "api:acme"]},
    {"throttle_keys": ["db"]},
]
SHOWN = [("", ()), ("", ("db",)), ("acme", ()), ("acme", ("api:acme", "db"))]


def keys(items: list[Any]) -> list[tuple[str, tuple[str, ...]]]:
    return sorted((item.fairness_key or "", tuple(item.throttle_keys or ())) for item in items)


def taken(wire: Wire, topic: str) -> list[Any]:
    """Four items: they may be on several hosts."""
    items: list[Any] = []
    while len(items) < 4:
        items += wire.ask(
            "Dequeue", ns="test", wants=[idl.TopicCount(topic, 4)], wait_ms=60_000, lease_ms=600_000
        ).items
    return items


def test_forwarded_items_keep_their_keys(cluster: Cluster) -> None:
    """Host c has no shard: it forwards each request."""
    cluster.add("a", 1)
    cluster.add("b", 2)
    c = cluster.add("c")
    cluster.tell()
    wire = cluster.wire(c)
    outcomes = wire.ask("Enqueue", ns="test", items=[spec("t", b"x", **given) for given in KEYS]).outcomes
    assert keys(wire.ask("ListItems", ns="test", topic="t").items) == SHOWN
    assert keys([wire.ask("GetItem", id=one.id).item for one in outcomes]) == SHOWN
    items = taken(wire, "t")
    assert keys(items) == SHOWN
    nacks = [idl.NackItem(item.id, item.lease, reject=True, reason="no") for item in items]
    assert [one.error for one in wire.ask("Nack", ns="test", items=nacks).outcomes] == [None] * 4
    acme = wire.ask("ListFailures", ns="test", topic="t.dlq", fairness_key="acme").groups
    assert sum(group.count for group in acme) == 2
    only = idl.FailureFilter(fairness_key="acme")
    assert wire.ask("RedriveItems", ns="test", topic="t.dlq", filter=only).at_least == 2
    assert keys(wire.ask("ListItems", ns="test", topic="t").items) == SHOWN[2:]
    assert wire.ask("RedriveItems", ns="test", topic="t.dlq").at_least == 2
    assert keys(taken(wire, "t")) == SHOWN
