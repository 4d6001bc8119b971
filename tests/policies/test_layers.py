"""For each field on its own: the exact name wins over the longest prefix, over `topic.*`, over the built-in value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.policies import layers
from foqs.policies.entries import Throttle
from foqs.policies.layers import BUILT_IN, NamespacePolicies, Policies
from foqs.policies.settings import Settings
from foqs.policies.topic_policy import PolicyEntry


def entries(**topics: dict[str, Any]) -> dict[str, str]:
    return {f"topic.{name}": json.dumps(value) for name, value in topics.items()}


names = st.text("ab*", min_size=1, max_size=4)
fields = st.fixed_dictionaries(
    {},
    optional={"priority": st.integers(1, 9), "paused": st.booleans(), "lease_ms": st.none() | st.integers(100, 109)},
)


@given(st.dictionaries(names, fields), st.lists(names))
def test_each_field_comes_from_the_closest_entry(rules: dict[str, dict[str, Any]], asked: list[str]) -> None:
    policies = NamespacePolicies(entries(**rules))
    for topic in asked:
        policy, where = policies.of(topic), policies.layers(topic)
        for field, otherwise in (("priority", 0), ("paused", False), ("lease_ms", None)):
            fit = [
                (not name.endswith("*"), len(name), name)
                for name, rule in rules.items()
                if field in rule and (topic.startswith(name[:-1]) if name.endswith("*") else topic == name)
            ]
            if fit:
                closest = max(fit)[2]
                assert (getattr(policy, field), where[field]) == (rules[closest][field], f"topic.{closest}")
            else:
                assert (getattr(policy, field), where[field]) == (otherwise, BUILT_IN)


def test_a_star_that_is_not_the_last_character_is_part_of_a_name() -> None:
    policies = NamespacePolicies(entries(**{"a*b": {"priority": 1}, "a**": {"priority": 2}}))
    assert [policies.of(topic).priority for topic in ("a*b", "axb", "a*", "a*c", "a")] == [1, 0, 2, 2, 0]


def test_all_fields_have_a_layer() -> None:
    assert NamespacePolicies({}).layers("mail") == dict.fromkeys(PolicyEntry.model_fields, BUILT_IN)


def test_dead_letter_topics_have_no_dead_letters_of_their_own() -> None:
    policies = NamespacePolicies(entries(**{"mail": {"dead": {"topic": "grave"}}, "*": {"max_attempts": 3}}))
    assert policies.of("mail").dead_topic == "grave"
    assert policies.of("grave").dead_topic is None
    assert policies.of("other").dead_topic == "other.dlq"
    assert policies.of("other.dlq").dead_topic is None
    assert [policies.of(topic).max_attempts for topic in ("mail", "grave", "other", "other.dlq")] == [3, 0, 3, 0]


def test_the_policies_of_a_version_replace_those_before() -> None:
    policies = Policies()
    first = Settings("shop").changed(entries(mail={"priority": 4}), ())
    policies.apply(first)
    assert (policies.of(("shop", "mail")).priority, policies.versions) == (4, {"shop": 1})
    assert policies.of(("other", "mail")).priority == 0
    policies.apply(first.changed({"plans/acme": "gold"}, ["topic.mail"]))
    assert (policies.of(("shop", "mail")).priority, policies.versions) == (0, {"shop": 2})
    assert policies.namespace("shop").layers("mail")["priority"] == BUILT_IN


@pytest.mark.parametrize("topic", ["mail", "mail.dlq", "other"])
def test_the_document_of_a_policy_makes_the_same_policy(topic: str) -> None:
    retry = {"kind": "linear", "step_ms": 7}
    fair = {"unit": "bytes", "weights": {"gold:*": 4}}
    mail = {"retry": retry, "lease_ms": 400, "fair": fair, "throttles": ["b", "a"]}
    made = NamespacePolicies(entries(**{"mail": mail, "*": {"priority": 3, "dead": None}}))
    document = made.document(topic)
    assert json.loads(document).keys() == PolicyEntry.model_fields.keys()
    assert NamespacePolicies({f"topic.{topic}": document}).of(topic) == made.of(topic)


def test_the_document_of_a_policy_names_its_dead_letter_topic() -> None:
    built_in = NamespacePolicies({})
    assert json.loads(built_in.document("mail"))["dead"] == {"topic": "mail.dlq", "ttl_ms": None}
    assert json.loads(built_in.document("mail.dlq"))["dead"] is None


def test_a_throttle_of_the_exact_key_wins_over_prefixes() -> None:
    policies = NamespacePolicies(
        {
            "throttle.api": '{"per_second": 10, "burst": 20}',
            "throttle.customer:*": '{"per_second": 1}',
            "throttle.customer:7": '{"per_second": 0.5, "shadow": true}',
            "throttle.c*": '{"per_second": 99}',
            "topic.mail": "{}",
        }
    )
    assert policies.throttle("api") == Throttle(10.0, 20, False, "throttle.api")
    assert policies.throttle("customer:7") == Throttle(0.5, 1, True, "throttle.customer:7")
    assert policies.throttle("customer:8") == Throttle(1.0, 1, False, "throttle.customer:*")
    assert policies.throttle("customer:8") is policies.throttle("customer:9")
    assert policies.throttle("c") == Throttle(99.0, 99, False, "throttle.c*")
    assert policies.throttle("other") is policies.throttle("mail") is NamespacePolicies({}).throttle("api") is None


@pytest.mark.parametrize(
    ("key", "given", "weight"),
    [("acme", 7, 2), ("gold:zenith", 7, 5), ("gold:b", 7, 4), ("iron", 7, 9), ("tin", 7, 7), ("tin", 0, 1), ("", 3, 3)],
)
def test_the_weight_of_a_tenant(key: str, given: int, weight: int) -> None:
    """In order: the policy's exact key and longest prefix, the settings', that of the items, 1."""
    fair = {"weights": {"acme": 2, "gold:*": 4, "gold:z*": 5}}
    settings = {"weight.acme": "8", "weight.gold:zenith": "8", "weight.ir*": "9"}
    policies = NamespacePolicies({**entries(mail={"fair": fair}), **settings})
    assert policies.weight("mail", key, given) == weight


def test_weights_of_the_settings_count_in_all_topics() -> None:
    policies = NamespacePolicies({**entries(mail={"fair": {"weights": {"a": 2}}}), "weight.*": "3", "weight.a": "4"})
    assert [policies.weight(topic, key) for topic in ("mail", "other") for key in ("a", "b", "")] == [2, 3, 3, 4, 3, 3]


@pytest.mark.parametrize("key", ["throttle.api", "weight.gold:*", "topic.mail"])
def test_namespaces_with_such_entries_have_policies(key: str) -> None:
    policies = Policies()
    value = {"throttle.api": '{"per_second": 10}', "weight.gold:*": "4", "topic.mail": "{}"}[key]
    policies.apply(Settings("shop").changed({key: value}, ()))
    policies.apply(Settings("free").changed({"plans/acme": "gold", "throttles": "x"}, ()))
    assert policies.namespaces.keys() == {"shop"}
    policies.apply(Settings("shop", 1, {key: value}).changed({"plans/acme": "gold"}, [key]))
    assert not policies.namespaces


def test_bounds_have_the_throttles_of_the_policy() -> None:
    policies = Policies()
    policies.apply(Settings("shop").changed(entries(**{"a*": {"throttles": ["y", "x"]}, "ab": {"throttles": []}}), ()))
    assert policies.bounds(("shop", "a")) == (1, 25, frozenset(), ("x", "y"), frozenset())
    assert policies.bounds(("shop", "a")) is policies.bounds(("shop", "ac"))
    assert policies.bounds(("shop", "ab")) is policies.bounds(("other", "a"))
    assert policies.bounds(("other", "a")) == (1, 25, frozenset(), (), frozenset())


def test_throttles_are_remembered_up_to_a_bound(monkeypatch: Any) -> None:
    monkeypatch.setattr(layers, "_MOST_KNOWN", 3)
    policies = NamespacePolicies({"throttle.a*": '{"per_second": 1}'})
    assert [policies.throttle(f"a{n}") is not None for n in range(10)] == [True] * 10
    assert len(policies._known_throttles) <= 3


def test_policies_are_remembered_up_to_a_bound(monkeypatch: Any) -> None:
    monkeypatch.setattr(layers, "_MOST_KNOWN", 3)
    policies = NamespacePolicies(entries(**{"a*": {"priority": 1}}))
    assert policies.of("a1") is policies.of("a1")
    assert [policies.of(f"a{n}").priority for n in range(10)] == [1] * 10
    assert len(policies._known) <= 3
