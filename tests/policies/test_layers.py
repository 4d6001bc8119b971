"""For each field on its own: the exact name wins over the longest prefix, over `topic.*`, over the built-in value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.policies import layers
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
    made = NamespacePolicies(entries(**{"mail": {"retry": retry, "lease_ms": 400}, "*": {"priority": 3, "dead": None}}))
    document = made.document(topic)
    assert json.loads(document).keys() == PolicyEntry.model_fields.keys()
    assert NamespacePolicies({f"topic.{topic}": document}).of(topic) == made.of(topic)


def test_the_document_of_a_policy_names_its_dead_letter_topic() -> None:
    built_in = NamespacePolicies({})
    assert json.loads(built_in.document("mail"))["dead"] == {"topic": "mail.dlq", "ttl_ms": None}
    assert json.loads(built_in.document("mail.dlq"))["dead"] is None


def test_policies_are_remembered_up_to_a_bound(monkeypatch: Any) -> None:
    monkeypatch.setattr(layers, "_MOST_KNOWN", 3)
    policies = NamespacePolicies(entries(**{"a*": {"priority": 1}}))
    assert policies.of("a1") is policies.of("a1")
    assert [policies.of(f"a{n}").priority for n in range(10)] == [1] * 10
    assert len(policies._known) <= 3
