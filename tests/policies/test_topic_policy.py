"""Entries of settings for topics: what they may say, the errors of wrong ones, and the policy that they make."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.errors import Invalid
from foqs.policies.entries import FairEntry, RetryEntry
from foqs.policies.layers import NamespacePolicies
from foqs.policies.settings import Settings
from foqs.policies.topic_policy import BUILT_IN_ENTRY, PolicyEntry, dead_topic_of, effective, parse
from foqs.rows import AT_LEAST_ONCE, AT_MOST_ONCE


def errors(text: str) -> list[str]:
    with pytest.raises(Invalid) as raised:
        parse(text)
    return raised.value.message.split("\n")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"priority": None}, "priority: it must be a whole number, not null"),
        ({"priority": 1.5}, "priority: it must be a whole number, not 1.5"),
        ({"priority": 1 << 31}, "priority: it must be 2147483647 or less, not 2147483648"),
        ({"lease_ms": "5s"}, 'lease_ms: it must be a whole number, not "5s"'),
        ({"lease_ms": 99}, "lease_ms: it must be 100 or more, not 99"),
        ({"lease_ms": True}, "lease_ms: it must be a whole number, not true"),
        ({"ttl_ms": 0}, "ttl_ms: it must be 1 or more, not 0"),
        ({"delay_ms": 10**30}, f"delay_ms: it must be 31622400000 or less, not {10**30}"),
        ({"delivery": "once"}, "delivery: it must be 'at_least_once' or 'at_most_once', not \"once\""),
        ({"paused": 1}, "paused: it must be true or false, not 1"),
        ({"closed": None}, "closed: it must be true or false, not null"),
        ({"max_stored": -1}, "max_stored: it must be 0 or more, not -1"),
        ({"retry": 3}, "retry: it must be an object, not 3"),
        ({"retry": {}}, "retry.kind: it is missing"),
        ({"retry": {"kind": "LINEAR"}}, "retry.kind: it must be 'constant', 'linear' or 'exponential', not \"LINEAR\""),
        ({"retry": {"kind": "linear", "factor": "2"}}, 'retry.factor: it must be a number, not "2"'),
        ({"retry": {"kind": "linear", "factor": float("nan")}}, "retry.factor: it must be a number, not NaN"),
        ({"retry": {"kind": "linear", "jitter": 1.1}}, "retry.jitter: it must be 1.0 or less, not 1.1"),
        (
            {"retry": {"kind": "constant", "first_ms": 3_600_000}},
            "retry: first_ms is 3600000, more than longest_ms: 900000, its default",
        ),
        (
            {"retry": {"kind": "constant", "first_ms": 10, "longest_ms": 9}},
            "retry: first_ms is 10, more than longest_ms: 9",
        ),
        ({"retry": {"kind": "linear", "first": 1}}, 'retry: there is no field "first"'),
        ({"dead": "mail.dlq"}, 'dead: it must be an object, not "mail.dlq"'),
        ({"dead": {"topic": ""}}, "dead.topic: a name has 1 to 255 bytes, not 0"),
        ({"dead": {"topic": "é" * 128}}, "dead.topic: a name has 1 to 255 bytes, not 256"),
        ({"dead": {"topic": "a\nb"}}, "dead.topic: a name has no control characters"),
        ({"hooks": "route"}, 'hooks: it must be an object, not "route"'),
        ({"hooks": {"on_enqueue": "route*"}}, "hooks.on_enqueue: the name of a script does not end in *"),
        ({"hooks": {"on_failure": ""}}, "hooks.on_failure: a name has 1 to 255 bytes, not 0"),
        ({"hooks": {"on_ack": "route"}}, 'hooks: there is no field "on_ack"'),
        (
            {"hooks": {"when_broken": "ignore"}},
            "hooks.when_broken: it must be 'refuse' or 'default', not \"ignore\"",
        ),
        ({"order": None}, "order: it must be an object, not null"),
        ({"order": {"on_failure": "stop"}}, "order.on_failure: it must be 'block' or 'skip', not \"stop\""),
        ({"order": {"on_fail": "skip"}}, 'order: there is no field "on_fail": did you mean "on_failure"?'),
        ({"fair": None}, "fair: it must be an object, not null"),
        ({"fair": {"unit": "item"}}, "fair.unit: it must be 'items', 'bytes' or 'busy', not \"item\""),
        ({"fair": {"scope": 1}}, "fair.scope: it must be 'tenant' or 'topic', not 1"),
        ({"fair": {"balance": "no"}}, 'fair.balance: it must be true or false, not "no"'),
        ({"fair": {"weights": [1]}}, "fair.weights: it must be an object, not [1]"),
        ({"fair": {"weights": {"gold:*": 0}}}, 'fair.weights."gold:*": it must be 1 or more, not 0'),
        ({"fair": {"weights": {"gold": 1_001}}}, "fair.weights.gold: it must be 1000 or less, not 1001"),
        ({"fair": {"weights": {"[key]": "x"}}}, 'fair.weights."[key]": it must be a whole number, not "x"'),
        ({"fair": {"weights": {"": 1}}}, 'fair.weights."": a name has 1 to 255 bytes, not 0'),
        ({"fair": {"weights": {"a\nb": 1}}}, 'fair.weights."a\\nb": a name has no control characters'),
        ({"fair": {"weigths": {}}}, 'fair: there is no field "weigths": did you mean "weights"?'),
        ({"throttles": "api"}, 'throttles: it must be a list, not "api"'),
        ({"throttles": None}, "throttles: it must be a list, not null"),
        ({"throttles": [1]}, "throttles.0: it must be a text, not 1"),
        ({"throttles": ["api", ""]}, "throttles.1: a name has 1 to 255 bytes, not 0"),
        ({"throttles": ["api*"]}, "throttles.0: a throttle key does not end in *"),
        ({"throttles": ["api", "api"]}, "throttles: the key 'api' is listed more than once"),
        ({"throttles": list("abcdefghi")}, "throttles: there are 9 keys, more than 8"),
        (
            {"throttles": ["x" * 255, "y" * 255, "z"]},
            "throttles: the keys have 513 bytes with one between two keys, more than 512",
        ),
        ({"pause": True}, 'there is no field "pause": did you mean "paused"?'),
        ({"a\nb": 1}, 'there is no field "a\\nb"'),
        ({"priority": "x" * 4_000}, f'priority: it must be a whole number, not "{"x" * 59}...'),
        ([1], "a topic policy is a JSON object, not [1]"),
    ],
)
def test_errors_of_a_wrong_entry(value: Any, message: str) -> None:
    assert errors(json.dumps(value)) == [message]


@pytest.mark.parametrize("field", ["refuse_late"])
def test_fields_of_features_that_do_not_exist_yet(field: str) -> None:
    assert errors(json.dumps({field: {}})) == [f"{field}: this version of foqs does not have it"]


@pytest.mark.parametrize("text", ["", "{", "[" * 4_000, '{"dead": {"topic": "\\ud800"}}', '{"\\ud800": 1}'])
def test_texts_that_are_no_entry(text: str) -> None:
    (message,) = errors(text)
    assert message.isprintable()


def test_a_field_that_stands_twice_is_refused() -> None:
    assert errors('{"paused": true, "paused": false}') == ['not JSON: "paused" is listed more than once in an object']


def test_an_entry_reports_every_error() -> None:
    assert errors('{"x": 1, "keep": {"most": 0}, "refuse_late": 1, "paused": 0, "retry": {"kind": "x", "y": 1}}') == [
        "refuse_late: this version of foqs does not have it",
        "paused: it must be true or false, not 0",
        "retry.kind: it must be 'constant', 'linear' or 'exponential', not \"x\"",
        'retry: there is no field "y"',
        "keep.most: it must be 1 or more, not 0",
        'there is no field "x"',
    ]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
fields = st.sampled_from([*PolicyEntry.model_fields, "refuse_late", "other"])
retries = st.dictionaries(st.sampled_from(["kind", "first_ms", "step_ms", "factor", "longest_ms", "jitter"]), values)


fairs = st.dictionaries(
    st.sampled_from(["unit", "scope", "weights", "balance"]),
    st.dictionaries(st.text(max_size=3) | st.just("[key]"), st.integers(-1, 5) | values) | values,
)
graves = st.dictionaries(st.sampled_from(["topic", "ttl_ms"]), values)


@given(st.dictionaries(fields, values | retries | fairs | graves))
def test_any_json_is_an_entry_or_has_errors(value: dict[str, Any]) -> None:
    try:
        entry = parse(json.dumps(value))
    except Invalid as invalid:
        assert all(line.isprintable() for line in invalid.message.split("\n"))
    else:
        assert entry.model_fields_set == value.keys()


def test_null_takes_away_what_a_shorter_prefix_gives() -> None:
    entry = parse('{"lease_ms": null, "ttl_ms": null, "max_stored": null, "retry": null, "dead": null}')
    policy = effective("mail", dict.fromkeys(PolicyEntry.model_fields, entry), dead=False)
    assert (policy.lease_ms, policy.ttl_ms, policy.max_stored, policy.retry, policy.dead_topic) == (None,) * 5


def test_values_that_an_entry_does_not_name_are_shared() -> None:
    """A namespace may have 20,000 entries."""
    one, other = parse('{"priority": 1}'), parse('{"priority": 2}')
    for field in ("fair", "throttles", "retry", "dead"):
        assert getattr(one, field) is getattr(other, field) is getattr(BUILT_IN_ENTRY, field)


def test_the_built_in_policy() -> None:
    policy = effective("mail", dict.fromkeys(PolicyEntry.model_fields, BUILT_IN_ENTRY), dead=False)
    assert (policy.priority, policy.delay_ms, policy.delivery) == (0, 0, AT_LEAST_ONCE)
    assert (policy.paused, policy.closed, policy.max_stored) == (False, False, None)
    assert (policy.fair, policy.throttles) == (FairEntry(), ())
    assert (policy.max_attempts, policy.dead_topic, policy.dead_ttl_ms) == (25, "mail.dlq", None)
    assert policy.retry == RetryEntry(
        kind="exponential", first_ms=1_000, step_ms=0, factor=2.0, longest_ms=900_000, jitter=0.5
    )


def test_an_entry_makes_a_policy() -> None:
    entry = parse(
        '{"priority": -3, "delivery": "at_most_once", "retry": {"kind": "linear", "step_ms": 5, "factor": 3},'
        ' "max_attempts": 2, "max_total_ms": 7, "dead": {"topic": "grave", "ttl_ms": 9}, "throttles": ["b", "a"],'
        ' "fair": {"unit": "busy", "scope": "topic", "weights": {"gold:*": 4, "acme": 2}, "balance": false}}'
    )
    layers = dict.fromkeys(PolicyEntry.model_fields, entry)
    policy = effective("mail", layers, dead=False)
    assert (policy.priority, policy.delivery) == (-3, AT_MOST_ONCE)
    assert policy.retry == RetryEntry(
        kind="linear", first_ms=1_000, step_ms=5, factor=3.0, longest_ms=900_000, jitter=0.5
    )
    assert (policy.max_attempts, policy.max_total_ms, policy.dead_topic, policy.dead_ttl_ms) == (2, 7, "grave", 9)
    assert policy.throttles == ("a", "b")
    assert policy.fair == FairEntry(unit="busy", scope="topic", weights={"acme": 2, "gold:*": 4}, balance=False)
    grave = effective("grave", layers, dead=True)
    assert (grave.max_attempts, grave.max_total_ms, grave.dead_topic, grave.dead_ttl_ms) == (0, 0, None, None)


@given(st.text(min_size=1, max_size=300))
def test_the_name_of_a_dead_letter_topic_fits(topic: str) -> None:
    name = dead_topic_of(topic)
    assert len(name.encode()) <= 255
    assert name.endswith(".dlq")
    if len(topic.encode()) <= 251:
        assert name == f"{topic}.dlq"


# ------------------------------------------------------------------------------------------ end events


def circles(**topics: Any) -> list[str]:
    entries = {f"topic.{name}": json.dumps(entry) for name, entry in topics.items()}
    try:
        Settings("ns").changed(entries, ())
    except Invalid as error:
        return error.message.split("\n")
    return []


def test_events_go_to_topics_without_circles() -> None:
    chain = {name: {"on_end_topic": after} for name, after in (("a", "b"), ("b", "c"), ("d", "b"))}
    assert circles(**chain) == []
    assert circles(**chain, c={"on_end_topic": "e"}) == []
    (error,) = circles(**chain, c={"on_end_topic": "b"})
    assert error.startswith("topic.b, topic.c: on_end_topic: each event that ends would store another one")
    assert "b -> c -> b" in error
    (itself,) = circles(a={"on_end_topic": "a"})
    assert "a -> a" in itself


def test_a_prefix_that_fits_its_own_events() -> None:
    every = {"*": {"on_end_topic": "ends"}}
    (error,) = circles(**every)
    assert error.startswith("topic.*: on_end_topic:")
    assert 'put {"on_end_topic": null} in topic.ends' in error
    assert circles(**every, ends={"on_end_topic": None}) == []
    assert circles(**every, **{"en*": {"on_end_topic": None}}) == []
    assert len(circles(**every, ends={"priority": 1})) == 1


def test_a_topic_that_takes_dead_letters_has_no_events() -> None:
    texts = {"topic.mail": '{"dead": {"topic": "grave"}}', "topic.*": '{"on_end_topic": "ends"}'}
    policies = NamespacePolicies(texts)
    assert [policies.of(name).on_end_topic for name in ("mail", "mail.dlq", "grave", "other")] == [
        "ends", None, None, "ends",
    ]  # fmt: skip
    assert json.loads(policies.document("grave"))["on_end_topic"] is None
    assert policies.overruled("grave")["on_end_topic"] == "it takes the dead letters of topic.mail"
    made = Settings("ns").changed(texts | {"topic.ends": '{"on_end_topic": null}'}, ())
    assert made.warnings(set(made.entries)) == [], "the prefix is not meant for this topic"
