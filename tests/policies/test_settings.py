"""The settings of a namespace: versions, bounds, and every error of a change at once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.errors import Conflict, Invalid
from foqs.policies.settings import MOST_BYTES, Settings, check, decode

SHOP = Settings("shop", 4, {"plans/acme": "gold", "topic.mail": '{"paused": true}'})


def test_a_change_makes_the_next_version() -> None:
    changed = SHOP.changed({"plans/zenith": "tin", "plans/acme": "iron"}, ["topic.mail"], 4)
    assert changed == Settings("shop", 5, {"plans/acme": "iron", "plans/zenith": "tin"})
    assert SHOP.entries == {"plans/acme": "gold", "topic.mail": '{"paused": true}'}


def test_another_version_than_the_expected_one_is_a_conflict() -> None:
    with pytest.raises(Conflict, match="the settings of shop have version 4, not 3"):
        SHOP.changed({"topic.mail": "wrong"}, (), 3)


def test_a_change_reports_every_error() -> None:
    with pytest.raises(Invalid) as raised:
        SHOP.changed(
            {
                "": "x",
                "a\nb": "x",
                "big": "x" * 4_097,
                "k" * 513: "x",
                "plans/acme": "x",
                "script.big": "x" * 65_537,
                "script.compiled": "\x1bLua",
                "script.route*": "function on_enqueue() end",
                "throttle.": "{}",
                "throttle.api": '{"per_second": 0, "timeout_ms": 1, "x": 2}',
                "throttle.customer:*": "10",
                "topic.": "{}",
                "topic.*": '{"paused": 1}',
                "topic.jobs*": "[]",
                "weight.": "0",
                "weight.gold": "4.0",
                "\ud800": "x",
            },
            ["plans/acme", "plans/none"],
        )
    assert raised.value.message.split("\n") == [
        "plans/acme: it is both in entries and in remove",
        "plans/none: there is no such key to remove",
        ": a key has 1 to 512 bytes, not 0",
        '"a\\nb": a key has no control characters',
        "big: the value has 4097 bytes, more than 4096",
        "k" * 80 + ": a key has 1 to 512 bytes, not 513",
        "script.big: the value has 65537 bytes, more than 65536",
        "script.compiled: a script is source text, not bytecode",
        "script.route*: the name of a script does not end in *",
        "throttle.: a name has 1 to 255 bytes, not 0",
        "throttle.: per_second or concurrency is needed",
        "throttle.api: per_second: it must be 0.001 or more, not 0",
        'throttle.api: there is no field "x"',
        "throttle.customer:*: a throttle is a JSON object, not 10",
        "topic.: a name has 1 to 255 bytes, not 0",
        "topic.*: paused: it must be true or false, not 1",
        "topic.jobs*: a topic policy is a JSON object, not []",
        "weight.: a name has 1 to 255 bytes, not 0",
        'weight.: a weight is a whole number from 1 to 1000, not "0"',
        'weight.gold: a weight is a whole number from 1 to 1000, not "4.0"',
        '"\\ud800": the key or the value is not UTF-8',
    ]


@pytest.mark.parametrize("name", ["*", "a*", "a*b", "x" * 255, "x" * 254 + "*", "é" * 127, "a.b c"])
def test_names_that_topics_and_keys_may_have(name: str) -> None:
    assert check({f"topic.{name}": "{}", f"throttle.{name}": '{"per_second": 1}', f"weight.{name}": "4"}) == []


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, "x" * 256 + "*"])
def test_names_that_no_topic_and_no_key_has(name: str) -> None:
    errors = check({f"topic.{name}": "{}", f"throttle.{name}": '{"per_second": 1}', f"weight.{name}": "4"})
    assert [error.split(", not")[0].split(": ")[-1] for error in errors] == ["a name has 1 to 255 bytes"] * 3


def test_all_entries_together_have_a_bound() -> None:
    entries = {f"key{n}": "x" * 4_000 for n in range(224)}
    fits = Settings("shop").changed(entries, ())
    assert MOST_BYTES - 4_100 < len(fits.document()) <= MOST_BYTES
    with pytest.raises(Invalid, match=r"the settings take 90\d{4} bytes, more than 900000"):
        fits.changed({"last": "x" * 4_000}, ())


texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
later = ("topic.", "throttle.", "weight.", "script.")
free = st.dictionaries(texts.filter(lambda key: not key.startswith(later)), texts)


@given(free, st.integers(0, 1 << 62))
def test_documents_read_back(entries: dict[str, str], version: int) -> None:
    settings = Settings("shop", version, entries)
    assert decode("shop", settings.encoded()) == settings


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        json.dumps({"stamp": -1, "entries": {}}).encode(),
        json.dumps({"stamp": True, "entries": {}}).encode(),
        json.dumps({"stamp": 1, "entries": []}).encode(),
        json.dumps({"stamp": 1, "entries": {"a": 1}}).encode(),
        json.dumps({"stamp": 1, "entries": {"topic.a": "x"}}).encode(),
    ],
)
def test_documents_that_are_no_settings(document: bytes) -> None:
    with pytest.raises(Invalid, match="the settings of shop are not"):
        decode("shop", document)
