"""Values of a topic's policy for fields that an enqueue does not set, and topics that are closed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.api.intake import Intake, filled
from foqs.bounds import Limits
from foqs.errors import Unavailable
from foqs.idl import idl
from foqs.policies.layers import NamespacePolicies
from foqs.policies.settings import Settings
from foqs.rows import AT_LEAST_ONCE, AT_MOST_ONCE, NewItem
from foqs.wire.usual_requests import SpecColumns
from tests.api.wire import spec
from tests.support.one_host import OneHost, kinds, messages, put, routing_of, take

pytestmark = pytest.mark.memory

NOW_MS = 1_000_000
LIMITS = Limits()
ALL = {"priority": 5, "lease_ms": 7_000, "ttl_ms": 60_000, "delay_ms": 300, "delivery": "at_most_once"}
FIELDS = [name for name in dir(NewItem) if not name.startswith("_")]


def policies(**topics: Any) -> NamespacePolicies:
    return NamespacePolicies({f"topic.{name}": json.dumps(value) for name, value in topics.items()})


def stored(policy: dict[str, Any], limits: Limits = LIMITS, **fields: Any) -> NewItem:
    intake = Intake("n", [spec("t", b"x", **fields)], limits, NOW_MS, policies(t=policy))
    assert not intake.errors
    return intake.items[0]


def shown(item: NewItem) -> tuple[int, ...]:
    """Priority, lease, TTL, delay and delivery."""
    ttl_ms = item.expires_at_ms and item.expires_at_ms - NOW_MS
    return (item.priority, item.lease_ms, ttl_ms, item.due_ms and item.due_ms - NOW_MS, item.delivery)


def test_an_item_that_sets_nothing_gets_the_values_of_the_policy() -> None:
    assert shown(stored(ALL)) == (5, 7_000, 60_000, 300, AT_MOST_ONCE)
    assert shown(stored({})) == (0, 0, 0, 0, AT_LEAST_ONCE)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"priority": -2}, (-2, 7_000, 60_000, 300, AT_MOST_ONCE)),
        ({"lease_ms": 100}, (5, 100, 60_000, 300, AT_MOST_ONCE)),
        ({"ttl_ms": 1}, (5, 7_000, 1, 300, AT_MOST_ONCE)),
        ({"expires_at_ms": NOW_MS + 9}, (5, 7_000, 9, 300, AT_MOST_ONCE)),
        ({"delay_ms": 0}, (5, 7_000, 60_000, 0, AT_MOST_ONCE)),
        ({"delay_ms": 9}, (5, 7_000, 60_000, 9, AT_MOST_ONCE)),
        ({"deliver_after_ms": NOW_MS}, (5, 7_000, 60_000, 0, AT_MOST_ONCE)),
        ({"deliver_after_ms": NOW_MS + 4}, (5, 7_000, 60_000, 4, AT_MOST_ONCE)),
    ],
)
def test_the_fields_of_an_item_win(fields: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert shown(stored(ALL, **fields)) == expected


def test_values_that_every_client_sends_count_as_not_set() -> None:
    assert shown(stored(ALL, priority=0, delivery=AT_LEAST_ONCE)) == shown(stored(ALL))
    assert stored({"delivery": "at_least_once"}, delivery=AT_MOST_ONCE).delivery == AT_MOST_ONCE


def test_values_of_a_policy_are_cut_to_the_limits_of_the_host() -> None:
    limits = Limits(lease_min_ms=8_000, ttl_max_ms=5_000, delay_max_ms=200)
    assert shown(stored(ALL, limits)) == (5, 8_000, 5_000, 200, AT_MOST_ONCE)
    assert stored(ALL, Limits(lease_max_ms=6_000)).lease_ms == 6_000


def test_the_item_of_a_caller_is_not_changed() -> None:
    given = spec("t", b"x")
    made = filled(given, policies(t=ALL).of("t"), LIMITS)
    assert (given.priority, given.delay_ms, made.priority, made.payload) == (0, None, 5, b"x")


def test_each_topic_of_a_request_has_its_own_policy() -> None:
    specs = [spec(topic, b"x") for topic in "tuvtuv"]
    intake = Intake("n", specs, LIMITS, NOW_MS, policies(t=ALL, u={"priority": 2}))
    assert [item.priority for item in intake.items] == [5, 2, 0, 5, 2, 0]


@pytest.mark.parametrize("policy", [{}, {"priority": 4}, {"lease_ms": 500}, ALL, {"closed": True}, {"paused": True}])
@pytest.mark.parametrize("shared", [{}, {"lease_ms": 200}, {"delivery": 2}, {"delay_ms": -1}, {"topic": "other"}])
def test_columns_of_specs_are_taken_as_the_specs(policy: dict[str, Any], shared: dict[str, Any]) -> None:
    columns = SpecColumns(idl.ItemSpec(payload=b"a", priority=0, **{"topic": "t", **shared}))
    columns.payloads, columns.priorities = [b"a", b"b", b"c"], [0, 9, 0]
    by_columns, one_by_one = (
        Intake("n", specs, LIMITS, NOW_MS, policies(t=policy)) for specs in (columns, list(columns))
    )
    for run in ("keys", "indices", "sizes", "keyed"):
        assert getattr(by_columns, run) == getattr(one_by_one, run)
    for got, reference in zip(by_columns.items, one_by_one.items, strict=True):
        assert all(getattr(got, name) == getattr(reference, name) for name in FIELDS)
    assert {at: str(error) for at, error in by_columns.errors.items()} == {
        at: str(error) for at, error in one_by_one.errors.items()
    }


def apply(host: OneHost, topic: str, **policy: Any) -> None:
    version = host.engine.state.policies.versions.get("n", 0) + 1
    host.engine.apply_settings(Settings("n", version, {f"topic.{topic}": json.dumps(policy)}))


def test_a_closed_topic_takes_no_items_and_delivers_those_it_has() -> None:
    host = OneHost(1)
    ids = put(host, b"x")
    apply(host, "t", closed=True)
    response = host.ask("Enqueue", ns="n", items=[spec("t", b"x"), spec("u", b"x"), spec("t", b"y", dedup_key="k")])
    assert kinds(response) == [Unavailable, None, Unavailable]
    assert messages(response)[0] == "the topic t is closed to enqueues until `foqs topic open t --ns n`"
    assert [item.id for item in take(host).items] == ids
    apply(host, "t", closed=False)
    assert kinds(host.ask("Enqueue", ns="n", items=[spec("t", b"x")])) == [None]


def test_an_enqueue_goes_by_the_policy_of_its_moment() -> None:
    host = OneHost(1)
    apply(host, "t", priority=5)
    put(host, b"first")
    apply(host, "t", priority=1)
    put(host, b"second")
    assert [(item.payload, item.priority) for item in take(host).items] == [(b"second", 1), (b"first", 5)]


def test_the_host_that_stores_an_item_fills_it() -> None:
    """Host "a" has no shard, and forwards the item as the producer sent it."""
    host = OneHost(routing=routing_of({2: "b"}))
    apply(host, "t", priority=5)
    host.call("Enqueue", ns="n", items=[spec("t", b"x")])
    (sent,) = host.to("Enqueue")
    assert sent.request.items[0].priority == 0
