"""Rules of items on one host: which of them win over the policy, how lanes with them are merged, and their bounds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from foqs.errors import Invalid, NotFound, Overloaded
from foqs.idl import idl
from foqs.policies.settings import Settings
from foqs.rules import MOST_RULES, MOST_RULES_BYTES, STORED_RULES_BYTES
from foqs.wire.protocol import encode_struct
from tests.support.one_host import OneHost, kinds, messages, put, spec, take

S = idl.ItemState
HOUR_MS = 3_600_000


@pytest.fixture
def host() -> OneHost:
    return OneHost(1)


def rules(**fields: Any) -> Any:
    return idl.ItemRules(**fields)


def constant(first_ms: int) -> Any:
    return idl.RetryRule(kind=1, first_ms=first_ms, jitter=0.0)


def fail(host: OneHost) -> Any:
    (item,) = take(host, 1).items
    response = host.ask("Nack", items=[idl.NackItem(item.id, item.lease, failed=True, reason="bad")])
    assert kinds(response) == [None]
    return item


def ack(host: OneHost, result: bytes | None = None) -> None:
    (item,) = take(host, 1).items
    assert kinds(host.ask("Ack", items=[idl.AckItem(item.id, item.lease, result)])) == [None]


def topic_of(host: OneHost, item_id: int) -> str:
    return str(host.ask("GetItem", id=item_id).item.topic)


def policy(host: OneHost, entry: str, version: int = 1) -> None:
    host.settings.apply(Settings("n", version, {"topic.t": entry}))


# ------------------------------------------------------------------------------------------ each rule


def test_an_items_own_limit_of_attempts(host: OneHost) -> None:
    (ruled,) = put(host, b"x", rules=rules(max_attempts=2, retry_rule=constant(0)))
    fail(host)
    assert topic_of(host, ruled) == "t"
    fail(host)
    assert topic_of(host, ruled) == "t.dlq"
    assert host.ask("GetItem", id=ruled).item.failure.attempts == 2


def test_no_limit_in_place_of_the_policys(host: OneHost) -> None:
    policy(host, '{"max_attempts": 1, "retry": null}')
    (ruled,) = put(host, b"x", rules=rules(max_attempts=0))
    (plain,) = put(host, b"y")
    for _ in range(4):
        fail(host)
    assert (topic_of(host, ruled), topic_of(host, plain)) == ("t", "t.dlq")


def test_an_items_own_delays(host: OneHost) -> None:
    put(host, b"x", rules=rules(retry_rule=constant(7_000)))
    fail(host)
    host.wait(6_900)
    assert take(host).items == []
    host.wait(200)
    assert len(take(host).items) == 1


def test_an_items_own_time(host: OneHost) -> None:
    (ruled,) = put(host, b"x", rules=rules(max_total_ms=5_000, retry_rule=constant(0)))
    fail(host)
    assert topic_of(host, ruled) == "t"
    host.wait(5_000)
    fail(host)
    assert topic_of(host, ruled) == "t.dlq"


def test_an_items_own_dead_letter_topic(host: OneHost) -> None:
    host.settings.apply(Settings("n", 1, {"topic.grave": '{"dead": null}'}))
    (ruled,) = put(host, b"x", rules=rules(max_attempts=1, dead_topic="grave"))
    fail(host)
    assert topic_of(host, ruled) == "grave"


def test_an_item_is_kept_by_its_rules(host: OneHost) -> None:
    (ruled,) = put(host, b"x", rules=rules(keep_ms=5_000))
    ack(host, b"result")
    assert host.ask("GetResult", id=ruled).result == b"result"
    (plain,) = put(host, b"x")
    ack(host, b"result")
    assert isinstance(host.call("GetResult", id=plain).answer, NotFound)
    host.wait(5_100)
    assert isinstance(host.call("GetResult", id=ruled).answer, NotFound)


def test_an_item_that_is_not_kept_by_its_rules(host: OneHost) -> None:
    policy(host, '{"keep": {"completed_ms": 60000}}')
    (ruled,) = put(host, b"x", rules=rules(keep_ms=0))
    ack(host)
    assert isinstance(host.call("GetItem", id=ruled).answer, NotFound)


def test_exact_attempts_are_of_the_item(host: OneHost) -> None:
    put(host, b"x", priority=-1, rules=rules(exact_attempts=True))
    put(host, b"y")
    before = host.engine.state.counters.lease_writes
    exact = host.begin("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)])
    assert exact.answers == [], "its lease is committed first"
    host.run()
    assert len(exact.answer.items) == 1
    assert host.engine.state.counters.lease_writes == before + 1
    plain = host.begin("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)])
    assert len(plain.answer.items) == 1


# ------------------------------------------------------------------------------------------ rules and the policy


@pytest.mark.parametrize(
    ("entry", "ruled", "attempts"),
    [
        ('{"max_attempts": 2, "enforce": ["max_attempts"], "retry": null}', 5, 2),
        ('{"max_attempts": 3, "enforce": ["max_attempts"], "retry": null}', 1, 1),
        ('{"max_attempts": 2, "enforce": ["max_attempts"], "retry": null}', 0, 2),
        ('{"max_attempts": 0, "enforce": ["max_attempts"], "retry": null}', 2, 2),
        ('{"max_attempts": 2, "enforce": ["keep_ms"], "retry": null}', 3, 3),
    ],
)
def test_enforced_attempts(host: OneHost, entry: str, ruled: int, attempts: int) -> None:
    policy(host, entry)
    (item_id,) = put(host, b"x", rules=rules(max_attempts=ruled))
    for _ in range(attempts):
        assert topic_of(host, item_id) == "t"
        fail(host)
    assert topic_of(host, item_id) == "t.dlq"


def test_an_enforced_time_of_keeping(host: OneHost) -> None:
    policy(host, '{"keep": {"completed_ms": 2000}, "enforce": ["keep_ms"]}')
    (item_id,) = put(host, b"x", rules=rules(keep_ms=HOUR_MS))
    ack(host)
    assert host.ask("GetItem", id=item_id).state == S.COMPLETED
    host.wait(2_100)
    assert isinstance(host.call("GetItem", id=item_id).answer, NotFound)


def test_a_change_of_the_policy_reaches_items_with_rules(host: OneHost) -> None:
    """Of the fields that their rules do not set."""
    (item_id,) = put(host, b"x", rules=rules(retry_rule=constant(0)))
    policy(host, '{"max_attempts": 1}')
    fail(host)
    assert topic_of(host, item_id) == "t.dlq"


# ------------------------------------------------------------------------------------------ lanes


def test_lanes_with_rules_are_merged_in_the_order_of_the_topic(host: OneHost) -> None:
    for priority, own in ((3, None), (1, rules(max_attempts=1)), (2, rules(max_attempts=2)), (0, None)):
        put(host, b"%d" % priority, priority=priority, rules=own)
    put(host, b"4", priority=4, rules=rules(max_attempts=1))
    assert [item.payload for item in take(host).items] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_tenant_has_lanes_with_rules(host: OneHost) -> None:
    for tenant in ("a", "b"):
        put(host, tenant.encode(), b"!", fairness_key=tenant, rules=rules(max_attempts=1))
        put(host, tenant.encode(), fairness_key=tenant)
    items = take(host, 6).items
    assert Counter(item.fairness_key for item in items) == {"a": 3, "b": 3}


def test_equal_rules_share_a_lane(host: OneHost) -> None:
    for _ in range(3):
        put(host, b"x", rules=rules(max_attempts=4, keep_ms=0))
    (shard,) = host.engine.state.serving
    assert len(shard.memory.lanes) == 1
    put(host, b"x", rules=rules())
    put(host, b"x")
    assert len(shard.memory.lanes) == 2, "no rule is no rules"


def test_a_topic_has_a_bound_of_distinct_rules(host: OneHost) -> None:
    for number in range(MOST_RULES):
        (item_id,) = put(host, b"x", rules=rules(max_attempts=number + 1))
        assert item_id
    error = host.ask("Enqueue", ns="n", items=[spec("t", b"x", rules=rules(max_attempts=9_999))])
    assert kinds(error) == [Overloaded]
    assert messages(error) == [
        "the topic has 256 distinct sets of rules on a shard, the most that it may have at a time"
    ]
    keyed = host.ask("Enqueue", ns="n", items=[spec("t", b"x", dedup_key="k", rules=rules(max_attempts=9_999))])
    assert kinds(keyed) == [Overloaded]
    assert put(host, b"x", rules=rules(max_attempts=7))[0], "known rules"
    assert put(host, b"x")[0], "no rules"
    first = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)]).items[0]
    host.ask("Ack", items=[idl.AckItem(first.id, first.lease)])
    assert put(host, b"x", rules=rules(max_attempts=9_999))[0], "an end makes room"


# ------------------------------------------------------------------------------------------ where they show


def test_an_operator_sees_the_rules(host: OneHost) -> None:
    own = rules(max_attempts=1, retry_rule=idl.RetryRule(3, 10, None, 3.0, 20, 0.25), exact_attempts=False, keep_ms=5)
    (item_id,) = put(host, b"x", rules=own)
    assert host.ask("GetItem", id=item_id).item.rules == own
    (listed,) = host.ask("ListItems", ns="n", topic="t").items
    assert listed.rules == own
    fail(host)
    (listed,) = host.ask("ListItems", ns="n", topic="t.dlq").items
    assert listed.rules == own, "a dead letter keeps them"


def test_a_redrive_restores_the_rules(host: OneHost) -> None:
    own = rules(max_attempts=1, retry_rule=constant(0))
    (item_id,) = put(host, b"x", rules=own)
    fail(host)
    host.call("RedriveItems", ns="n", topic="t.dlq")
    found = host.ask("GetItem", id=item_id).item
    assert (found.topic, found.rules) == ("t", own)
    fail(host)
    assert topic_of(host, item_id) == "t.dlq"


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (rules(max_attempts=-1), "rules.max_attempts is -1, not in 0..2147483647"),
        (rules(max_total_ms=-1), "rules.max_total_ms is -1, not in 0.."),
        (rules(keep_ms=1 << 60), "rules.keep_ms is 1152921504606846976, not in 0.."),
        (rules(dead_topic=""), "rules.dead_topic: a name has 1 to 255 bytes, not 0"),
        (rules(dead_topic="t"), "rules.dead_topic is the topic of the item"),
        (rules(dead_topic="u"), "rules.dead_topic is u, whose policy has a dead-letter topic"),
        (rules(retry_rule=idl.RetryRule()), "rules.retry_rule.kind is None, not CONSTANT, LINEAR or EXPONENTIAL"),
        (rules(retry_rule=idl.RetryRule(0)), "rules.retry_rule.kind is 0, not CONSTANT, LINEAR or EXPONENTIAL"),
        (rules(retry_rule=idl.RetryRule(1, first_ms=-1)), "rules.retry_rule.first_ms: it must be 0 or more, not -1"),
        (rules(retry_rule=idl.RetryRule(1, jitter=1.5)), "rules.retry_rule.jitter: it must be 1.0 or less, not 1.5"),
        (rules(retry_rule=idl.RetryRule(3, factor=float("nan"))), "rules.retry_rule.factor: it must be"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"fairness_key": "a"}, {"dedup_key": "k"}])
def test_wrong_rules_are_refused(host: OneHost, own: Any, says: str, more: Any) -> None:
    response = host.ask("Enqueue", ns="n", items=[spec("t", b"x", rules=own, **more), spec("t", b"y")])
    assert kinds(response) == [Invalid, None]
    assert says in messages(response)[0]
    assert len(take(host).items) == 1


def test_a_delivery_has_the_rules(host: OneHost) -> None:
    own = rules(max_attempts=3, retry_rule=constant(5), exact_attempts=True, dead_topic=None)
    put(host, b"x", rules=own, fairness_key="a", throttle_keys=["k"])
    put(host, b"y", rules=own)
    put(host, b"z")
    found = {item.payload: (item.rules, item.fairness_key, item.throttle_keys) for item in take(host).items}
    assert found == {b"x": (own, "a", ["k"]), b"y": (own, None, None), b"z": (None, None, None)}


@pytest.mark.parametrize(("dead", "fits"), [("é" * 127, True), ("\U0001f40e" * 63, True), ('"' * 255, False)])
def test_the_database_has_room_for_rules(host: OneHost, dead: str, fits: bool) -> None:
    """A row that the database refuses would hold up the transactions of its shard."""
    host.settings.apply(Settings("n", 1, {f"topic.{dead}": '{"dead": null}'}))
    most = 366 * 24 * HOUR_MS
    retry = idl.RetryRule(3, most, most, 1.2345678901234567, most, 0.12345678901234567)
    own = rules(
        max_attempts=(1 << 31) - 1, max_total_ms=most, keep_ms=most, dead_topic=dead, exact_attempts=False,
        retry_rule=retry,
    )  # fmt: skip
    response = host.ask("Enqueue", ns="n", items=[spec("t", b"x", rules=own)])
    assert kinds(response) == [None if fits else Invalid]
    rows = [row.rules for row in host.dbs[1].lanes.values()]
    assert all(len(row) <= STORED_RULES_BYTES for row in rows)
    assert len(rows) == fits


def test_an_answer_has_room_for_rules(host: OneHost) -> None:
    """The longest rules take fewer bytes than an answer reserves for the rules of an item."""
    longest = rules(
        max_attempts=(1 << 31) - 1, max_total_ms=1 << 33, keep_ms=1 << 33, dead_topic="d" * 255, exact_attempts=True,
        retry_rule=idl.RetryRule(3, 1 << 33, 1 << 33, 99.0, 1 << 34, 0.1),
    )  # fmt: skip
    assert len(encode_struct(longest)) < MOST_RULES_BYTES
