"""Names of topics, fairness keys and throttle keys: what they may be, and how many bytes a throttle set has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.policies.entries import name_error, throttle_key_error, throttles_error


@pytest.mark.parametrize("name", ["a", "a*", "*", "a.b c", "é" * 127, "x" * 255, "a\u200bb", "\U0001f600"])
def test_names_that_are_taken(name: str) -> None:
    assert name_error(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "a name has 1 to 255 bytes, not 0"),
        ("x" * 256, "a name has 1 to 255 bytes, not 256"),
        ("é" * 128, "a name has 1 to 255 bytes, not 256"),
        ("a\x00", "a name has no control characters"),
        ("a\x7f", "a name has no control characters"),
        ("a\x9f", "a name has no control characters"),
        ("\ud800", "the name is not UTF-8"),
        (b"\xff", "the name is not UTF-8"),
        (b"name", "the name is not UTF-8"),
        (None, "the name is not UTF-8"),
    ],
)
def test_names_that_are_refused(name: str, why: str) -> None:
    assert name_error(name) == why
    assert throttle_key_error(name) == why


@given(st.text(st.characters(max_codepoint=300), min_size=1, max_size=4))
def test_control_characters_are_those_of_latin_1(name: str) -> None:
    control = any(ord(c) in (*range(32), *range(127, 160)) for c in name)
    assert name_error(name) == ("a name has no control characters" if control else None)


def test_a_throttle_key_is_no_pattern() -> None:
    assert throttle_key_error("customer:*") == "a throttle key does not end in *"
    assert throttle_key_error("*:customer") is None


def test_a_throttle_set_fits_its_column() -> None:
    keys = [f"{n}{'x' * 63}" for n in range(7)]
    assert throttles_error([]) is None
    assert throttles_error([*keys, "y" * 57]) is None  # 7 * 64 + 57 bytes and 7 between them
    assert throttles_error([*keys, "é" * 29]) == "the keys have 513 bytes with one between two keys, more than 512"
    assert throttles_error([str(n) for n in range(9)]) == "there are 9 keys, more than 8"
    assert throttles_error(["a", "b", "a"]) == "the key 'a' is listed more than once"
    assert throttles_error(["a", "b"], 1) == "there are 2 keys, more than 1"
    assert throttles_error(["a", "b"], 8, 2) == "the keys have 3 bytes with one between two keys, more than 2"
