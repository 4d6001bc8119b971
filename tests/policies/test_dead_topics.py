"""Policies that a topic has in vain: refused where that is certain, else with a warning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.errors import Invalid
from foqs.policies.dead_topics import namers_of, why_dead
from foqs.policies.layers import NamespacePolicies
from foqs.policies.settings import Settings, decode
from foqs.policies.topic_policy import parse

Entries = dict[str, dict[str, Any]]
TO_B, TO_C = {"dead": {"topic": "b"}}, {"dead": {"topic": "c"}}


def texts(entries: Entries) -> dict[str, str]:
    return {f"topic.{name}": json.dumps(entry) for name, entry in entries.items()}


def made(entries: Entries) -> Settings:
    return Settings("n").changed(texts(entries), ())


@pytest.mark.parametrize(
    ("entries", "keys", "names"),
    [
        ({"b": TO_B}, "topic.b", "the topic itself"),
        ({"b": {"max_attempts": 3, "dead": {"topic": "b", "ttl_ms": 5}}}, "topic.b", "the topic itself"),
        ({"b.dlq": {"dead": {"topic": "b.dlq"}}}, "topic.b.dlq", "the topic itself"),
        ({"a": TO_B, "b": {"dead": {"topic": "a"}}}, "topic.a, topic.b", "a -> b -> a"),
        ({"a": TO_B, "b": TO_C, "c": {"dead": {"topic": "a"}}}, "topic.a, topic.b, topic.c", "a -> b -> c -> a"),
        ({"x": TO_B, "b": TO_C, "c": TO_B}, "topic.b, topic.c", "b -> c -> b"),
        ({"*": TO_B, "b": TO_C}, "topic.b, topic.*", "b -> c -> b"),
        ({"a*": TO_B, "b*": {"dead": {"topic": "a"}}}, "topic.a*, topic.b*", "a -> b -> a"),
        ({"a.dlq": {"dead": {"topic": "a"}}}, "topic.a.dlq", "a -> a.dlq -> a"),
        ({"a": {"dead": {}}, "a.dlq": {"dead": {"topic": "a"}}}, "topic.a, topic.a.dlq", "a -> a.dlq -> a"),
    ],
)
def test_circles_are_refused(entries: Entries, keys: str, names: str) -> None:
    with pytest.raises(Invalid) as refused:
        made(entries)
    (line,) = refused.value.message.split("\n")
    assert line.startswith(f"{keys}: ")
    assert names in line


def test_the_last_entry_that_closes_a_circle_is_refused() -> None:
    """Also where the entry is one that goes."""
    settings = made({"*": TO_B, "b": {"dead": None, "max_attempts": 0}, "c": {"dead": None}})
    with pytest.raises(Invalid, match="b -> c -> b"):
        settings.changed(texts({"b": TO_C}), ["topic.c"])
    fine = settings.changed(texts({"b": TO_C}), ())
    with pytest.raises(Invalid, match="b -> c -> b"):
        fine.changed({}, ["topic.c"])
    with pytest.raises(Invalid, match="the topic itself"):
        settings.changed({"topic.e": '{"d\\u0065ad": {"topic": "e"}}'}, ())


def test_stored_circles_stay_readable() -> None:
    """A host has to begin, and changes of other entries are made. The faults are named."""
    stored = decode("n", Settings("n", 7, texts({"b": TO_B, "other": {}})).encoded())
    assert len(stored.faults()) == 1
    paused = stored.changed(texts({"other": {"paused": True}}), ())
    assert paused.version == 8
    with pytest.raises(Invalid, match="the topic itself"):
        paused.changed(texts({"b": TO_B | {"paused": True}}), ())
    assert paused.changed({}, ["topic.b"]).faults() == []


LIVE = {"a": TO_B, "b": {"max_attempts": 3, "max_total_ms": 5}}


@pytest.mark.parametrize(
    ("entries", "about", "parts"),
    [
        (LIVE, "b", ["max_attempts 3, max_total_ms 5 (topic.b)", "dead letters of topic.a"]),
        ({"a": TO_B, "b": {"priority": 1}}, "b", ["max_attempts 25 (built in)", "dead letters of topic.a"]),
        ({"a": TO_B, "b": {"dead": {}}}, "b", ["dead {} (topic.b)", "topic.a"]),
        ({"a": TO_B, "b*": {"max_attempts": 3}}, "b", ["max_attempts 3 (topic.b*)", "topic.a"]),
        ({"a": TO_B, "*": {"max_attempts": 3}, "b": {"paused": True}}, "b", ["max_attempts 3 (topic.*)", "topic.a"]),
        ({"*": TO_B}, "b", ['dead {"topic": "b"} (topic.*)', "dead letters of topic.*"]),
        ({"b*": TO_B | {"max_attempts": 3}}, "b", ["max_attempts 3", "dead letters of topic.b*"]),
        ({"b.dlq": {"max_attempts": 3}}, "b.dlq", ["max_attempts 3", "its name ends with .dlq"]),
        ({"b.dlq*": {"max_total_ms": 3}}, "b.dlq*", ["max_total_ms 3", "its name ends with .dlq"]),
        (
            {f"a{n}": TO_B for n in range(5)} | {"b": {"max_attempts": 1}}, "b",
            ["dead letters of topic.a0, topic.a1, topic.a2 and 2 more"],
        ),
    ],
)  # fmt: skip
def test_what_may_be_meant_otherwise_warns(entries: Entries, about: str, parts: list[str]) -> None:
    (text,) = made(entries).warnings()
    assert text.startswith(f"topic.{about}: ")
    assert "In effect max_attempts is 0" in text
    assert all(part in text for part in parts)


@pytest.mark.parametrize("name", ["b", "b.dlq", "*"])
def test_a_warning_says_how_to_accept_it(name: str) -> None:
    settings = made({"a": TO_B, name: {"max_attempts": 3, "dead": {"ttl_ms": 1}, "max_total_ms": 9}})
    (text,) = settings.warnings()
    fields, key = text.split("put ")[1].split(" in topic.")
    own = json.loads(settings.entries.get(f"topic.{key}", "{}"))
    accepted = settings.changed(texts({key: own | json.loads(fields)}), ())
    assert accepted.warnings() == []
    assert NamespacePolicies(accepted.entries).of(key).max_attempts == 0


@pytest.mark.parametrize(
    "entries",
    [
        {},
        {"a": {"max_attempts": 3}},
        {"a": {"dead": {"topic": "a.dlq"}, "max_attempts": 3}},
        {"*": {"dead": {"topic": "all.dlq"}, "max_attempts": 3}},
        {"a": TO_B, "b": {"paused": True, "closed": True}},
        {"a": TO_B, "b": {"max_attempts": 0, "dead": None, "priority": 1}},
        {"a.dlq": {"ttl_ms": 5, "paused": True}},
        {"a": {"dead": None, "max_attempts": 1}},
        {"a": {"delivery": "at_most_once"}, "*": {"max_attempts": 3}},
        {"a": {"delivery": "at_least_once", "max_attempts": 3}},
    ],
)
def test_usual_policies_do_not_warn(entries: Entries) -> None:
    assert made(entries).warnings() == []


def test_retries_of_items_that_have_one_attempt_warn() -> None:
    entry = {"delivery": "at_most_once", "max_attempts": 3, "retry": None, "dead": {}}
    (text,) = made({"a": entry}).warnings()
    assert text.startswith("topic.a: max_attempts, dead: no effect, because delivery is at_most_once")
    hook = texts({"a": {"delivery": "at_most_once", "hooks": {"on_failure": "s"}}}) | {"script.s": "return"}
    (text,) = Settings("n", 1, hook).warnings()
    assert text.startswith("topic.a: hooks.on_failure: no effect")


@pytest.mark.parametrize(("ttl_ms", "warns"), [(1, True), (5_000, True), (5_001, False), (None, False)])
def test_a_ttl_that_ends_before_the_delay_warns(ttl_ms: int | None, warns: bool) -> None:
    texts = made({"a": {"delay_ms": 5_000, "ttl_ms": ttl_ms}, "b": {"ttl_ms": 1}}).warnings()
    assert len(texts) == warns
    assert all(text.startswith(f"topic.a: ttl_ms is {ttl_ms}, no more than delay_ms, 5000") for text in texts)


def test_the_script_of_failures_of_a_dead_letter_topic_warns() -> None:
    entries = texts({"a": TO_B, "b": {"max_attempts": 0, "dead": None, "hooks": {"on_failure": "s"}}})
    (text,) = Settings("n", 1, entries | {"script.s": "return"}).warnings()
    assert text.startswith("topic.b: hooks on_failure (topic.b): no effect")


@pytest.mark.parametrize(
    ("changed", "warns"), [("topic.a", True), ("topic.b", True), ("topic.c", False), ("plans/b", False)]
)
def test_a_change_of_other_entries_does_not_warn(changed: str, warns: bool) -> None:
    assert bool(made(LIVE | {"c": {"max_attempts": 2}}).warnings({changed})) is warns


def test_why_a_topic_takes_dead_letters() -> None:
    namers = namers_of({"a": parse('{"dead": {"topic": "b"}}'), "c": parse('{"dead": null}'), "d": parse("{}")})
    assert namers == {"b": ["a"]}
    assert why_dead("b", namers) == "it takes the dead letters of topic.a"
    assert why_dead("b.dlq", namers) == "its name ends with .dlq"
    assert why_dead("a", namers) is None


def test_fields_that_a_topic_does_not_have() -> None:
    policies = NamespacePolicies(texts(LIVE))
    why = "it takes the dead letters of topic.a"
    assert policies.overruled("b") == {"max_attempts": why, "max_total_ms": why, "dead": why}
    assert policies.overruled("a") == {}
    assert policies.overruled("z.dlq") == dict.fromkeys(("max_attempts", "dead"), "its name ends with .dlq")
