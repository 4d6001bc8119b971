"""Checks of values that callers give: each error names the value, the fault and the allowed range."""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from foqs import checks
from foqs.errors import Invalid

NOW_MS = 1_764_112_000_000


class Unreadable:
    """An object whose text cannot be built."""

    def __repr__(self) -> str:
        raise RuntimeError("unreadable")

    __str__ = __repr__


class Level(enum.IntEnum):
    TWO = 2


def refusal(check: Callable[..., None], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(Invalid) as caught:
        check(*args, **kwargs)
    return caught.value.message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "count is 0: it must be an integer from 1 to 10"),
        (-3, "count is -3: it must be an integer from 1 to 10"),
        (11, "count is 11: it must be an integer from 1 to 10"),
        ("4", "count is of type str: it must be an integer from 1 to 10"),
        (True, "count is True (bool): it must be an integer from 1 to 10"),
        (4.0, "count is 4.0 (float): it must be an integer from 1 to 10"),
        (float("nan"), "count is nan (float): it must be an integer from 1 to 10"),
        (None, "count is None: it must be an integer from 1 to 10"),
        (b"4", "count is of type bytes: it must be an integer from 1 to 10"),
        (Unreadable(), "count is of type Unreadable: it must be an integer from 1 to 10"),
        (1 << 10_000, "count has 10001 bits: it must be an integer from 1 to 10"),
    ],
)
def test_an_integer_within_bounds(value: object, text: str) -> None:
    assert refusal(checks.check_int, "count", value, 1, 10) == text


def test_integers_that_are_accepted() -> None:
    for value in (1, 10, Level.TWO):
        checks.check_int("count", value, 1, 10)
    checks.check_int("count", 10**30, 1)
    checks.check_int("count", None, 1, none=True)


def test_an_error_says_the_unit_and_what_zero_means() -> None:
    assert refusal(checks.check_int, "lease_ms", -1, 0, 9, zero="at once").endswith(
        "it must be an integer from 0 (at once) to 9, in milliseconds"
    )
    assert refusal(checks.check_int, "max_bytes", -1, 0, zero="no limit").endswith(
        "it must be an integer of at least 0 (no limit), in bytes"
    )


def test_a_timedelta_and_a_datetime_get_a_remedy() -> None:
    lease = refusal(checks.check_int, "lease_ms", timedelta(seconds=3), 1, 9)
    assert lease.endswith("; of a timedelta: round(d.total_seconds() * 1000)")
    at = refusal(checks.check_time_ms, "deliver_after_ms", datetime(2026, 1, 1, tzinfo=UTC))
    assert at.endswith("; of a datetime: round(d.timestamp() * 1000)")


@pytest.mark.parametrize("value", [-0.1, 10.1, True, "1", None, float("nan"), float("inf"), 1j, Unreadable()])
def test_a_number_within_bounds(value: object) -> None:
    assert refusal(checks.check_number, "linger_ms", value, 0, 10).startswith("linger_ms ")


def test_numbers_that_are_accepted() -> None:
    for value in (0, 0.5, 10, 10.0):
        checks.check_number("linger_ms", value, 0, 10)
    checks.check_number("linger_ms", None, 0, none=True)
    assert "above 0, at most 5" in refusal(checks.check_number, "rate", 0, 0, 5, above=True)


@pytest.mark.parametrize("value", ["yes", "", 0, 1, None])
def test_only_a_bool_is_a_bool(value: object) -> None:
    assert refusal(checks.check_bool, "tracing", value).startswith("tracing is ")
    checks.check_bool("tracing", value=True)


def test_text_is_not_shown() -> None:
    secret = "s3cret" * 20
    said = refusal(checks.check_text, "token", secret, most_bytes=8)
    assert said == "token has 120 bytes: it must be text of 1 to 8 bytes"
    assert refusal(checks.check_text, "token", b"s3cret") == (
        "token is of type bytes: it must be text that is not empty"
    )
    assert "is empty" in refusal(checks.check_text, "name", "")
    assert "Unicode" in refusal(checks.check_text, "name", "\ud800")
    checks.check_text("name", "é" * 4, most_bytes=8)
    checks.check_text("name", None, none=True)


def test_bytes() -> None:
    assert refusal(checks.check_bytes, "payload", "x") == (
        "payload is of type str: it must be bytes: encode it, for example with .encode()"
    )
    assert refusal(checks.check_bytes, "payload", None) == "payload is of type NoneType: it must be bytes"
    for value in (b"", bytearray(b"x"), memoryview(b"x")):
        checks.check_bytes("payload", value)


def test_a_choice_names_all_that_are_allowed() -> None:
    assert refusal(checks.check_choice, "when_full", "drop", ("block", "raise")) == (
        "when_full is 'drop': it must be one of block, raise"
    )
    assert refusal(checks.check_choice, "when_full", None, ("block",)).startswith("when_full is None")
    checks.check_choice("when_full", "block", ("block", "raise"))


def test_a_function() -> None:
    assert refusal(checks.check_callable, "on_retry", 5, "on_retry(error, left_s)") == (
        "on_retry is 5: it must be a function, called as on_retry(error, left_s)"
    )
    checks.check_callable("on_retry", print, "on_retry()")
    checks.check_callable("on_retry", None, "on_retry()", none=True)


@pytest.mark.parametrize(
    ("topics", "text"),
    [
        ([], "topics is empty: give at least one topic"),
        (["a", "b", "a"], "topics has 'a' twice: give each topic once"),
        (["a", ""], "topics: topic is empty"),
        (["a", b"b"], "topics: topic is of type bytes"),
        (b"a", "topics is of type bytes"),
        (iter(["a"]), "topics is of type list_iterator: it must be a list of texts, one for each topic"),
        (5, "topics is 5"),
        (None, "topics is None"),
    ],
)
def test_distinct_names(topics: Any, text: str) -> None:
    assert refusal(checks.check_distinct, "topics", topics, "topic").startswith(text)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (NOW_MS // 1000, "in January 1970: give Unix epoch milliseconds (of seconds"),
        (946_684_800, "in January 1970"),
        (60_000, "no duration"),
        (NOW_MS * 1000, "not microseconds"),
        (NOW_MS * 1_000_000, "not microseconds"),
        (float(NOW_MS), "it must be an integer"),
        (True, "it must be an integer"),
        (1 << 64, "it must be an integer"),
    ],
)
def test_a_time_in_another_unit(value: object, words: str) -> None:
    said = refusal(checks.check_time_ms, "deliver_after_ms", value)
    assert said.startswith("deliver_after_ms is ") and words in said


def test_times_that_are_accepted() -> None:
    for value in (0, 1, -(10**12), -(1 << 63), NOW_MS, NOW_MS + 366 * 86_400_000, 10**11):
        checks.check_time_ms("deliver_after_ms", value)
    checks.check_time_ms("deliver_after_ms", None, none=True)
