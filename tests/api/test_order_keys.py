"""Items with order keys against a real host, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.idl import idl
from tests.api.wire import Code, State, Wire, spec

BEHIND = idl.ItemState.BEHIND


def put(wire: Wire, topic: str, *payloads: bytes, key: str = "k", **fields: Any) -> list[int]:
    return wire.enqueue(*(spec(topic, payload, order_key=key, **fields) for payload in payloads))


def state(wire: Wire, item_id: int) -> int:
    return int(wire.ask("GetItem", id=item_id).state)


def fail(wire: Wire, item: Any, **fields: Any) -> None:
    assert wire.settle("Nack", [idl.NackItem(item.id, item.lease, **fields)]) == [0]


def test_one_item_of_a_key_at_a_time(wire: Wire, topic: str) -> None:
    ids = put(wire, topic, b"1", b"2", b"3")
    (other,) = put(wire, topic, b"4", key="other")
    wire.hold_nothing_back(topic)
    found = wire.dequeue(topic, 10) + wire.dequeue(topic, 10)
    assert sorted(item.id for item in found) == sorted([ids[0], other])
    assert [item.order_key for item in found if item.id == ids[0]] == ["k"]
    assert [state(wire, item_id) for item_id in ids] == [State.LEASED, BEHIND, BEHIND]
    assert wire.ack(*found) == [0, 0]
    for item_id in ids[1:]:
        item = wire.one(topic)
        assert item.id == item_id
        assert wire.ack(item) == [0]
    assert wire.dequeue(topic, 10) == []


def test_priorities_do_not_change_the_order(wire: Wire, topic: str) -> None:
    ids = [put(wire, topic, b"x", priority=priority)[0] for priority in (5, 0, -5)]
    for item_id in ids:
        item = wire.one(topic)
        assert (item.id, wire.ack(item)) == (item_id, [0])


def test_a_retry_holds_its_key_back(wire: Wire, topic: str) -> None:
    first, second = put(wire, topic, b"1", b"2")
    (other,) = put(wire, topic, b"3", key="other")
    for item in (wire.one(topic), wire.one(topic)):
        if item.id == first:
            fail(wire, item, delay_ms=600_000)
        else:
            assert (item.id, wire.ack(item)) == (other, [0])
    assert wire.dequeue(topic, 10) == []
    assert [state(wire, first), state(wire, second)] == [State.DELAYED, BEHIND]
    reasons = wire.ask("ExplainItem", id=second).reasons
    (behind,) = [reason for reason in reasons if reason.code == idl.Reason.BEHIND_IN_ORDER]
    assert (behind.key, behind.item_ids) == ("k", [first])
    wire.delete(first)
    assert wire.one(topic).id == second


def test_a_dead_letter_holds_nothing_back(wire: Wire, topic: str) -> None:
    first, second = put(wire, topic, b"1", b"2")
    fail(wire, wire.one(topic), reject=True)
    assert wire.one(topic).id == second
    dead = wire.ask("GetItem", id=first).item
    assert (dead.topic, dead.order_key) == (f"{topic}.dlq", "k")


def test_a_delayed_item_enters_the_order_when_it_is_due(wire: Wire, topic: str) -> None:
    (late,) = put(wire, topic, b"late", delay_ms=600_000)
    (first,) = put(wire, topic, b"first")
    assert wire.one(topic).id == first
    assert state(wire, late) == State.DELAYED


def test_a_topic_counts_and_lists_items_behind(wire: Wire, topic: str) -> None:
    ids = put(wire, topic, b"1", b"2", b"3")
    stats = wire.ask("GetTopicStats", ns=wire.ns, topic=topic)
    assert (stats.ready, stats.behind) == (1, 2)
    listed = wire.ask("ListItems", ns=wire.ns, topic=topic, state=BEHIND).items
    assert [(item.id, item.state, item.order_key) for item in listed] == [(item_id, BEHIND, "k") for item_id in ids[1:]]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"order_key": "k", "dedup_key": "d"}, "both dedup_key and order_key"),
        ({"order_key": "a\nb"}, "order_key: a name has no control characters"),
        ({"order_key": "k", "dedup_until": 3}, "dedup_until needs a dedup_key"),
    ],
)
def test_a_wrong_order_key(wire: Wire, fields: dict[str, Any], word: str) -> None:
    assert word in wire.refusal(spec("neighbour", **fields))


def test_an_empty_order_key_is_none(wire: Wire, topic: str) -> None:
    wire.put(topic, b"1", b"2", order_key="")
    wire.hold_nothing_back(topic)
    assert [item.order_key for item in wire.dequeue(topic, 10)] == [None, None]


def test_a_refused_item_fails_alone(wire: Wire, topic: str) -> None:
    first, wrong, second = wire.outcomes(*(spec(topic, b"x", order_key="k", weight=weight) for weight in (1, 0, 1)))
    assert (wrong.error.code, wire.one(topic).id) == (Code.INVALID, first.id)
    assert state(wire, second.id) == BEHIND
