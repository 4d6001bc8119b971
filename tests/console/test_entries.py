"""Entries of settings as text, and their differences."""

from __future__ import annotations

import pytest

from foqs.console.entries import Difference, differences, editable, indented, stored
from foqs.settings_log import ValueDigest


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a": 1e400}',
        '{"a": NaN}',
        '{"a": 1.10}',
        "{",
        "[" * 99_999,
        "7",
        '{"a": "\\ud800"}',
        '{"\\udfff": 1}',
        '{"a":' + "9" * 5_000 + "}",
        f"[{' ' * 65_536}]",
    ],
)
def test_text_that_json_would_change_is_sent_as_it_is(text: str) -> None:
    assert stored("topic.mail", text) == text
    assert indented(text) == text


def test_json_of_programs_keeps_its_form() -> None:
    value = '{"a":1}'
    assert stored("plans/a", editable("plans/a", value)) == value
    assert stored("topic.a", editable("topic.a", '{"a": [1, 2]}')) == '{"a": [1, 2]}'


def test_differences_of_values() -> None:
    assert differences('{"a": 1, "b": 2}', '{"b": 3, "c": 4}') == [
        Difference("a", "1", None), Difference("b", "2", "3"), Difference("c", None, "4")
    ]  # fmt: skip
    assert differences(None, '{"a": 1}') == [Difference("", None, '{\n  "a": 1\n}')]
    assert differences("gold", None) == [Difference("", "gold", None)]
    assert differences('{"a": 1}', '{"a":1}') == [Difference("", '{\n  "a": 1\n}', '{\n  "a": 1\n}')]
    (digest,) = differences(ValueDigest(9_000, "d1"), "x")
    assert digest == Difference("", "(9,000 bytes that the log does not have, digest d1)", "x")
